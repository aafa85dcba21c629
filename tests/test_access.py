"""Who may: closed by default, narrowed by authorize, and nobody is told of what they may not see."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import marshmallow as ma
import pytest
import sqlalchemy as sa
from conftest import Database, Host, MakeHost, add_dags
from flask import Flask, abort, request, session
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_backfill import FlaskBackfill
from flask_backfill.views import ROUTES, Route

BODY = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-05"}

#: What authorize is asked by every route; None where there is no DAG to ask about. A new route has to be put here.
ACTIONS: dict[str, str | None] = {
    "createBackfill": "create",
    "createBackfillDryRun": "dry_run",
    "listBackfills": "read",
    "getBackfill": "read",
    "listBackfillDagRuns": "read",
    "pauseBackfill": "pause",
    "unpauseBackfill": "unpause",
    "cancelBackfill": "cancel",
    "listDags": "read",
    "getDag": "read",
    "getOpenapi": None,
    "getDocs": None,
    "getDocsAsset": None,
}
LISTS = {"listBackfills", "listDags"}
ON_BACKFILLS = [route for route in ROUTES if "backfill_id" in route.parameters]
ON_DAGS = [route for route in ROUTES if route.body or "dag_id" in route.parameters]
PAGES = [route for route in ROUTES if ACTIONS.get(route.operation_id, "") is None]

View = Callable[..., Any]


def ask(
    host: Host,
    route: Route,
    *,
    backfill_id: int = 1,
    dag_id: str = "daily",
    user: str | None = None,
    changes: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> TestResponse:
    """Send a request that a route can answer. Users say who they are in a header."""
    path = route.path.format(backfill_id=backfill_id, dag_id=dag_id, asset="docs.js")
    if route.method == "POST":
        more = {"json": BODY | {"dag_id": dag_id} | (changes or {}) if route.body else {}} | more
    all_headers = ({"X-User": user} if user else {}) | (headers or {})
    return host.client.open(f"/api/v2{path}", **({"method": route.method} | more), headers=all_headers, buffered=True)


def walk(host: Host, **more: Any) -> dict[str, TestResponse]:
    """Ask every route. On empty tables all can be answered: the create comes first, and makes backfill 1."""
    return {route.operation_id: ask(host, route, **more) for route in ROUTES}


def statuses(answers: dict[str, TestResponse]) -> set[int]:
    return {answer.status_code for answer in answers.values()}


@contextmanager
def untouched(host: Host, statements: int | None = None) -> Iterator[None]:
    """Require that no table is changed, and how many statements there are."""
    with host.app.app_context():
        engine = host.db.engine
    executed: list[str] = []

    def note(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        executed.append(statement)

    before = host.tables()
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    assert host.tables() == before
    assert statements is None or len(executed) == statements, executed


def test_every_route_is_walked() -> None:
    assert set(ACTIONS) == {route.operation_id for route in ROUTES}
    walked = LISTS.union(route.operation_id for route in (*ON_BACKFILLS, *ON_DAGS, *PAGES))
    assert walked == set(ACTIONS)


# -- closed by default


@pytest.mark.parametrize(
    "arguments",
    [{}, {"decorators": []}, {"authorize": lambda *_: True}, {"current_user": lambda: "ada"}],
    ids=["nothing", "no-decorator", "authorize", "current-user"],
)
@pytest.mark.parametrize("method", [None, "HEAD"])
def test_closed_by_default(
    sqlite: Database,
    make_host: MakeHost,
    caplog: pytest.LogCaptureFixture,
    arguments: dict[str, Any],
    method: str | None,
) -> None:
    host = make_host(sqlite, **({"allow_anonymous": False} | arguments))
    for route in ROUTES:
        if method and route.method != "GET":
            continue
        caplog.clear()
        with untouched(host, statements=0):
            answer = ask(host, route, method=method or route.method)
        assert (answer.status_code, answer.mimetype) == (403, "application/problem+json"), route
        assert method or answer.json["status"] == 403
        (record,) = caplog.records
        assert (record.name, record.levelno) == ("flask_backfill", logging.ERROR)
        assert "decorators=[login_required]" in record.message
        assert "allow_anonymous=True" in record.message


def test_allow_anonymous_opens_everything(sqlite_host: Host, caplog: pytest.LogCaptureFixture) -> None:
    answers = walk(sqlite_host)
    assert statuses(answers) == {200}
    assert answers["createBackfill"].json["triggering_user_name"] is None
    assert not caplog.records


# -- authorize: people, and what they may


DAGS = ("daily", "etl", "frozen", "hourly", "manual", "neighbour", "strict")
GONE = "gone"  # a DAG that is in no code any more, but has a backfill
HAVE_BACKFILLS = {1: "daily", 2: "neighbour", 3: "etl", 4: GONE, 5: "etl"}
ENDED = 3
ALL = ("read", "create", "dry_run", "pause", "unpause", "cancel")

Rights = set[tuple[str, str]]
PEOPLE: dict[str, Rights] = {
    "guest": set(),
    "reader": set(product(["read"], (*DAGS, GONE))),
    "keeper": set(product(ALL, ["daily"])),
    "keeper of the gone": set(product(ALL, [GONE])),
    # Reads some, acts on another one, and may act on a third without reading it.
    "mixed": {
        ("read", "daily"),
        ("read", "frozen"),
        *product(ALL, ["etl"]),
        *product(ALL[1:], ["neighbour", "hourly"]),
    },
    "root": set(product(ALL, (*DAGS, GONE))),
}
ONE_ACTION = {f"only {action}": {("read", "daily"), (action, "daily")} for action in ALL}
RIGHTS = PEOPLE | ONE_ACTION


@dataclass
class Office:
    """A host whose people have rights, and what authorize was asked."""

    host: Host
    asked: list[tuple[str, str]] = field(default_factory=list)

    def ask(self, user: str | None, route: Route, **more: Any) -> TestResponse:
        self.asked.clear()
        answer = ask(self.host, route, user=user, **more)
        assert len(self.asked) == len(set(self.asked)), f"{route.operation_id} asked twice: {self.asked}"
        return answer

    def get(self, user: str, path: str) -> Any:
        answer = self.host.client.get(f"/api/v2{path}", headers={"X-User": user})
        assert answer.status_code == 200, answer.text
        return answer.json


class Params(ma.Schema):
    number = ma.fields.Integer(required=True)


def do_nothing(run: object) -> None:
    pass


def add_all_dags(backfill: FlaskBackfill) -> None:
    add_dags(backfill)
    for dag_id, arguments in {
        "frozen": {"schedule": "@daily", "allow_backfill": False},
        "manual": {"schedule": None},
        "strict": {"schedule": "@daily", "depends_on_past": True, "params": Params},
    }.items():
        backfill.dag(dag_id, **arguments).task(do_nothing)


def by_memory(host: Host, user: str | None, action: str, dag_id: str) -> bool:
    return (action, dag_id) in RIGHTS.get(user or "", ())


def by_session(host: Host, user: str | None, action: str, dag_id: str) -> bool:
    grants = host.db.metadata.tables["grants"]
    query = sa.select(sa.func.count()).select_from(grants).filter_by(user_name=user, action=action, dag_id=dag_id)
    return bool(host.db.session.scalar(query))


def by_connection(host: Host, user: str | None, action: str, dag_id: str) -> bool:
    """Look rights up on a connection of its own, beside the one that holds the package's locks."""
    query = "SELECT 1 FROM grants WHERE user_name = :user AND action = :action AND dag_id = :dag_id"
    with host.db.engine.connect() as connection:
        values = {"user": user, "action": action, "dag_id": dag_id}
        return connection.execute(sa.text(query), values).first() is not None


