"""``flask backfill ...``"""

from __future__ import annotations

import sqlite3

import pytest
from click.testing import Result
from conftest import Host, day


def run(host: Host, *words: str) -> Result:
    return host.app.test_cli_runner().invoke(args=["backfill", *words])


def states(host: Host) -> list[tuple[object, ...]]:
    return host.query("SELECT state, backfill_id FROM dag_run ORDER BY logical_date")


def test_mark_adopts_history(host: Host) -> None:
    result = run(host, "mark", "daily", "2025-03-01", "2025-03-05")
    assert (result.exit_code, result.output) == (0, "5 runs of daily marked as success, 2025-03-01 to 2025-03-05.\n")
    assert states(host) == [("success", None)] * 5
    preview = host.post("/backfills/dry_run", {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-06"})
    assert preview.json["counts"] == {"create": 1, "redo": 0, "skip": 5}


def test_mark_frees_a_date_whose_run_died(host: Host) -> None:
    host.record("daily", "running", day(2))
    assert run(host, "mark", "daily", "2025-03-02", "2025-03-02", "--state", "failed").exit_code == 0
    assert states(host) == [("failed", None)]


def test_mark_leaves_alone_what_a_backfill_has(host: Host) -> None:
    backfill = host.create(last="2025-03-02")
    result = run(host, "mark", "daily", "2025-03-01", "2025-03-03")
    assert result.output.endswith("2 left alone: a backfill has them queued or running.\n")
    assert states(host) == [("queued", backfill["id"])] * 2 + [("success", None)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nobody", "2025-03-01", "2025-03-02"), "Could not find dag nobody"),
        (("daily", "2025-03-02", "2025-03-01"), "no logical date"),
        (("daily", "2025-13-01", "2025-03-01"), "Not an RFC 3339 date"),
        (("daily", "2025-03-01", "2025-03-01T00:00"), "no offset"),
        (("daily", "2025-03-01", "2025-03-02", "--state", "done"), "'done'"),
    ],
)
def test_mark_refuses_what_makes_no_sense(sqlite_host: Host, words: tuple[str, ...], says: str) -> None:
    result = run(sqlite_host, "mark", *words)
    assert result.exit_code in (1, 2)
    assert says in result.output
    assert states(sqlite_host) == []


def test_mark_under_a_lock_says_try_again(sqlite_host: Host) -> None:
    holder = sqlite3.connect(sqlite_host.database.url.removeprefix("sqlite:///"), isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    result = run(sqlite_host, "mark", "daily", "2025-03-01", "2025-03-05")
    holder.close()
    assert result.exit_code == 75
    assert "Database is locked" in result.output
    assert states(sqlite_host) == []
    assert run(sqlite_host, "mark", "daily", "2025-03-01", "2025-03-05").exit_code == 0
