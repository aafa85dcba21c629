"""The create, as a client sees it and as it stands in the tables afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import marshmallow as ma
import pytest
import sqlalchemy as sa
from conftest import Database, Host, MakeHost, day, days
from flask import Flask, request
from flask_sqlalchemy import SQLAlchemy

BODY = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-05"}


def nothing(run: object) -> None:
    pass


def rows(host: Host, name: str = "DagRun", **where: Any) -> list[Any]:
    """Return the rows of one of the package's tables, in the order of their keys, as a second connection sees them."""
    models = host.backfill.models
    table = models.table(getattr(models, name))
    with host.database.connect().connect() as connection:
        return list(connection.execute(sa.select(table).filter_by(**where).order_by(*table.primary_key)))


def work_off(host: Host, state: str = "success") -> None:
    """End what is active, as a worker does."""
    host.execute(
        "UPDATE dag_run SET state = :state, previous_state = NULL, try_number = try_number + 1, lost_tries = 1, "
        "started_at = '2025-04-01 00:00:00', ended_at = '2025-04-01 00:00:01', error = 'x' WHERE state = 'queued'",
        state=state,
    )
    host.execute("UPDATE task_instance SET state = :state, try_number = 1", state=state)
    host.execute("UPDATE backfill SET state = :state, active_dag_id = NULL, completed_at = created_at", state=state)


@contextmanager
def counting(host: Host) -> Iterator[list[int]]:
    """Collect the statements that are executed; an executemany counts as its parameter sets."""
    counted: list[int] = []

    def count(conn: Any, cursor: Any, statement: str, parameters: Any, context: Any, executemany: bool) -> None:
        counted.append(len(parameters) if executemany else 1)

    with host.app.app_context():
        engine = host.db.engine
    sa.event.listen(engine, "before_cursor_execute", count)
    try:
        yield counted
    finally:
        sa.event.remove(engine, "before_cursor_execute", count)


# -- which runs


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        ("none", "queued queued already_exists already_exists in_flight in_flight"),
        ("failed", "queued queued queued already_exists in_flight in_flight"),
        ("completed", "queued queued queued queued in_flight in_flight"),
    ],
    ids=["none", "failed", "completed"],
)
def test_the_reprocess_table_on_real_rows(host: Host, behavior: str, expected: str) -> None:
    """On the 1st no run; a run that runs elsewhere is left alone (AF 16087)."""
    states = ["cancelled", "failed", "success", "queued", "running"]
    for number, state in enumerate(states, start=2):
        host.record("daily", state, day(number))
    before = rows(host)
    backfill = host.create(last="2025-03-06", reprocess_behavior=behavior)
    dates = host.dates(backfill["id"])
    said = [(date["exception_reason"] or date["state"]).replace(" ", "_") for date in dates]
    assert said == expected.split()
    queued = said.count("queued")
    assert backfill["dag_run_counts"] == host.get(f"/backfills/{backfill['id']}").json["dag_run_counts"]
    assert [backfill["dag_run_counts"][state] for state in ("queued", "skipped", "total")] == [queued, 6 - queued, 6]
    after = rows(host)
    assert [run.id for run in after[:5]] == [run.id for run in before]
    assert len(after) == 6
    for was, run, outcome in zip(before, after, said[1:], strict=False):
        assert (run.state, run.previous_state) == ("queued", was.state) if outcome == "queued" else run == was
    assert len(rows(host, "TaskInstance")) == queued


def test_a_redo_is_the_same_run_again(host: Host) -> None:
    first = host.create("etl", last="2025-03-02")
    work_off(host)
    before = rows(host)
    second = host.create("etl", last="2025-03-03", reprocess_behavior="completed")
    after = rows(host)
    assert [run.id for run in after[:2]] == [run.id for run in before]
    assert [(run.state, run.try_number, run.lost_tries, run.backfill_id) for run in after] == [
        ("queued", 1, 0, second["id"]),
        ("queued", 1, 0, second["id"]),
        ("queued", 0, 0, second["id"]),
    ]
    assert [run.data_interval_end for run in after] == days(2, 4)
    tasks = rows(host, "TaskInstance")
    assert {(task.dag_run_id, task.task_id) for task in tasks} == {
        (run.id, task_id) for run in after for task_id in ("extract", "transform", "load")
    }
    assert (len(tasks), {task.state for task in tasks}) == (9, {"queued"})
    links = rows(host, "BackfillDagRun", backfill_id=second["id"])
    assert [link.dag_run_id for link in links] == [run.id for run in after]
    for date in host.dates(second["id"]):
        assert (date["started_at"], date["ended_at"], date["error"]) == (None, None, None)
    assert host.get(f"/backfills/{first['id']}").json["dag_run_counts"]["superseded"] == 2