LookUp = Callable[[Host, "str | None", str, str], bool]


def make_office(database: Database, make_host: MakeHost, look_up: LookUp, **arguments: Any) -> Office:
    def let_in(view: View) -> View:
        def wrapper(**values: Any) -> Any:
            return view(**values) if "X-User" in request.headers else abort(401)

        return wrapper

    def authorize(action: str, dag_id: str) -> bool:
        office.asked.append((action, dag_id))
        return look_up(office.host, request.headers.get("X-User"), action, dag_id)

    def configure(app: Flask, db: SQLAlchemy) -> None:
        names = ("user_name", "action", "dag_id")
        grants = sa.Table("grants", db.metadata, *(sa.Column(name, sa.String(80)) for name in names))
        for error in (RuntimeError, 418):
            app.register_error_handler(error, lambda _: ("the host's", 418))

        @app.before_request
        def write() -> None:
            if "X-Write" in request.headers:
                db.session.execute(sa.insert(grants).values(user_name="x"))

    defaults = {
        "dags": add_all_dags,
        "decorators": [let_in],
        "allow_anonymous": False,
        "authorize": authorize,
        "current_user": lambda: request.headers["X-User"],
        "configure": configure,
    }
    host = make_host(database, **(defaults | arguments))
    office = Office(host)
    grants = host.db.metadata.tables["grants"]
    rows = [
        {"user_name": user, "action": action, "dag_id": dag_id}
        for user, rights in RIGHTS.items()
        for action, dag_id in rights
    ]
    with database.connect().begin() as connection:
        connection.execute(sa.insert(grants), rows)
    create, cancel = (next(route for route in ROUTES if route.view.__name__ == name) for name in ("create", "cancel"))
    for dag_id in ("daily", "neighbour", "etl", "hourly"):
        assert ask(host, create, user="root", dag_id=dag_id).status_code == 200
    assert ask(host, cancel, user="root", backfill_id=ENDED).status_code == 200
    host.execute("UPDATE backfill SET dag_id = 'gone', active_dag_id = 'gone' WHERE dag_id = 'hourly'")
    host.execute("UPDATE dag_run SET dag_id = 'gone' WHERE dag_id = 'hourly'")
    assert ask(host, create, user="root", dag_id="etl").status_code == 200
    assert dict(host.query("SELECT id, dag_id FROM backfill")) == HAVE_BACKFILLS
    return office


