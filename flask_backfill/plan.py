"""Request + existing runs -> plan: what would be created, redone and skipped.

The dry run and the create both come through here, so they cannot disagree. Nothing here knows Flask or the
database: :func:`prepare` is done before the lock is taken, :func:`make_plan` under it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import islice
from typing import Any, NamedTuple

import marshmallow as ma

from .dags import Dag
from .errors import BackfillsNotAllowed, InvalidRequest
from .schedules import Period, first_instant, last_instant
from .settings import MAX_CONF_BYTES_OF_ALL_RUNS, Settings
from .states import IN_FLIGHT, OnFailure, ReprocessBehavior, RunState, SkipReason


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for, well-formed but not yet held against a DAG.

    ``from_date`` and ``to_date`` are aware datetimes, or dates that mean the whole local day.
    """

    dag_id: str
    from_date: date
    to_date: date
    run_backwards: bool = False
    dag_run_conf: dict[str, Any] | None = None
    reprocess_behavior: ReprocessBehavior = ReprocessBehavior.NONE
    max_active_runs: int = 10
    on_failure: OnFailure = OnFailure.CONTINUE


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request held against its DAG: everything that can be known before the database is asked."""

    request: Request
    dag: Dag
    from_date: datetime  # UTC
    to_date: datetime  # UTC
    periods: list[Period]  # in the order in which they run
    dag_run_conf: dict[str, Any] | None  # of the backfill and of redone runs; None: those keep their own
    new_run_conf: dict[str, Any] | None  # of new runs


class ExistingRun(NamedTuple):
    """A run that is there already for a date of the range."""

    dag_run_id: int
    state: str
    data_interval_end: datetime | None = None  # UTC; of the schedule that the DAG had when the run was written


@dataclass(frozen=True)
class Plan:
    """What happens to every date of a range. Dates without an entry in ``redo`` or ``skipped`` are created."""

    periods: list[Period]
    redo: dict[datetime, ExistingRun] = field(default_factory=dict)
    skipped: dict[datetime, SkipReason] = field(default_factory=dict)

    @property
    def create(self) -> list[Period]:
        """Return the periods that get a new run, in order."""
        existing = self.redo.keys() | self.skipped.keys()
        return [period for period in self.periods if period.logical_date not in existing]

    @property
    def moved(self) -> list[Period]:
        """Return the periods whose run is redone and had another end: the DAG's schedule has changed since."""
        return [
            period
            for period in self.periods
            if (run := self.redo.get(period.logical_date)) and run.data_interval_end != period.data_interval_end
        ]

    @property
    def to_run(self) -> Iterator[datetime]:
        """Yield the logical dates that run, created and redone, in order."""
        return (period.logical_date for period in self.periods if period.logical_date not in self.skipped)

    @property
    def counts(self) -> dict[str, int]:
        """Count the dates by action."""
        redo, skip = len(self.redo), len(self.skipped)
        return {"create": len(self.periods) - redo - skip, "redo": redo, "skip": skip}


def prepare(dag: Dag, request: Request, *, now: datetime, settings: Settings) -> Prepared:
    """Hold a request against its DAG.

    :param now: the present, UTC; a period may run once it is over.
    :raises BackfillsNotAllowed: the DAG says no.
    :raises InvalidRequest: no such range or conf for this DAG, or too much at once.
    """
    if not dag.allow_backfill:
        raise BackfillsNotAllowed(f"DAG {dag.dag_id} does not allow backfills. Nothing was changed.")
    if dag.schedule is None:
        raise InvalidRequest({"dag_id": [f"{dag.dag_id} has no schedule, so it has no periods to run again."]})
    _check_dependence(dag, request)
    from_date, to_date = _check_range(dag, request, now)
    periods = list(islice(dag.periods(from_date, to_date, over_by=now), settings.max_runs + 1))
    if len(periods) > settings.max_runs:
        message = f"The range has more than {settings.max_runs} dates, which is the limit. Ask for it in parts."
        raise InvalidRequest({"from_date": [message], "to_date": [message]})
    if request.run_backwards:
        periods.reverse()
    conf = None if request.dag_run_conf is None else _complete_conf(dag, request.dag_run_conf)
    new_run_conf = _complete_conf(dag, {}) if conf is None and dag.params else conf
    _check_conf_size(request.dag_run_conf, new_run_conf, runs=len(periods), settings=settings)
    return Prepared(
        request=request,
        dag=dag,
        from_date=from_date,
        to_date=to_date,
        periods=periods,
        dag_run_conf=conf,
        new_run_conf=new_run_conf,
    )


