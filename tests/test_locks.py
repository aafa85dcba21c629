"""Lock errors: told by code, answered with 503, and nothing is left behind. Locks are held by real connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from conftest import Database, Host, MakeHost, day, days
from flask import Flask
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.engine import Connection
from werkzeug.test import TestResponse

from flask_backfill import steer
from flask_backfill.locks import is_lock_error

BODY = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-10", "reprocess_behavior": "completed"}


@contextmanager
def locked(host: Host) -> Iterator[None]:
    """Hold, from a second connection, what a create needs: SQLite's file, or the table on a server."""
    engine = host.database.connect()
    with engine.connect() as connection:
        if host.database.name == "sqlite":
            connection.exec_driver_sql("BEGIN EXCLUSIVE")
        elif host.database.name == "postgresql":
            connection.exec_driver_sql("LOCK TABLE backfill, dag_run IN ACCESS EXCLUSIVE MODE")
        else:
            connection.exec_driver_sql("LOCK TABLES backfill WRITE, dag_run WRITE")
        yield
        connection.rollback()


@contextmanager
def striking(host: Host, strikes: Callable[[str], bool], error: Callable[[], Exception]) -> Iterator[list[str]]:
    """Raise the driver's own exception in place of the first statement for which ``strikes`` is true."""
    seen: list[str] = []

    def strike(cursor: Any, statement: str, *_: Any) -> None:
        if strikes(statement):
            seen.append(statement)
            raise error()

    with host.app.app_context():
        engine = host.db.engine
    # Not before_cursor_execute: what is raised there is not wrapped by SQLAlchemy 2.0, as the driver's errors are.
    events = ("do_execute", "do_executemany", "do_execute_no_params")
    for name in events:
        sa.event.listen(engine, name, strike)
    try:
        yield seen
    finally:
        for name in events:
            sa.event.remove(engine, name, strike)


def sqlite_busy() -> Exception:
    """Return an exception shaped as the driver makes it for a lock."""
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = sqlite3.SQLITE_BUSY
    error.sqlite_errorname = "SQLITE_BUSY"
    return error


def inserts_into(table: str) -> Callable[[str], bool]:
    return lambda statement: statement.startswith(f"INSERT INTO {table} ")


def assert_locked(host: Host, response: TestResponse) -> None:
    assert response.status_code == 503, response.text
    assert response.mimetype == "application/problem+json"
    assert response.headers["Retry-After"] == "1"
    problem = response.json
    assert {"type", "title", "status", "detail"} <= problem.keys()
    assert problem["detail"].startswith("Database is locked")
    assert ("PostgreSQL" in problem["detail"]) == (host.database.name == "sqlite")
    assert "othing was changed" in problem["detail"]
    assert "can be sent again" in problem["detail"]
    for secret in ("SELECT", "INSERT", "host.db", "2025-03"):
        assert secret not in response.text


def test_create_backfill_database_locked(host: Host) -> None:
    before = host.tables()
    with locked(host):
        assert_locked(host, host.post("/backfills", BODY))
    assert host.tables() == before
    assert host.post("/backfills", BODY).status_code == 200


def test_create_backfill_dry_run_database_locked(host: Host) -> None:
    before = host.tables()
    with locked(host):
        assert_locked(host, host.post("/backfills/dry_run", BODY))
    assert host.tables() == before
    assert host.post("/backfills/dry_run", BODY).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/backfills"),
        ("GET", "/backfills/1"),
        ("GET", "/backfills/1/dag_runs"),
        ("PUT", "/backfills/1/pause"),
        ("PUT", "/backfills/1/unpause"),
        ("PUT", "/backfills/1/cancel"),
        ("GET", "/dags"),
        ("GET", "/dags/daily"),
    ],
)
def test_every_route_answers_a_lock_with_503(host: Host, method: str, path: str) -> None:
    host.create()
    if path.endswith("unpause"):
        host.put("/backfills/1/pause")
    before = host.tables()
    with locked(host):
        assert_locked(host, host.client.open(f"/api/v2{path}", method=method))
    assert host.tables() == before
    assert host.client.open(f"/api/v2{path}", method=method).status_code == 200


def history(host: Host) -> None:
    """Make finished runs, some of them with task instances, of this DAG and of its neighbour."""
    host.create(last="2025-03-04")
    host.execute("UPDATE dag_run SET state = 'success', try_number = 1, error = 'x' WHERE logical_date < '2025-03-03'")
    host.execute("UPDATE dag_run SET state = 'failed' WHERE state = 'queued'")
    host.execute("UPDATE task_instance SET state = 'success', try_number = 2")
    host.execute("UPDATE backfill SET state = 'failed', active_dag_id = NULL, completed_at = created_at")
    host.record("daily", "success", day(5))
    host.record("neighbour", "success", *days(1, 10))


