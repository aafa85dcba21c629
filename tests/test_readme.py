"""README's claims: its blocks run, its tables are complete, its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import Database

from flask_backfill.errors import BackfillError
from flask_backfill.settings import SETTINGS
from flask_backfill.views import ROUTES

README = (Path(__file__).parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_screen_has_a_complete_host() -> None:
    assert README.index(BLOCKS[0]) < 800
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) < 25


def test_the_python_blocks_run(sqlite: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "readme"}
    for block in BLOCKS:
        exec(compile(block, "README.md", "exec"), names)  # noqa: S102
    monkeypatch.setattr("flask.Flask.auto_find_instance_path", lambda _: str(tmp_path))
    app = names["create_app"]()
    client = app.test_client()
    body = {"dag_id": "daily_sales", "from_date": "2025-03-01", "to_date": "2025-03-05"}
    assert client.post("/api/v2/backfills/dry_run", json=body).json["counts"] == {"create": 5, "redo": 0, "skip": 0}
    with app.app_context():
        names["after_the_nightly_job"]()
    assert client.post("/api/v2/backfills/dry_run", json=body).json["counts"] == {"create": 4, "redo": 0, "skip": 1}
    assert client.post("/api/v2/backfills", json=body).json["dag_run_counts"]["queued"] == 4
    assert client.post("/api/v2/backfills", json=body | {"dag_id": "etl"}).json["dag_display_name"] == "Nightly load"
    with app.app_context():
        names["db"].engine.dispose()


def test_the_table_of_settings_is_complete() -> None:
    rows = re.findall(r"^\| `(BACKFILL_\w+)` \| (\w+) \| (.*) \|$", README, re.MULTILINE)
    assert rows == [(setting.name, str(setting.default), setting.help) for setting in SETTINGS]


def test_the_table_of_routes_is_complete() -> None:
    rows = re.findall(r"^\| `((?:GET|POST|PUT) \S+)` \|", README, re.MULTILINE)
    assert rows == [f"{route.method} {route.path}" for route in ROUTES]


def test_the_table_of_errors_is_complete() -> None:
    rows = {int(status) for status in re.findall(r"^\| (\d{3}) \|", README, re.MULTILINE)}
    assert rows == {error.status for route in ROUTES for error in route.errors}
    assert all(issubclass(error, BackfillError) for route in ROUTES for error in route.errors)
