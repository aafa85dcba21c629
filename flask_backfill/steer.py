"""Steering a backfill: pause, unpause, cancel. Every change of state locks the backfill's row first.

After it come the rows of its runs, by id, then their task instances; counting is last. As with everything in the
store, nothing here commits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from .errors import AlreadyCompleted, BackfillNotFound, TryAgain
from .rowsets import among
from .states import BackfillState, DateState, RunState
from .store import SHOWN, Record, Store, complete_counts


class LockedBackfill(NamedTuple):
    """A backfill whose row this transaction has locked."""

    id: int
    dag_id: str
    shown: Record  # without the counts

    def require_active(self) -> None:
        """Refuse to go on where it has ended.

        :raises AlreadyCompleted: it has.
        """
        if self.shown["completed_at"] is not None:
            raise AlreadyCompleted


def lock_backfill(store: Store, backfill_id: int) -> LockedBackfill:
    """Lock a backfill until the transaction ends, before anything of it or of its runs is changed.

    :raises BackfillNotFound: there is none.
    """
    Backfill = store.models.Backfill
    columns = [getattr(Backfill, name) for name in SHOWN]
    query = sa.select(*columns).where(Backfill.id == backfill_id).with_for_update()
    row = store.write_connection().execute(query).one_or_none()
    if row is None:
        raise BackfillNotFound
    return LockedBackfill(row.id, row.dag_id, {name: getattr(row, name) for name in SHOWN})


def set_paused(store: Store, backfill: LockedBackfill, is_paused: bool, *, now: datetime) -> Record:
    """Pause or unpause an active backfill; nothing happens where it is so already.

    :raises AlreadyCompleted: it has ended.
    """
    backfill.require_active()
    changes: Record = {}
    if backfill.shown["is_paused"] != is_paused:
        changes = {"is_paused": is_paused, "updated_at": now}
        _update_backfill(store, backfill.id, **changes)
    # Not store.backfill(): on MySQL that would show the snapshot which the host's first read has frozen.
    return backfill.shown | changes | {"dag_run_counts": _count(_dates_now(store, backfill))}


def cancel(store: Store, backfill: LockedBackfill, *, now: datetime) -> Record:
    """End an active backfill: what is queued will not run, what is running finishes.

    :raises AlreadyCompleted: it has ended.
    """
    backfill.require_active()
    dates = _dates_now(store, backfill, for_update=True)
    queued = [date for date in dates if date.state == DateState.QUEUED]
    redos = [date for date in queued if date.previous_state is not None]
    _cancel_new_runs(store, [date.dag_run_id for date in queued if date.previous_state is None])
    _cancel_redos(store, backfill, redos)
    changes = {"state": BackfillState.CANCELLED, "is_paused": False, "completed_at": now, "updated_at": now}
    _update_backfill(store, backfill.id, active_dag_id=None, **changes)
    counts = Counter(date.state for date in dates)
    counts[DateState.CANCELLED] += counts.pop(DateState.QUEUED, 0)
    return backfill.shown | changes | {"dag_run_counts": complete_counts(counts)}


def _update_backfill(store: Store, backfill_id: int, **values: Any) -> None:
    Backfill = store.models.Backfill
    store.connection().execute(sa.update(Backfill).where(Backfill.id == backfill_id).values(**values))


def _dates_now(store: Store, backfill: LockedBackfill, *, for_update: bool = False) -> list[_Date]:
    """Return a locked backfill's dates with their runs, as they are now whatever snapshot the host has.

    Every row is reached by its primary key, so that MySQL locks no gaps and nothing of other backfills.

    :param for_update: lock the runs, in the order of their ids.
    :raises TryAgain: the host's snapshot (MySQL) is older than the backfill.
    """
    DagRun, Date = store.models.DagRun, store.models.BackfillDagRun
    connection = store.connection()
    in_backfill = Date.backfill_id == backfill.id
    ordinals = connection.scalars(sa.select(Date.sort_ordinal).where(in_backfill)).all()
    if not ordinals:
        raise TryAgain
    dates: list[Any] = []
    for these in among(connection.dialect.name, Date.sort_ordinal, ordinals):
        query = sa.select(Date.sort_ordinal, Date.dag_run_id, Date.exception_reason, Date.is_cancelled)
        dates += connection.execute(store.current(store.by_id(query.where(in_backfill, these))))
    runs: dict[int | None, Any] = {}
    linked = sorted({date.dag_run_id for date in dates if date.dag_run_id is not None})
    for these in among(connection.dialect.name, DagRun.id, linked):
        select = store.by_id(sa.select(DagRun.id, DagRun.state, DagRun.backfill_id, DagRun.previous_state))
        select = select.where(these).order_by(DagRun.id)
        found = connection.execute(select.with_for_update() if for_update else store.current(select))
        runs |= {run.id: run for run in found}
    return [_date(date, runs.get(date.dag_run_id), backfill.id) for date in dates]


def _cancel_new_runs(store: Store, dag_run_ids: Collection[int]) -> None:
    DagRun = store.models.DagRun
    connection = store.connection()
    for these in among(connection.dialect.name, DagRun.id, dag_run_ids):
        connection.execute(store.by_id(sa.update(DagRun)).where(these).values(state=RunState.CANCELLED))
    _change_queued_tasks(store, dag_run_ids, state=RunState.CANCELLED)


def _cancel_redos(store: Store, backfill: LockedBackfill, dates: Collection[_Date]) -> None:
    """Give redos that have not started what they had before."""
    DagRun, Date, TaskInstance = store.models.DagRun, store.models.BackfillDagRun, store.models.TaskInstance
    connection = store.connection()
    dialect = connection.dialect.name
    # In this order: MySQL evaluates assignments from left to right, with what the ones before have set.
    restored: list[tuple[Any, Any]] = [(DagRun.state, DagRun.previous_state), (DagRun.previous_state, None)]
    if backfill.shown["dag_run_conf"] is not None:
        restored += [(DagRun.conf, DagRun.previous_conf), (DagRun.previous_conf, sa.null())]
    dag_run_ids = [date.dag_run_id for date in dates]
    for these in among(dialect, DagRun.id, dag_run_ids):
        connection.execute(store.by_id(sa.update(DagRun)).where(these).ordered_values(*restored))
    _change_queued_tasks(store, dag_run_ids, state=sa.func.coalesce(TaskInstance.previous_state, RunState.CANCELLED))
    for these in among(dialect, Date.sort_ordinal, [date.sort_ordinal for date in dates]):
        in_backfill = Date.backfill_id == backfill.id
        connection.execute(store.by_id(sa.update(Date)).where(in_backfill, these).values(is_cancelled=True))


def _change_queued_tasks(store: Store, dag_run_ids: Collection[int], **values: Any) -> None:
    TaskInstance = store.models.TaskInstance
    connection = store.connection()
    for these in among(connection.dialect.name, TaskInstance.dag_run_id, dag_run_ids):
        # With the tasks' ids the keys are whole. By a part of them MySQL locks the gaps beside a run's rows too, where
        # creates of other DAGs insert theirs.
        task_ids = connection.scalars(sa.select(TaskInstance.task_id).where(these).distinct()).all()
        queued = TaskInstance.task_id.in_(task_ids) & (TaskInstance.state == RunState.QUEUED)
        connection.execute(store.by_id(sa.update(TaskInstance)).where(these, queued).values(**values))


class _Date(NamedTuple):
    """One date of a locked backfill, with what steering it needs of its run."""

    sort_ordinal: int
    dag_run_id: int
    state: str  # one of DateState
    previous_state: str | None


def _date(date: Any, run: Any | None, backfill_id: int) -> _Date:
    """Tell what became of a date; :meth:`Store._date_state` says the same in SQL."""
    if date.exception_reason is not None:
        state: str = DateState.SKIPPED
    elif run is None or run.backfill_id != backfill_id:
        state = DateState.SUPERSEDED
    else:
        state = DateState.CANCELLED if date.is_cancelled else run.state
    return _Date(date.sort_ordinal, date.dag_run_id, state, run.previous_state if run else None)


def _count(dates: Iterable[_Date]) -> dict[str, int]:
    return complete_counts(Counter(date.state for date in dates))