@pytest.mark.parametrize("table", ["backfill", "dag_run", "backfill_dag_run", "task_instance"])
def test_create_backfill_cleans_up_orphan_on_lock_error(sqlite_host: Host, table: str) -> None:
    """AF 66726: a lock in the middle left a backfill that answered 409 to every retry."""
    before = sqlite_host.tables()
    with striking(sqlite_host, inserts_into(table), sqlite_busy) as seen:
        assert_locked(sqlite_host, sqlite_host.post("/backfills", BODY))
    assert len(seen) == 1
    assert sqlite_host.tables() == before
    assert sqlite_host.post("/backfills", BODY).json["dag_run_counts"]["queued"] == 10


@pytest.mark.parametrize("table", ["backfill", "dag_run", "backfill_dag_run", "task_instance"])
def test_create_backfill_cleans_up_after_failed_transaction(host: Host, table: str) -> None:
    """AF 68705: an error that is no lock left an active orphan. It stays the host's, and nothing is left."""
    history(host)
    before = host.tables()
    with striking(host, inserts_into(table), lambda: MemoryError("at this statement")) as seen:
        response = host.post("/backfills", BODY)
    assert len(seen) == 1
    assert (response.status_code, response.mimetype) == (500, "text/html")
    assert host.tables() == before
    assert host.post("/backfills", BODY).status_code == 200


@pytest.mark.parametrize(
    "strikes",
    [
        inserts_into("dag_run"),
        inserts_into("backfill_dag_run"),
        inserts_into("task_instance"),
        lambda statement: statement.startswith("UPDATE dag_run"),
    ],
    ids=["runs", "dates", "task instances", "redo"],
)
def test_create_backfill_cleanup_removes_partial_dag_runs(sqlite_host: Host, strikes: Callable[[str], bool]) -> None:
    """Seen in Airflow 3.3.2: the clean-up deleted finished runs that the backfill was about to redo."""
    history(sqlite_host)
    before = sqlite_host.tables()
    assert len(before["dag_run"]) == 15
    assert len(before["task_instance"]) == 4
    with striking(sqlite_host, strikes, sqlite_busy) as seen:
        assert_locked(sqlite_host, sqlite_host.post("/backfills", BODY))
    assert len(seen) == 1
    assert sqlite_host.tables() == before


