"""The documentation page: complete, from this app alone, and guarded like everything else."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Database, Host, MakeHost
from flask import abort, request
from flask_wtf import CSRFProtect


def linked(page: str) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]*)"', page)


def test_the_page_and_all_that_it_links_come_from_this_app(sqlite_host: Host) -> None:
    page = sqlite_host.get("/docs")
    assert (page.status_code, page.mimetype) == (200, "text/html")
    assert len(linked(page.text)) == 4
    for link in linked(page.text):
        assert link.startswith("docs/")
        with sqlite_host.get(f"/{link}") as asset:
            assert asset.status_code == 200, link


def test_a_strict_content_security_policy_lets_the_page_run(sqlite_host: Host) -> None:
    page = sqlite_host.get("/docs").text
    assert not re.search(r"<script>|<style|style=|\son\w+=|https?:", page)


@pytest.mark.parametrize("name", ["nothing.js", "..%2F__init__.py", "../__init__.py", "docs.html"])
def test_other_files_are_not_served(sqlite_host: Host, name: str) -> None:
    assert sqlite_host.get(f"/docs/{name}").status_code == 404


def test_the_page_and_its_assets_are_guarded(sqlite: Database, make_host: MakeHost) -> None:
    def token_required(view: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(**arguments: Any) -> Any:
            return view(**arguments) if request.headers.get("X-Token") == "right" else abort(401)

        return wrapper

    host = make_host(sqlite, allow_anonymous=False, decorators=[token_required])
    for path in ("/docs", "/docs/docs.js", "/docs/swagger-ui.css", "/openapi.json"):
        assert host.get(path).status_code == 401
        with host.client.get(f"/api/v2{path}", headers={"X-Token": "right"}) as answer:
            assert answer.status_code == 200


def test_the_page_carries_the_csrf_token(sqlite: Database, make_host: MakeHost) -> None:
    host = make_host(sqlite, config={"SECRET_KEY": "secret"}, configure=lambda app, _: CSRFProtect(app))
    body = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-02"}
    assert host.post("/backfills/dry_run", body).status_code == 400
    (token,) = re.findall(r'name="csrf-token" content="(.+)"', host.get("/docs").text)
    assert host.post("/backfills/dry_run", body, headers={"X-CSRFToken": token}).status_code == 200


def test_without_swagger_ui_the_page_says_what_to_install(sqlite_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "flask_swagger_ui", raising=False)
    answer = sqlite_host.get("/docs")
    assert (answer.status_code, answer.mimetype) == (404, "application/problem+json")
    assert "pip install 'flask-backfill[docs]'" in answer.json["detail"]


def test_the_description_names_the_hosts_security_schemes(sqlite: Database, make_host: MakeHost) -> None:
    schemes = {
        "token": {"type": "http", "scheme": "bearer"},
        "login": {"type": "apiKey", "in": "cookie", "name": "session"},
    }
    document = make_host(sqlite, security_schemes=schemes).get("/openapi.json").json
    assert document["components"]["securitySchemes"] == schemes
    assert document["security"] == [{"token": []}, {"login": []}]
