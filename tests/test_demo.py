"""The demo: as a user meets it, from its first start to a backfill; and what its tasks compute."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from conftest import Serve
from flask import Flask
from sqlalchemy.engine import Connection

from flask_backfill import Run, demo

PACKAGE = Path(demo.__file__).parent
ZONE = ZoneInfo("America/Los_Angeles")
RUN = ["flask", "--app", "flask_backfill.demo", "run", "--port", "{port}"]


def read(name: str) -> list[dict[str, str]]:
    with (PACKAGE / "data" / name).open(newline="") as file:
        return list(csv.DictReader(file))


SEATTLE = {date.fromisoformat(row["date"].replace("/", "-")): row for row in read("seattle-weather.csv")}
RAIN = {day: float(row["precipitation"]) for day, row in SEATTLE.items()}
SF = {datetime.fromisoformat(row["date"].replace("/", "-")): float(row["temp"]) for row in read("sf-temps.csv")}


def query(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's file, which the demo makes when it starts."""
    monkeypatch.setenv("FLASK_SQLALCHEMY_DATABASE_URI", f"sqlite:///{tmp_path / 'demo.db'}")
    return tmp_path / "demo.db"


@pytest.fixture
def app(path: Path) -> Iterator[Flask]:
    """The demo, in whose context the test runs."""
    app = demo.create_app()
    with app.app_context():
        yield app
        demo.db.session.remove()
        demo.db.engine.dispose()