class Params(ma.Schema):
    """Completes a conf."""

    factor = ma.fields.Integer(load_default=3)
    region = ma.fields.String()


@pytest.mark.parametrize(
    ("dag_id", "conf", "redone", "new"),
    [
        ("daily", None, {"region": "north"}, None),
        ("daily", {}, {}, {}),
        ("daily", {"a": [None, "ü"]}, {"a": [None, "ü"]}, {"a": [None, "ü"]}),
        ("checked", None, {"region": "north", "factor": 3}, {"factor": 3}),
        ("checked", {}, {"factor": 3}, {"factor": 3}),
        ("checked", {"factor": 5}, {"factor": 5}, {"factor": 5}),
    ],
    ids=["null", "empty", "object", "params-null", "params-empty", "params-object"],
)
def test_conf_null_keeps_and_an_object_replaces(host: Host, dag_id: str, conf: Any, redone: Any, new: Any) -> None:
    """AF 59043, 51439, 52622: the conf of redone runs was dropped."""
    host.backfill.dag("checked", schedule="@daily", params=Params)(nothing)
    host.create(dag_id, last="2025-03-02", dag_run_conf={"region": "north"})
    work_off(host)
    backfill = host.create(dag_id, last="2025-03-03", dag_run_conf=conf, reprocess_behavior="completed")
    assert [run.conf for run in rows(host)] == [redone, redone, new]
    assert backfill["dag_run_conf"] == (None if conf is None else new)
    assert host.get(f"/backfills/{backfill['id']}").json["dag_run_conf"] == backfill["dag_run_conf"]


@pytest.mark.parametrize("before", ["@daily", None], ids=["daily", "no-schedule"])
def test_a_redo_covers_the_period_that_was_planned(database: Database, make_host: MakeHost, before: str | None) -> None:
    """The DAG had another schedule when the run was recorded; the dry run and the create go by today's."""
    old = make_host(database, dags=lambda backfill: backfill.dag("own", schedule=before)(nothing))
    old.record("own", "failed", day(1))
    host = make_host(database, dags=lambda backfill: backfill.dag("own", schedule="@hourly")(nothing))
    host.create("own", last="2025-03-01", reprocess_behavior="failed")
    assert host.dates(1)[0]["data_interval_end"] == "2025-03-01T01:00:00Z"


def test_where_all_is_skipped_the_backfill_has_ended(host: Host) -> None:
    """KE 13873: nothing was missing, and everything ran again."""
    host.record("daily", "success", *days(1, 5))
    before = rows(host)
    assert host.post("/backfills/dry_run", BODY).json["counts"] == {"create": 0, "redo": 0, "skip": 5}
    backfill = host.create()
    assert (backfill["state"], backfill["completed_at"]) == ("success", backfill["created_at"])
    assert (backfill["dag_run_counts"]["skipped"], backfill["dag_run_counts"]["total"]) == (5, 5)
    assert host.get(f"/backfills/{backfill['id']}").json == backfill
    assert rows(host) == before
    assert host.get("/backfills?active=true").json["total_entries"] == 0
    assert host.create(reprocess_behavior="completed")["dag_run_counts"]["queued"] == 5


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_every_date_has_a_row_in_its_place(host: Host, backwards: bool) -> None:
    host.record("daily", "failed", day(2))
    host.record("daily", "running", day(4))
    backfill = host.create(run_backwards=backwards)
    ids = {run.logical_date: run.id for run in rows(host)}
    reasons = {day(2): "already exists", day(4): "in flight"}
    order = days(1, 5)[::-1] if backwards else days(1, 5)
    assert [tuple(row)[:5] for row in rows(host, "BackfillDagRun")] == [
        (backfill["id"], ordinal, date, None if date in reasons else ids[date], reasons.get(date))
        for ordinal, date in enumerate(order)
    ]
    assert [date["logical_date"] for date in host.dates(backfill["id"])] == [f"{date:%Y-%m-%dT%XZ}" for date in order]


