"""Every setting, once: defaults, the README's table and the reading of ``app.config`` are driven by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple


class Setting(NamedTuple):
    """One key of ``app.config``."""

    name: str
    default: int
    help: str


SETTINGS = (
    Setting("BACKFILL_MAX_RUNS", 10_000, "The most dates that one backfill may have."),
    Setting("BACKFILL_MAX_CONF_BYTES", 65_536, "The largest `dag_run_conf`, in bytes of JSON."),
    Setting("BACKFILL_RETRY_AFTER", 1, "Seconds that a 503 tells the client to wait (`Retry-After`)."),
)

#: What a request's conf may take in all its runs together, in bytes of JSON.
MAX_CONF_BYTES_OF_ALL_RUNS = 16 * 2**20


@dataclass(frozen=True)
class Settings:
    """The settings of one app."""

    max_runs: int
    max_conf_bytes: int
    retry_after: int


def read_settings(config: Mapping[str, Any]) -> Settings:
    """Read and check the settings.

    :param config: ``app.config``.
    :raises ValueError: a value is no positive whole number.
    """
    values = {}
    for setting in SETTINGS:
        value = config.get(setting.name, setting.default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{setting.name} is {value!r}; it must be a whole number from 1 on.")
        values[setting.name.removeprefix("BACKFILL_").lower()] = value
    return Settings(**values)
