"""Airflow's own generated client, unchanged, against the served demo: it must not notice that this is not Airflow."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow_client import client as airflow
from conftest import Serve

RUN = ["flask", "--app", "flask_backfill.demo", "run", "--port", "{port}"]
PACIFIC = timezone(timedelta(hours=-8))
SETTINGS = ("dag_run_conf", "reprocess_behavior", "max_active_runs")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The demo's file, for which its engine waits a second."""
    path = tmp_path / "demo.db"
    monkeypatch.setenv("FLASK_SQLALCHEMY_DATABASE_URI", f"sqlite:///{path}?timeout=1")
    return path


@pytest.fixture
def api(path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[airflow.BackfillApi]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with airflow.ApiClient(airflow.Configuration(host=serve(RUN))) as client:
        yield airflow.BackfillApi(client)
        client.rest_client.pool_manager.clear()


def body(**fields: Any) -> airflow.BackfillPostBody:
    least = {
        "dag_id": "daily_climate",
        "from_date": datetime(2015, 3, 1, tzinfo=PACIFIC),
        "to_date": datetime(2015, 3, 4, tzinfo=PACIFIC),
    }
    return airflow.BackfillPostBody(**(least | fields))


def problem(raised: pytest.ExceptionInfo[airflow.ApiException]) -> dict[str, Any]:
    return json.loads(raised.value.body)


def test_what_the_client_leaves_out_has_airflows_defaults(api: airflow.BackfillApi) -> None:
    before = datetime.now(UTC)
    created = api.create_backfill(body())
    assert (created.dag_id, created.dag_display_name) == ("daily_climate", "Climate")
    assert (created.from_date, created.to_date) == (body().from_date, body().to_date)
    assert [getattr(created, name) for name in SETTINGS] == [None, airflow.ReprocessBehavior.NONE, 10]
    assert (created.is_paused, created.completed_at) == (False, None)
    assert before <= created.created_at == created.updated_at <= datetime.now(UTC)


def test_all_settings(api: airflow.BackfillApi) -> None:
    created = api.create_backfill(
        body(
            dag_run_conf={"unit": "F"},
            reprocess_behavior=airflow.ReprocessBehavior.COMPLETED,
            max_active_runs=3,
            run_backwards=True,
            run_on_latest_version=True,
        )
    )
    assert [getattr(created, name) for name in SETTINGS] == [{"unit": "F"}, airflow.ReprocessBehavior.COMPLETED, 3]


def test_a_dry_run_previews_the_create(api: airflow.BackfillApi, path: Path) -> None:
    preview = api.create_backfill_dry_run(body())
    dates = [datetime(2015, 3, number, tzinfo=PACIFIC) for number in range(1, 5)]
    assert [backfill.logical_date for backfill in preview.backfills] == dates
    assert {(backfill.partition_key, backfill.partition_date) for backfill in preview.backfills} == {(None, None)}
    assert preview.total_entries == 4
    api.create_backfill(body())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM dag_run").fetchone() == (4,)


def test_list_and_get(api: airflow.BackfillApi) -> None:
    first = api.create_backfill(body())
    api.cancel_backfill(first.id)
    second = api.create_backfill(body())
    third = api.create_backfill(
        body(
            dag_id="hourly_temps", from_date=datetime(2010, 3, 1, tzinfo=UTC), to_date=datetime(2010, 3, 2, tzinfo=UTC)
        )
    )
    listed = api.list_backfills("daily_climate", order_by=["-id"])
    assert [backfill.id for backfill in listed.backfills] == [second.id, first.id]
    assert listed.total_entries == 2
    page = api.list_backfills("daily_climate", limit=1, offset=1, order_by=["id"])
    assert ([backfill.id for backfill in page.backfills], page.total_entries) == ([second.id], 2)
    assert api.get_backfill(third.id) == api.list_backfills("hourly_temps").backfills[0]


def test_pause_unpause_cancel(api: airflow.BackfillApi) -> None:
    created = api.create_backfill(body())
    assert api.pause_backfill(created.id).is_paused
    assert api.get_backfill(created.id).is_paused
    assert not api.unpause_backfill(created.id).is_paused
    cancelled = api.cancel_backfill(created.id)
    assert cancelled.completed_at is not None
    assert cancelled == api.get_backfill(created.id)
    for steer in (api.pause_backfill, api.unpause_backfill, api.cancel_backfill):
        with pytest.raises(airflow.exceptions.ConflictException) as raised:
            steer(created.id)
        assert problem(raised)["detail"] == "Backfill is already completed."


def test_conflict(api: airflow.BackfillApi) -> None:
    created = api.create_backfill(body())
    with pytest.raises(airflow.exceptions.ConflictException) as raised:
        api.create_backfill(body())
    assert problem(raised)["detail"] == "There is already a running backfill for dag daily_climate"
    assert problem(raised)["backfill_id"] == created.id


def test_not_found(api: airflow.BackfillApi) -> None:
    with pytest.raises(airflow.exceptions.NotFoundException) as raised:
        api.get_backfill(7)
    assert problem(raised)["detail"] == "Backfill not found"
    for create in (api.create_backfill, api.create_backfill_dry_run):
        with pytest.raises(airflow.exceptions.NotFoundException) as raised:
            create(body(dag_id="nowhere"))
        assert problem(raised)["detail"].startswith("Could not find dag nowhere")


def test_what_airflow_lets_pass_and_blocks_for_ever_is_refused(api: airflow.BackfillApi) -> None:
    unknown = body()
    unknown.additional_properties = {"reproces_behavior": "completed"}
    for sent, name in (
        (body(max_active_runs=0), "max_active_runs"),
        (body(from_date=datetime(2015, 3, 1)), "from_date"),
        (unknown, "reproces_behavior"),
    ):
        with pytest.raises(airflow.exceptions.UnprocessableEntityException) as raised:
            api.create_backfill(sent)
        assert problem(raised)["errors"].keys() == {name}
        assert isinstance(problem(raised)["detail"], str)
    assert api.list_backfills("daily_climate").total_entries == 0


def test_a_lock_is_a_503_and_the_same_request_works_afterwards(api: airflow.BackfillApi, path: Path) -> None:
    sent = body()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(airflow.exceptions.ServiceException) as raised:
            api.create_backfill(sent)
    assert raised.value.status == 503
    assert int(raised.value.headers["Retry-After"]) >= 1
    assert api.create_backfill(sent).id == 1
