"""A schedule's ticks between two instants, and where a local day begins. No database, no Flask.

Instants are aware datetimes in UTC. Cron arithmetic, on wall clocks, is cronsim's; the way from wall clocks to
instants is our own and Debian cron's: fields with a fixed minute and hour run once per local day, fields that start
with ``*`` follow real time. (cronsim's own way is off where the clocks move by half an hour, a day, or at midnight.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from heapq import heappop, heappush
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
        minute, hour = expression.split()[:2]
        self._follows_real_time = minute.startswith("*") or hour.startswith("*")

    def ticks(self, start: datetime) -> Iterator[datetime]:
        # cronsim's first answer is later than what it is given.
        before = max(start, EARLIEST) - self._lead - timedelta(seconds=1)
        walls = CronSim(self._expression, before.astimezone(self._zone).replace(tzinfo=None))
        if self._zone is UTC:
            instants: Iterator[datetime] = (wall.replace(tzinfo=UTC) for wall in walls)
        else:
            instants = self._every_time(walls) if self._follows_real_time else self._once_a_day(walls)
        return (tick for tick in takewhile(lambda tick: tick < LATEST, instants) if tick >= start)

    def last_tick(self, instant: datetime) -> datetime | None:
        # Backwards only to find a place to begin: the ticks themselves are always made forwards.
        begin = instant.replace(microsecond=0) - self._lead + timedelta(seconds=1)
        wall = begin.astimezone(self._zone).replace(tzinfo=None)
        earlier = next(CronSim(self._expression, wall, reverse=True), wall)
        last = None
        for tick in takewhile(lambda tick: tick <= instant, self.ticks(earlier.replace(tzinfo=UTC) - self._lead)):
            last = tick
        return last

    def _every_time(self, walls: Iterable[datetime]) -> Iterator[datetime]:
        """Yield every instant at which the clock shows one of these times: twice, once, or not at all."""
        ahead: list[datetime] = []
        for wall in walls:
            instants = _instants(wall, self._zone)
            if not instants:
                continue
            while ahead and ahead[0] < instants[0]:
                yield heappop(ahead)
            for instant in instants:
                heappush(ahead, instant)

    def _once_a_day(self, walls: Iterable[datetime]) -> Iterator[datetime]:
        """Yield one instant for each of these times: its first, or, where the clocks skip it, the end of the skip."""
        last = EARLIEST - 2 * self._LEAD
        for wall in walls:
            instants = _instants(wall, self._zone)
            if not instants and not _has_day(wall, self._zone):
                continue
            tick = instants[0] if instants else _first_instant_at(wall, self._zone)
            if tick > last:
                yield tick
                last = tick


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
    return _first_instant_at(datetime.combine(value, time()), zone)


def last_instant(value: date, zone: tzinfo) -> datetime:
    """Return a datetime as it is, in UTC, or the last second of a local day."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return first_instant(value + timedelta(days=1), zone) - timedelta(seconds=1)


def _instants(wall: datetime, zone: tzinfo) -> list[datetime]:
    """Return when the clock shows this time: one instant, two where it is turned back, none where it skips."""
    early, late = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if early == late:
        return [early]
    return [early, late] if early < late else []  # PEP 495


def _first_instant_at(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first instant at which the clock shows this time, or a later one where it skips it."""
    # On a skipped time fold=0 lies behind the skip and fold=1 before it (PEP 495); else they agree, or fold=0 is the
    # first of two.
    late, early = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    while early < late:
        middle = (early + (late - early) // 2).replace(microsecond=0)
        if middle.astimezone(zone).replace(tzinfo=None) >= wall:
            late = middle
        else:
            early = middle + timedelta(seconds=1)
    return late


def _has_day(wall: datetime, zone: tzinfo) -> bool:
    """Tell whether the calendar of the zone has this day: Samoa's skipped one when it crossed the date line."""
    return first_instant(wall.date(), zone).astimezone(zone).date() == wall.date()