def test_create_backfill_cleanup_failure_still_returns_503(sqlite_host: Host) -> None:
    """The rollback itself fails: the first error decides, the connection is thrown away, and nothing is left."""
    history(sqlite_host)
    before = sqlite_host.tables()
    with sqlite_host.app.app_context():
        engine = sqlite_host.db.engine

    def fail(connection: Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    sa.event.listen(engine, "rollback", fail)
    try:
        with striking(sqlite_host, inserts_into("task_instance"), sqlite_busy):
            assert_locked(sqlite_host, sqlite_host.post("/backfills", BODY))
    finally:
        sa.event.remove(engine, "rollback", fail)
    assert engine.pool.checkedout() == 0
    assert sqlite_host.tables() == before
    assert sqlite_host.post("/backfills", BODY).status_code == 200


def test_lock_at_commit_is_503_and_leaves_nothing(sqlite_host: Host) -> None:
    """In the rollback journal a reader makes the COMMIT wait, and fail."""
    before = sqlite_host.tables()
    reader = sqlite3.connect(sqlite_host.database.url.removeprefix("sqlite:///"), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM backfill").fetchall()
    assert_locked(sqlite_host, sqlite_host.post("/backfills", BODY))
    reader.close()
    assert sqlite_host.tables() == before
    assert sqlite_host.post("/backfills", BODY).status_code == 200


def test_serialization_failure_at_commit_is_503(server: Database, make_host: MakeHost) -> None:
    """PostgreSQL SERIALIZABLE may refuse at COMMIT; elsewhere a later statement does."""
    if server.name != "postgresql":
        pytest.skip("only PostgreSQL refuses at COMMIT")
    host = make_host(server, engine_options={"isolation_level": "SERIALIZABLE"})

    def commit_fails(connection: Connection) -> None:
        connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40001'; END $$")

    with host.app.app_context():
        engine = host.db.engine
    before = host.tables()
    sa.event.listen(engine, "commit", commit_fails)
    try:
        assert_locked(host, host.post("/backfills", BODY))
    finally:
        sa.event.remove(engine, "commit", commit_fails)
    assert host.tables() == before


def test_error_that_is_no_lock_reaches_the_hosts_own_handler(sqlite: Database, make_host: MakeHost) -> None:
    host = make_host(sqlite)

    @host.app.errorhandler(sa.exc.OperationalError)
    def handle(error: Exception) -> tuple[str, int]:
        return "the host's", 500

    def full() -> Exception:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        return error

    before = host.tables()
    with striking(host, inserts_into("dag_run"), full):
        response = host.post("/backfills", BODY)
    assert (response.text, response.status_code) == ("the host's", 500)
    assert host.tables() == before


def test_lock_in_a_decorator_is_503(sqlite: Database, make_host: MakeHost) -> None:
    """The guard encloses the decorators: flask-login's user loader reads from the same database."""

    def reading(view: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(**arguments: Any) -> Any:
            host.db.session.execute(sa.text("SELECT count(*) FROM backfill"))
            return view(**arguments)

        return wrapper

    host = make_host(sqlite, allow_anonymous=False, decorators=[reading])
    with locked(host):
        assert_locked(host, host.get("/openapi.json"))
    assert host.get("/openapi.json").status_code == 200


def test_steering_shows_what_is_whatever_the_host_has_read_before(database: Database, make_host: MakeHost) -> None:
    """MariaDB freezes what a transaction sees at its first read; a worker goes on meanwhile."""
    meanwhile: list[str] = []

    def configure(app: Flask, db: SQLAlchemy) -> None:
        @app.before_request
        def read_then_wait() -> None:
            if database.name != "sqlite":  # where a reader cannot go on to write once another has written
                db.session.execute(sa.text("SELECT count(*) FROM dag_run"))
            while meanwhile:
                host.execute(meanwhile.pop(0))

    host = make_host(database, configure=configure)
    backfill = host.create()
    claim = "UPDATE dag_run SET state = 'running' WHERE logical_date < '2025-03-03'"
    meanwhile.append(claim)
    paused = host.put(f"/backfills/{backfill['id']}/pause").json
    assert (paused["dag_run_counts"]["running"], paused["dag_run_counts"]["queued"]) == (2, 3)
    meanwhile.append(claim.replace("running", "success"))
    cancelled = host.put(f"/backfills/{backfill['id']}/cancel").json
    assert (cancelled["dag_run_counts"]["success"], cancelled["dag_run_counts"]["cancelled"]) == (2, 3)
    assert host.get(f"/backfills/{backfill['id']}").json == cancelled


def test_steering_and_recording_of_different_dags_at_once_wait_for_nobody(
    server: Database, make_host: MakeHost
) -> None:
    """MariaDB locks every row that it reads: each statement must reach its own rows alone, in a small table too."""
    host = make_host(server)
    host.create("daily")
    host.record("neighbour", "failed", *days(1, 5))
    other = make_host(server)
    with other.app.app_context():
        # An open transaction that has recorded runs of one DAG and cancelled its backfill.
        other.backfill.record_runs("daily", days(11, 12), "success")
        store = other.backfill.store()
        steer.cancel(store, steer.lock_backfill(store, 1), now=day(20))
        made = host.create("neighbour", reprocess_behavior="failed")
        host.record("neighbour", "success", *days(11, 12))
        assert host.put(f"/backfills/{made['id']}/cancel").status_code == 200
        other.db.session.rollback()
    assert host.get("/backfills/1").json["state"] == "queued"


def test_a_constraint_of_the_hosts_is_no_race(host: Host) -> None:
    """Trying again would not help: it stays the host's error, and nothing is left."""
    unique = "CREATE UNIQUE INDEX host_own ON backfill (max_active_runs)"
    host.execute(unique)
    host.create("neighbour")
    before = host.tables()
    response = host.post("/backfills", BODY | {"max_active_runs": 10})
    assert response.status_code == (500 if host.database.name == "sqlite" else 503)
    assert host.tables() == before


def test_a_text_that_says_locked_is_no_lock() -> None:
    """Never by text: an exception's text holds the SQL and the user's values."""
    orig = sqlite3.OperationalError("no such table: database is locked")
    orig.sqlite_errorcode = sqlite3.SQLITE_ERROR
    assert not is_lock_error(sa.exc.OperationalError("SELECT 'database is locked'", {}, orig))
    aborted = sqlite3.IntegrityError("database is locked")
    aborted.sqlite_errorcode = sqlite3.SQLITE_CONSTRAINT_TRIGGER
    assert not is_lock_error(sa.exc.IntegrityError("INSERT", {}, aborted))
    assert is_lock_error(sa.exc.OperationalError("INSERT", {}, sqlite_busy()))
    assert not is_lock_error(sa.exc.OperationalError("INSERT", {}, sqlite_busy(), connection_invalidated=True))
    assert not is_lock_error(sqlite_busy())


def test_the_commit_is_refused_where_it_would_do_nothing(server: Database, make_host: MakeHost) -> None:
    host = make_host(server, engine_options={"isolation_level": "AUTOCOMMIT"})
    before = host.tables()
    response = host.post("/backfills", BODY)
    assert response.status_code == 500
    assert "isolation_level" in response.json["detail"]
    assert host.tables() == before
