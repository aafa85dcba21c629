"""Hosts on real databases. SQLite always; the servers where their URLs are in the environment."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from flask import Flask
from flask.testing import FlaskClient
from flask_sqlalchemy import SQLAlchemy
from werkzeug.test import TestResponse

from flask_backfill import FlaskBackfill

SERVERS = {
    "postgresql": os.environ.get("BACKFILL_TEST_POSTGRESQL_URL"),
    "mariadb": os.environ.get("BACKFILL_TEST_MARIADB_URL"),
}


def pytest_report_header() -> str:
    left_out = [name for name, url in SERVERS.items() if not url]
    return f"databases left out: {', '.join(left_out)}" if left_out else "databases: sqlite, postgresql, mariadb"


def _database_params(*names: str) -> list[Any]:
    def missing(name: str) -> bool:
        return name in SERVERS and not SERVERS[name]

    reason = "set BACKFILL_TEST_{}_URL to test on it"
    return [
        pytest.param(name, marks=pytest.mark.skipif(missing(name), reason=reason.format(name.upper())))
        for name in names
    ]


@dataclass
class Database:
    """A database of the test's own."""

    name: str
    url: str
    options: dict[str, Any] = field(default_factory=dict)

    def connect(self, **options: Any) -> sa.Engine:
        """Return an engine of its own, for a second connection."""
        return sa.create_engine(self.url, poolclass=sa.NullPool, **(self.options | options))


@pytest.fixture(params=_database_params("sqlite", "postgresql", "mariadb"))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Every database in turn, each test in a file, a schema or a database of its own."""
    yield from open_database(request.param, tmp_path)


@pytest.fixture(params=_database_params("postgresql", "mariadb"))
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The servers only."""
    yield from open_database(request.param, tmp_path)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """SQLite only."""
    yield from open_database("sqlite", tmp_path)


