"""The experiment of AF 66726, 68699: creates beside a writer that is always busy, with real servers and processes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve

BODY = {
    "dag_id": "daily_climate",
    "from_date": "2015-03-01",
    "to_date": "2015-04-01",
    "run_backwards": False,
    "dag_run_conf": {},
    "reprocess_behavior": "none",
    "max_active_runs": 3,
}
TABLES = ("task_instance", "backfill_dag_run", "dag_run", "backfill")
ROUNDS = 10

#: Takes the file, the seconds for which it holds the write lock, and those for which it pauses.
WRITER = """
import sqlite3, sys, time
path, hold, pause = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
connection = sqlite3.connect(path, isolation_level=None, timeout=60)
connection.execute("CREATE TABLE IF NOT EXISTS written (at FLOAT)")
print("writing", flush=True)
while True:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO written VALUES (?)", (time.time(),))
    time.sleep(hold)
    connection.execute("COMMIT")
    time.sleep(pause)
"""

Write = Callable[..., "subprocess.Popen[str]"]


class Demo:
    """The demo app behind gunicorn, and its file."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = f"{url}/api/v2/backfills"
        self.path = path

    def create(self) -> tuple[int, str, dict[str, Any]]:
        """Return the status, the Retry-After header and the body."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url, json.dumps(BODY).encode(), headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                return response.status, "", json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers.get("Retry-After", ""), json.load(error)

    def create_many(self, number: int, apart: float) -> list[tuple[int, str, dict[str, Any]]]:
        """Create ``number`` times, each in a thread, ``apart`` seconds after the one before."""
        with ThreadPoolExecutor(number) as pool:
            answers = []
            for _ in range(number):
                answers.append(pool.submit(self.create))
                time.sleep(apart)
            return [answer.result() for answer in answers]

    def execute(self, *statements: str) -> list[Any]:
        """Execute statements in one transaction, and return what the last one selects."""
        connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            rows = [connection.execute(statement).fetchall() for statement in statements][-1]
            connection.execute("COMMIT")
            return rows
        finally:
            connection.close()

    def rows(self) -> dict[str, int]:
        return {table: self.execute(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}

    def clear(self) -> None:
        self.execute(*(f"DELETE FROM {table}" for table in TABLES))


@pytest.fixture(params=["delete", "wal"])
def demo(request: pytest.FixtureRequest, tmp_path: Path, serve: Serve) -> Demo:
    """The demo in 2 processes of 8 threads, its file in the rollback journal or in WAL."""
    path = tmp_path / "demo.db"
    gunicorn = [
        "gunicorn",
        "--workers",
        "2",
        "--threads",
        "8",
        "--worker-class",
        "gthread",
        "flask_backfill.demo:create_app()",
    ]
    url = serve([*gunicorn, "--bind", "127.0.0.1:{port}"], FLASK_SQLALCHEMY_DATABASE_URI=f"sqlite:///{path}")
    with urllib.request.urlopen(f"{url}/api/v2/dags", timeout=60) as response:  # noqa: S310
        assert response.status == 200
    connection = sqlite3.connect(path)
    assert connection.execute(f"PRAGMA journal_mode = {request.param}").fetchone() == (request.param,)
    connection.close()
    return Demo(url, path)


@pytest.fixture
def write(demo: Demo) -> Iterator[Write]:
    """Return a function that starts another process which writes to the demo's file."""
    writers: list[subprocess.Popen[str]] = []

    def start(*, hold: float, pause: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, str(demo.path), str(hold), str(pause)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        writers.append(writer)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        return writer

    yield start
    for writer in writers:
        stop(writer)


def stop(writer: subprocess.Popen[str]) -> None:
    writer.kill()
    writer.wait()
    assert writer.stdout is not None
    writer.stdout.close()


@pytest.mark.parametrize(("number", "apart"), [(20, 0.05), (30, 0.02)])
def test_one_of_many_creates_beside_a_busy_writer_succeeds(demo: Demo, write: Write, number: int, apart: float) -> None:
    writer = write(hold=0.02, pause=0.005)
    for _ in range(ROUNDS):
        answers = demo.create_many(number, apart)
        statuses = Counter(status for status, _, _ in answers)
        assert statuses[200] == 1, statuses
        assert set(statuses) <= {200, 409, 503}
        assert all(retry_after == "1" for status, retry_after, _ in answers if status == 503)
        assert demo.rows() == {"task_instance": 32, "backfill_dag_run": 32, "dag_run": 32, "backfill": 1}
        demo.clear()
    assert writer.poll() is None


@pytest.mark.parametrize("hold", [0.02, 30], ids=["between two commits", "for the whole time"])
def test_a_writer_that_never_pauses_leaves_nothing_half_made(demo: Demo, write: Write, hold: float) -> None:
    writer = write(hold=hold, pause=0)
    answers = demo.create_many(20, 0.05)
    assert writer.poll() is None
    assert all(retry_after == "1" for status, retry_after, _ in answers if status == 503)
    statuses = Counter(status for status, _, _ in answers)
    assert set(statuses) <= {200, 409, 503}
    assert statuses[200] <= 1
    if hold > 5:  # longer than any of them waits
        assert statuses == {503: 20}
    stop(writer)
    assert demo.rows()["backfill"] == statuses[200]
    if not statuses[200]:
        assert set(demo.rows().values()) == {0}
        assert demo.create()[0] == 200
    assert demo.rows() == {"task_instance": 32, "backfill_dag_run": 32, "dag_run": 32, "backfill": 1}
