"""Which dates a range has: ticks across changes of the clocks, both ends of ranges, and mistakes in a DAG."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from conftest import day
from flask_sqlalchemy import SQLAlchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from flask_backfill import FlaskBackfill
from flask_backfill.dags import Dag
from flask_backfill.schedules import LATEST, Period, first_instant, last_instant

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def make_dag(schedule: str | timedelta | None = "@daily", zone: str = "UTC", **more: Any) -> Dag:
    return Dag("it", register=[].append, schedule=schedule, timezone=zone, **more)


def ask(dag: Dag, first: str, last: str, *, over_by: datetime = LATEST) -> list[Period]:
    """Return the periods of a range as users write it: dates, or datetimes with an offset."""
    begin, end = (
        date.fromisoformat(text) if len(text) == 10 else datetime.fromisoformat(text) for text in (first, last)
    )
    return list(dag.periods(first_instant(begin, dag.zone), last_instant(end, dag.zone), over_by=over_by))


def on_the_wall(dag: Dag, first: str, last: str) -> list[str]:
    """Return the logical dates of a range, written in the DAG's zone as ``10 03:00-0400``."""
    return [f"{tick.astimezone(dag.zone):%d %H:%M%z}" for tick, _ in ask(dag, first, last)]


def ticks_of(dag: Dag, start: datetime, stop: datetime) -> list[datetime]:
    return [tick for tick, _ in dag.periods(start, stop, over_by=LATEST)]


@pytest.mark.parametrize(
    ("zone", "schedule", "first", "last", "expected"),
    [
        ("America/New_York", "0 2 * * *", "2024-03-09", "2024-03-11", "09 02:00-0500 10 03:00-0400 11 02:00-0400"),
        ("Europe/Berlin", "30 2 * * *", "2025-03-29", "2025-03-31", "29 02:30+0100 30 03:00+0200 31 02:30+0200"),
        ("Europe/Berlin", "0,30 2,3 * * *", "2025-03-30", "2025-03-30", "30 03:00+0200 30 03:30+0200"),
        ("Europe/Berlin", "30 2 * * *", "2025-10-25", "2025-10-27", "25 02:30+0200 26 02:30+0200 27 02:30+0100"),
        ("Europe/Berlin", "0,30 2 * * *", "2025-10-26", "2025-10-26", "26 02:00+0200 26 02:30+0200"),
        ("America/Sao_Paulo", "@daily", "2017-10-14", "2017-10-16", "14 00:00-0300 15 01:00-0200 16 00:00-0200"),
        ("America/Havana", "@daily", "2024-11-02", "2024-11-04", "02 00:00-0400 03 00:00-0400 04 00:00-0500"),
        ("Pacific/Apia", "@daily", "2011-12-29", "2011-12-31", "29 00:00-1000 31 00:00+1400"),
        ("Pacific/Apia", "30 2 * * *", "2011-12-29", "2011-12-31", "29 02:30-1000 31 02:30+1400"),
    ],
)
def test_fixed_times_run_once_per_local_day(zone: str, schedule: str, first: str, last: str, expected: str) -> None:
    """AF 70089: one run per local day that exists, also where its time is missing or doubled."""
    assert " ".join(on_the_wall(make_dag(schedule, zone), first, last)) == expected


@pytest.mark.parametrize(
    ("zone", "schedule", "local_day", "count", "odd"),
    [
        ("America/Los_Angeles", "@hourly", "2023-11-05", 25, "05 01:00-0700 05 01:00-0800"),
        ("America/Los_Angeles", "@hourly", "2024-03-10", 23, "10 01:00-0800 10 03:00-0700"),
        ("Europe/Berlin", "*/30 2 * * *", "2025-03-30", 0, ""),
        ("Europe/Berlin", "*/30 2 * * *", "2025-10-26", 4, "26 02:30+0200 26 02:00+0100"),
        ("Africa/Cairo", "@hourly", "2023-04-28", 23, "28 01:00+0300 28 02:00+0300"),
        ("Africa/Cairo", "*/30 1 * * 5", "2023-04-28", 2, "28 01:00+0300 28 01:30+0300"),
        ("Africa/Cairo", "0 */2 * * 5", "2023-04-28", 11, "28 02:00+0300 28 04:00+0300"),
        ("Australia/Lord_Howe", "0 */2 * * *", "2024-04-07", 12, "07 00:00+1100 07 02:00+1030"),
        ("Australia/Lord_Howe", "*/15 23 * * *", "2024-10-06", 4, "06 23:00+1100 06 23:15+1100"),
    ],
)
def test_stars_follow_real_time(zone: str, schedule: str, local_day: str, count: int, odd: str) -> None:
    """DG 18022: every real minute that reads so is a run, none is left out and none made up."""
    ticks = on_the_wall(make_dag(schedule, zone), local_day, local_day)
    assert len(ticks) == count
    assert odd in " ".join(ticks)