def open_database(name: str, tmp_path: Path) -> Iterator[Database]:
    if name == "sqlite":
        # A short busy timeout: these tests wait for locks on purpose.
        yield Database(name, f"sqlite:///{tmp_path / 'host.db'}", {"connect_args": {"timeout": 0.2}})
        return
    own = f"bf_{uuid.uuid4().hex[:16]}"
    admin = sa.create_engine(str(SERVERS[name]), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    unit = "SCHEMA" if name == "postgresql" else "DATABASE"
    with admin.connect() as connection:
        connection.execute(sa.text(f"CREATE {unit} {own}"))
    url = sa.make_url(str(SERVERS[name]))
    if name == "postgresql":
        # Another time zone than UTC, which must make no difference; waiting for a lock ends soon.
        options = f"-csearch_path={own} -ctimezone=Asia/Kolkata -clock_timeout=500"
        url = url.update_query_dict({"options": options})
        engine_options: dict[str, Any] = {}
    else:
        url = url.set(database=own)
        variables = "innodb_lock_wait_timeout=1, lock_wait_timeout=1, time_zone='+05:30'"
        engine_options = {"connect_args": {"init_command": f"SET {variables}"}}
    try:
        yield Database(name, url.render_as_string(hide_password=False), engine_options)
    finally:
        with admin.connect() as connection:
            connection.execute(sa.text(f"DROP {unit} {own}{' CASCADE' if name == 'postgresql' else ''}"))


@dataclass
class Host:
    """A Flask app with the extension, and what tests want of it."""

    app: Flask
    db: SQLAlchemy
    backfill: FlaskBackfill
    database: Database
    client: FlaskClient

    def create(self, dag_id: str = "daily", first: str = "2025-03-01", last: str = "2025-03-05", **more: Any) -> Any:
        """Create a backfill, which must succeed, and return it."""
        response = self.post("/backfills", {"dag_id": dag_id, "from_date": first, "to_date": last} | more)
        assert response.status_code == 200, response.text
        return response.json

    def post(self, path: str, body: Any, **kwargs: Any) -> TestResponse:
        return self.client.post(f"/api/v2{path}", json=body, **kwargs)

    def put(self, path: str) -> TestResponse:
        return self.client.put(f"/api/v2{path}")

    def get(self, path: str) -> TestResponse:
        return self.client.get(f"/api/v2{path}")

    def dates(self, backfill_id: int) -> list[dict[str, Any]]:
        """Return all dates of a backfill."""
        response = self.get(f"/backfills/{backfill_id}/dag_runs?limit=1000")
        assert response.status_code == 200, response.text
        return response.json["dag_runs"]

    def record(self, dag_id: str, state: str, *dates: datetime) -> None:
        """Write down ordinary runs, and commit."""
        with self.app.app_context():
            assert self.backfill.record_runs(dag_id, dates, state) == len(dates)
            self.db.session.commit()

    def execute(self, statement: str, **values: Any) -> None:
        """Change the tables from outside, and commit."""
        engine = self.database.connect()
        with engine.begin() as connection:
            connection.execute(sa.text(statement), values)

    def query(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Ask the tables from outside."""
        engine = self.database.connect()
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text(statement), values)]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table of the metadata."""
        engine = self.database.connect()
        with engine.connect() as connection:
            return {
                table.name: sorted((tuple(row) for row in connection.execute(sa.select(table))), key=repr)
                for table in self.db.metadata.sorted_tables
            }


MakeHost = Callable[..., Host]
Serve = Callable[..., str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts a Python program's server and returns its URL once it answers.

    The words of the command follow ``python -m``; ``{port}`` is a free one. Further arguments are its environment.
    """
    servers: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **environment: str) -> str:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        words = [word.format(port=port) for word in command]
        log = (tmp_path / f"server{len(servers)}.log").open("wb")
        with log:
            server = subprocess.Popen(
                [sys.executable, "-m", *words], cwd=tmp_path, env=os.environ | environment, stdout=log, stderr=log
            )
        servers.append(server)
        deadline = time.monotonic() + 60
        while True:
            assert server.poll() is None, Path(log.name).read_text()
            with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 1):
                return f"http://127.0.0.1:{port}"
            assert time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(0.05)

    yield start
    for server in servers:
        server.terminate()
    for server in servers:
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def add_dags(backfill: FlaskBackfill) -> None:
    """Register the DAGs that most tests use; their tasks do nothing."""

    @backfill.dag(schedule="@daily", start_date="2020-01-01")
    def daily(run: object) -> None:
        pass

    @backfill.dag(schedule="@daily", start_date="2020-01-01")
    def neighbour(run: object) -> None:
        pass

    @backfill.dag(schedule="@hourly")
    def hourly(run: object) -> None:
        pass

    etl = backfill.dag("etl", schedule="@daily", display_name="Extract, transform, load")

    @etl.task
    def extract(run: object) -> None:
        pass

    @etl.task(after=[extract])
    def transform(run: object) -> None:
        pass

    @etl.task(after=[transform])
    def load(run: object) -> None:
        pass


def build_host(
    database: Database,
    *,
    configure: Callable[[Flask, SQLAlchemy], None] | None = None,
    config: dict[str, Any] | None = None,
    engine_options: dict[str, Any] | None = None,
    dags: Callable[[FlaskBackfill], None] = add_dags,
    db: SQLAlchemy | None = None,
    init_app: dict[str, Any] | None = None,
    **arguments: Any,
) -> Host:
    db = db or SQLAlchemy()
    backfill = FlaskBackfill(db, **({"allow_anonymous": True} | arguments))
    dags(backfill)
    app = Flask("host")
    app.config.update(
        SQLALCHEMY_DATABASE_URI=database.url,
        SQLALCHEMY_ENGINE_OPTIONS=database.options | (engine_options or {}),
        **(config or {}),
    )
    db.init_app(app)
    if configure:
        configure(app, db)
    backfill.init_app(app, **(init_app or {}))
    with app.app_context():
        db.create_all()
    return Host(app, db, backfill, database, app.test_client())


@pytest.fixture
def make_host() -> Iterator[MakeHost]:
    """Return a function that builds a host; see build_host()."""
    hosts: list[Host] = []

    def make(database: Database, **arguments: Any) -> Host:
        host = build_host(database, **arguments)
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        with host.app.app_context():
            for engine in host.db.engines.values():
                engine.dispose()


@pytest.fixture
def host(database: Database, make_host: MakeHost) -> Host:
    """A host on every database in turn."""
    return make_host(database)


@pytest.fixture
def sqlite_host(sqlite: Database, make_host: MakeHost) -> Host:
    """A host on a SQLite file."""
    return make_host(sqlite)


def day(number: int, month: int = 3, hour: int = 0) -> datetime:
    """Return an instant of 2025, UTC."""
    return datetime(2025, month, number, hour, tzinfo=UTC)


def days(first: int, last: int) -> list[datetime]:
    """Return midnights of March 2025, both ends included."""
    return [day(first) + timedelta(days=number) for number in range(last - first + 1)]
