"""``flask backfill ...``"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import click
import marshmallow as ma
import yaml
from flask import current_app
from flask.cli import AppGroup

from .errors import BackfillError, DagNotFound, TryAgain
from .plan import flat_messages
from .problems import rolling_back
from .schedules import first_instant, last_instant
from .schemas import DateOrDateTime
from .states import RunState
from .views import GET_OPENAPI

if TYPE_CHECKING:
    from .extension import FlaskBackfill


def make_group(backfill: FlaskBackfill) -> AppGroup:
    """Return the commands of one extension."""
    group = AppGroup("backfill", help="Run the jobs of this app again over past dates.")

    @group.command("openapi")
    def openapi() -> None:
        """Print the API's description as YAML."""
        document = backfill.openapi(_server(backfill))
        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100), nl=False)

    @group.command("mark")
    @click.argument("dag_id")
    @click.argument("from_date", callback=_parse_date)
    @click.argument("to_date", callback=_parse_date)
    @click.option(
        "--state", type=click.Choice([str(state) for state in RunState]), default="success", show_default=True
    )
    def mark(dag_id: str, from_date: date, to_date: date, state: str) -> None:
        """Write down the app's own runs of a DAG, for all of its dates from FROM_DATE to TO_DATE.

        So a backfill knows that these dates are done, or, as failed, that they are not: a date whose run died as
        running is freed by that. Runs that a backfill has queued or running are left alone.
        """
        with _errors(), rolling_back(lambda: backfill.db.session()):
            dag = backfill.dags.get(dag_id)
            if dag is None:
                raise DagNotFound(dag_id)
            first, last = first_instant(from_date, dag.zone), last_instant(to_date, dag.zone)
            dates = [period.logical_date for period in dag.periods(first, last, over_by=datetime.now(UTC))]
            if not dates:
                raise click.UsageError(f"DAG {dag_id} has no logical date in this range whose period is over.")
            marked = backfill.record_runs(dag_id, dates, state)
            backfill.db.session.commit()
        left = len(dates) - marked
        alone = f" {left} left alone: a backfill has them queued or running." if left else ""
        click.echo(f"{marked} runs of {dag_id} marked as {state}, {dates[0]:%Y-%m-%d} to {dates[-1]:%Y-%m-%d}.{alone}")

    return group


def _server(backfill: FlaskBackfill) -> str:
    """Return the path under which the API is mounted on the current app, by the host in another blueprint maybe."""
    names = [name for name, blueprint in current_app.blueprints.items() if blueprint is backfill.blueprint]
    if not names:
        raise click.ClickException(
            "backfill.blueprint is not registered on this app; register it where init_app() is told not to."
        )
    rule = next(current_app.url_map.iter_rules(f"{names[0]}.{GET_OPENAPI}")).rule
    root: str = current_app.config["APPLICATION_ROOT"]
    return root.rstrip("/") + rule.removesuffix("/openapi.json")


def _parse_date(context: click.Context, parameter: click.Parameter, value: str) -> date:
    """Read a date, or a datetime with its offset, by the rules of the REST API."""
    try:
        parsed: date = DateOrDateTime().deserialize(value)
    except ma.ValidationError as error:
        raise click.BadParameter(" ".join(flat_messages(error.messages)), context, parameter) from error
    return parsed


class _TryAgain(click.ClickException):
    exit_code = 75  # EX_TEMPFAIL


@contextmanager
def _errors() -> Iterator[None]:
    """Turn our errors into a sentence and an exit status: 75 where the same command may be tried again, else 1."""
    try:
        yield
    except TryAgain as error:
        raise _TryAgain(error.detail) from error
    except BackfillError as error:
        raise click.ClickException(error.detail) from error