def test_monthly_in_berlin_has_every_month() -> None:
    """KE 7227: three months are three runs."""
    ticks = on_the_wall(make_dag("@monthly", "Europe/Berlin"), "2025-02-01", "2025-04-30")
    assert ticks == ["01 00:00+0100", "01 00:00+0100", "01 00:00+0200"]


@pytest.mark.parametrize(("zone", "hour"), [("Asia/Kolkata", "03:45"), ("America/New_York", "14:15")])
def test_fields_are_read_in_the_zone(zone: str, hour: str) -> None:
    """AR 13786: and instants are UTC."""
    (period,) = ask(make_dag("15 9 * * *", zone), "2025-01-07", "2025-01-07")
    assert [f"{instant:%d %H:%M%z}" for instant in period] == [f"07 {hour}+0000", f"08 {hour}+0000"]


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("@hourly", ["2024-02-29T00", "2024-02-29T01"]),
        ("@daily", ["2024-02-29T00", "2024-03-01T00"]),
        ("@weekly", ["2024-03-03T00", "2024-03-10T00"]),
        ("@monthly", ["2024-03-01T00", "2024-04-01T00"]),
        ("@yearly", ["2025-01-01T00", "2026-01-01T00"]),
    ],
)
def test_presets(preset: str, expected: list[str]) -> None:
    periods = ask(make_dag(preset), "2024-02-29", "2026-01-01")
    assert [f"{tick:%Y-%m-%dT%H}" for tick, _ in periods[:2]] == expected


def test_hourly_between_eight_and_nine() -> None:
    """AF 68718: a range of two hours is two runs, not the whole day's."""
    periods = ask(make_dag("@hourly"), "2025-03-01T08:00Z", "2025-03-01T09:00Z")
    assert periods == [(day(1, hour=8), day(1, hour=9)), (day(1, hour=9), day(1, hour=10))]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
@pytest.mark.parametrize("schedule", ["* * * * *", "*/10 * * * *", MINUTE, timedelta(minutes=10)])
def test_both_ends_are_included(zone: str, schedule: str | timedelta) -> None:
    """KE 18504, TE 5179: a tick at either end of the range belongs to it, one a second outside does not."""
    dag = make_dag(schedule, zone, start_date="2025-01-01")
    first, last, second = day(1), day(1) + HOUR, timedelta(seconds=1)
    ticks = ticks_of(dag, first, last)
    assert (ticks[0], ticks[-1]) == (first, last)
    assert ticks_of(dag, first + second, last - second) == ticks[1:-1]
    assert ticks_of(dag, first, first) == [first]


def test_a_date_is_the_whole_local_day() -> None:
    ticks = on_the_wall(make_dag("@hourly", "America/New_York"), "2025-03-31", "2025-03-31")
    assert (ticks[0], ticks[-1], len(ticks)) == ("31 00:00-0400", "31 23:00-0400", 24)


@pytest.mark.parametrize("schedule", ["@daily", timedelta(days=1)])
def test_only_periods_that_are_over(schedule: str | timedelta) -> None:
    dag = make_dag(schedule, start_date="2025-03-01")
    assert ask(dag, "2025-03-01", "2030-01-01", over_by=day(3)) == [(day(1), day(2)), (day(2), day(3))]
    assert ask(dag, "2025-03-01", "2030-01-01", over_by=day(3) - timedelta(microseconds=1)) == [(day(1), day(2))]


@pytest.mark.parametrize("schedule", ["0 */12 * * *", timedelta(hours=12)])
def test_start_and_end_date_cut_and_belong_to_it(schedule: str | timedelta) -> None:
    dag = make_dag(schedule, start_date="2025-03-02", end_date="2025-03-03")
    assert on_the_wall(dag, "2025-03-03", "2025-03-03") == ["03 00:00+0000", "03 12:00+0000"]
    assert [tick for tick, _ in ask(dag, "2025-01-01", "2025-12-31")] == [
        day(n, hour=h) for n in (2, 3) for h in (0, 12)
    ]
    assert ask(dag, "2025-01-01", "2025-03-01") == ask(dag, "2025-03-04", "2025-12-31") == []


