"""The create: one transaction, whatever happens in it.

On SQLite the write lock is taken first. On the servers the backfill's own row is inserted first, and the unique
``active_dag_id`` is the lock: a second create of the DAG waits there. Nothing is locked FOR UPDATE (on MySQL gap
locks would deadlock creates of different DAGs), there is no savepoint and no loop that tries again: waiting is the
database's job.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from .errors import AlreadyActive, InvalidRequest, TryAgain
from .locks import is_duplicate_key, roll_back
from .models import UTCDateTime
from .plan import Plan, Prepared, Request, make_plan
from .rowsets import Columns, among, rowsets
from .states import BackfillState, DateState, RunState
from .store import Record, Store, complete_counts


class IdempotencyKey(NamedTuple):
    """A client's promise that two requests with the same key are one; both as SHA-256."""

    key: str
    request: str

    @classmethod
    def of(cls, key: str, *, user: str | None, request: Request) -> IdempotencyKey:
        """Hash the user with the key, so that no user can see another's, and the request as it was understood."""
        members = {name: str(value) for name, value in vars(request).items() if name != "dag_run_conf"}
        return cls(_hash([user, key]), _hash([members, request.dag_run_conf]))


def plan_backfill(store: Store, prepared: Prepared) -> Plan:
    """Return what a create of this request would do now."""
    periods = prepared.periods
    dates = [period.logical_date for period in (periods[0], periods[-1])] if periods else []
    existing = store.existing_runs(prepared.dag.dag_id, min(dates), max(dates)) if dates else {}
    return make_plan(periods, existing, prepared.request.reprocess_behavior)


def create_backfill(
    store: Store,
    prepared: Prepared,
    *,
    user_name: str | None = None,
    idempotency: IdempotencyKey | None = None,
    now: datetime,
) -> Record:
    """Write a backfill with all its runs, and return it. The caller commits, or rolls back on any exception.

    :param prepared: has at least one period.
    :param now: the present, UTC.
    :raises AlreadyActive: the DAG has an active backfill.
    :raises InvalidRequest: the idempotency key came with another request before.
    :raises TryAgain: the runs changed meanwhile (the servers only).
    :raises sqlalchemy.exc.DBAPIError: whatever the database says, locks among it.
    """
    host_began = store.session.in_transaction()
    connection = store.write_connection()
    known = _find_by_key(store, idempotency)
    if known is not None:
        return known
    if connection.dialect.name == "sqlite":
        _refuse_second(store, prepared.dag.dag_id)
    try:
        return _insert_everything(store, prepared, user_name=user_name, idempotency=idempotency, now=now)
    except IntegrityError as error:
        if connection.dialect.name == "sqlite" or not is_duplicate_key(error):
            raise  # nobody's race: under SQLite's lock there is none, and trying again would not help
        # Somebody else was first. Who, is read rather than guessed from a constraint's name; the transaction that
        # failed has to end before.
        roll_back(store.session)
        known = _find_by_key(store, idempotency)
        if known is not None and not host_began:
            return known
        if known is None:
            _refuse_second(store, prepared.dag.dag_id)
        # A known key after all, but with it a success would have lost what the host flushed: the next try finds it
        # without a rollback.
        raise TryAgain from error


def _insert_everything(
    store: Store,
    prepared: Prepared,
    *,
    user_name: str | None,
    idempotency: IdempotencyKey | None,
    now: datetime,
) -> Record:
    backfill = _insert_backfill(store, prepared, user_name=user_name, idempotency=idempotency, now=now)
    plan = plan_backfill(store, prepared)
    _insert_runs(store, prepared, plan, backfill["id"])
    _redo_runs(store, prepared, plan, backfill["id"])
    _insert_dates(store, prepared, plan, backfill["id"])
    _queue_task_instances(store, prepared, plan)
    counts = plan.counts
    if not counts["create"] + counts["redo"]:
        ended = {"state": BackfillState.SUCCESS, "completed_at": now}
        Backfill = store.models.Backfill
        store.connection().execute(
            sa.update(Backfill).where(Backfill.id == backfill["id"]).values(active_dag_id=None, **ended)
        )
        backfill |= ended
    numbers: dict[str, int] = {DateState.QUEUED: counts["create"] + counts["redo"], DateState.SKIPPED: counts["skip"]}
    return backfill | {"dag_run_counts": complete_counts(numbers)}


def _insert_backfill(
    store: Store,
    prepared: Prepared,
    *,
    user_name: str | None,
    idempotency: IdempotencyKey | None,
    now: datetime,
) -> Record:
    request = prepared.request
    shown: Record = {
        "dag_id": prepared.dag.dag_id,
        "from_date": prepared.from_date,
        "to_date": prepared.to_date,
        "run_backwards": request.run_backwards,
        "dag_run_conf": prepared.dag_run_conf,
        "reprocess_behavior": request.reprocess_behavior,
        "max_active_runs": request.max_active_runs,
        "on_failure": request.on_failure,
        "is_paused": False,
        "state": BackfillState.QUEUED,
        "created_at": now,
        "updated_at": now,
        "completed_at": None,
        "triggering_user_name": None if user_name is None else user_name[:250],
    }
    hidden = {
        "active_dag_id": prepared.dag.dag_id,
        "idempotency_key": idempotency.key if idempotency else None,
        "request_hash": idempotency.request if idempotency else None,
    }
    result = store.connection().execute(sa.insert(store.models.Backfill).values(**shown, **hidden))
    key: Any = result.inserted_primary_key
    return {"id": key[0]} | shown


