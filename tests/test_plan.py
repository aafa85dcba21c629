"""The plan: the reprocess table, the dates, and the recorded runs on which it rests; dry run and create agree on it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from conftest import Host, day, days
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flask_backfill.dags import Dag
from flask_backfill.plan import ExistingRun, Plan, Request, make_plan, prepare
from flask_backfill.schedules import Period
from flask_backfill.settings import read_settings
from flask_backfill.states import ReprocessBehavior

#: What becomes of a date, by the state of its run: with none, with failed, with completed.
TABLE = {
    "no run": ("create", "create", "create"),
    "cancelled": ("redo", "redo", "redo"),
    "failed": ("already exists", "redo", "redo"),
    "success": ("already exists", "already exists", "redo"),
    "queued": ("in flight", "in flight", "in flight"),
    "running": ("in flight", "in flight", "in flight"),
}
CELLS = [
    pytest.param(state, behavior, outcome, id=f"{state}-{behavior}")
    for state, outcomes in TABLE.items()
    for behavior, outcome in zip(ReprocessBehavior, outcomes, strict=True)
]
#: The states whose runs are done again, written down another way.
REDONE = {"none": {"cancelled"}, "failed": {"cancelled", "failed"}, "completed": {"cancelled", "failed", "success"}}

derandomized = settings(derandomize=True, deadline=None, max_examples=100)
behaviors = st.sampled_from(ReprocessBehavior)
states = st.sampled_from([state for state in TABLE if state != "no run"])


def nothing(run: object) -> None:
    pass


def periods_of(dates: Sequence[datetime]) -> list[Period]:
    return [Period(date, date + timedelta(days=1)) for date in dates]


def outcomes_of(plan: Plan) -> list[tuple[datetime, str]]:
    """Say of every date of a plan, in order, what happens to it."""
    created = {period.logical_date for period in plan.create}
    assert len(created) == len(plan.create)
    outcomes: list[tuple[datetime, str]] = []
    for date, _ in plan.periods:
        said = (
            ["create"] * (date in created) + ["redo"] * (date in plan.redo) + [*filter(None, [plan.skipped.get(date)])]
        )
        assert len(said) == 1, f"{date} is {said}"
        outcomes.append((date, str(said[0])))
    return outcomes


@pytest.mark.parametrize(("state", "behavior", "outcome"), CELLS)
def test_a_cell_of_the_table(state: str, behavior: ReprocessBehavior, outcome: str) -> None:
    run = ExistingRun(7, state)
    existing = {} if state == "no run" else {day(2): run}
    plan = make_plan(periods_of(days(1, 3)), existing, behavior)
    assert outcomes_of(plan) == [(day(1), "create"), (day(2), outcome), (day(3), "create")]
    assert plan.redo == ({day(2): run} if outcome == "redo" else {})


def test_the_table_is_complete() -> None:
    assert [str(behavior) for behavior in ReprocessBehavior] == ["none", "failed", "completed"]
    assert len(CELLS) == 18


@given(
    dates=st.lists(st.integers(1, 20), unique=True),
    history=st.dictionaries(st.integers(1, 25), states),
    behavior=behaviors,
)
@derandomized
def test_a_naive_planner_says_the_same(dates: list[int], history: dict[int, str], behavior: ReprocessBehavior) -> None:
    """Whatever the order of the dates, and with runs outside the range."""

    def naive(number: int) -> str:
        if number not in history:
            return "create"
        if history[number] in REDONE[behavior]:
            return "redo"
        return "in flight" if history[number] in ("queued", "running") else "already exists"

    expected = [(day(number), naive(number)) for number in dates]
    existing = {day(number): ExistingRun(number, state) for number, state in history.items()}
    plan = make_plan(periods_of([day(number) for number in dates]), existing, behavior)
    assert outcomes_of(plan) == expected
    said = [outcome for _, outcome in expected]
    creates, redos = said.count("create"), said.count("redo")
    assert plan.counts == {"create": creates, "redo": redos, "skip": len(said) - creates - redos}
    assert list(plan.to_run) == [date for date, outcome in expected if outcome in ("create", "redo")]
    assert [period.logical_date for period in plan.create] == [
        date for date, outcome in expected if outcome == "create"
    ]
    assert {date.day: run.dag_run_id for date, run in plan.redo.items()} == {date.day: date.day for date in plan.redo}


def ticks(dag: Dag, first: datetime, last: datetime, **more: Any) -> list[Period]:
    request = Request(dag_id=dag.dag_id, from_date=first, to_date=last, **more)
    return prepare(dag, request, now=day(15), settings=read_settings({})).periods


@given(
    schedule=st.sampled_from(["@hourly", "@daily", "30 2 * * *", "@monthly", "*/7 3 * * 1-5", timedelta(hours=5)]),
    timezone=st.sampled_from(["UTC", "Europe/Berlin", "America/Los_Angeles", "Asia/Kathmandu"]),
    hours=st.lists(st.integers(0, 24 * 14), min_size=4, max_size=4).map(sorted),
)
@derandomized
def test_the_request_never_moves_a_date(schedule: str | timedelta, timezone: str, hours: list[int]) -> None:
    """Backwards is the same set reversed, and a part of a range has its share of the dates (AF 46012)."""
    dag = Dag("any", register=[].append, schedule=schedule, timezone=timezone, start_date="2025-01-01")
    outer, first, last, end = (day(1) + timedelta(hours=number) for number in hours)
    whole = ticks(dag, outer, end)
    assert ticks(dag, outer, end, run_backwards=True) == whole[::-1]
    assert ticks(dag, first, last) == [period for period in whole if first <= period.logical_date <= last]
    assert whole == sorted(set(whole))
    assert all(outer <= tick <= end and tick < over <= day(15) for tick, over in whole)


@given(
    history=st.dictionaries(st.integers(1, 10), states),
    ends=st.lists(st.integers(1, 10), min_size=2, max_size=2).map(sorted),
    behavior=behaviors,
    backwards=st.booleans(),
)
@settings(derandomized, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_dry_run_and_create_agree(
    host: Host, history: dict[int, str], ends: list[int], behavior: ReprocessBehavior, backwards: bool
) -> None:
    for table in ("task_instance", "backfill_dag_run", "dag_run", "backfill"):
        host.execute(f"DELETE FROM {table}")
    for state in set(history.values()):
        host.record("daily", state, *(day(number) for number in history if history[number] == state))
    body = {
        "dag_id": "daily",
        "from_date": f"2025-03-{ends[0]:02}",
        "to_date": f"2025-03-{ends[1]:02}",
        "reprocess_behavior": behavior,
        "run_backwards": backwards,
    }
    before = host.tables()
    dry_run = host.post("/backfills/dry_run", body).json
    assert host.tables() == before
    created = host.post("/backfills", body).json
    dates = host.dates(created["id"])
    assert len(dates) == ends[1] - ends[0] + 1
    to_run = [date["logical_date"] for date in dates if date["state"] == "queued"]
    assert [date["logical_date"] for date in dry_run["backfills"]] == to_run
    reasons = [(date["logical_date"], date["exception_reason"]) for date in dates if date["state"] == "skipped"]
    assert [(date["logical_date"], date["exception_reason"]) for date in dry_run["skipped"]] == reasons
    counts = dry_run["counts"]
    assert dry_run["total_entries"] == counts["create"] + counts["redo"] == created["dag_run_counts"]["queued"]
    assert counts["skip"] == created["dag_run_counts"]["skipped"]
    assert len(host.query("SELECT id FROM dag_run")) - len(before["dag_run"]) == counts["create"]
    assert host.query("SELECT count(*) FROM dag_run WHERE previous_state IS NOT NULL") == [(counts["redo"],)]
    again = host.post("/backfills/dry_run", body).json
    assert again["counts"] == {"create": 0, "redo": 0, "skip": len(dates)}


@pytest.mark.parametrize("behavior", ["none", "failed", "completed"])
def test_a_dry_run_beside_an_active_backfill_calls_its_runs_in_flight(sqlite_host: Host, behavior: str) -> None:
    sqlite_host.create("daily")
    body = {"dag_id": "daily", "from_date": "2025-03-04", "to_date": "2025-03-07", "reprocess_behavior": behavior}
    dry_run = sqlite_host.post("/backfills/dry_run", body).json
    assert [date["logical_date"][:10] for date in dry_run["backfills"]] == ["2025-03-06", "2025-03-07"]
    assert [date["exception_reason"] for date in dry_run["skipped"]] == ["in flight"] * 2


def test_the_answer_of_a_dry_run(host: Host) -> None:
    host.record("daily", "success", day(1))
    host.record("daily", "failed", day(2))
    body = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-03", "reprocess_behavior": "failed"}
    assert host.post("/backfills/dry_run", body | {"run_backwards": True}).json == {
        "backfills": [
            {"logical_date": f"2025-03-0{number}T00:00:00Z", "partition_key": None, "partition_date": None}
            for number in (3, 2)
        ],
        "total_entries": 2,
        "counts": {"create": 1, "redo": 1, "skip": 1},
        "skipped": [{"logical_date": "2025-03-01T00:00:00Z", "exception_reason": "already exists"}],
    }


# -- which dates


@pytest.mark.parametrize(
    ("schedule", "timezone", "first", "last", "expected"),
    [
        ("@hourly", "UTC", "2025-03-01T08:00:00Z", "2025-03-01T09:00:00Z", "03-01T08 03-01T09"),
        ("@hourly", "America/Los_Angeles", "2023-11-05T01:00-07:00", "2023-11-05T01:00-08:00", "11-05T08 11-05T09"),
        ("@monthly", "Europe/Berlin", "2025-01-01", "2025-03-31", "12-31T23 01-31T23 02-28T23"),
        ("0 2 * * *", "America/New_York", "2024-03-09", "2024-03-11", "03-09T07 03-10T07 03-11T06"),
        ("30 6 * * *", "Asia/Tokyo", "2025-03-01", "2025-03-02", "02-28T21 03-01T21"),
    ],
    ids=["AF-68718", "DG-18022", "KE-7227", "AF-70089", "AR-13786"],
)  # fmt: skip
def test_which_dates(sqlite_host: Host, schedule: str, timezone: str, first: str, last: str, expected: str) -> None:
    """Both ends are included (KE 18504), and the schedule is read in its time zone."""
    sqlite_host.backfill.dag("own", schedule=schedule, timezone=timezone)(nothing)
    dates = sqlite_host.dates(sqlite_host.create("own", first, last)["id"])
    assert " ".join(date["logical_date"][5:13] for date in dates) == expected


def test_backwards_makes_no_run_of_the_future(sqlite_host: Host) -> None:
    """AF 46012."""
    now = datetime.now(UTC)
    span = {"first": f"{now - timedelta(days=2):%F}", "last": f"{now + timedelta(days=9):%F}"}
    backwards = sqlite_host.dates(sqlite_host.create("hourly", **span, run_backwards=True)["id"])
    assert all(datetime.fromisoformat(date["data_interval_end"]) <= datetime.now(UTC) for date in backwards)
    sqlite_host.put("/backfills/1/cancel")
    again = sqlite_host.create("hourly", **span)
    assert [date["logical_date"] for date in sqlite_host.dates(again["id"])][: len(backwards)] == [
        date["logical_date"] for date in reversed(backwards)
    ]


def test_a_range_is_cut_at_what_is_over(sqlite_host: Host) -> None:
    """The run of a period may be created once the period is over, not at its beginning."""
    before = datetime.now(UTC).date()
    body = {"dag_id": "daily", "from_date": str(before - timedelta(days=2)), "to_date": str(before + timedelta(days=2))}
    dry_run = sqlite_host.post("/backfills/dry_run", body).json
    after = datetime.now(UTC).date()
    dates = [str(before - timedelta(days=2)), str(before - timedelta(days=1))]
    # Across midnight it may be either.
    assert [date["logical_date"][:10] for date in dry_run["backfills"]] in (
        dates,
        [*dates, str(after - timedelta(days=1))],
    )


# -- the history that a plan rests on


def recorded(host: Host) -> list[tuple[Any, ...]]:
    return host.query("SELECT id, state, backfill_id FROM dag_run ORDER BY logical_date")


def test_recording_is_an_upsert(host: Host) -> None:
    columns = "state, backfill_id, started_at IS NOT NULL, ended_at IS NOT NULL"
    for state, started, ended in (("queued", 0, 0), ("running", 1, 0), ("success", 1, 1), ("failed", 1, 1)):
        # The same instant, whatever the offset.
        host.record("daily", state, day(1).astimezone(timezone(timedelta(hours=5))))
        assert host.query(f"SELECT {columns} FROM dag_run") == [(state, None, started, ended)]
    host.record("daily", "success", *days(1, 3))
    assert [state for _, state, _ in recorded(host)] == ["success"] * 3
    assert recorded(host)[0][0] == 1
    host.record("neighbour", "failed", day(1))
    assert len(recorded(host)) == 4


def test_recording_joins_the_hosts_transaction(host: Host) -> None:
    with host.app.app_context():
        assert host.backfill.record_run("daily", day(1), "success") is True
        assert recorded(host) == []
        host.db.session.rollback()
        host.backfill.record_run("daily", day(2), "success")
        host.db.session.commit()
    assert len(recorded(host)) == 1


@pytest.mark.parametrize("state", ["queued", "running"])
def test_recording_leaves_alone_what_a_backfill_has_in_flight(host: Host, state: str) -> None:
    host.record("daily", "running", day(3))
    host.create(last="2025-03-02")
    host.execute("UPDATE dag_run SET state = :state WHERE backfill_id = 1 AND logical_date < '2025-03-02'", state=state)
    before = host.tables()
    with host.app.app_context():
        assert host.backfill.record_run("daily", day(1), "success") is False
        assert host.backfill.record_runs("daily", days(1, 2), "success") == 0
        host.db.session.commit()
    assert host.tables() == before
    host.execute("UPDATE dag_run SET state = 'failed' WHERE logical_date >= '2025-03-02' AND backfill_id = 1")
    with host.app.app_context():
        assert host.backfill.record_runs("daily", days(1, 4), "running") == 3
        host.db.session.commit()
    assert [row[1:] for row in recorded(host)] == [(state, 1), *[("running", None)] * 3]
    assert [date["state"] for date in host.dates(1)] == [state, "superseded"]


@pytest.mark.parametrize(
    ("dag_id", "date", "end"),
    [
        ("daily", day(1), day(2)),
        ("daily", day(1, hour=7), day(2)),
        ("daily", datetime(2019, 6, 1, tzinfo=UTC), datetime(2019, 6, 2, tzinfo=UTC)),
        ("unscheduled", day(1), None),
    ],
    ids=["tick", "off-tick", "before-start", "no-schedule"],
)
def test_a_recorded_runs_period_ends_at_the_next_tick(
    sqlite_host: Host, dag_id: str, date: datetime, end: datetime | None
) -> None:
    sqlite_host.backfill.dag("unscheduled", schedule=None)(nothing)
    sqlite_host.record(dag_id, "success", date)
    text = None if end is None else f"{end:%F %T}.000000"
    assert sqlite_host.query("SELECT data_interval_end FROM dag_run") == [(text,)]


def test_a_run_between_two_ticks_is_none_of_a_plans(host: Host) -> None:
    host.record("daily", "running", day(2, hour=7))
    backfill = host.create()
    assert [date["state"] for date in host.dates(backfill["id"])] == ["queued"] * 5
    assert [row[1:] for row in recorded(host)].count(("running", None)) == 1


@pytest.mark.parametrize(
    ("dag_id", "date", "state", "error"),
    [
        ("daily", datetime(2025, 3, 1), "success", ValueError),
        ("daily", day(1), "done", ValueError),
        ("unknown", day(1), "success", LookupError),
    ],
    ids=["naive-date", "unknown-state", "unknown-dag"],
)
def test_what_cannot_be_recorded(
    sqlite_host: Host, dag_id: str, date: datetime, state: str, error: type[Exception]
) -> None:
    with sqlite_host.app.app_context():
        with pytest.raises(error):
            sqlite_host.backfill.record_runs(dag_id, [day(2), date], state)
        sqlite_host.db.session.commit()
    assert recorded(sqlite_host) == []
