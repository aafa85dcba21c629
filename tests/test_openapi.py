"""The API's description: generated, committed, valid, and true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Host
from flask import Flask
from openapi_spec_validator import OpenAPIV31SpecValidator

from flask_backfill import demo
from flask_backfill.views import ROUTES

COMMITTED = Path(__file__).parents[1] / "openapi.yaml"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return yaml.safe_load(COMMITTED.read_text())


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: operation for methods in document["paths"].values() for operation in methods.values()
    }


@pytest.fixture
def demo_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flask]:
    monkeypatch.setenv("FLASK_SQLALCHEMY_DATABASE_URI", f"sqlite:///{tmp_path / 'demo.db'}")
    app = demo.create_app()
    yield app
    with app.app_context():
        demo.db.engine.dispose()


def test_the_committed_document_is_not_stale(demo_app: Flask) -> None:
    printed = demo_app.test_cli_runner().invoke(args=["backfill", "openapi"])
    assert printed.exit_code == 0
    again = "flask --app flask_backfill.demo backfill openapi > openapi.yaml"
    assert COMMITTED.read_text() == printed.output, f"openapi.yaml is stale: {again}"


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    assert list(OpenAPIV31SpecValidator(document).iter_errors()) == []


def test_the_served_document_is_the_committed_one(sqlite_host: Host, document: dict[str, Any]) -> None:
    assert sqlite_host.get("/openapi.json").json == document


def test_every_route_is_described(document: dict[str, Any]) -> None:
    assert operations(document).keys() == {route.operation_id for route in ROUTES if route.is_described}
    for operation in operations(document).values():
        assert operation["summary"]
        assert operation["description"]


def test_every_route_that_touches_the_database_may_answer_503(document: dict[str, Any]) -> None:
    without = {name for name, operation in operations(document).items() if "503" not in operation["responses"]}
    assert without == {"getOpenapi"}
    (response,) = {
        json.dumps(operation["responses"]["503"])
        for name, operation in operations(document).items()
        if name not in without
    }
    assert json.loads(response) == {"$ref": "#/components/responses/TryAgain"}
    assert document["components"]["responses"]["TryAgain"]["headers"].keys() == {"Retry-After"}


def test_every_field_and_parameter_is_described(document: dict[str, Any]) -> None:
    bare = [
        f"{schema}.{name}"
        for schema, described in document["components"]["schemas"].items()
        for name, field in described["properties"].items()
        if not (field.get("description") or {"$ref", "items", "allOf"} & field.keys())
    ]
    assert bare == []
    parameters = [p for operation in operations(document).values() for p in operation.get("parameters", [])]
    parameters += document["components"]["parameters"].values()
    assert [p for p in parameters if "$ref" not in p and not p.get("description")] == []


def test_the_example_can_be_sent_as_it_is(demo_app: Flask, document: dict[str, Any]) -> None:
    for name in ("createBackfillDryRun", "createBackfill"):
        content = operations(document)[name]["requestBody"]["content"]["application/json"]
        path = "/backfills/dry_run" if name == "createBackfillDryRun" else "/backfills"
        answer = demo_app.test_client().post(f"/api/v2{path}", json=content["example"])
        assert answer.status_code == 200, answer.text
