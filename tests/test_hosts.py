"""Hosts of many kinds: factories, binds, names, model bases, where the API is mounted, drivers' modes, handlers."""

from __future__ import annotations

import copy
import re
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
import sqlalchemy as sa
import yaml
from conftest import Database, Host, MakeHost, days
from flask import Blueprint, Flask
from flask_sqlalchemy import SQLAlchemy
from flask_sqlalchemy.model import Model
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.orm import (
    DeclarativeBase,
    DeclarativeBaseNoMeta,
    Mapped,
    MappedAsDataclass,
    declarative_base,
    mapped_column,
    registry,
)
from sqlalchemy.schema import CreateTable

from flask_backfill import FlaskBackfill

BODY = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-05"}
TABLES = {"backfill", "dag_run", "backfill_dag_run", "task_instance"}


def table_names(database: Database) -> set[str]:
    return set(sa.inspect(database.connect()).get_table_names())


@contextmanager
def file_locked(url: str) -> Iterator[None]:
    """Hold the write lock of a SQLite file."""
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield
        connection.rollback()


def add_dag(backfill: FlaskBackfill, dag_id: str) -> None:
    @backfill.dag(dag_id, schedule="@daily")
    def task(run: object) -> None:
        pass


def lives(host: Host) -> None:
    """Go through a backfill's life over REST, on rows of every kind."""
    host.record("daily", "failed", *days(1, 2))
    host.record("daily", "success", *days(3, 3))
    preview = host.post("/backfills/dry_run", BODY | {"reprocess_behavior": "failed"})
    assert (preview.status_code, preview.json["counts"]) == (200, {"create": 2, "redo": 2, "skip": 1})
    created = host.create(reprocess_behavior="failed")
    counts = {name: number for name, number in created["dag_run_counts"].items() if number}
    assert counts == {"queued": 4, "skipped": 1, "total": 5}
    assert host.post("/backfills", BODY).status_code == 409
    assert host.put(f"/backfills/{created['id']}/pause").json["is_paused"]
    assert host.get("/dags/daily").json["active_backfill_id"] == created["id"]
    assert host.put(f"/backfills/{created['id']}/cancel").json["state"] == "cancelled"
    assert [date["state"] for date in host.dates(created["id"])] == ["cancelled"] * 2 + ["skipped"] + ["cancelled"] * 2
    assert host.get("/backfills").json["total_entries"] == 1


# -- apps and dbs


def test_two_apps_of_one_factory_do_not_see_each_other(tmp_path: Path) -> None:
    db = SQLAlchemy()
    backfill = FlaskBackfill(db, allow_anonymous=True)
    add_dag(backfill, "daily")

    def create_app(name: str) -> Flask:
        app = Flask(name)
        app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path / name}.db"
        app.config["BACKFILL_MAX_RUNS"] = {"one": 5, "two": 4}[name]
        db.init_app(app)
        backfill.init_app(app)
        with app.app_context():
            db.create_all()
        return app

    one, two = create_app("one"), create_app("two")
    try:
        assert two.test_client().post("/api/v2/backfills", json=BODY).status_code == 422  # five dates, four allowed
        assert one.test_client().post("/api/v2/backfills", json=BODY).status_code == 200
        assert two.test_client().get("/api/v2/backfills").json == {"backfills": [], "total_entries": 0}
        with file_locked(f"sqlite:///{tmp_path / 'one.db'}"):
            answer = two.test_client().post("/api/v2/backfills", json=BODY | {"to_date": "2025-03-02"})
        assert (answer.status_code, answer.json["id"]) == (200, 1)
        assert one.test_client().get("/api/v2/backfills/1").json["dag_run_counts"]["total"] == 5
    finally:
        for app in (one, two):
            with app.app_context():
                db.engine.dispose()


def test_two_dbs_in_one_process_do_not_see_each_other(tmp_path: Path, make_host: MakeHost) -> None:
    databases = [Database("sqlite", f"sqlite:///{tmp_path / name}.db") for name in ("one", "two")]
    one, two = (
        make_host(db, dags=partial(add_dag, dag_id=name))
        for db, name in zip(databases, ("daily", "nightly"), strict=True)
    )
    one.create("daily")
    assert two.post("/backfills", BODY).status_code == 404
    two.create("nightly", last="2025-03-01")
    for host, dag_id, dates in ((one, "daily", 5), (two, "nightly", 1)):
        assert [dag["dag_id"] for dag in host.get("/dags").json["dags"]] == [dag_id]
        (listed,) = host.get("/backfills").json["backfills"]
        assert (listed["id"], listed["dag_id"], listed["dag_run_counts"]["total"]) == (1, dag_id, dates)