# -- from the shell


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl program")
def test_the_printed_curl_lines_work(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASK_SQLALCHEMY_DATABASE_URI", raising=False)
    # A copy in the working directory comes before the installed package, and has an instance folder of its own.
    shutil.copytree(PACKAGE, tmp_path / "flask_backfill", ignore=shutil.ignore_patterns("__pycache__"))
    url = serve(RUN)
    printed = (tmp_path / "server0.log").read_text()
    lines = [line for line in printed.splitlines() if line.startswith("curl ")]
    assert len(lines) == 3, printed
    assert all(f"{url}/api/v2/backfills" in line for line in lines)
    # What curl reads from here leaves the lines as they are.
    (tmp_path / ".curlrc").write_text('noproxy = "*"\nwrite-out = "%{http_code}"\n')
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    answers = []
    for line in lines:
        output = subprocess.run(["sh", "-c", line], capture_output=True, check=True, timeout=60).stdout
        body, _, status = output.decode().rpartition("\n")
        assert status == "200", output
        answers.append(json.loads(body))
    preview, created, seen = answers
    assert (preview["total_entries"], preview["counts"]) == (32, {"create": 32, "redo": 0, "skip": 0})
    assert (created["id"], created["dag_run_counts"]["queued"]) == (1, 32)
    assert seen == created
    path = tmp_path / "instance" / "demo.db"
    counts = [query(path, f"SELECT count(*) FROM {table}")[0][0] for table in ("backfill", "dag_run", "task_instance")]
    assert counts == [1, 32, 32]


def test_a_second_start_writes_nothing_even_beside_a_writer(path: Path, serve: Serve) -> None:
    serve(RUN)
    query(path, "DELETE FROM sf_temps")
    query(path, "UPDATE seattle_weather SET precipitation = 1")
    before = path.read_bytes()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        serve(RUN)
    assert path.read_bytes() == before


def test_processes_that_start_at_once_find_all_rows(path: Path) -> None:
    program = """
import sys, sqlalchemy as sa
from flask_backfill import demo
print("ready", flush=True)
sys.stdin.readline()
with demo.create_app().app_context():
    tables = demo.db.metadata.sorted_tables
    print(sorted(demo.db.session.scalar(sa.select(sa.func.count()).select_from(table)) for table in tables))
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    processes = [subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) for _ in range(4)]
    try:
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 4
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert answers == [("[0, 0, 0, 0, 0, 0, 0, 1461, 8759]\n", "")] * 4


# -- its tables


def test_the_tables_hold_all_observations(app: Flask, path: Path) -> None:
    assert query(path, "SELECT date, precipitation, temp_max, temp_min FROM seattle_weather ORDER BY date") == [
        (str(day), *(float(row[name]) for name in ("precipitation", "temp_max", "temp_min")))
        for day, row in SEATTLE.items()
    ]
    assert query(path, "SELECT substr(hour, 1, 19), temp FROM sf_temps ORDER BY hour") == [
        (str(hour), temp) for hour, temp in SF.items()
    ]
    assert (len(SEATTLE), len(SF)) == (1461, 8759)


def test_a_first_start_that_breaks_off_leaves_no_table(path: Path) -> None:
    engines: list[sa.Engine] = []

    def strike(conn: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO sf_temps"):
            engines.append(conn.engine)
            raise MemoryError

    sa.event.listen(sa.Engine, "before_cursor_execute", strike)
    try:
        with pytest.raises(MemoryError):
            demo.create_app()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", strike)
    (engine,) = engines
    engine.dispose()
    assert query(path, "SELECT name FROM sqlite_master") == []


# -- its tasks


def midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=ZONE)


def run(start: datetime, end: datetime) -> Run:
    interval = {"logical_date": start, "data_interval_start": start, "data_interval_end": end}
    return Run(dag_id="any", run_id="any", conf={}, backfill_id=1, try_number=1, **interval)


@pytest.mark.parametrize("day", ["2012-01-01", "2012-01-05", "2012-02-29", "2015-03-08", "2015-11-01", "2015-12-31"])
def test_daily_climate(app: Flask, path: Path, day: str) -> None:
    today = date.fromisoformat(day)
    for _ in range(2):  # doing it twice is doing it once
        demo.daily_climate(run(midnight(today), midnight(today + timedelta(days=1))))
    high, low = float(SEATTLE[today]["temp_max"]), float(SEATTLE[today]["temp_min"])
    rain = sum(RAIN.get(today - timedelta(days=number), 0) for number in range(7))
    assert query(path, "SELECT date, temp_mean, temp_range, precipitation_of_7_days FROM daily_climates") == [
        (day, pytest.approx((high + low) / 2), pytest.approx(high - low), pytest.approx(rain))
    ]


@pytest.mark.parametrize(("day", "hours"), [("2010-01-01", 24), ("2010-03-14", 23), ("2010-11-07", 25)])
def test_hourly_temps_of_every_hour_of_a_day(app: Flask, path: Path, day: str, hours: int) -> None:
    # The file calls the first hour of daylight saving time 02:00, not 03:00; zoneinfo reads it as the same instant.
    celsius = {
        local.replace(tzinfo=ZONE, fold=fold).astimezone(UTC): (temp - 32) * 5 / 9
        for fold in (1, 0)
        for local, temp in SF.items()
    }
    first = midnight(date.fromisoformat(day)).astimezone(UTC)
    instants = [first + timedelta(hours=number) for number in range(hours + 1)]
    for start, end in pairwise(instants):
        demo.hourly_temps(run(start.astimezone(ZONE), end.astimezone(ZONE)))
    assert query(path, "SELECT substr(hour, 1, 19), temp FROM hourly_temps_celsius ORDER BY hour") == [
        (f"{instant:%Y-%m-%d %H:%M:%S}", pytest.approx(celsius[instant])) for instant in instants[:-1]
    ]


@pytest.mark.parametrize(
    ("month", "text"),
    [
        ("2012-02-01", "February 2012: 92.3 mm of rain, 87% of the mean."),
        ("2015-03-01", "March 2015: 113.5 mm of rain, 75% of the mean."),
        ("2015-12-01", "December 2015: 284.5 mm of rain, 183% of the mean."),
    ],
)
def test_monthly_report(app: Flask, path: Path, month: str, text: str) -> None:
    first = date.fromisoformat(month)
    for _ in range(2):
        for task in (demo.collect, demo.compare, demo.publish):
            task(run(midnight(first), midnight((first + timedelta(days=31)).replace(day=1))))
    own = sum(RAIN[day] for day in RAIN if (day.year, day.month) == (first.year, first.month))
    mean = sum(RAIN[day] for day in RAIN if day.month == first.month) / 4  # years
    assert query(path, "SELECT month, precipitation, of_mean, text FROM monthly_reports") == [
        (month, pytest.approx(own), pytest.approx(own / mean), text)
    ]
