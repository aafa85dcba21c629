"""Which database errors are locks, how to take SQLite's write lock first, and how to let go of everything.

Errors are told apart by the driver's code, never by text: the text of an exception holds the user's values.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from .errors import UnsupportedEngine

logger = logging.getLogger("flask_backfill")

# https://www.sqlite.org/rescode.html; extended codes carry the primary one in their lowest byte.
_SQLITE_BUSY = 5
_SQLITE_LOCKED_SHAREDCACHE = 262
_SQLITE_LOCKED_VTAB = 518  # plain SQLITE_LOCKED (6) is a connection that blocks itself: no use to try again
# https://www.postgresql.org/docs/current/errcodes-appendix.html
_POSTGRESQL = frozenset({"55P03", "40P01", "40001"})  # lock_not_available, deadlock_, serialization_failure
# ER_LOCK_WAIT_TIMEOUT, ER_LOCK_DEADLOCK, ER_LOCK_NOWAIT, ER_CHECKREAD (a snapshot that is too old)
_MYSQL = frozenset({1205, 1213, 3572, 1020})

_DRIVERS = {
    "sqlite3": "sqlite",
    "pysqlite2": "sqlite",
    "pysqlcipher3": "sqlite",
    "sqlcipher3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "psycopg2cffi": "postgresql",
    "pg8000": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "cymysql": "mysql",
}
_DIALECTS = {"sqlite": "sqlite", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}


def is_lock_error(error: BaseException, dialect: str | None = None) -> bool:
    """Tell whether the database refused because of another transaction, so that trying again can help.

    :param error: any exception; only SQLAlchemy's DBAPIError can be a lock.
    :param dialect: the dialect's name where it is known; else the driver's package decides.
    """
    return lock_family(error, dialect) is not None


def lock_family(error: BaseException, dialect: str | None = None) -> str | None:
    """Return ``sqlite``, ``postgresql`` or ``mysql`` for a lock error of such a database, else None.

    A lost connection is none: what it did may have happened.
    """
    if not isinstance(error, DBAPIError) or isinstance(error, IntegrityError | DataError):
        return None
    orig: Any = error.orig
    if orig is None or error.connection_invalidated:
        return None
    family = _DIALECTS.get(dialect) if dialect else _driver_family(orig)
    if family == "sqlite":
        code = getattr(orig, "sqlite_errorcode", None)
        is_lock = isinstance(code, int) and (
            code & 0xFF == _SQLITE_BUSY or code in (_SQLITE_LOCKED_SHAREDCACHE, _SQLITE_LOCKED_VTAB)
        )
    elif family == "postgresql":
        is_lock = _sqlstate(orig) in _POSTGRESQL
    elif family == "mysql":
        is_lock = _errno(orig) in _MYSQL
    else:
        is_lock = False
    return family if is_lock else None


def take_write_lock(connection: sa.Connection, table: sa.Table) -> None:
    """Take SQLite's write lock in the connection's transaction, waiting as long as its busy timeout says.

    A transaction that has read cannot wait for the lock later on, so this comes before all else. Works in every
    mode of the driver, and never ends the host's transaction.

    :param connection: to a SQLite database.
    :param table: a table with an ``id`` in that database, of which nothing is changed.
    """
    raw: Any = connection.connection.driver_connection
    if raw.in_transaction:
        connection.execute(sa.update(table).where(sa.false()).values(id=table.c.id))
    else:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def refuse_autocommit(connection: sa.Connection) -> None:
    """Make sure that a commit of this connection is one.

    :raises UnsupportedEngine: the driver commits every statement by itself.
    """
    raw: Any = connection.connection.driver_connection
    if connection.dialect.name == "sqlite":
        # sqlite3's own autocommit makes commit() and rollback() do nothing (Python 3.12 and newer). SQLAlchemy's
        # AUTOCOMMIT isolation is another thing: our explicit BEGIN works there, though what the host wrote before it
        # in the same request has been committed already.
        if getattr(raw, "autocommit", None) is True:
            raise UnsupportedEngine(
                "This SQLite connection was opened with autocommit=True, so nothing could be taken back. Nothing "
                "was changed. Remove 'autocommit' from connect_args in SQLALCHEMY_ENGINE_OPTIONS, or set it to False."
            )
        return
    state = raw.get_autocommit() if hasattr(raw, "get_autocommit") else getattr(raw, "autocommit", False)
    if state is True or state == 1:
        raise UnsupportedEngine(
            "This database connection is in AUTOCOMMIT mode, so nothing could be taken back. Nothing was changed. "
            "Set another isolation_level in SQLALCHEMY_ENGINE_OPTIONS."
        )


def is_duplicate_key(error: IntegrityError) -> bool:
    """Tell whether a server refused a row because another one has its unique key (SQLSTATE 23505, error 1062)."""
    return error.orig is not None and (_sqlstate(error.orig) == "23505" or _errno(error.orig) == 1062)


def roll_back(session: Session) -> None:
    """Roll back. If that fails the connection is thrown away, and the first error still decides the answer."""
    try:
        session.rollback()
    except Exception:
        logger.exception("The rollback failed; the connection is discarded.")
        session.invalidate()


def _driver_family(orig: Any) -> str | None:
    for cls in type(orig).__mro__:
        family = _DRIVERS.get(cls.__module__.partition(".")[0])
        if family:
            return family
    return None


def _sqlstate(orig: Any) -> str | None:
    """psycopg says sqlstate (None where it only saw a closed socket), psycopg2 pgcode, pg8000 a dict's "C"."""
    for attribute in ("sqlstate", "pgcode"):
        code = getattr(orig, attribute, None)
        if isinstance(code, str):
            return code
    fields = orig.args[0] if orig.args else None
    return fields.get("C") if isinstance(fields, dict) else None


def _errno(orig: Any) -> int | None:
    code = getattr(orig, "errno", None)
    if not isinstance(code, int):
        code = orig.args[0] if orig.args else None
    return code if isinstance(code, int) else None