def test_an_app_has_one(sqlite_host: Host) -> None:
    with pytest.raises(RuntimeError, match="has a FlaskBackfill already"):
        sqlite_host.backfill.init_app(sqlite_host.app)
    with pytest.raises(RuntimeError, match="has a FlaskBackfill already"):
        FlaskBackfill(sqlite_host.db, table_prefix="other_").init_app(sqlite_host.app)


def test_no_hook_on_the_hosts_other_routes(sqlite: Database, make_host: MakeHost) -> None:
    def hooks(app: Flask) -> dict[str, Any]:
        by_blueprint = {
            name: copy.copy(value.get(None))
            for name, value in vars(app).items()
            if name.endswith(("request_funcs", "_preprocessors", "_default_functions", "template_context_processors"))
        }
        assert len(by_blueprint) == 6
        return by_blueprint | {
            "errors": copy.deepcopy(app.error_handler_spec.get(None)),
            "ends": copy.copy(app.teardown_appcontext_funcs),
            "shell": copy.copy(app.shell_context_processors),
            "jinja": set(app.jinja_env.globals) | set(app.jinja_env.filters),
            "config": dict(app.config),
        }

    before: dict[str, Any] = {}
    host = make_host(sqlite, configure=lambda app, _: before.update(hooks(app)))
    assert hooks(host.app) == before


def test_connections_go_back(database: Database, make_host: MakeHost) -> None:
    host = make_host(database, engine_options={"pool_size": 1, "max_overflow": 0, "pool_timeout": 0.5})
    with host.app.app_context():
        pool = host.db.engine.pool

    def requests() -> list[int]:
        answers = [
            host.post("/backfills", BODY),
            host.post("/backfills", BODY),
            host.post("/backfills/dry_run", BODY),
            host.post("/backfills", BODY | {"max_active_runs": 0}),
            host.get("/backfills/7"),
            host.put("/backfills/1/cancel"),
        ]
        assert isinstance(pool, sa.QueuePool)
        assert pool.checkedout() == 0
        return [answer.status_code for answer in answers]

    assert requests() == [200, 409, 200, 422, 404, 200]
    with host.database.connect().connect() as other:
        if database.name == "sqlite":
            other.exec_driver_sql("BEGIN EXCLUSIVE")
        elif database.name == "postgresql":
            other.exec_driver_sql("LOCK TABLE backfill, dag_run IN ACCESS EXCLUSIVE MODE")
        else:
            other.exec_driver_sql("LOCK TABLES backfill WRITE, dag_run WRITE")
        assert set(requests()) == {503, 422}
        other.rollback()
    assert requests()[0] == 200


# -- binds and names


@pytest.fixture
def bound(sqlite: Database, tmp_path: Path, make_host: MakeHost) -> Host:
    """A host with its own row of each request in one file, and the API's tables in another."""

    def configure(app: Flask, db: SQLAlchemy) -> None:
        class Audit(db.Model):  # type: ignore[name-defined]
            id = db.Column(db.Integer, primary_key=True)

        @app.before_request
        def audit() -> None:
            db.session.add(Audit())
            db.session.flush()

    binds = {"jobs": {"url": f"sqlite:///{tmp_path / 'jobs.db'}", "connect_args": {"timeout": 0.2}}}
    host = make_host(sqlite, configure=configure, config={"SQLALCHEMY_BINDS": binds}, bind_key="jobs")
    host.jobs = Database("sqlite", f"sqlite:///{tmp_path / 'jobs.db'}")  # type: ignore[attr-defined]
    return host


def test_the_tables_are_in_their_bind(bound: Host) -> None:
    assert table_names(bound.database) == {"audit"}
    assert table_names(bound.jobs) - {"sqlite_sequence"} == TABLES  # type: ignore[attr-defined]
    lives(bound)


def test_a_lock_of_the_bind_is_a_503(bound: Host) -> None:
    with file_locked(bound.jobs.url):  # type: ignore[attr-defined]
        assert bound.post("/backfills", BODY).status_code == 503
        assert bound.query("SELECT * FROM audit") == []
    assert bound.post("/backfills", BODY).status_code == 200
    assert bound.query("SELECT count(*) FROM audit") == [(1,)]