def test_no_schedule_has_no_periods() -> None:
    dag = make_dag(None)
    assert ask(dag, "2025-01-01", "2025-12-31") == []
    assert (dag.last_tick(day(1)), dag.next_tick(day(1))) == (None, None)
    assert dag.data_interval_ends([day(1), day(2)]) == {day(1): None, day(2): None}


def test_timedelta_is_elapsed_time() -> None:
    dag = make_dag(timedelta(days=1), "Europe/Berlin", start_date="2025-03-29")
    assert on_the_wall(dag, "2025-03-29", "2025-03-31") == ["29 00:00+0100", "30 00:00+0100", "31 01:00+0200"]


def test_timedelta_counts_from_start_date_whatever_is_asked() -> None:
    dag = make_dag(timedelta(hours=7), start_date="2025-03-01")
    ticks = [day(1) + number * timedelta(hours=7) for number in range(21)]
    for hours in range(-10, 50):
        start = day(1) + timedelta(hours=hours)
        assert ticks_of(dag, start, ticks[-1]) == [tick for tick in ticks if tick >= start]
    assert dag.data_interval_ends([day(1) - 9 * HOUR]) == {day(1) - 9 * HOUR: day(1)}


@pytest.mark.parametrize("schedule", ["0 6 * * *", timedelta(days=1)])
@pytest.mark.parametrize("late", [0, 0.5, 86_399.5])
@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC"])
def test_last_and_next_tick(schedule: str | timedelta, late: float, zone: str) -> None:
    dag = make_dag(schedule, zone, start_date="2025-03-03T06:00Z", end_date="2025-03-04T06:00Z")
    instants = [day(number, hour=6) + timedelta(seconds=late) for number in range(1, 6)]
    found = [(dag.last_tick(instant), dag.next_tick(instant)) for instant in instants]
    third, fourth = day(3, hour=6), day(4, hour=6)
    assert found == [(None, third), (None, third), (third, fourth), (fourth, None), (fourth, None)]


@pytest.mark.parametrize(("schedule", "expected"), [("0 6 * * *", "2025-02-28T05"), ("0 0 29 2 *", "2024-02-28T23")])
def test_last_tick_of_frequent_and_rare_ones(schedule: str, expected: str) -> None:
    tick = make_dag(schedule, "Europe/Berlin").last_tick(day(1))
    assert tick == datetime.fromisoformat(f"{expected}:00Z")


@pytest.mark.parametrize(
    ("zone", "schedule", "change"),
    [
        ("America/New_York", "0 2 * * *", "2024-03-10"),
        ("America/New_York", "30 1 * * *", "2024-11-03"),
        ("America/New_York", "@hourly", "2024-11-03"),
        ("America/Sao_Paulo", "@daily", "2017-10-15"),
        ("Pacific/Apia", "@daily", "2011-12-30"),
        ("Pacific/Apia", "0 */6 * * *", "2011-12-30"),
    ],
)
def test_ticks_do_not_depend_on_where_one_looks(zone: str, schedule: str, change: str) -> None:
    """From every half hour around a change of the clocks: a sub-range is a subset, last and next tick agree with it,
    and periods are contiguous and strictly grow."""
    dag = make_dag(schedule, zone)
    middle = first_instant(date.fromisoformat(change), dag.zone)
    begin, end = middle - timedelta(days=4), middle + timedelta(days=2)
    periods = list(dag.periods(begin, end, over_by=LATEST))
    assert periods == list(dag.periods(begin, end, over_by=LATEST))
    assert all(tick < following for tick, following in periods)
    assert all(one.data_interval_end == other.logical_date for one, other in pairwise(periods))
    for look in (begin + number * HOUR / 2 for number in range(96, 264)):
        assert ticks_of(dag, look, end) == [tick for tick, _ in periods if tick >= look]
        assert dag.last_tick(look) == max(tick for tick, _ in periods if tick <= look)
        assert dag.next_tick(look) == min(following for _, following in periods if following > look)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("schedule", ["*/7 * * * *", "30 2 * * *", "0 0 1 * *", timedelta(hours=5)])
