"""``flask backfill ...``"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import yaml
from flask.cli import AppGroup

if TYPE_CHECKING:
    from .extension import FlaskBackfill


def make_group(backfill: FlaskBackfill, *, url_prefix: str) -> AppGroup:
    """Return the commands of one extension.

    :param url_prefix: where the API is mounted.
    """
    group = AppGroup("backfill", help="Run the jobs of this app again over past dates.")

    @group.command("openapi")
    def openapi() -> None:
        """Print the API's description as YAML."""
        document = backfill.openapi(url_prefix)
        click.echo(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100), nl=False)

    return group