def test_a_lock_of_another_bind_is_not_in_the_way(sqlite: Database, tmp_path: Path, make_host: MakeHost) -> None:
    binds = {"jobs": f"sqlite:///{tmp_path / 'jobs.db'}"}
    host = make_host(sqlite, config={"SQLALCHEMY_BINDS": binds}, bind_key="jobs")
    with file_locked(sqlite.url):
        lives(host)


def test_a_bind_that_the_app_does_not_have_is_named(sqlite: Database, make_host: MakeHost) -> None:
    with pytest.raises(sa.exc.UnboundExecutionError, match="jobs"):
        make_host(sqlite, bind_key="jobs")


def test_a_prefix_makes_room(database: Database, make_host: MakeHost) -> None:
    def configure(app: Flask, db: SQLAlchemy) -> None:
        class DagRun(db.Model):  # type: ignore[name-defined]
            __tablename__ = "dag_run"
            id = db.Column(db.Integer, primary_key=True)

        # Of another app in the same database.
        FlaskBackfill(db, table_prefix="other_")

    db = SQLAlchemy()
    host = make_host(database, db=db, configure=configure, table_prefix="bf_")
    own = {f"{prefix}{name}" for prefix in ("bf_", "other_") for name in TABLES}
    assert table_names(database) - {"sqlite_sequence"} == own | {"dag_run"}
    lives(host)
    assert host.query("SELECT count(*) FROM other_backfill") == [(0,)]


def test_a_name_that_is_taken_names_the_way_out() -> None:
    db = SQLAlchemy()

    class DagRun(db.Model):  # type: ignore[name-defined]
        id = db.Column(db.Integer, primary_key=True)

    with pytest.raises(RuntimeError, match=r"table named dag_run already.*table_prefix='bf_'"):
        FlaskBackfill(db)
    FlaskBackfill(db, table_prefix="bf_")


def test_naming_conventions(database: Database, make_host: MakeHost) -> None:
    conventions = {
        "ix": "index_%(column_0_N_label)s",
        "uq": "unique_%(table_name)s_%(column_0_N_name)s",
        "ck": "check_%(table_name)s_%(constraint_name)s",
        "fk": "foreign_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "primary_%(table_name)s",
    }
    host = make_host(database, db=SQLAlchemy(metadata=sa.MetaData(naming_convention=conventions)))
    inspector = sa.inspect(database.connect())
    names = {key["name"] for table in TABLES for key in inspector.get_foreign_keys(table)}
    assert "foreign_dag_run_backfill_id_backfill" in names
    lives(host)


# -- the host's base


def columns_for_every_model() -> type:
    class Base(DeclarativeBase):
        """Every model of such a host has these columns; ours must not."""

        tenant: Mapped[str] = mapped_column(sa.String(20), nullable=False)
        created_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))

    return Base


def types_of_its_own() -> type:
    class Base(DeclarativeBase):
        registry = registry(
            type_annotation_map={str: sa.Text, int: sa.SmallInteger, bool: sa.String(1), datetime: sa.Date}
        )

    return Base


V20 = pytest.mark.skipif(sa.__version__ >= "2.1", reason="pallets-eco/flask-sqlalchemy 1420: not on SQLAlchemy 2.1")


@pytest.mark.parametrize(
    "make_base",
    [
        pytest.param(lambda: type("Base", (DeclarativeBase,), {}), id="DeclarativeBase"),
        pytest.param(lambda: type("Base", (DeclarativeBaseNoMeta,), {}), id="DeclarativeBaseNoMeta"),
        pytest.param(lambda: types.new_class("Base", (MappedAsDataclass, DeclarativeBase)), id="dataclass", marks=V20),
        pytest.param(
            lambda: types.new_class("Base", (MappedAsDataclass, DeclarativeBaseNoMeta)),
            id="dataclass-no-meta",
            marks=V20,
        ),
        pytest.param(lambda: declarative_base(), id="legacy"),
        pytest.param(lambda: Model, id="model"),
        pytest.param(columns_for_every_model, id="columns"),
        pytest.param(types_of_its_own, id="types"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"disable_autonaming": True}], ids=["", "no-autonaming"])
def test_every_base(
    sqlite: Database, make_host: MakeHost, make_base: Callable[[], type], options: dict[str, Any]
) -> None:
    host = make_host(sqlite, db=SQLAlchemy(model_class=make_base(), **options))
    assert table_names(sqlite) - {"sqlite_sequence"} == TABLES
    lives(host)
    plain = make_host(sqlite).db.metadata.tables
    for name, table in host.db.metadata.tables.items():
        assert str(CreateTable(table)) == str(CreateTable(plain[name]))


