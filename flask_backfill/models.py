"""The four tables, mapped onto the host's metadata.

A private declarative base per metadata keeps the host's own base (extra columns, dataclasses, mixins) out of these
models, while ``db.create_all()`` and Flask-Migrate see the tables like the host's own. Once released a table is an
API: a change to it comes with Alembic operations in the README.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .states import BackfillState, RunState

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect
    from sqlalchemy.types import TypeEngine


class UTCDateTime(sa.types.TypeDecorator[datetime]):
    """An aware datetime in UTC, to the microsecond, on every database."""

    impl = sa.DateTime
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(timezone=True)

    def __repr__(self) -> str:
        return "DateTime(timezone=True).with_variant(sa.dialects.mysql.DATETIME(fsp=6), 'mysql', 'mariadb')"

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value} has no offset from UTC.")
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


# Alembic writes a type into a migration by its module's name and its repr, without an import. So it writes plain
# SQLAlchemy there, and a migration keeps working whatever becomes of this class.
UTCDateTime.__module__ = "sqlalchemy.types"

_Id = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_DagId = sa.String(250)
_State = sa.String(16)
_Json = sa.JSON(none_as_null=True)
_Zero = sa.text("0")


class BackfillColumns:
    """A request to run a DAG over a range of dates, and what became of it."""

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    dag_id: Mapped[str] = mapped_column(_DagId)
    from_date: Mapped[datetime] = mapped_column(UTCDateTime)
    to_date: Mapped[datetime] = mapped_column(UTCDateTime)
    run_backwards: Mapped[bool]
    dag_run_conf: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    reprocess_behavior: Mapped[str] = mapped_column(sa.String(16))
    max_active_runs: Mapped[int]
    on_failure: Mapped[str] = mapped_column(sa.String(16))
    is_paused: Mapped[bool] = mapped_column(default=False)
    state: Mapped[str] = mapped_column(_State, default=BackfillState.QUEUED)
    created_at: Mapped[datetime] = mapped_column(UTCDateTime)
    updated_at: Mapped[datetime] = mapped_column(UTCDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    triggering_user_name: Mapped[str | None] = mapped_column(sa.String(250))
    #: The DAG's id while the backfill is active, else NULL: unique, so a DAG has one active backfill at most.
    active_dag_id: Mapped[str | None] = mapped_column(_DagId)
    #: SHA-256 of the user and the Idempotency-Key.
    idempotency_key: Mapped[str | None] = mapped_column(sa.String(64))
    #: SHA-256 of the request that the key came with.
    request_hash: Mapped[str | None] = mapped_column(sa.String(64))


class DagRunColumns:
    """The run of a DAG for one logical date, whoever made it."""

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    dag_id: Mapped[str] = mapped_column(_DagId)
    logical_date: Mapped[datetime] = mapped_column(UTCDateTime)
    data_interval_end: Mapped[datetime | None] = mapped_column(UTCDateTime)
    state: Mapped[str] = mapped_column(_State)
    conf: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    #: The backfill that made or redid the run last; NULL where the host did.
    backfill_id: Mapped[int | None] = mapped_column(_Id)
    #: What a queued redo goes back to when it is cancelled before it starts; NULL once it has started.
    previous_state: Mapped[str | None] = mapped_column(_State)
    previous_conf: Mapped[dict[str, Any] | None] = mapped_column(_Json)
    #: Counts the starts of this run, over all backfills. Fences off a try that was given up for dead.
    try_number: Mapped[int] = mapped_column(server_default=_Zero)
    #: Tries whose worker died since the run was queued last.
    lost_tries: Mapped[int] = mapped_column(server_default=_Zero)
    #: Grows while a worker is on it. A number, since the clocks of two machines cannot be compared.
    heartbeat: Mapped[int] = mapped_column(server_default=_Zero)
    started_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    error: Mapped[str | None] = mapped_column(sa.String(1000))


class BackfillDagRunColumns:
    """One date of a backfill's range: the run that it made or redid, or the reason why there is none."""

    backfill_id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=False)
    sort_ordinal: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    logical_date: Mapped[datetime] = mapped_column(UTCDateTime)
    dag_run_id: Mapped[int | None] = mapped_column(_Id)
    exception_reason: Mapped[str | None] = mapped_column(sa.String(32))
    #: A redo that was cancelled before it started: the run has the state that it had before.
    is_cancelled: Mapped[bool] = mapped_column(server_default=sa.false())


