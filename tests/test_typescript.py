"""TypeScript: types generated from openapi.yaml, a small client under `tsc --strict`, on Node against the demo."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve

HERE = Path(__file__).parent
RUN = ["flask", "--app", "flask_backfill.demo", "run", "--port", "{port}"]
BODY = {"dag_id": "daily_climate", "from_date": "2015-03-01", "to_date": "2015-04-01"}

pytestmark = pytest.mark.skipif(not shutil.which("npm") and not os.environ.get("CI"), reason="there is no npm program")


def run(folder: Path, *command: str, fails: bool = False) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert bool(done.returncode) is fails, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client, installed, with generated types, and compiled."""
    folder = tmp_path_factory.mktemp("typescript") / "project"
    shutil.copytree(HERE / "typescript", folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    shutil.copy(HERE.parent / "openapi.yaml", folder)
    run(folder, "npm", "ci", "--no-audit", "--no-fund")
    run(folder, "npm", "run", "generate")
    run(folder, "npm", "run", "build")
    return folder


@pytest.fixture
def demo(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    path = tmp_path / "demo.db"
    monkeypatch.setenv("FLASK_SQLALCHEMY_DATABASE_URI", f"sqlite:///{path}?timeout=1")
    return f"{serve(RUN)}/api/v2", path


def client(project: Path, url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(project, "node", "dist/main.js", url, json.dumps(body)).splitlines()]


def test_wrong_use_does_not_compile(project: Path) -> None:
    text = (project / "checks.ts").read_text()
    wrong = text.count("// @ts-expect-error")
    bare = project / "bare.ts"
    bare.write_text("\n".join(line for line in text.splitlines() if "@ts-expect-error" not in line))
    try:
        errors = run(project, "npx", "tsc", "--noEmit", fails=True).splitlines()
    finally:
        bare.unlink()
    lines = {error.partition(": error ")[0] for error in errors if error.startswith("bare.ts(")}
    assert len(lines) == wrong


def test_a_create_and_then_the_one_that_is_in_the_way(project: Path, demo: tuple[str, Path]) -> None:
    url, _ = demo
    counts = {"create": 32, "redo": 0, "skip": 0}
    preview, outcome = client(project, url, BODY)
    assert preview == {"preview": counts, "first": "2015-03-01T08:00:00Z"}
    assert (outcome["created"]["id"], outcome["created"]["dag_run_counts"]["queued"]) == (1, 32)

    _, conflict, *steps = client(project, url, BODY)
    assert conflict["active"] == 1
    assert conflict["detail"] == "There is already a running backfill for dag daily_climate"
    assert [step for line in steps for step in line] == ["pause", "get", "cancel"]
    pause, get, cancel = (value for line in steps for value in line.values())
    assert pause == get == {"id": 1, "state": pause["state"], "is_paused": True, "queued": 32}
    assert cancel == {"id": 1, "state": "cancelled", "is_paused": False, "queued": 0}


def test_messages_by_field(project: Path, demo: tuple[str, Path]) -> None:
    url, _ = demo
    outcome, message = client(project, url, BODY | {"to_date": "2015-02-31"})
    assert outcome["invalid"]["to_date"]
    assert message == {"to_date": " ".join(outcome["invalid"]["to_date"])}


def test_a_503_is_waited_for(project: Path, demo: tuple[str, Path]) -> None:
    url, path = demo
    with closing(sqlite3.connect(path, check_same_thread=False)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        command = ["node", "dist/main.js", url, json.dumps(BODY)]
        with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as process:
            stop = threading.Timer(120, process.kill)
            stop.start()
            lines = []
            for line in process.stdout:
                lines.append(json.loads(line))
                if "wait" in lines[-1]:
                    writer.rollback()
            stop.cancel()
    *_, wait, outcome = lines
    assert wait["wait"] >= 1
    assert outcome["created"]["id"] == 1