# -- where it is mounted


def everywhere(host: Host, base_url: str, prefix: str) -> None:
    """Ask, through this base URL, for all that says where the API is."""
    client = host.app.test_client()
    created = client.post(f"{prefix}/backfills", json=BODY, base_url=base_url)
    assert created.status_code == 200
    root = urlsplit(base_url).path.rstrip("/")
    assert created.headers["Location"] == f"{root}{prefix}/backfills/1"
    document = client.get(f"{prefix}/openapi.json", base_url=base_url).json
    assert [server["url"] for server in document["servers"]] == [f"{root}{prefix}" or "/"]
    page = client.get(f"{prefix}/docs", base_url=base_url, follow_redirects=True)
    assert page.status_code == 200
    assert "openapi.json" in page.text or "docs.js" in page.text
    for asset in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        path = urljoin(page.request.url, asset).removeprefix(base_url.rstrip("/"))
        with client.get(path, base_url=base_url) as answer:
            assert answer.status_code == 200, asset
    assert client.get("/api/v2/backfills").status_code == (200 if prefix == "/api/v2" else 404)


@pytest.mark.parametrize("base_url", ["http://localhost", "https://example.com/some/app"])
@pytest.mark.parametrize("prefix", ["/api/v2", "/jobs", ""])
def test_a_prefix_of_the_hosts(sqlite: Database, make_host: MakeHost, base_url: str, prefix: str) -> None:
    host = make_host(sqlite, init_app={"url_prefix": prefix or "/"} if prefix != "/api/v2" else {})
    everywhere(host, base_url, prefix)
    assert printed_server(host) == (prefix or "/")


@pytest.mark.parametrize("base_url", ["http://localhost", "https://example.com/some/app"])
def test_inside_another_blueprint(sqlite: Database, make_host: MakeHost, base_url: str) -> None:
    host = make_host(sqlite, init_app={"register_blueprint": False})
    assert "not registered" in host.app.test_cli_runner().invoke(args=["backfill", "openapi"]).output
    admin = Blueprint("admin", __name__, url_prefix="/admin")
    admin.register_blueprint(host.backfill.blueprint, url_prefix="/data")
    host.app.register_blueprint(admin)
    everywhere(host, base_url, "/admin/data")
    with file_locked(sqlite.url):
        locked = host.client.post("/admin/data/backfills", json=BODY)
    assert (locked.status_code, locked.mimetype) == (503, "application/problem+json")
    assert host.client.get("/admin/data/backfills/7").json["detail"] == "Backfill not found"
    assert printed_server(host) == "/admin/data"


def test_the_application_root_is_in_the_printed_server(sqlite: Database, make_host: MakeHost) -> None:
    assert printed_server(make_host(sqlite, config={"APPLICATION_ROOT": "/some/app"})) == "/some/app/api/v2"


def printed_server(host: Host) -> str:
    printed = host.app.test_cli_runner().invoke(args=["backfill", "openapi"])
    assert printed.exit_code == 0, printed.output
    (server,) = yaml.safe_load(printed.output)["servers"]
    return server["url"]


# -- SQLite drivers' modes


def begin_hook(statement: str) -> Callable[[Flask, SQLAlchemy], None]:
    """SQLAlchemy's recipe for SQLite: the driver begins nothing by itself, the engine's "begin" event does."""

    def configure(app: Flask, db: SQLAlchemy) -> None:
        with app.app_context():
            engine = db.engine

        @sa.event.listens_for(engine, "connect")
        def connect(connection: Any, _: Any) -> None:
            connection.isolation_level = None

        @sa.event.listens_for(engine, "begin")
        def begin(connection: sa.Connection) -> None:
            connection.exec_driver_sql(statement)

    return configure


def write_ahead(app: Flask, db: SQLAlchemy) -> None:
    with app.app_context():
        sa.event.listen(db.engine, "connect", lambda connection, _: connection.execute("PRAGMA journal_mode=WAL"))


MODES: dict[str, tuple[Any, dict[str, Any]]] = {
    "legacy": (None, {}),
    "wal": (write_ahead, {}),
    "begin": (begin_hook("BEGIN"), {}),
    "immediate": (begin_hook("BEGIN IMMEDIATE"), {}),
    "AUTOCOMMIT": (None, {"isolation_level": "AUTOCOMMIT"}),
    "SERIALIZABLE": (None, {"isolation_level": "SERIALIZABLE"}),
    "no pool": (None, {"poolclass": sa.NullPool}),
    "autocommit=False": (None, {"connect_args": {"timeout": 0.2, "autocommit": False}}),
}
NEW = pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit= from Python 3.12 on")