def test_other_dags_runs_are_left_alone(host: Host) -> None:
    """AF 50527: a backfill took over the runs of another DAG on the same dates."""
    host.create("neighbour")
    work_off(host, "failed")
    host.record("neighbour", "success", *days(6, 9))

    def neighbours() -> list[list[Any]]:
        tasks = [task for task in rows(host, "TaskInstance") if task.dag_run_id in ids]
        return [rows(host, dag_id="neighbour"), rows(host, "Backfill", dag_id="neighbour"), tasks]

    ids = {run.id for run in rows(host)}
    before = neighbours()
    backfill = host.create(last="2025-03-09", reprocess_behavior="completed")
    assert backfill["dag_run_counts"]["queued"] == 9
    host.put(f"/backfills/{backfill['id']}/cancel")
    assert neighbours() == before


# -- the answer


def test_location_and_body_are_what_get_answers(host: Host) -> None:
    response = host.post("/backfills", BODY | {"dag_run_conf": {"a": 1}, "max_active_runs": 3, "on_failure": "stop"})
    assert response.headers["Location"] == "/api/v2/backfills/1"
    assert host.client.get(response.headers["Location"]).json == response.json
    assert (response.json["from_date"], response.json["to_date"]) == ("2025-03-01T00:00:00Z", "2025-03-05T23:59:59Z")
    assert (response.json["max_active_runs"], response.json["on_failure"]) == (3, "stop")


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_dag_has_one_active_backfill(host: Host, state: str) -> None:
    active = host.create()
    host.execute("UPDATE backfill SET state = :state", state=state)
    before = host.tables()
    response = host.post("/backfills", BODY | {"from_date": "2024-01-01", "to_date": "2024-01-02"})
    assert (response.status_code, response.mimetype) == (409, "application/problem+json")
    assert (response.json["backfill_id"], response.json["state"]) == (active["id"], state)
    assert response.json["detail"] == "There is already a running backfill for dag daily"
    assert host.tables() == before
    assert host.post("/backfills/dry_run", BODY).status_code == 200
    host.create("neighbour")


# -- Idempotency-Key


def keyed(host: Host, body: dict[str, Any], key: str = "one") -> Any:
    return host.post("/backfills", body, headers={"Idempotency-Key": key})


def test_a_key_answers_its_backfill_as_it_is_now(host: Host) -> None:
    """DG 29282: it timed out, yet the runs appeared."""
    first = keyed(host, BODY)
    before = host.tables()
    again = keyed(host, dict(reversed(BODY.items())) | {"run_backwards": False})
    assert (again.status_code, again.json, again.headers["Location"]) == (200, first.json, first.headers["Location"])
    assert host.tables() == before
    cancelled = host.put("/backfills/1/cancel").json
    assert keyed(host, BODY).json == cancelled
    second = keyed(host, BODY, "two").json
    assert (second["id"], keyed(host, BODY).json["state"]) == (2, "cancelled")
    assert keyed(host, BODY).json["dag_run_counts"]["superseded"] == 5


@pytest.mark.parametrize(
    "other",
    [{"to_date": "2025-03-04"}, {"dag_run_conf": {}}, {"dag_id": "neighbour"}, {"max_active_runs": 9}],
    ids=lambda other: next(iter(other)),
)
def test_a_key_with_another_body_is_refused(host: Host, other: dict[str, Any]) -> None:
    """While the first is active, and after it has ended."""
    keyed(host, BODY)
    for _ in range(2):
        before = host.tables()
        response = keyed(host, BODY | other)
        assert (response.status_code, list(response.json["errors"])) == (422, ["Idempotency-Key"])
        assert host.tables() == before
        host.put("/backfills/1/cancel")


def test_only_a_200_is_remembered(host: Host) -> None:
    host.create(last="2025-03-01")
    assert keyed(host, BODY).status_code == 409
    assert keyed(host, BODY | {"to_date": "2025-02-01"}).status_code == 422
    host.put("/backfills/1/cancel")
    assert keyed(host, BODY | {"run_backwards": True}).json["id"] != 1


def test_a_key_is_its_users_own(sqlite: Database, make_host: MakeHost) -> None:
    host = make_host(sqlite, current_user=lambda: request.headers["User"])
    made = [
        host.post("/backfills", BODY | {"dag_id": dag_id}, headers={"Idempotency-Key": "one", "User": user}).json
        for dag_id, user in [("daily", "ada"), ("neighbour", "bob"), ("daily", "ada")]
    ]
    assert [(backfill["id"], backfill["triggering_user_name"]) for backfill in made] == [
        (1, "ada"),
        (2, "bob"),
        (1, "ada"),
    ]


# -- how many statements


