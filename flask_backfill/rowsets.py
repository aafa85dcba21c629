"""Many rows as one parameter: a FROM clause over a JSON document, in each database's own words.

With it a statement handles any number of rows at once, which is what keeps a create short under the lock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.types import TypeEngine

from .models import UTCDateTime

Columns: TypeAlias = Mapping[str, TypeEngine[Any]]

MYSQL = ("mysql", "mariadb")

#: Rows of one statement. MySQL takes parameters of 16 MiB by default, and these rows are under 100 bytes.
ROWS_PER_STATEMENT = 50_000


def rowsets(
    dialect: str,
    columns: Columns,
    rows: Collection[Sequence[Any]],
    *,
    name: str = "rowset",
) -> Iterator[sa.Subquery]:
    """Yield FROM clauses that together hold the rows; one for most sizes, none for no rows.

    :param dialect: the database's name.
    :param columns: the types by name: integers, strings or UTCDateTime.
    :param rows: values in the order of the columns, datetimes aware and in UTC.
    :param name: of the FROM clause, where a statement has two.
    """
    remaining = iter(rows)
    while chunk := list(islice(remaining, ROWS_PER_STATEMENT)):
        document = json.dumps(chunk, default=_datetime_text, separators=(",", ":"))
        yield _FROM_CLAUSES[dialect](columns, document).subquery(name)


def among(
    dialect: str, column: sa.SQLColumnExpression[int], numbers: Collection[int]
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions that together hold for the rows with these numbers; none for no numbers.

    MySQL and MariaDB get the numbers themselves: of a subquery they make a join, for which an UPDATE may read, and so
    lock, the whole table.
    """
    if dialect in MYSQL:
        remaining = iter(numbers)
        while chunk := list(islice(remaining, ROWS_PER_STATEMENT)):
            yield column.in_(sa.bindparam("numbers", chunk, expanding=True, literal_execute=True, unique=True))
    else:
        for rowset in rowsets(dialect, {"number": sa.BigInteger()}, [(number,) for number in numbers]):
            yield column.in_(sa.select(rowset.c.number))


def _datetime_text(value: object) -> str:
    """Write a datetime as SQLAlchemy stores it on SQLite, which the servers read as well."""
    if not isinstance(value, datetime):
        raise TypeError(f"{value!r} cannot be part of a row set.")
    return value.replace(tzinfo=None).isoformat(" ", "microseconds")


def _json_each(columns: Columns, document: str) -> sa.Select[Any]:
    each = sa.func.json_each(document).table_valued("value")
    extracted = (
        sa.type_coerce(sa.func.json_extract(each.c.value, f"$[{place}]"), type_).label(name)
        for place, (name, type_) in enumerate(columns.items())
    )
    return sa.select(*extracted)


def _json_array_elements(columns: Columns, document: str) -> sa.Select[Any]:
    each = sa.func.json_array_elements(sa.cast(sa.literal(document, sa.Text), postgresql.JSON)).table_valued("value")
    extracted = (
        (
            sa.type_coerce(sa.func.timezone("UTC", sa.cast(text, sa.DateTime)), type_)
            if isinstance(type_, UTCDateTime)
            else sa.cast(text, type_)
        ).label(name)
        for place, (name, type_) in enumerate(columns.items())
        for text in [sa.cast(each.c.value, postgresql.JSON)[place].astext]
    )
    return sa.select(*extracted)


def _json_table(columns: Columns, document: str) -> sa.TextualSelect:
    declared = ", ".join(
        f"{name} {_mysql_type(type_)} PATH '$[{place}]'" for place, (name, type_) in enumerate(columns.items())
    )
    text = sa.text(f"SELECT * FROM JSON_TABLE(:document, '$[*]' COLUMNS ({declared})) AS each_row")  # noqa: S608
    typed = (sa.column(name, type_) for name, type_ in columns.items())
    return text.bindparams(sa.bindparam("document", document, unique=True)).columns(*typed)


def _mysql_type(type_: TypeEngine[Any]) -> str:
    ddl = type_.dialect_impl(mysql.dialect()).compile(dialect=mysql.dialect())
    # A literal's collation would not compare with the tables' own.
    return f"{ddl} CHARACTER SET utf8mb4 COLLATE utf8mb4_bin" if isinstance(type_, sa.String) else ddl


_FROM_CLAUSES = {
    sqlite.dialect.name: _json_each,
    postgresql.dialect.name: _json_array_elements,
    mysql.dialect.name: _json_table,
    "mariadb": _json_table,
}