def require_periods(prepared: Prepared) -> None:
    """Refuse a range without a single date: a backfill of nothing is a mistake.

    :raises InvalidRequest: there is none.
    """
    if not prepared.periods:
        message = (
            f"DAG {prepared.dag.dag_id} ({prepared.dag.schedule_text}, {prepared.dag.timezone}) has no logical date "
            "in this range whose period is over."
        )
        raise InvalidRequest({"from_date": [message], "to_date": [message]})


def make_plan(periods: list[Period], existing: Mapping[datetime, ExistingRun], behavior: ReprocessBehavior) -> Plan:
    """Decide for every date.

    :param existing: the DAG's runs by logical date; more than the range's do no harm.
    """
    plan = Plan(periods)
    for period in periods if existing else ():
        run = existing.get(period.logical_date)
        if run is None:
            continue
        reason = skip_reason(run.state, behavior)
        if reason is None:
            plan.redo[period.logical_date] = run
        else:
            plan.skipped[period.logical_date] = reason
    return plan


def skip_reason(state: str, behavior: ReprocessBehavior) -> SkipReason | None:
    """Return why an existing run is left alone, None if it is redone.

    :param state: of the existing run.
    """
    if state in IN_FLIGHT:
        return SkipReason.IN_FLIGHT
    redone = {RunState.CANCELLED}  # it never ran
    if behavior != ReprocessBehavior.NONE:
        redone.add(RunState.FAILED)
    if behavior == ReprocessBehavior.COMPLETED:
        redone.add(RunState.SUCCESS)
    return None if state in redone else SkipReason.ALREADY_EXISTS


def _check_dependence(dag: Dag, request: Request) -> None:
    if not dag.depends_on_past:
        return
    because = f"The runs of {dag.dag_id} depend on the one before (depends_on_past)"
    if request.run_backwards:
        raise InvalidRequest({"run_backwards": [f"{because}, so they cannot run backwards."]})
    if request.reprocess_behavior == ReprocessBehavior.NONE:
        raise InvalidRequest(
            {"reprocess_behavior": [f"{because}, so gaps cannot be filled alone: use 'failed' or 'completed'."]}
        )


def _check_range(dag: Dag, request: Request, now: datetime) -> tuple[datetime, datetime]:
    from_date, to_date = first_instant(request.from_date, dag.zone), last_instant(request.to_date, dag.zone)
    if from_date > to_date:
        raise InvalidRequest(
            {"from_date": [f"from_date ({_utc(from_date)}) must not be after to_date ({_utc(to_date)})."]}
        )
    if from_date > now:
        raise InvalidRequest({"from_date": [f"Backfill cannot be executed for future dates; it is {_utc(now)} now."]})
    if dag.start is not None and to_date < dag.start:
        raise InvalidRequest({"to_date": [f"The range ends before DAG {dag.dag_id} starts, on {_utc(dag.start)}."]})
    if dag.end is not None and from_date > dag.end:
        raise InvalidRequest({"from_date": [f"The range begins after DAG {dag.dag_id} ended, on {_utc(dag.end)}."]})
    return from_date, to_date


def _complete_conf(dag: Dag, conf: dict[str, Any]) -> dict[str, Any]:
    """Check a conf by the DAG's schema and fill in its defaults; JSON in, JSON out."""
    if dag.params is None:
        return conf
    try:
        completed = dag.params.dump(dag.params.load(conf))
    except ma.ValidationError as error:
        raise InvalidRequest({"dag_run_conf": flat_messages(error.messages)}) from error
    return dict(completed)


def _check_conf_size(*confs: dict[str, Any] | None, runs: int, settings: Settings) -> None:
    size = max(len(json.dumps(conf, ensure_ascii=False).encode()) for conf in confs)
    if size > settings.max_conf_bytes:
        message = f"The conf has {size} bytes of JSON; the limit is {settings.max_conf_bytes}."
    elif size * runs > MAX_CONF_BYTES_OF_ALL_RUNS:
        message = (
            f"The conf has {size} bytes of JSON and would be stored for {runs} runs; the limit is "
            f"{MAX_CONF_BYTES_OF_ALL_RUNS} bytes in all. Shorten the conf or the range."
        )
    else:
        return
    raise InvalidRequest({"dag_run_conf": [message]})


def flat_messages(messages: object, path: str = "") -> list[str]:
    """Turn marshmallow's nested messages into sentences that begin with the field's path."""
    if isinstance(messages, Mapping):
        return [
            text
            for key, inner in messages.items()
            for text in flat_messages(
                inner, path if key == ma.exceptions.SCHEMA else f"{path}.{key}" if path else f"{key}"
            )
        ]
    if isinstance(messages, list | tuple):
        return [text for inner in messages for text in flat_messages(inner, path)]
    return [f"{path}: {messages}" if path else f"{messages}"]


def _utc(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds").replace("+00:00", "Z")