def test_the_number_of_statements_does_not_grow(host: Host) -> None:
    """DG 10330, 3459, AF 49800: neither with the runs of the range nor with history."""
    requests = {
        "dry run": ("POST", "/backfills/dry_run"),
        "create": ("POST", "/backfills"),
        "list": ("GET", "/backfills?limit=1000"),
        "get": ("GET", "/backfills/{id}"),
        "dates": ("GET", "/backfills/{id}/dag_runs?limit=1000"),
        "DAGs": ("GET", "/dags"),
        "pause": ("PUT", "/backfills/{id}/pause"),
        "cancel": ("PUT", "/backfills/{id}/cancel"),
    }
    numbers: list[dict[str, int]] = []
    for hours, first in ((5, day(1)), (500, day(1, month=5))):
        last = first + timedelta(hours=hours - 1)
        body = {"dag_id": "hourly", "from_date": first.isoformat(), "to_date": last.isoformat()}
        host.record("hourly", "failed", *(first + timedelta(hours=2 * number) for number in range(hours // 2)))
        host.record("hourly", "success", last, *(first - timedelta(hours=number) for number in range(1, hours)))
        number: dict[str, int] = {}
        for name, (method, path) in requests.items():
            backfill_id = max((row.id for row in rows(host, "Backfill", dag_id="hourly")), default=0)
            json = body | {"reprocess_behavior": "failed"} if method == "POST" else None
            with counting(host) as counted:
                response = host.client.open(f"/api/v2{path.format(id=backfill_id)}", method=method, json=json)
            assert response.status_code == 200
            number[name] = sum(counted)
        assert response.json["dag_run_counts"]["cancelled"] == hours - 1
        assert rows(host, "BackfillDagRun", backfill_id=backfill_id)[-1].sort_ordinal == hours - 1
        numbers.append(number)
        work_off(host)
        for _ in range(5):
            host.create("neighbour", "2024-01-01", "2024-12-31")
            work_off(host, "failed")
    assert numbers[0] == numbers[1]
    assert max(numbers[0].values()) <= 20


# -- one transaction with the host


@pytest.fixture
def audited(database: Database, make_host: MakeHost) -> Host:
    """A host whose own hook writes a row within each request's transaction."""

    def configure(app: Flask, db: SQLAlchemy) -> None:
        class Audit(db.Model):  # type: ignore[name-defined]
            id = db.Column(db.Integer, primary_key=True)

        @app.before_request
        def audit() -> None:
            db.session.add(Audit())
            db.session.flush()

    def refusing(view: Callable[..., Any]) -> Callable[..., Any]:
        return lambda **arguments: ("no", 401) if "Refuse" in request.headers else view(**arguments)

    return make_host(database, configure=configure, allow_anonymous=False, decorators=[refusing])


@pytest.mark.parametrize(
    ("path", "more", "status"),
    [
        ("/backfills", {"dag_id": "neighbour"}, 200),
        ("/backfills/dry_run", {}, 200),
        ("/backfills", {}, 409),
        ("/backfills", {"dag_id": "unknown"}, 404),
        ("/backfills", {"dag_id": "neighbour", "max_active_runs": 0}, 422),
    ],
    ids=["create", "dry-run", "409", "404", "422"],
)
def test_the_request_is_one_transaction_with_the_host(
    audited: Host, path: str, more: dict[str, Any], status: int
) -> None:
    audited.create()
    before = audited.tables()
    assert len(before["audit"]) == 1
    assert audited.post(path, BODY | more).status_code == status
    after = audited.tables()
    assert len(after["audit"]) == (2 if status == 200 else 1)
    assert status == 200 or after == before


def test_what_the_host_flushed_is_gone_after_its_own_decorators_refusal(audited: Host) -> None:
    before = audited.tables()
    assert audited.post("/backfills", BODY, headers={"Refuse": "yes"}).status_code == 401
    assert audited.tables() == before


def test_what_the_host_flushed_is_gone_after_a_503(audited: Host) -> None:
    before = audited.tables()
    with audited.database.connect().connect() as other:
        if audited.database.name == "sqlite":
            other.exec_driver_sql("BEGIN")
            other.exec_driver_sql("SELECT * FROM audit").all()  # a reader: the host may flush, the COMMIT must wait
        elif audited.database.name == "postgresql":
            other.exec_driver_sql("LOCK TABLE backfill IN ACCESS EXCLUSIVE MODE")
        else:
            other.exec_driver_sql("LOCK TABLES backfill WRITE")
        assert audited.post("/backfills", BODY).status_code == 503
    assert audited.tables() == before
    audited.create()
    assert len(audited.tables()["audit"]) == 1