LOOK_UPS = {"memory": by_memory, "session": by_session, "connection": by_connection}


@pytest.fixture(params=LOOK_UPS)
def look_up(request: pytest.FixtureRequest) -> LookUp:
    return LOOK_UPS[request.param]


def targets(route: Route) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return every DAG that a route can be asked about: its id, how to ask for it, how for one that is not there.

    What is not there has as long an id as what is, so that answers can be compared whole.
    """
    if route in ON_BACKFILLS:
        for backfill_id, dag_id in HAVE_BACKFILLS.items():
            yield dag_id, {"backfill_id": backfill_id}, {"backfill_id": 9}
    elif route in ON_DAGS:
        for dag_id in DAGS:
            yield dag_id, {"dag_id": dag_id}, {"dag_id": "x" * len(dag_id)}


def assert_same(answer: TestResponse, other: TestResponse, asked: dict[str, Any], absent: dict[str, Any]) -> None:
    """Require that two answers differ in nothing but the id one asked with."""
    ((name, value),) = asked.items()
    data = answer.data.replace(f"{value}".encode(), f"{absent[name]}".encode()) if name == "dag_id" else answer.data
    assert (answer.status, list(answer.headers), data) == (other.status, list(other.headers), other.data)


def expected_status(route: Route, dag_id: str, backfill_id: int | None, rights: Rights) -> int:
    action = ACTIONS[route.operation_id]
    if ("read", dag_id) not in rights:
        return 404
    if (action, dag_id) not in rights:
        return 403
    if route.body:
        if dag_id in ("frozen", "manual", "strict"):
            return {"frozen": 400, "manual": 422, "strict": 422}[dag_id]
        return 409 if action == "create" and dag_id in HAVE_BACKFILLS.values() else 200
    return 409 if backfill_id == ENDED and route.method == "PUT" else 200


def walk_as(office: Office, user: str) -> None:
    """Ask every route about everything: first what is refused, which changes nothing, then what is allowed."""
    for route in ROUTES:
        action = ACTIONS[route.operation_id]
        cases = [
            (expected_status(route, dag_id, there.get("backfill_id"), RIGHTS[user]), dag_id, there, absent)
            for dag_id, there, absent in targets(route)
        ]
        with untouched(office.host):
            for status, dag_id, there, absent in cases:
                if status not in (403, 404):
                    continue
                answer = office.ask(user, route, **there)
                assert answer.status_code == status, (route.operation_id, dag_id, answer.text)
                assert ("read", dag_id) in office.asked
                assert {name for _, name in office.asked} == {dag_id}
                if status == 404:
                    assert_same(answer, office.ask(user, route, **absent), there, absent)
                else:
                    may_not = f"You may see DAG {dag_id}, but not do this ({action}). Nothing was changed."
                    assert answer.json["detail"] == may_not
        for status, dag_id, there, _ in cases:
            if status not in (403, 404):
                answer = office.ask(user, route, **there)
                assert answer.status_code == status, (route.operation_id, dag_id, answer.text)
                assert set(office.asked) == {("read", dag_id), (action, dag_id)}


@pytest.mark.parametrize("user", PEOPLE)
def test_every_route_as(database: Database, make_host: MakeHost, user: str) -> None:
    office = make_office(database, make_host, by_session)
    assert_lists(office, user)
    walk_as(office, user)


def test_rights_can_be_anywhere(sqlite: Database, make_host: MakeHost, look_up: LookUp) -> None:
    office = make_office(sqlite, make_host, look_up)
    assert_lists(office, "mixed")
    walk_as(office, "mixed")


@pytest.mark.parametrize("user", ONE_ACTION)
def test_every_action_is_a_right_of_its_own(sqlite: Database, make_host: MakeHost, user: str) -> None:
    walk_as(make_office(sqlite, make_host, by_memory), user)


def assert_lists(office: Office, user: str) -> None:
    """Require that lists and their totals hold what one may read, whatever one filters by."""
    rights = RIGHTS[user]
    routes = {route.operation_id: route for route in ROUTES}
    everything = office.get("root", "/backfills")["backfills"]
    assert {backfill["id"]: backfill["dag_id"] for backfill in everything} == HAVE_BACKFILLS
    readable = [backfill for backfill in everything if ("read", backfill["dag_id"]) in rights]
    filters = product((None, "daily", "etl", GONE, "nothing"), (None, "queued", "cancelled"), (None, True, False))
    for dag_id, state, active in filters:
        found = [
            backfill
            for backfill in readable
            if dag_id in (None, backfill["dag_id"])
            and state in (None, backfill["state"])
            and active in (None, backfill["completed_at"] is None)
        ]
        query = {"dag_id": dag_id, "state": state, "active": None if active is None else str(active).lower()}
        query = {name: value for name, value in query.items() if value is not None}
        answer = office.ask(user, routes["listBackfills"], query_string=query)
        assert answer.json == {"backfills": found, "total_entries": len(found)}, query
        assert {action for action, _ in office.asked} == {"read"}
    assert {dag_id for _, dag_id in office.asked} >= set(HAVE_BACKFILLS.values())
    for offset, order_by in product((0, 1, 4), ("id", "-id")):
        page = readable[::-1] if order_by == "-id" else readable
        answer = office.get(user, f"/backfills?limit=1&offset={offset}&order_by={order_by}")
        assert answer == {"backfills": page[offset : offset + 1], "total_entries": len(readable)}
    dags = office.get("root", "/dags")["dags"]
    active = {dag["dag_id"]: dag["active_backfill_id"] for dag in dags}
    assert active == dict.fromkeys(DAGS) | {"daily": 1, "neighbour": 2, "etl": 5}
    found = [dag for dag in dags if ("read", dag["dag_id"]) in rights]
    answer = office.ask(user, routes["listDags"])
    assert answer.json == {"dags": found, "total_entries": len(found)}
    assert sorted(office.asked) == [("read", dag_id) for dag_id in DAGS]
    for dag in found:
        assert office.get(user, f"/dags/{dag['dag_id']}") == dag
    for backfill in readable:
        assert office.get(user, f"/backfills/{backfill['id']}") == backfill
        dates = office.get(user, f"/backfills/{backfill['id']}/dag_runs")
        assert dates == office.get("root", f"/backfills/{backfill['id']}/dag_runs")
        assert dates["total_entries"] == backfill["dag_run_counts"]["total"]


@pytest.mark.parametrize("asset", [None, "swagger-ui.css", "favicon-32x32.png", "nothing.js"])
def test_who_is_not_let_in_is_asked_nothing(sqlite: Database, make_host: MakeHost, asset: str | None) -> None:
    office = make_office(sqlite, make_host, by_memory)
    with untouched(office.host, statements=0):
        for route in ROUTES:
            answers = [office.ask(None, route, **more) for _, *both in targets(route) for more in both]
            if not answers:
                path = route.path.format(asset=asset or "docs.js")
                answers = [office.host.client.open(f"/api/v2{path}", method=route.method)]
            assert {(answer.status_code, answer.data) for answer in answers} == {(401, answers[0].data)}, route
            assert not office.asked


def test_pages_and_descriptions_name_no_dag(sqlite: Database, make_host: MakeHost, tmp_path: Any) -> None:
    office = make_office(sqlite, make_host, by_memory)
    empty = make_host(Database("sqlite", f"sqlite:///{tmp_path / 'empty.db'}"), dags=lambda _: None)
    for route in PAGES:
        with untouched(office.host, statements=0):
            answer = office.ask("guest", route)
        assert (answer.status_code, answer.data) == (200, ask(empty, route).data)
        assert answer.data == office.ask("root", route).data


# -- what could betray that something is there


WRONG: dict[str, dict[str, Any]] = {
    "future": {"changes": {"from_date": "2198-01-01", "to_date": "2198-01-02"}},
    "too many": {"changes": {"from_date": "1990-01-01", "to_date": "2025-03-01"}},
    "conf": {"changes": {"dag_run_conf": {"number": "x"}}},
    "backwards": {"changes": {"run_backwards": True, "reprocess_behavior": "completed"}},
    "no integer": {"changes": {"max_active_runs": "3"}},
    "no JSON": {"data": b"{", "json": None, "content_type": "application/json"},
    "form": {"data": {"dag_id": "daily"}, "json": None},
    "key": {"headers": {"Idempotency-Key": "k"}},
    "empty key": {"headers": {"Idempotency-Key": ""}},
    "filter": {"query_string": "state=queued&limit=1&offset=1"},
    "wrong filter": {"query_string": "state=wrong"},
    "HEAD": {"method": "HEAD"},
    "OPTIONS": {"method": "OPTIONS"},
    "PATCH": {"method": "PATCH"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_request_betrays_nothing(sqlite: Database, make_host: MakeHost, wrong: str) -> None:
    office = make_office(sqlite, make_host, by_memory)
    with untouched(office.host):
        for route in ROUTES:
            for _, there, absent in targets(route):
                answers = [office.ask("guest", route, **asked, **WRONG[wrong]) for asked in (there, absent)]
                assert_same(*answers, there, absent)


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_locked_file_betrays_nothing(sqlite: Database, make_host: MakeHost, look_up: LookUp, begin: str) -> None:
    """Where rights are in the database, too: what is not there has to be asked for as what is."""
    office = make_office(sqlite, make_host, look_up, engine_options={"connect_args": {"timeout": 0.01}})
    with untouched(office.host), sqlite.connect().connect() as other:
        other.exec_driver_sql(begin)
        for route in ROUTES:
            for _, there, absent in targets(route):
                answers = [office.ask("guest", route, **asked) for asked in (there, absent)]
                assert answers[0].status_code in (404, 503)
                assert_same(*answers, there, absent)
        other.rollback()


def test_a_locked_row_betrays_nothing(server: Database, make_host: MakeHost) -> None:
    office = make_office(server, make_host, by_memory)
    with untouched(office.host), server.connect().connect() as other:
        other.exec_driver_sql("SELECT id FROM backfill WHERE id = 1 FOR UPDATE")
        for route in ON_BACKFILLS:
            answers = [office.ask("guest", route, backfill_id=number) for number in (1, 9)]
            assert_same(*answers, {"backfill_id": 1}, {"backfill_id": 9})
            assert answers[0].status_code == 404


@pytest.mark.parametrize("routes", [ON_DAGS, ON_BACKFILLS], ids=["DAGs", "backfills"])
def test_headers_betray_nothing(sqlite: Database, make_host: MakeHost, routes: list[Route]) -> None:
    """Flask says 'Vary: Cookie' once the session was read, which authorize does where it asks who is logged in."""

    def look_up(host: Host, user: str | None, action: str, dag_id: str) -> bool:
        return user == "root" or session.get("user") == "root"

    office = make_office(sqlite, make_host, look_up, config={"SECRET_KEY": "secret"})
    for route in routes:
        for _, there, absent in targets(route):
            assert_same(*(office.ask("guest", route, **asked) for asked in (there, absent)), there, absent)


# -- Idempotency-Key


def test_a_key_is_its_users_own(database: Database, make_host: MakeHost) -> None:
    """Somebody else gets what a key that nobody has used gets."""
    office = make_office(database, make_host, lambda *asked: asked[1] != "guest")
    host, create = office.host, ROUTES[0]
    host.execute("UPDATE backfill SET active_dag_id = NULL, completed_at = created_at")

    def post(user: str, key: str, dag_id: str) -> tuple[int, Any]:
        answer = office.ask(user, create, dag_id=dag_id, headers={"Idempotency-Key": key})
        return answer.status_code, answer.json

    status, first = post("ada", "used", "hourly")
    assert status == 200
    assert post("ada", "used", "hourly") == (200, first)
    assert post("ada", "used", "etl")[0] == 422
    with untouched(host):
        assert post("bob", "used", "hourly") == post("bob", "free", "hourly")
        assert post("bob", "used", "hourly")[0] == 409
        assert post("guest", "used", "hourly") == post("guest", "free", "hourly")
        assert post("guest", "used", "hourly")[0] == 404
    status, second = post("bob", "used", "neighbour")
    assert (status, second["triggering_user_name"]) == (200, "bob")
    assert post("ada", "used", "hourly") == (200, first)
    assert post("bob", "used", "neighbour") == (200, second)


def test_keys_of_users_with_long_names_are_apart(sqlite: Database, make_host: MakeHost) -> None:
    """The column has room for 250 characters; the key is made from all of them."""
    office = make_office(sqlite, make_host, lambda *_: True)
    office.host.execute("UPDATE backfill SET active_dag_id = NULL, completed_at = created_at")
    answers = [
        office.ask("n" * 250 + end, ROUTES[0], dag_id=dag_id, headers={"Idempotency-Key": "k"})
        for end, dag_id in (("1", "daily"), ("2", "etl"))
    ]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {answer.json["triggering_user_name"] for answer in answers} == {"n" * 250}


@pytest.mark.parametrize("names", [{}, {"current_user": lambda: None}], ids=["rights-withdrawn", "without-names"])
def test_a_used_key_does_not_tell_of_a_backfill_one_may_not_read(
    sqlite: Database, make_host: MakeHost, names: dict[str, Any]
) -> None:
    """The same user whose rights were withdrawn, or somebody else where no current_user tells them apart."""
    rights = {"daily", "neighbour"}
    office = make_office(sqlite, make_host, lambda *asked: asked[1] == "root" or asked[3] in rights, **names)
    office.host.execute("UPDATE backfill SET active_dag_id = NULL, completed_at = created_at WHERE dag_id = 'daily'")
    key = {"Idempotency-Key": "k"}
    made = office.ask("ada", ROUTES[0], headers=key)
    assert made.status_code == 200
    rights.remove("daily")
    with untouched(office.host):
        assert office.ask("ada", ROUTES[0], headers=key).status_code == 404
        answer = office.ask("ada", ROUTES[0], dag_id="neighbour", headers=key)
    assert answer.status_code == 422
    assert f"backfill {made.json['id']}" not in answer.text


# -- an authorize that fails


@pytest.mark.parametrize("error", [RuntimeError("no rights today"), 418], ids=["raises", "aborts"])
def test_an_authorize_that_fails_changes_nothing(
    database: Database, make_host: MakeHost, error: Exception | int
) -> None:
    """It reaches the host's own handlers, and what the host wrote in this request is rolled back."""
    failing = ""

    def look_up(host: Host, user: str | None, action: str, dag_id: str) -> bool:
        if action != failing:
            return True
        if isinstance(error, int):
            abort(error)
        raise error

    office = make_office(database, make_host, look_up)
    writes = {"X-Write": "yes"}
    for failing in ALL:
        with untouched(office.host):
            for route in ROUTES:
                asks_it = failing in ("read", ACTIONS[route.operation_id]) and route not in PAGES
                for more in [there for _, there, _ in targets(route)] if asks_it else []:
                    answer = office.ask("ada", route, headers=writes, **more)
                    assert (answer.status_code, answer.text) == (418, "the host's"), route
    failing = ""
    assert office.ask("ada", ROUTES[0], dag_id="hourly", headers=writes).status_code == 200
    assert office.host.query("SELECT count(*) FROM grants WHERE user_name = 'x'") == [(1,)]