class TaskInstanceColumns:
    """One task of a run."""

    dag_run_id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=False)
    task_id: Mapped[str] = mapped_column(_DagId, primary_key=True)
    state: Mapped[str] = mapped_column(_State, default=RunState.QUEUED)
    previous_state: Mapped[str | None] = mapped_column(_State)  # as in dag_run
    try_number: Mapped[int] = mapped_column(server_default=_Zero)
    started_at: Mapped[datetime | None] = mapped_column(UTCDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UTCDateTime)


@dataclass(frozen=True)
class Models:
    """The mapped classes of one metadata and prefix."""

    Backfill: type[BackfillColumns]
    DagRun: type[DagRunColumns]
    BackfillDagRun: type[BackfillDagRunColumns]
    TaskInstance: type[TaskInstanceColumns]

    def table(self, model: type[Any]) -> sa.Table:
        """Return the table of one of these classes."""
        table = sa.inspect(model).local_table
        assert isinstance(table, sa.Table)  # noqa: S101 - for the type checker
        return table


def map_models(metadata: sa.MetaData, *, table_prefix: str = "") -> Models:
    """Define the tables on a metadata, once for each prefix.

    :param metadata: the host's, of the bind that is to hold the tables.
    :param table_prefix: put before each of the four names.
    :raises RuntimeError: the host has a table of such a name.
    """
    memo = metadata.info.setdefault("flask_backfill", {})
    if table_prefix not in memo:
        names = {name: table_prefix + name for name in ("backfill", "dag_run", "backfill_dag_run", "task_instance")}
        taken = {table.name for table in metadata.tables.values() if table.schema == metadata.schema}
        clash = sorted(taken.intersection(names.values()))
        if clash:
            raise RuntimeError(
                f"The app has a table named {', '.join(clash)} already; give FlaskBackfill another "
                f"table_prefix, such as table_prefix='bf_'."
            )
        memo[table_prefix] = _define(metadata, names)
    models: Models = memo[table_prefix]
    return models


def _define(metadata: sa.MetaData, names: dict[str, str]) -> Models:
    # What a foreign key needs as its index is a unique constraint here: it goes with its table, where Alembic would
    # drop an index before the table, which MySQL refuses.
    options = {
        f"{dialect}_{key}": value
        for dialect in ("mysql", "mariadb")
        for key, value in {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}.items()
    }
    never_twice = {"sqlite_autoincrement": True}  # an id that was deleted is not given again
    clustered = {"sqlite_with_rowid": False}

    class Base(DeclarativeBase):
        pass

    Base.metadata = metadata

    class Backfill(BackfillColumns, Base):
        __tablename__ = names["backfill"]
        __table_args__ = (
            sa.UniqueConstraint("active_dag_id", name=f"uq_{__tablename__}_active_dag_id"),
            sa.UniqueConstraint("idempotency_key", name=f"uq_{__tablename__}_idempotency_key"),
            sa.Index(f"ix_{__tablename__}_dag_id", "dag_id", "id"),
            options | never_twice,
        )

    class DagRun(DagRunColumns, Base):
        __tablename__ = names["dag_run"]
        __table_args__ = (
            sa.ForeignKeyConstraint(["backfill_id"], [Backfill.id], ondelete="SET NULL"),
            sa.UniqueConstraint("dag_id", "logical_date", name=f"uq_{__tablename__}_dag_id_logical_date"),
            # One run for each date of a backfill. As an index: the backfill's next run, and its counts.
            sa.UniqueConstraint("backfill_id", "state", "logical_date", name=f"uq_{__tablename__}_backfill_id"),
            options | never_twice,
        )

    class BackfillDagRun(BackfillDagRunColumns, Base):
        __tablename__ = names["backfill_dag_run"]
        __table_args__ = (
            sa.ForeignKeyConstraint(["backfill_id"], [Backfill.id], ondelete="CASCADE"),
            sa.ForeignKeyConstraint(["dag_run_id"], [DagRun.id], ondelete="SET NULL"),
            sa.UniqueConstraint("dag_run_id", "backfill_id", name=f"uq_{__tablename__}_dag_run_id"),
            options | clustered,
        )

    class TaskInstance(TaskInstanceColumns, Base):
        __tablename__ = names["task_instance"]
        __table_args__ = (
            sa.ForeignKeyConstraint(["dag_run_id"], [DagRun.id], ondelete="CASCADE"),
            options | clustered,
        )

    return Models(Backfill, DagRun, BackfillDagRun, TaskInstance)