def _insert_runs(store: Store, prepared: Prepared, plan: Plan, backfill_id: int) -> None:
    columns: Columns = {"logical_date": UTCDateTime(), "data_interval_end": UTCDateTime()}
    for rowset in rowsets(store.connection().dialect.name, columns, plan.create):
        values = {
            "dag_id": prepared.dag.dag_id,
            "logical_date": rowset.c.logical_date,
            "data_interval_end": rowset.c.data_interval_end,
            "state": RunState.QUEUED,
            "conf": prepared.new_run_conf,
            "backfill_id": backfill_id,
        }
        store.insert(store.models.DagRun, values, rowset)


def _redo_runs(store: Store, prepared: Prepared, plan: Plan, backfill_id: int) -> None:
    """Queue existing runs again, provided that each still has a state for which that was planned."""
    DagRun = store.models.DagRun
    connection = store.connection()
    planned_states = sorted({run.state for run in plan.redo.values()})
    # In this order: MySQL evaluates assignments from left to right, with what the ones before have set.
    values: list[tuple[Any, Any]] = [(DagRun.previous_state, DagRun.state), (DagRun.state, RunState.QUEUED)]
    if prepared.dag_run_conf is not None:
        values += [(DagRun.previous_conf, DagRun.conf), (DagRun.conf, prepared.dag_run_conf)]
    values += [(DagRun.backfill_id, backfill_id), (DagRun.lost_tries, 0)]
    redone = 0
    for these in among(connection.dialect.name, DagRun.id, [run.dag_run_id for run in plan.redo.values()]):
        redo = store.by_id(sa.update(DagRun)).where(these, DagRun.state.in_(planned_states))
        redone += connection.execute(redo.ordered_values(*values)).rowcount
    if redone != len(plan.redo):
        raise TryAgain
    columns: Columns = {"logical_date": UTCDateTime(), "data_interval_end": UTCDateTime()}
    for rowset in rowsets(connection.dialect.name, columns, plan.moved):
        # Every row is there. A join in its place could make MySQL read, and so lock, the whole table.
        end = rowset.c.data_interval_end
        there = {"dag_id": prepared.dag.dag_id, "logical_date": rowset.c.logical_date, "state": RunState.QUEUED}
        changed = {"data_interval_end": store.offered("data_interval_end")}
        store.upsert(
            DagRun, there | {"data_interval_end": end}, rowset, key=("dag_id", "logical_date"), changed=changed
        )


def _insert_dates(store: Store, prepared: Prepared, plan: Plan, backfill_id: int) -> None:
    columns: Columns = {"sort_ordinal": sa.Integer(), "logical_date": UTCDateTime(), "exception_reason": sa.String(32)}
    rows = [
        (ordinal, period.logical_date, plan.skipped.get(period.logical_date))
        for ordinal, period in enumerate(plan.periods)
    ]
    for rowset in rowsets(store.connection().dialect.name, columns, rows):
        DagRun = store.models.DagRun
        values = {
            "backfill_id": backfill_id,
            "sort_ordinal": rowset.c.sort_ordinal,
            "logical_date": rowset.c.logical_date,
            "dag_run_id": DagRun.id,
            "exception_reason": rowset.c.exception_reason,
        }
        source = _with_runs(store, prepared, rowset, rowset.c.exception_reason.is_(None))
        store.insert(store.models.BackfillDagRun, values, source)


def _queue_task_instances(store: Store, prepared: Prepared, plan: Plan) -> None:
    TaskInstance = store.models.TaskInstance
    dialect = store.connection().dialect.name
    tasks = [(task_id,) for task_id in prepared.dag.tasks]
    for task in rowsets(dialect, {"task_id": sa.String(250)}, tasks, name="task"):
        for run in rowsets(dialect, {"logical_date": UTCDateTime()}, [(date,) for date in plan.to_run]):
            values = {"dag_run_id": store.models.DagRun.id, "task_id": task.c.task_id, "state": RunState.QUEUED}
            # Every task with every run: always true, and a comparison, so that SQLAlchemy does not suspect a mistake.
            every = run.c.logical_date.is_not(None) == task.c.task_id.is_not(None)
            store.upsert(
                TaskInstance,
                values,
                _with_runs(store, prepared, run).join(task, every),
                key=("dag_run_id", "task_id"),
                changed={"previous_state": TaskInstance.state, "state": RunState.QUEUED},
            )


def _with_runs(store: Store, prepared: Prepared, rowset: sa.Subquery, *conditions: Any) -> sa.Join:
    """Join the runs to their dates. Outer, so that every database goes from the dates to the runs by the index."""
    DagRun = store.models.DagRun
    same_run = (DagRun.dag_id == prepared.dag.dag_id) & (DagRun.logical_date == rowset.c.logical_date)
    return rowset.outerjoin(DagRun, sa.and_(same_run, *conditions))


def _find_by_key(store: Store, idempotency: IdempotencyKey | None) -> Record | None:
    if idempotency is None:
        return None
    Backfill = store.models.Backfill
    query = sa.select(Backfill.id, Backfill.request_hash).where(Backfill.idempotency_key == idempotency.key)
    found = store.connection().execute(query).one_or_none()
    if found is None:
        return None
    if found.request_hash != idempotency.request:
        # Not which backfill: whoever asks may have lost the right to see it since.
        raise InvalidRequest({"Idempotency-Key": ["This key came with another request before."]})
    return store.backfill(found.id)


def _refuse_second(store: Store, dag_id: str) -> None:
    Backfill = store.models.Backfill
    query = sa.select(Backfill.id, Backfill.state).where(Backfill.active_dag_id == dag_id)
    active = store.connection().execute(query).one_or_none()
    if active is not None:
        raise AlreadyActive(dag_id, backfill_id=active.id, state=active.state)


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