@pytest.mark.parametrize("mode", [pytest.param(mode, marks=NEW if "=" in mode else ()) for mode in MODES])
@pytest.mark.parametrize("touch", [None, "read", "flush"])
def test_every_mode_of_the_driver(sqlite: Database, make_host: MakeHost, mode: str, touch: str | None) -> None:
    """Also for a host that has read or flushed before: its rows go with the answer, and it never waits for itself."""
    configure, options = MODES[mode]

    def touching(app: Flask, db: SQLAlchemy) -> None:
        class Audit(db.Model):  # type: ignore[name-defined]
            id = db.Column(db.Integer, primary_key=True)

        @app.before_request
        def audit() -> None:
            if touch == "flush":
                db.session.add(Audit())
                db.session.flush()
            elif touch == "read":
                db.session.scalars(sa.select(Audit)).all()

        if configure:
            configure(app, db)

    host = make_host(sqlite, configure=touching, engine_options=options)
    before = host.tables()
    with file_locked(sqlite.url):
        locked = host.post("/backfills", BODY)
    is_the_hosts = touch == "flush" or (touch, mode) == ("read", "immediate")
    assert locked.status_code == (500 if is_the_hosts else 503), locked.text
    assert host.tables() == before
    for path, more, status in (
        ("/backfills", {}, 200),
        ("/backfills", {}, 409),
        ("/backfills", {"max_active_runs": 0}, 422),
        ("/backfills/dry_run", {}, 200),
    ):
        before = host.tables()
        assert host.post(path, BODY | more).status_code == status
        after = host.tables()
        if status != 200 and mode != "AUTOCOMMIT":
            assert after == before
        for name in TABLES:
            assert after[name] == before[name] or (path, status) == ("/backfills", 200)
        if touch == "flush" and status == 200:
            assert len(after["audit"]) == len(before["audit"]) + 1
    assert host.put("/backfills/1/cancel").status_code == 200
    assert host.get("/backfills/1").json["state"] == "cancelled"


@NEW
def test_a_driver_that_commits_by_itself_is_refused(sqlite: Database, make_host: MakeHost) -> None:
    options = {"connect_args": {"timeout": 0.2, "autocommit": True}}
    host = make_host(sqlite, engine_options=options)
    answer = host.post("/backfills", BODY)
    assert answer.status_code == 500
    assert "autocommit" in answer.json["detail"]
    assert all(not rows for rows in host.tables().values())


# -- the host's own handlers


@pytest.mark.parametrize("handled", [OperationalError, ProgrammingError, SQLAlchemyError, Exception, 500])
def test_the_hosts_handler_gets_what_is_no_lock_of_ours(database: Database, make_host: MakeHost, handled: Any) -> None:
    def configure(app: Flask, db: SQLAlchemy) -> None:
        app.register_error_handler(handled, lambda error: (f"host: {type(error).__name__}", 599))
        app.register_error_handler(404, lambda _: ("host: not found", 404))

    host = make_host(database, configure=configure)
    # A lock, and our own errors, are answered by us all the same.
    engine = database.connect()
    with engine.connect() as other:
        if database.name == "sqlite":
            other.exec_driver_sql("BEGIN EXCLUSIVE")
        elif database.name == "postgresql":
            other.exec_driver_sql("LOCK TABLE backfill, dag_run IN ACCESS EXCLUSIVE MODE")
        else:
            other.exec_driver_sql("LOCK TABLES backfill WRITE, dag_run WRITE")
        locked = host.post("/backfills", BODY)
        other.rollback()
    assert (locked.status_code, locked.mimetype) == (503, "application/problem+json")
    assert host.get("/backfills/7").json["detail"] == "Backfill not found"
    assert host.get("/nowhere").text == "host: not found"
    host.execute("DROP TABLE task_instance")
    error = host.post("/backfills", BODY)
    missing = OperationalError if database.name == "sqlite" else ProgrammingError
    if handled in (OperationalError, ProgrammingError) and handled is not missing:
        assert error.status_code == 500
    else:
        name = "InternalServerError" if handled == 500 else missing.__name__
        assert (error.status_code, error.text) == (599, f"host: {name}")
    assert all(not rows for name, rows in rows_of(host).items())


def rows_of(host: Host) -> dict[str, list[Any]]:
    return {name: host.query(f"SELECT * FROM {name}") for name in TABLES - {"task_instance"}}
