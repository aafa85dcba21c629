"""Flask-Migrate, from its own command line: an app that has tables and rows already gets ours, and gives them back."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import sqlalchemy as sa
from conftest import Database

APP = """
    import os

    from flask import Flask
    from flask_migrate import Migrate
    from flask_sqlalchemy import SQLAlchemy

    from flask_backfill import FlaskBackfill

    db = SQLAlchemy()
    backfill = None
    if os.environ["STEP"] == "with":
        backfill = FlaskBackfill(db, allow_anonymous=True, bind_key=os.environ.get("BIND"))

        @backfill.dag(schedule="@daily")
        def daily(run):
            pass


    class Customer(db.Model):
        id = db.Column(db.Integer, primary_key=True)


    def create_app():
        app = Flask(__name__)
        app.config["SQLALCHEMY_DATABASE_URI"] = os.environ["URL"]
        if "BIND" in os.environ:
            app.config["SQLALCHEMY_BINDS"] = {os.environ["BIND"]: os.environ["BIND_URL"]}
        db.init_app(app)
        Migrate(app, db)
        if backfill:
            backfill.init_app(app)
        return app
"""
CREATE = """
from app import create_app
body = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-05"}
answer = create_app().test_client().post("/api/v2/backfills", json=body)
print(answer.status_code, answer.json["dag_run_counts"]["queued"])
"""
TABLES = {"backfill", "dag_run", "backfill_dag_run", "task_instance"}
Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a Python program in the app's folder; it must end well."""
    (tmp_path / "app.py").write_text(dedent(APP))

    def run(*words: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=os.environ | {"FLASK_APP": "app", "STEP": "with"} | environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def tables(url: str) -> set[str]:
    names = sa.inspect(sa.create_engine(url, poolclass=sa.NullPool)).get_table_names()
    return set(names) - {"sqlite_sequence", "alembic_version"}


def rows(url: str, table: str) -> int:
    with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
        return connection.scalar(sa.text(f"SELECT count(*) FROM {table}"))


def go_through(run: Run, folder: Path, url: str, ours: str, *options: str, **environment: str) -> None:
    """Go through the life of an app's tables.

    :param ours: the URL of the database that gets our tables.
    """
    environment |= {"URL": url}

    def flask(*words: str, step: str = "with") -> str:
        return run("-m", "flask", "db", *words, STEP=step, **environment)

    flask("init", *options, step="without")
    flask("migrate", "-m", "customers", step="without")
    flask("upgrade", step="without")
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as connection:
        connection.execute(sa.text("INSERT INTO customer (id) VALUES (1)"))

    flask("migrate", "-m", "backfills")
    (migration,) = (folder / "migrations" / "versions").glob("*_backfills.py")
    assert "flask_backfill" not in migration.read_text()
    assert set(re.findall(r"create_table\(\s*'(\w+)'", migration.read_text())) == TABLES
    flask("upgrade")
    assert tables(ours) | tables(url) == TABLES | {"customer"}
    assert tables(ours) >= TABLES
    assert "No new upgrade operations detected" in flask("check")
    assert run("-c", CREATE, **environment) == "200 5\n"

    flask("downgrade")
    assert tables(url) == {"customer"}
    assert not tables(ours) & TABLES
    assert rows(url, "customer") == 1
    flask("upgrade")
    assert run("-c", CREATE, **environment) == "200 5\n"


def test_one_database(database: Database, run: Run, tmp_path: Path) -> None:
    go_through(run, tmp_path, database.url, database.url)


def test_many_databases(run: Run, tmp_path: Path) -> None:
    url, ours = (f"sqlite:///{tmp_path / name}.db" for name in ("host", "jobs"))
    go_through(run, tmp_path, url, ours, "--multidb", BIND="jobs", BIND_URL=ours)