def test_data_interval_ends_are_the_next_ticks(zone: str, schedule: str | timedelta) -> None:
    """Also of dates that are no ticks, close together and far apart, in any order, one of them twice."""
    dag = make_dag(schedule, zone, start_date="2024-11-01")
    dates = [datetime(2024, 11, 1, 4, tzinfo=UTC)]
    for hours in [0, 0.01, 1, 25, 72, 960, 0.5] * 3:
        dates.append(dates[-1] + hours * HOUR)
    ticks = ticks_of(dag, dates[0], dates[-1] + timedelta(days=60))
    assert dag.data_interval_ends(reversed(dates)) == {at: next(tick for tick in ticks if tick > at) for at in dates}


@pytest.mark.parametrize(
    ("zone", "local_day", "begins"),
    [
        ("Asia/Kolkata", "2025-03-01", "2025-03-01T00:00+05:30"),
        ("America/Sao_Paulo", "2017-10-15", "2017-10-15T01:00-02:00"),
        ("America/Sao_Paulo", "2018-02-18", "2018-02-18T00:00-03:00"),
        ("Asia/Beirut", "2022-03-27", "2022-03-27T01:00+03:00"),
        ("Africa/Cairo", "2023-04-28", "2023-04-28T01:00+03:00"),
        ("America/Havana", "2024-11-03", "2024-11-03T00:00-04:00"),
        ("America/Toronto", "1919-03-31", "1919-03-31T00:30-04:00"),
        ("Pacific/Apia", "2011-12-30", "2011-12-31T00:00+14:00"),
    ],
)
def test_a_local_day_begins_where_the_one_before_ends(zone: str, local_day: str, begins: str) -> None:
    """Where midnight is skipped, at the first instant after; where it is doubled, at the first of the two."""
    value, expected = date.fromisoformat(local_day), datetime.fromisoformat(begins)
    assert first_instant(value, ZoneInfo(zone)) == expected
    assert last_instant(value - timedelta(days=1), ZoneInfo(zone)) == expected - timedelta(seconds=1)


def test_a_datetime_stays_itself_in_utc() -> None:
    value, zone = datetime.fromisoformat("2025-03-01T10:00:30+05:30"), ZoneInfo("Asia/Tokyo")
    assert [f"{f(value, zone)}" for f in (first_instant, last_instant)] == ["2025-03-01 04:30:30+00:00"] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"schedule": "@fortnightly"}, "'@fortnightly' is not a five-field cron expression, nor one of @hourly, .*"),
        ({"schedule": "0 0 0 * * *"}, "'0 0 0 .* is not a five-field .*"),
        ({"schedule": "61 * * * *"}, r"'61 .* is not a cron expression: Bad minute\."),
        ({"schedule": "0 0 31 2 *"}, r"'0 0 31 2 \*' is not a cron expression: .*"),
        ({"schedule": HOUR}, r"A schedule of elapsed time needs a start_date to count from\."),
        ({"schedule": timedelta(0), "start_date": "2025-01-01"}, "A schedule of 0:00:00 is too short: .*"),
        ({"timezone": "Mars/Olympus"}, "'Mars/Olympus' is not a time zone: use an IANA name .*"),
        ({"timezone": "../UTC"}, "'../UTC' is not a time zone: .*"),
        ({"start_date": "yesterday"}, "start_date: 'yesterday' is not an ISO 8601 date or datetime."),
        ({"end_date": "2025-02-30"}, "end_date: '2025-02-30' is not an ISO 8601 date or datetime."),
        ({"start_date": "2025-01-01T00:00"}, "start_date: 2025-01-01 00:00:00 has no offset from UTC; .*"),
        ({"start_date": "1899-12-31"}, "start_date: 1899-12-31 is not between 1900 and 2200."),
        ({"end_date": date(2200, 1, 1)}, "end_date: 2200-01-01 is not between 1900 and 2200."),
        ({"start_date": "2025-01-02", "end_date": "2025-01-01"}, "start_date 2025-01-02 is after end_date 2025-01-01."),
        ({"retries": -1}, r"retries and retry_delay \(seconds\) cannot be negative."),
        ({"retry_delay": -0.1}, r"retries and retry_delay \(seconds\) cannot be negative."),
        ({"dag_id": "a b"}, "'a b' is no id for a DAG: use up to 250 letters, .*"),
        ({"dag_id": "a" * 251}, "'a+' is no id for a DAG: .*"),
        ({"dag_id": "taken"}, "There is a DAG 'taken' already."),
    ],
)
def test_a_mistake_in_a_dag_shows_at_once(arguments: dict[str, Any], sentence: str) -> None:
    backfill = FlaskBackfill(SQLAlchemy(), allow_anonymous=True)
    backfill.dag("taken", schedule=None)
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        backfill.dag(**{"dag_id": "it", "schedule": "@daily"} | arguments)
    assert list(backfill.dags) == ["taken"]


