"""What can be backfilled: a DAG with its schedule, its tasks, and the run that a task function gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, TypeVar, overload

import marshmallow as ma

from .schedules import (
    EARLIEST,
    LATEST,
    PRESETS,
    CronSchedule,
    IntervalSchedule,
    Period,
    Schedule,
    first_instant,
    last_instant,
    parse_zone,
)

#: Airflow's rule for ids; 250 characters are what every database can index.
_IDENTIFIER = re.compile(r"[\w.-]{1,250}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One dag run, as a task function gets it. All datetimes are aware and in the DAG's time zone."""

    dag_id: str
    run_id: str
    logical_date: datetime
    data_interval_start: datetime
    data_interval_end: datetime
    conf: Mapping[str, Any]
    backfill_id: int | None
    try_number: int


TaskFunction = Callable[[Run], object]
F = TypeVar("F", bound=TaskFunction)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A function of a DAG, and when it is tried again."""

    task_id: str
    function: TaskFunction
    after: tuple[str, ...] = ()
    retries: int = 0
    retry_delay: float = 0  # seconds


class Dag:
    """Something that runs once per period, made by :meth:`flask_backfill.FlaskBackfill.dag`."""

    def __init__(
        self,
        dag_id: str | None,
        *,
        register: Callable[[Dag], None],
        schedule: str | timedelta | None,
        timezone: str = "UTC",
        start_date: str | date | None = None,
        end_date: str | date | None = None,
        display_name: str | None = None,
        depends_on_past: bool = False,
        params: type[ma.Schema] | ma.Schema | None = None,
        allow_backfill: bool = True,
        retries: int = 0,
        retry_delay: float = 0,
    ) -> None:
        """Check everything at once: a mistake shows when the app starts, not when it is needed.

        :param dag_id: letters, digits, ``_``, ``-`` and ``.``; None: named after its only task.
        :param register: called with the DAG as soon as it has an id.
        :param schedule: five cron fields, a preset such as ``@daily``, an elapsed time, or None for no periods.
        :param timezone: IANA name, in which cron fields and dates without a time are read.
        :param start_date: the first logical date: an aware datetime, or a date (from the beginning of that day).
        :param end_date: the last logical date: an aware datetime, or a date (to the end of that day).
        :param depends_on_past: runs go strictly one after another.
        :param params: a marshmallow schema that checks and completes ``dag_run_conf``.
        :param allow_backfill: False: creating a backfill answers 400.
        :param retries: how often a failed task is tried again, unless the task says otherwise.
        :param retry_delay: seconds before it is.
        :raises ValueError: an argument cannot be right; the sentence says which.
        """
        self.timezone = timezone
        self.zone = parse_zone(timezone)
        self.start = None if start_date is None else first_instant(_as_date("start_date", start_date), self.zone)
        self.end = None if end_date is None else last_instant(_as_date("end_date", end_date), self.zone)
        if self.start and self.end and self.start > self.end:
            raise ValueError(f"start_date {start_date} is after end_date {end_date}.")
        self.schedule_text = None if schedule is None else str(schedule)
        self.schedule = self._make_schedule(schedule)
        self.display_name = display_name
        self.depends_on_past = depends_on_past
        self.params = params() if isinstance(params, type) else params
        self.allow_backfill = allow_backfill
        self.retries, self.retry_delay = _check_retries(retries, retry_delay)
        self.tasks: dict[str, Task] = {}
        self._register = register
        self.dag_id = ""
        if dag_id is not None:
            self._take_id(dag_id)

    def __repr__(self) -> str:
        return f"<Dag {self.dag_id or '(unnamed)'} {self.schedule_text}>"

    @property
    def dag_display_name(self) -> str:
        """Return the name for people."""
        return self.display_name or self.dag_id

    def __call__(self, function: F) -> F:
        """Take a function as the only task, and return it unchanged.

        :raises ValueError: the DAG has tasks already.
        """
        if self.tasks:
            raise ValueError(f"{self!r} has tasks already; add another one with '.task'.")
        if not self.dag_id:
            self._take_id(function.__name__)
        self._add(function, after=(), retries=None, retry_delay=None)
        return function

    @overload
    def task(self, function: F) -> F: ...
    @overload
    def task(
        self,
        *,
        after: Sequence[TaskFunction] = ...,
        retries: int | None = ...,
        retry_delay: float | None = ...,
    ) -> Callable[[F], F]: ...
    def task(
        self,
        function: F | None = None,
        *,
        after: Sequence[TaskFunction] = (),
        retries: int | None = None,
        retry_delay: float | None = None,
    ) -> F | Callable[[F], F]:
        """Add a task, as ``@dag.task`` or ``@dag.task(after=[extract])``, and return the function unchanged.

        :param after: functions of this DAG that must have succeeded first.
        :param retries: how often it is tried again; the DAG's number by default.
        :param retry_delay: seconds before it is; the DAG's by default.
        :raises ValueError: the DAG has no id, or ``after`` names what is no task of it.
        """
        if not self.dag_id:
            raise ValueError("A DAG of several tasks needs an id: backfill.dag('etl', schedule=...).")

        def add(function: F) -> F:
            self._add(function, after=after, retries=retries, retry_delay=retry_delay)
            return function

        return add if function is None else add(function)

    def periods(self, start: datetime, stop: datetime, *, over_by: datetime) -> Iterator[Period]:
        """Yield this DAG's periods, cut at its start and end date; none without a schedule.

        :param start: first logical date, UTC, included.
        :param stop: last logical date, UTC, included.
        :param over_by: only periods that have ended by this instant.
        """
        if self.schedule is None:
            return iter(())
        return self.schedule.periods(max(start, self.start or start), min(stop, self.end or stop), over_by=over_by)

    def data_interval_ends(self, logical_dates: Iterable[datetime]) -> dict[datetime, datetime | None]:
        """Return where the periods of runs end, by logical date; None without a schedule.

        :param logical_dates: UTC; of one that is no tick the period ends at the next tick.
        """
        if self.schedule is None:
            return dict.fromkeys(logical_dates)
        ends: dict[datetime, datetime | None] = {}
        ticks: Iterator[datetime] = iter(())
        following: datetime | None = None
        for logical_date in sorted(logical_dates):
            if following is None or logical_date - following > timedelta(days=3):
                ticks = self.schedule.ticks(logical_date)
                following = next(ticks, None)
            while following is not None and following <= logical_date:
                following = next(ticks, None)
            ends[logical_date] = following
        return ends

    def last_tick(self, now: datetime) -> datetime | None:
        """Return the last tick at or before now, None before the first."""
        if self.schedule is None:
            return None
        tick = self.schedule.last_tick(min(now, self.end or now))
        return None if tick is None or tick < (self.start or tick) else tick

    def next_tick(self, now: datetime) -> datetime | None:
        """Return the first tick after now, None after the last."""
        if self.schedule is None:
            return None
        first = max(now, self.start or now)
        tick = next((tick for tick in self.schedule.ticks(first) if tick > now), None)
        return None if tick is None or tick > (self.end or tick) else tick

    def _make_schedule(self, schedule: str | timedelta | None) -> Schedule | None:
        if schedule is None:
            return None
        if isinstance(schedule, timedelta):
            if self.start is None:
                raise ValueError("A schedule of elapsed time needs a start_date to count from.")
            return IntervalSchedule(schedule, self.start)
        return CronSchedule(PRESETS.get(schedule, schedule), self.zone)

    def _take_id(self, dag_id: str) -> None:
        self.dag_id = _check_identifier("DAG", dag_id)
        self._register(self)

    def _add(
        self,
        function: TaskFunction,
        *,
        after: Sequence[TaskFunction],
        retries: int | None,
        retry_delay: float | None,
    ) -> None:
        task_id = _check_identifier("task", function.__name__)
        if task_id in self.tasks:
            raise ValueError(f"DAG {self.dag_id!r} has a task {task_id!r} already.")
        # Only what is a task already may be named, so the order of registration is a topological one.
        ids = {task.function: task.task_id for task in self.tasks.values()}
        for other in after:
            if other not in ids:
                raise ValueError(f"Task {task_id!r} is to run after {other!r}, which is no task of {self.dag_id!r}.")
        own_retries, own_delay = _check_retries(
            self.retries if retries is None else retries,
            self.retry_delay if retry_delay is None else retry_delay,
        )
        self.tasks[task_id] = Task(
            task_id=task_id,
            function=function,
            after=tuple(ids[other] for other in after),
            retries=own_retries,
            retry_delay=own_delay,
        )


def _check_identifier(kind: str, name: str) -> str:
    if not _IDENTIFIER.fullmatch(name):
        raise ValueError(
            f"{name!r} is no id for a {kind}: use up to 250 letters, digits, underscores, dashes and dots."
        )
    return name


def _check_retries(retries: int, retry_delay: float) -> tuple[int, float]:
    if retries < 0 or retry_delay < 0:
        raise ValueError("retries and retry_delay (seconds) cannot be negative.")
    return retries, retry_delay


def _as_date(argument: str, value: str | date) -> date:
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value) if len(value) == 10 else datetime.fromisoformat(value)
        except ValueError as error:
            raise ValueError(f"{argument}: {value!r} is not an ISO 8601 date or datetime.") from error
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"{argument}: {value} has no offset from UTC; give one, or a date without a time.")
    if not EARLIEST.year <= value.year < LATEST.year:
        raise ValueError(f"{argument}: {value} is not between {EARLIEST.year} and {LATEST.year}.")
    return value
