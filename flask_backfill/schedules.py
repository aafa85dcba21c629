"""A schedule's ticks between two instants, and where a local day begins. No database, no Flask.

Instants are aware datetimes in UTC. Cron arithmetic is cronsim's, which follows Debian's cron across DST: fields
with a fixed minute and hour run once per local day, fields that start with ``*`` follow real time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}

#: Dates outside are refused: time zones are not defined there, and databases and ``datetime`` overflow.
EARLIEST = datetime(1900, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)


class Period(NamedTuple):
    """A run's logical date and the end of the data interval that begins with it."""

    logical_date: datetime
    data_interval_end: datetime


class Schedule(ABC):
    """An endless, strictly growing series of instants (ticks), fixed whatever range is asked for."""

    @abstractmethod
    def ticks(self, start: datetime) -> Iterator[datetime]:
        """Yield the ticks at and after ``start``, in order, up to LATEST."""

    @abstractmethod
    def last_tick(self, instant: datetime) -> datetime | None:
        """Return the last tick at or before ``instant``."""

    def periods(self, start: datetime, stop: datetime, *, over_by: datetime) -> Iterator[Period]:
        """Yield the periods whose tick lies from ``start`` to ``stop`` (both included) and that have ended by
        ``over_by``."""
        for tick, following in pairwise(self.ticks(start)):
            if tick > stop or following > over_by:
                return
            yield Period(tick, following)


class CronSchedule(Schedule):
    """A five-field cron expression, read in a time zone."""

    #: Begin this much earlier and drop what is too early, so that a range that begins beside a change of the
    #: clocks gets the same ticks as a longer one. The largest change so far was 24 hours (Samoa, 2011).
    _LEAD = timedelta(days=2)

    def __init__(self, expression: str, zone: tzinfo) -> None:
        """Check the expression.

        :raises ValueError: not a five-field cron expression.
        """
        if len(expression.split()) != 5:
            raise ValueError(f"{expression!r} is not a five-field cron expression, nor one of {', '.join(PRESETS)}.")
        try:
            CronSim(expression, EARLIEST)
        except CronSimError as error:
            raise ValueError(f"{expression!r} is not a cron expression: {error}.") from error
        self._expression = expression
        self._zone = zone
        self._lead = timedelta(0) if zone is UTC else self._LEAD

    def ticks(self, start: datetime) -> Iterator[datetime]:
        # cronsim's first answer is later than what it is given.
        before = max(start, EARLIEST) - self._lead - timedelta(seconds=1)
        simulated = CronSim(self._expression, before.astimezone(self._zone))
        instants = (tick.astimezone(UTC) for tick in simulated)
        return (tick for tick in takewhile(lambda tick: tick < LATEST, instants) if tick >= start)

    def last_tick(self, instant: datetime) -> datetime | None:
        # Backwards only to find a place to begin: the ticks themselves are always made forwards.
        begin = (instant - self._lead + timedelta(seconds=1)).astimezone(self._zone)
        earlier = next(CronSim(self._expression, begin, reverse=True), begin)
        last = None
        for tick in takewhile(lambda tick: tick <= instant, self.ticks(earlier.astimezone(UTC))):
            last = tick
        return last


class IntervalSchedule(Schedule):
    """Elapsed time, not wall clock: a tick every ``interval`` from ``anchor`` on."""

    def __init__(self, interval: timedelta, anchor: datetime) -> None:
        """Fix the series.

        :raises ValueError: the interval is shorter than a second.
        """
        if interval < timedelta(seconds=1):
            raise ValueError(f"A schedule of {interval} is too short: one second is the least.")
        self._interval = interval
        self._anchor = anchor

    def ticks(self, start: datetime) -> Iterator[datetime]:
        steps = max(0, -((self._anchor - start) // self._interval))
        tick = self._anchor + steps * self._interval
        while tick < LATEST:
            yield tick
            tick += self._interval

    def last_tick(self, instant: datetime) -> datetime | None:
        if instant < self._anchor:
            return None
        return self._anchor + (instant - self._anchor) // self._interval * self._interval


def parse_zone(name: str) -> tzinfo:
    """Return the time zone of an IANA name.

    :raises ValueError: no such zone.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is not a time zone: use an IANA name such as 'Europe/Berlin'.") from error


def first_instant(value: date, zone: tzinfo) -> datetime:
    """Return a datetime as it is, in UTC, or the first instant of a local day.

    :param value: an aware datetime, or a date without a time.
    :param zone: in which the day begins; where the clocks skip midnight it begins with the skip.
    """
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    midnight = datetime.combine(value, time(), tzinfo=zone)
    # On a skipped midnight fold=0 lies behind the skip and fold=1 before it (PEP 495); else they agree, or
    # fold=0 is the first of two.
    late, early = midnight.astimezone(UTC), midnight.replace(fold=1).astimezone(UTC)
    while early < late:
        middle = early + (late - early) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).date() >= value:
            late = middle
        else:
            early = middle + timedelta(seconds=1)
    return late


def last_instant(value: date, zone: tzinfo) -> datetime:
    """Return a datetime as it is, in UTC, or the last second of a local day."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return first_instant(value + timedelta(days=1), zone) - timedelta(seconds=1)