def test_a_mistake_in_a_task_shows_at_once() -> None:
    def extract(run: object) -> None: ...

    dag = make_dag()
    dag.task(extract)
    with pytest.raises(ValueError, match=r"^DAG 'it' has a task 'extract' already\.$"):
        dag.task(extract)
    with pytest.raises(ValueError, match=r"^Task 'ask' is to run after .*, which is no task of 'it'.$"):
        dag.task(after=[make_dag])(ask)
    with pytest.raises(ValueError, match=r"^retries and retry_delay .* cannot be negative.$"):
        dag.task(retries=-1)(ask)
    with pytest.raises(ValueError, match=r"^<Dag it @daily> has tasks already; add another one with '.task'.$"):
        dag(ask)
    with pytest.raises(ValueError, match=r"^A DAG of several tasks needs an id: .*"):
        Dag(None, register=[].append, schedule=None).task(extract)
    assert list(dag.tasks) == ["extract"]


MINUTES = {"*": range(60), "*/15": range(0, 60, 15), "0": [0], "30": [30], "0,45": [0, 45], "10-12": [10, 11, 12]}
HOURS = {"*": range(24), "*/5": range(0, 24, 5), "*/2": range(0, 24, 2), "0": [0], "1": [1], "2": [2], "3": [3]}
HOURS |= {"23": [23], "0-3": [0, 1, 2, 3], "1,2": [1, 2]}
WEEKDAYS = {"*": range(7), "0": [0], "5-6": [5, 6], "1-5/2": [1, 3, 5]}
ZONES = ["UTC", "Asia/Kathmandu", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/Havana"]
ZONES += ["America/St_Johns", "Africa/Cairo", "Asia/Beirut", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia"]


def walk(minute: str, hour: str, weekday: str, zone: tzinfo, start: datetime, stop: datetime) -> list[datetime]:
    """Look at the wall at every minute, as Debian's cron does: it runs fixed times that a change of under three hours
    has skipped right after it, and not again those that come twice."""
    fixed = not (minute.startswith("*") or hour.startswith("*"))
    ticks, before = [], (start - MINUTE).astimezone(zone).replace(tzinfo=None)
    for number in range((stop - start) // MINUTE + 1):
        local = (start + number * MINUTE).astimezone(zone)
        wall = local.replace(tzinfo=None)
        read = [] if fixed and local.fold else [wall]
        if fixed and wall - before < 3 * HOUR:
            read += [before + skipped * MINUTE for skipped in range(1, (wall - before) // MINUTE)]
        fields = ((at.minute, at.hour, at.isoweekday() % 7) for at in read)
        if any(m in MINUTES[minute] and h in HOURS[hour] and w in WEEKDAYS[weekday] for m, h, w in fields):
            ticks.append(start + number * MINUTE)
        before = wall
    return ticks


@cache
def changes(name: str) -> list[datetime]:
    """Return the noons after a zone's clocks changed, or any noons where they never do."""
    noons = [datetime(1995, 1, 1, 12, tzinfo=UTC) + timedelta(days=number) for number in range(12_000)]
    offsets = [noon.astimezone(ZoneInfo(name)).utcoffset() for noon in noons]
    return [noon for noon, (one, other) in zip(noons[1:], pairwise(offsets), strict=True) if one != other] or noons[:9]


@pytest.mark.parametrize("stars", [False, True])
def test_ticks_are_those_of_a_walk_by_the_minute(stars: bool) -> None:
    """AF 70089, DG 18022: Debian cron's way across changes of the clocks, from and to any minute."""
    times = [(minute, hour) for minute in MINUTES for hour in HOURS if ("*" in minute + hour) == stars]

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(st.data(), st.sampled_from(ZONES), st.sampled_from(times), st.sampled_from(list(WEEKDAYS)))
    def check(data: st.DataObject, name: str, time: tuple[str, str], weekday: str) -> None:
        change = data.draw(st.sampled_from(changes(name)))
        start = change - data.draw(st.integers(0, 4000)) * MINUTE
        stop = change + data.draw(st.integers(0, 3000)) * MINUTE
        dag = make_dag(f"{' '.join(time)} * * {weekday}", name)
        assert ticks_of(dag, start, stop) == walk(*time, weekday, ZoneInfo(name), start, stop)

    check()
