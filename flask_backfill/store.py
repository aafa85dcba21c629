"""Every query of the package, on the host's session. Nothing here commits or rolls back, unless it says so.

All statements go through one connection, that of the bind which holds the tables: a Core statement that goes
through a session would be sent to its default engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import Session

from .errors import BackfillNotFound
from .locks import refuse_autocommit, take_write_lock
from .models import Models, UTCDateTime
from .plan import ExistingRun
from .rowsets import MYSQL, rowsets
from .states import IN_FLIGHT, DateState, RunState

Record: TypeAlias = dict[str, Any]

#: The columns of a backfill that its answer shows.
SHOWN = (
    "id",
    "dag_id",
    "from_date",
    "to_date",
    "run_backwards",
    "dag_run_conf",
    "reprocess_behavior",
    "max_active_runs",
    "on_failure",
    "is_paused",
    "state",
    "created_at",
    "updated_at",
    "completed_at",
    "triggering_user_name",
)


class Store:
    """The package's tables behind one session."""

    def __init__(self, session: Session, models: Models) -> None:
        self.session = session
        self.models = models

    def connection(self) -> sa.Connection:
        """Return the session's connection to the tables' database, in the session's transaction."""
        return self.session.connection(bind_arguments={"mapper": sa.inspect(self.models.Backfill)})

    @property
    def locks_whole_database(self) -> bool:
        """Tell whether the write lock is one for all rows, which is SQLite's way."""
        return self.session.get_bind(sa.inspect(self.models.Backfill)).dialect.name == "sqlite"

    def write_connection(self) -> sa.Connection:
        """Return :meth:`connection`, on SQLite with the write lock.

        :raises UnsupportedEngine: a commit would be none.
        """
        connection = self.connection()
        refuse_autocommit(connection)
        if connection.dialect.name == "sqlite":
            take_write_lock(connection, self.models.table(self.models.Backfill))
        return connection

    # -- backfills

    def dag_id(self, backfill_id: int) -> str | None:
        """Return the DAG of a backfill, None if there is no such backfill."""
        Backfill = self.models.Backfill
        return self.connection().scalar(sa.select(Backfill.dag_id).where(Backfill.id == backfill_id))

    def backfill(self, backfill_id: int) -> Record:
        """Return a backfill with its counts.

        :raises BackfillNotFound: there is none.
        """
        found = self._with_counts([backfill_id])
        if not found:
            raise BackfillNotFound
        return found[0]

    def backfills(
        self,
        *,
        dag_id: str | None = None,
        state: str | None = None,
        active: bool | None = None,
        among: Collection[str] | None = None,
        limit: int,
        offset: int,
        descending: bool = False,
    ) -> tuple[list[Record], int]:
        """Return one page of backfills with their counts, and how many there are in all.

        :param among: only of these DAGs; None for all.
        """
        Backfill = self.models.Backfill
        conditions = []
        if dag_id is not None:
            conditions.append(Backfill.dag_id == dag_id)
        if state is not None:
            conditions.append(Backfill.state == state)
        if active is not None:
            conditions.append(Backfill.active_dag_id.is_not(None) if active else Backfill.active_dag_id.is_(None))
        if among is not None:
            conditions.append(Backfill.dag_id.in_(among))
        connection = self.connection()
        total = connection.scalar(sa.select(sa.func.count()).select_from(Backfill).where(*conditions)) or 0
        order = Backfill.id.desc() if descending else Backfill.id
        page = sa.select(Backfill.id).where(*conditions).order_by(order).limit(limit).offset(offset)
        return self._with_counts(connection.scalars(page).all()), total

    def dag_ids(self) -> list[str]:
        """Return the DAGs that have backfills, those that are in no code any more among them."""
        Backfill = self.models.Backfill
        return list(self.connection().scalars(sa.select(Backfill.dag_id).distinct()))

    def active_backfills(self, dag_ids: Collection[str]) -> dict[str, int]:
        """Return the id of the active backfill by DAG."""
        Backfill = self.models.Backfill
        query = sa.select(Backfill.dag_id, Backfill.id).where(Backfill.active_dag_id.in_(dag_ids))
        return {row.dag_id: row.id for row in self.connection().execute(query)}

    def dag_runs(
        self, backfill_id: int, *, state: str | None = None, limit: int, offset: int
    ) -> tuple[list[Record], int]:
        """Return one page of a backfill's dates in their order, and how many there are in all.

        :param state: one of DateState.
        """
        Backfill, DagRun, Date = self.models.Backfill, self.models.DagRun, self.models.BackfillDagRun
        date_state = self._date_state()
        dates = (
            sa.select(
                Date.logical_date,
                Date.exception_reason,
                date_state.label("state"),
                DagRun.data_interval_end,
                DagRun.started_at,
                DagRun.ended_at,
                DagRun.try_number,
                DagRun.error,
            )
            .select_from(Date)
            .join(Backfill, Backfill.id == Date.backfill_id)
            # By its date, since a date that was skipped has no link to the run that is there.
            .outerjoin(DagRun, (DagRun.dag_id == Backfill.dag_id) & (DagRun.logical_date == Date.logical_date))
            .where(Date.backfill_id == backfill_id)
        )
        if state is not None:
            dates = dates.where(date_state == state)
        connection = self.connection()
        total = connection.scalar(sa.select(sa.func.count()).select_from(dates.subquery())) or 0
        page = dates.order_by(Date.sort_ordinal).limit(limit).offset(offset)
        return [_date_record(row) for row in connection.execute(page).mappings()], total

    def _with_counts(self, ids: Sequence[int]) -> list[Record]:
        """Return backfills in the order of their ids given; state and counts are of one moment."""
        Backfill, DagRun, Date = self.models.Backfill, self.models.DagRun, self.models.BackfillDagRun
        counts = (
            sa.select(Date.backfill_id, self._date_state().label("date_state"), sa.func.count().label("number"))
            .outerjoin(DagRun, DagRun.id == Date.dag_run_id)
            .where(Date.backfill_id.in_(ids))
            .group_by(Date.backfill_id, sa.literal_column("date_state"))
            .subquery()
        )
        columns = [getattr(Backfill, name) for name in SHOWN]
        query = (
            sa.select(*columns, counts.c.date_state, counts.c.number)
            .outerjoin(counts, counts.c.backfill_id == Backfill.id)
            .where(Backfill.id.in_(ids))
        )
        found: dict[int, Record] = {}
        numbers: dict[int, Counter[str]] = {}
        for row in self.connection().execute(query):
            found.setdefault(row.id, {name: getattr(row, name) for name in SHOWN})
            number = numbers.setdefault(row.id, Counter())
            if row.date_state is not None:
                number[row.date_state] = row.number
        return [
            found[backfill_id] | {"dag_run_counts": complete_counts(numbers[backfill_id])}
            for backfill_id in ids
            if backfill_id in found
        ]

    def _date_state(self) -> sa.ColumnElement[str]:
        """Return what became of a date, as an expression over a BackfillDagRun and its DagRun, if any."""
        DagRun, Date = self.models.DagRun, self.models.BackfillDagRun
        return sa.case(
            (Date.exception_reason.is_not(None), sa.literal_column(f"'{DateState.SKIPPED}'")),
            (
                DagRun.backfill_id.is_(None) | (DagRun.backfill_id != Date.backfill_id),
                sa.literal_column(f"'{DateState.SUPERSEDED}'"),
            ),
            (Date.is_cancelled, sa.literal_column(f"'{DateState.CANCELLED}'")),
            else_=DagRun.state,
        )

    # -- what MySQL needs to be told

    def by_id(self, statement: Any) -> Any:
        """Make MySQL reach the rows of a SELECT or an UPDATE by their primary key.

        Of a small table it would read, and so lock, all rows instead, and wait for creates and cancels of other DAGs.
        """
        name = self.connection().dialect.name
        if name not in MYSQL:
            return statement
        hint = "FORCE INDEX (PRIMARY)"
        if isinstance(statement, sa.Update):
            return statement.with_hint(hint, dialect_name=name)
        return statement.with_hint(statement.get_final_froms()[0], hint, name)

    def current(self, query: sa.Select[Any]) -> sa.Select[Any]:
        """Make MySQL read what is, not the snapshot that the transaction's first read has frozen."""
        return query.with_for_update(read=True) if self.connection().dialect.name in MYSQL else query

    # -- runs

    def existing_runs(self, dag_id: str, first: datetime, last: datetime) -> dict[datetime, ExistingRun]:
        """Return a DAG's runs by logical date.

        :param first: logical date, UTC, included.
        :param last: logical date, UTC, included.
        """
        DagRun = self.models.DagRun
        query = sa.select(DagRun.logical_date, DagRun.id, DagRun.state, DagRun.data_interval_end).where(
            DagRun.dag_id == dag_id, DagRun.logical_date.between(first, last)
        )
        return {row.logical_date: ExistingRun(*row[1:]) for row in self.connection().execute(query)}

    def record_runs(
        self,
        dag_id: str,
        periods: Mapping[datetime, datetime | None],
        state: RunState,
        *,
        now: datetime,
    ) -> int:
        """Write down runs of the host's, but for those that a backfill has in flight; return how many.

        :param periods: data interval ends by logical date, UTC.
        """
        DagRun = self.models.DagRun
        connection = self.connection()
        in_a_backfill = DagRun.backfill_id.is_not(None) & DagRun.state.in_(IN_FLIGHT)
        columns = {"logical_date": UTCDateTime(), "data_interval_end": UTCDateTime()}
        times = {"ended_at": None if state in IN_FLIGHT else now}
        if state in IN_FLIGHT:
            times["started_at"] = now if state == RunState.RUNNING else None
        refused = 0
        for rowset in rowsets(connection.dialect.name, columns, sorted(periods.items())):
            values = {
                "dag_id": dag_id,
                "logical_date": rowset.c.logical_date,
                "data_interval_end": rowset.c.data_interval_end,
                "state": state,
            }
            # Where a backfill had the run, it no longer has: the host has redone it. That comes first, since MySQL
            # evaluates the condition of each assignment with what the ones before have set.
            changed = {"backfill_id": None, "state": state, "error": None, **times}
            self.upsert(
                DagRun, values | times, rowset, key=("dag_id", "logical_date"), changed=changed, unless=in_a_backfill
            )
            same_run = (DagRun.dag_id == dag_id) & (DagRun.logical_date == rowset.c.logical_date)
            # Outer and without a WHERE: MySQL goes from the dates to the runs then, and locks no others.
            in_flight = sa.select(sa.case((in_a_backfill, 1), else_=0)).select_from(rowset.outerjoin(DagRun, same_run))
            refused += sum(connection.scalars(self.current(in_flight)))
        return len(periods) - refused

    # -- statements over many rows

    def insert(self, model: type[Any], values: Mapping[str, Any], source: sa.FromClause) -> int:
        """Insert a row for every row of a FROM clause, and return their number.

        :param values: by column: expressions over the source, or constants.
        """
        connection = self.connection()
        return connection.execute(self._insert_select(sa.insert, model, values, source)).rowcount

    def upsert(
        self,
        model: type[Any],
        values: Mapping[str, Any],
        source: sa.FromClause,
        *,
        key: Iterable[str],
        changed: Mapping[str, Any],
        unless: sa.ColumnElement[bool] | None = None,
    ) -> None:
        """Insert a row for every row of a FROM clause, or change the row that has its key already.

        :param changed: new values of a row that is there, in an order in which each may change what the
            condition and the later ones see.
        :param unless: leave such rows as they are.
        """
        connection = self.connection()
        if connection.dialect.name in MYSQL:
            insert = self._insert_select(mysql.insert, model, values, source)
            columns = self.models.table(model).c
            assignments = [
                (name, value if unless is None else sa.case((unless, columns[name]), else_=value))
                for name, value in changed.items()
            ]
            statement = insert.on_duplicate_key_update(assignments)
        else:
            dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
            statement = self._insert_select(dialect.insert, model, values, source).on_conflict_do_update(
                index_elements=list(key), set_=changed, where=None if unless is None else sa.not_(unless)
            )
        connection.execute(statement)

    def offered(self, column: str) -> sa.ColumnElement[Any]:
        """Return what the row that an upsert found no place for has in a column, for its changes."""
        is_mysql = self.connection().dialect.name in MYSQL
        return sa.literal_column(f"VALUES({column})" if is_mysql else f"excluded.{column}")

    def _insert_select(
        self, insert: Callable[[Any], Any], model: type[Any], values: Mapping[str, Any], source: sa.FromClause
    ) -> Any:
        columns = self.models.table(model).c
        postgres = self.connection().dialect.name == "postgresql"

        def expression(name: str, value: Any) -> sa.SQLColumnExpression[Any]:
            if isinstance(value, sa.SQLColumnExpression):
                return value
            constant: sa.ColumnElement[Any] = sa.literal(value, columns[name].type)
            # PostgreSQL takes a bare parameter of a SELECT for text.
            return sa.cast(constant, columns[name].type) if postgres else constant

        chosen = sa.select(*(expression(name, value) for name, value in values.items())).select_from(source)
        # A condition that always holds: without one SQLite reads ON CONFLICT as part of the FROM clause.
        chosen = chosen.where(sa.literal_column("1") == sa.literal_column("1"))
        return insert(model).from_select(list(values), chosen, include_defaults=False)


def complete_counts(numbers: Mapping[str, int]) -> dict[str, int]:
    """Return every state's count, and their total."""
    counts = {str(state): numbers.get(state, 0) for state in DateState}
    return counts | {"total": sum(counts.values())}


def _date_record(row: Mapping[Any, Any]) -> Record:
    """Show of the run what is this backfill's own; of a queued one not what an earlier try left."""
    record = dict(row)
    record["data_interval_start"] = record["logical_date"]
    if record["state"] in (DateState.SKIPPED, DateState.SUPERSEDED):
        record["try_number"] = None
    if record["state"] not in (DateState.RUNNING, DateState.SUCCESS, DateState.FAILED):
        record["started_at"] = record["ended_at"] = record["error"] = None
    return record
