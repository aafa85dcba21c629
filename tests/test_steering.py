"""Watching and steering: pause, unpause, cancel, the lists, and counts that add up whatever has happened."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import marshmallow as ma
import pytest
import sqlalchemy as sa
from conftest import Database, Host, MakeHost, day, days
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flask_backfill import schemas


def rows(host: Host, name: str = "DagRun", **where: Any) -> list[Any]:
    """Return the rows of one of the package's tables, in the order of their keys, as a second connection sees them."""
    models = host.backfill.models
    table = models.table(getattr(models, name))
    with host.database.connect().connect() as connection:
        return list(connection.execute(sa.select(table).filter_by(**where).order_by(*table.primary_key)))


def work(host: Host, state: str, *numbers: int) -> None:
    """Do to the runs of these days of March what a worker does when it claims and when it finishes them."""
    run, task = (host.backfill.models.table(getattr(host.backfill.models, name)) for name in ("DagRun", "TaskInstance"))
    values: dict[str, Any] = {
        "running": {"started_at": day(1, month=4), "ended_at": None, "try_number": run.c.try_number + 1},
        "success": {"ended_at": day(2, month=4)},
        "failed": {"ended_at": day(2, month=4), "error": "ValueError: x"},
    }[state]
    before = run.c.state == ("queued" if state == "running" else "running")
    with host.database.connect().begin() as connection:
        dates = run.c.logical_date.in_([day(number) for number in numbers])
        ids = connection.scalars(sa.select(run.c.id).where(dates, before, run.c.backfill_id.is_not(None))).all()
        values |= {"state": state, "previous_state": None, "previous_conf": None}
        connection.execute(sa.update(run).where(run.c.id.in_(ids)).values(values))
        connection.execute(sa.update(task).where(task.c.dag_run_id.in_(ids)).values(state=state))


def finish(host: Host, state: str, *numbers: int) -> None:
    """Run these days to their end; the backfills that have nothing left to do have ended."""
    work(host, "running", *numbers)
    work(host, state, *numbers)
    in_flight = "SELECT backfill_id FROM dag_run WHERE state IN ('queued', 'running') AND backfill_id IS NOT NULL"
    host.execute(
        "UPDATE backfill SET state = :state, active_dag_id = NULL, completed_at = created_at "
        f"WHERE active_dag_id IS NOT NULL AND id NOT IN ({in_flight})",
        state=state,
    )


def assert_adds_up(host: Host) -> dict[int, dict[str, int]]:
    """Require that every backfill's counts are those of its dates, on every route; return those that are not 0."""
    found: dict[int, dict[str, int]] = {}
    totals = dict(host.query("SELECT backfill_id, count(*) FROM backfill_dag_run GROUP BY backfill_id"))
    for backfill in host.get("/backfills?limit=1000").json["backfills"]:
        assert backfill == host.get(f"/backfills/{backfill['id']}").json
        counts = dict(backfill["dag_run_counts"])
        total = counts.pop("total")
        assert list(counts) == ["queued", "running", "success", "failed", "cancelled", "skipped", "superseded"]
        assert sum(counts.values()) == total == totals[backfill["id"]]
        states = Counter(date["state"] for date in host.dates(backfill["id"]))
        found[backfill["id"]] = {state: number for state, number in counts.items() if number}
        assert found[backfill["id"]] == states
    return found


# -- pause, unpause


def test_pause_and_unpause(host: Host) -> None:
    backfill = host.create()
    host.create("neighbour")
    paused = host.put("/backfills/1/pause")
    assert paused.status_code == 200
    changed = {"is_paused": True, "updated_at": paused.json["updated_at"]}
    assert paused.json == backfill | changed
    assert host.get("/backfills/1").json == paused.json
    assert [row.is_paused for row in rows(host, "Backfill")] == [True, False]
    before = host.tables()
    again = host.put("/backfills/1/pause")
    assert (again.status_code, again.json) == (200, paused.json)
    assert host.tables() == before
    for _ in range(2):
        unpaused = host.put("/backfills/1/unpause")
        assert (unpaused.status_code, unpaused.json["is_paused"], unpaused.json["state"]) == (200, False, "queued")
    assert host.get("/backfills/1").json == unpaused.json
    assert rows(host, "Backfill")[0].updated_at > rows(host, "Backfill")[0].created_at


# -- cancel


def test_cancel_ends_it_at_once(host: Host) -> None:
    """DG 15013, 12634, AF 72337: nothing starts after it, and no flag is left behind."""
    host.create("etl")
    host.create("neighbour")
    host.put("/backfills/1/pause")
    # A run that was queued again after its worker had died: what it has done is done.
    host.execute("UPDATE task_instance SET state = 'success' WHERE task_id = 'extract' AND dag_run_id = 1")
    response = host.put("/backfills/1/cancel")
    assert response.status_code == 200
    assert (response.json["state"], response.json["is_paused"]) == ("cancelled", False)
    assert response.json["completed_at"] == response.json["updated_at"] is not None
    assert host.get("/backfills/1").json == response.json
    assert assert_adds_up(host) == {1: {"cancelled": 5}, 2: {"queued": 5}}
    assert {run.state for run in rows(host, dag_id="etl")} == {"cancelled"}
    assert Counter(task.state for task in rows(host, "TaskInstance")) == {"cancelled": 14, "success": 1, "queued": 5}
    assert host.get("/dags/etl").json["active_backfill_id"] is None
    again = host.create("etl")
    assert (again["is_paused"], again["dag_run_counts"]["queued"]) == (False, 5)
    assert assert_adds_up(host) == {1: {"superseded": 5}, 2: {"queued": 5}, 3: {"queued": 5}}
    assert len(rows(host, dag_id="etl")) == 5


def test_what_is_running_goes_on_after_cancel(host: Host) -> None:
    host.create()
    work(host, "running", 1, 2, 3)
    work(host, "success", 1)
    work(host, "failed", 2)
    host.execute("UPDATE dag_run SET state = 'cancelled' WHERE logical_date >= '2025-03-05'")  # on_failure: stop
    before = rows(host)[:3]
    cancelled = host.put("/backfills/1/cancel").json
    expected = {"success": 1, "failed": 1, "running": 1, "cancelled": 2}
    assert {state: cancelled["dag_run_counts"][state] for state in expected} == expected
    assert assert_adds_up(host) == {1: expected}
    assert rows(host)[:3] == before
    again = host.create(reprocess_behavior="completed")
    assert [date["exception_reason"] for date in host.dates(again["id"])] == [None, None, "in flight", None, None]
    work(host, "success", 3)
    assert host.get("/backfills/1").json["state"] == "cancelled"
    assert assert_adds_up(host)[1] == {"success": 1, "superseded": 4}


@pytest.mark.parametrize("conf", [None, {}, {"new": 2}], ids=["null", "empty", "object"])
@pytest.mark.parametrize("old", [None, {"old": 1}], ids=["had-none", "had-one"])
def test_a_queued_redo_gets_back_what_it_had(host: Host, old: Any, conf: Any) -> None:
    host.create("etl", dag_run_conf=old)
    finish(host, "failed", 2)
    host.put("/backfills/1/cancel")
    host.create("etl", last="2025-03-03", reprocess_behavior="failed", dag_run_conf=old)
    finish(host, "success", 1, 3)
    host.put("/backfills/2/cancel")
    host.execute("UPDATE task_instance SET state = 'failed' WHERE task_id = 'load' AND state = 'success'")
    kept = ("id", "state", "conf", "try_number", "started_at", "ended_at", "error")
    before = [tuple(getattr(run, name) for name in kept) for run in rows(host)]
    tasks = [(task.dag_run_id, task.task_id, task.state) for task in rows(host, "TaskInstance")]
    assert [state for _, state, *_ in before] == ["success", "failed", "success", "cancelled", "cancelled"]
    host.create("etl", last="2025-03-06", reprocess_behavior="completed", dag_run_conf=conf)
    assert assert_adds_up(host)[3] == {"queued": 6}
    host.put("/backfills/3/cancel")
    assert [tuple(getattr(run, name) for name in kept) for run in rows(host)][:5] == before
    assert [(task.dag_run_id, task.task_id, task.state) for task in rows(host, "TaskInstance")][:15] == tasks
    assert {task.state for task in rows(host, "TaskInstance")[15:]} == {"cancelled"}
    assert assert_adds_up(host)[3] == {"cancelled": 6}
    assert {date["error"] for date in host.dates(3)} == {None}
    body = {"dag_id": "etl", "from_date": "2025-03-01", "to_date": "2025-03-06"}
    skipped = host.post("/backfills/dry_run", body).json["skipped"]
    assert [date["logical_date"][:10] for date in skipped] == ["2025-03-01", "2025-03-02", "2025-03-03"]


@pytest.mark.parametrize("ending", ["cancelled", "nothing-to-run", "worked-off"])
def test_what_has_ended_cannot_be_steered(host: Host, ending: str) -> None:
    if ending == "nothing-to-run":
        host.record("daily", "success", *days(1, 5))
    host.create()
    if ending == "cancelled":
        host.put("/backfills/1/cancel")
    elif ending == "worked-off":
        finish(host, "success", *range(1, 6))
    before = host.tables()
    for action in ("pause", "unpause", "cancel"):
        response = host.put(f"/backfills/1/{action}")
        assert (response.status_code, response.mimetype) == (409, "application/problem+json")
        assert response.json["detail"] == "Backfill is already completed."
    assert host.tables() == before


def test_what_is_not_there_is_not_found(host: Host) -> None:
    host.create()
    before = host.tables()
    responses = [host.get("/backfills/2"), host.get("/backfills/2/dag_runs")]
    responses += [host.put(f"/backfills/2/{action}") for action in ("pause", "unpause", "cancel")]
    for response in responses:
        assert (response.status_code, response.json["detail"]) == (404, "Backfill not found")
    assert host.tables() == before


# -- counts


def test_what_another_has_redone_is_superseded(host: Host) -> None:
    """AF 46250, DG 13791, 4208: no runs, a negative count, 100 % while runs were queued."""
    host.create()
    finish(host, "failed", *range(1, 6))
    host.record("daily", "success", day(5))
    host.create(last="2025-03-02", reprocess_behavior="failed")
    assert assert_adds_up(host) == {1: {"superseded": 3, "failed": 2}, 2: {"queued": 2}}
    finish(host, "success", 1, 2)
    assert assert_adds_up(host) == {1: {"superseded": 3, "failed": 2}, 2: {"success": 2}}
    # The first is active again, as after a retry.
    host.execute("UPDATE backfill SET active_dag_id = dag_id, state = 'running', completed_at = NULL WHERE id = 1")
    assert host.put("/backfills/1/pause").json == host.get("/backfills/1").json
    assert host.put("/backfills/1/cancel").json == host.get("/backfills/1").json
    assert assert_adds_up(host) == {1: {"superseded": 3, "failed": 2}, 2: {"success": 2}}
    host.execute("DELETE FROM task_instance")
    host.execute("UPDATE backfill_dag_run SET dag_run_id = NULL WHERE logical_date < '2025-03-02'")
    host.execute("DELETE FROM dag_run WHERE logical_date < '2025-03-02'")
    assert assert_adds_up(host) == {1: {"superseded": 3, "failed": 2}, 2: {"superseded": 1, "success": 1}}


#: What may happen to backfills over the first days of March, each with the day at which it does.
STEPS = ("none", "failed", "completed", "cancel", "running", "success", "failure", "record", "pause")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 4), st.integers(0, 2)), min_size=6, max_size=15))
@settings(derandomize=True, deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_counts_add_up_at_every_moment(host: Host, steps: list[tuple[str, int, int]]) -> None:
    for table in ("task_instance", "backfill_dag_run", "dag_run", "backfill"):
        host.execute(f"DELETE FROM {table}")
    for step, number, more in steps:
        if step in ("cancel", "pause"):
            for backfill in host.get("/backfills?active=true").json["backfills"]:
                answer = host.put(f"/backfills/{backfill['id']}/{step}").json
                assert answer == host.get(f"/backfills/{backfill['id']}").json
        elif step in ("running", "success"):
            work(host, step, *range(number, number + more + 1))
        elif step == "failure":
            finish(host, "failed", number)
        elif step == "record":
            with host.app.app_context():
                host.backfill.record_runs("daily", days(number, number + more), "success")
                host.db.session.commit()
        else:
            body = {"from_date": f"2025-03-0{number}", "to_date": f"2025-03-0{number + more}"}
            body |= {"dag_id": "daily", "reprocess_behavior": step}
            dry_run = host.post("/backfills/dry_run", body).json
            response = host.post("/backfills", body)
            assert response.status_code in (200, 409)
            if response.status_code == 200:
                assert response.json["dag_run_counts"]["queued"] == dry_run["total_entries"]
        assert_adds_up(host)


# -- lists


@pytest.fixture
def many(host: Host) -> Host:
    """Six backfills: of daily one cancelled, one that had nothing to run and one active, of its neighbours one each."""
    host.create()
    host.put("/backfills/1/cancel")
    host.create("neighbour")
    host.record("daily", "success", day(10))
    host.create(first="2025-03-10", last="2025-03-10")
    host.create("etl")
    host.create()
    host.create("hourly", last="2025-03-02")
    host.execute("UPDATE backfill SET state = 'running' WHERE id = 4")
    return host


def test_the_list_of_backfills(many: Host) -> None:
    expected = {
        "": ([1, 2, 3, 4, 5, 6], 6),
        "dag_id=daily": ([1, 3, 5], 3),
        "dag_id=dail": ([], 0),
        "dag_id=Daily": ([], 0),
        "state=cancelled": ([1], 1),
        "state=success": ([3], 1),
        "state=running": ([4], 1),
        "state=queued": ([2, 5, 6], 3),
        "active=true": ([2, 4, 5, 6], 4),
        "active=false": ([1, 3], 2),
        "order_by=id": ([1, 2, 3, 4, 5, 6], 6),
        "order_by=-id": ([6, 5, 4, 3, 2, 1], 6),
        "limit=2": ([1, 2], 6),
        "limit=2&offset=4": ([5, 6], 6),
        "limit=2&offset=1&order_by=-id&active=true": ([5, 4], 4),
        "dag_id=daily&active=true": ([5], 1),
        "offset=99": ([], 6),
    }
    answers = {query: many.get(f"/backfills?{query}").json for query in expected}
    found = {
        query: ([backfill["id"] for backfill in answer["backfills"]], answer["total_entries"])
        for query, answer in answers.items()
    }
    assert found == expected


def test_the_list_of_dates(host: Host) -> None:
    host.record("daily", "success", day(3))
    host.create(run_backwards=True)
    work(host, "running", 1, 4)
    work(host, "failed", 1)
    host.record("daily", "success", day(1))
    host.create("neighbour")
    expected = {
        "": ([5, 4, 3, 2, 1], 5),
        "limit=2&offset=1": ([4, 3], 5),
        "offset=5": ([], 5),
        "state=skipped": ([3], 1),
        "state=running": ([4], 1),
        "state=superseded": ([1], 1),
        "state=success": ([], 0),
        "state=queued&limit=1&offset=1": ([2], 2),
    }
    answers = {query: host.get(f"/backfills/1/dag_runs?{query}").json for query in expected}
    found = {
        query: ([int(date["logical_date"][8:10]) for date in answer["dag_runs"]], answer["total_entries"])
        for query, answer in answers.items()
    }
    assert found == expected


def test_a_date_shows_its_run(host: Host) -> None:
    host.record("daily", "failed", day(4))
    host.create(last="2025-03-04")
    work(host, "running", 1, 2)
    work(host, "failed", 2)
    started = {"started_at": "2025-04-01T00:00:00Z", "try_number": 1}
    changes: list[dict[str, Any]] = [
        {"state": "running", **started},
        {"state": "failed", **started, "ended_at": "2025-04-02T00:00:00Z", "error": "ValueError: x"},
        {},
        {"state": "skipped", "exception_reason": "already exists", "try_number": None},
    ]
    empty = dict.fromkeys(["exception_reason", "started_at", "ended_at", "error"])
    assert host.dates(1) == [
        empty
        | {
            "logical_date": f"{date:%F}T00:00:00Z",
            "data_interval_start": f"{date:%F}T00:00:00Z",
            "data_interval_end": f"{date + timedelta(days=1):%F}T00:00:00Z",
            "state": "queued",
            "try_number": 0,
        }
        | change
        for date, change in zip(days(1, 4), changes, strict=True)
    ]


def test_the_dags(many: Host) -> None:
    """AF 61811: the first of three was shown, not the active one."""
    answer = many.get("/dags").json
    active = {dag["dag_id"]: dag["active_backfill_id"] for dag in answer["dags"]}
    assert list(active.items()) == [("daily", 5), ("etl", 4), ("hourly", 6), ("neighbour", 2)]
    assert answer["total_entries"] == 4
    for dag in answer["dags"]:
        assert many.get(f"/dags/{dag['dag_id']}").json == dag
    etl = answer["dags"][1]
    assert (etl["dag_display_name"], etl["schedule"], etl["timezone"]) == ("Extract, transform, load", "@daily", "UTC")
    assert etl["last_tick"] < etl["next_tick"]
    assert many.get("/dags/unknown").status_code == 404


def test_a_dag_that_is_in_no_code_any_more(database: Database, make_host: MakeHost) -> None:
    before = make_host(database).create("etl")
    assert before["dag_display_name"] == "Extract, transform, load"
    host = make_host(database, dags=lambda _: None)
    gone = before | {"dag_display_name": "etl"}
    assert host.get("/backfills").json == {"backfills": [gone], "total_entries": 1}
    assert host.get("/backfills/1").json == gone
    assert len(host.dates(1)) == 5
    assert host.get("/dags").json == {"dags": [], "total_entries": 0}
    assert host.put("/backfills/1/cancel").json["dag_run_counts"]["cancelled"] == 5
    body = {"dag_id": "etl", "from_date": "2025-03-01", "to_date": "2025-03-05"}
    assert host.post("/backfills", body).status_code == 404


# -- shapes


def assert_shape(schema: ma.Schema, data: dict[str, Any]) -> None:
    """Require every field of a schema, no other, and values that it would take."""
    assert list(data) == list(schema.fields)
    assert schema.validate(data) == {}
    for name, field in schema.fields.items():
        inner = field.inner if isinstance(field, ma.fields.List) else field
        if isinstance(inner, ma.fields.Nested):
            for entry in data[name] if inner is not field else [data[name]]:
                assert_shape(inner.schema, entry)


def test_answers_have_the_shape_of_their_schemas(many: Host) -> None:
    many.record("daily", "success", day(20))
    dry_run = {"dag_id": "daily", "from_date": "2025-03-18", "to_date": "2025-03-22"}
    for schema, response in (
        (schemas.BackfillCollection, many.get("/backfills")),
        (schemas.Backfill, many.get("/backfills/1")),
        (schemas.BackfillDagRunCollection, many.get("/backfills/5/dag_runs")),
        (schemas.BackfillDagRunCollection, many.get("/backfills/3/dag_runs")),
        (schemas.Backfill, many.put("/backfills/4/pause")),
        (schemas.Backfill, many.put("/backfills/4/unpause")),
        (schemas.Backfill, many.put("/backfills/4/cancel")),
        (schemas.Backfill, many.post("/backfills", dry_run | {"dag_id": "etl"})),
        (schemas.DryRunBackfillCollection, many.post("/backfills/dry_run", dry_run)),
        (schemas.DagCollection, many.get("/dags")),
        (schemas.Dag, many.get("/dags/daily")),
        (schemas.ActiveProblem, many.post("/backfills", dry_run)),
        (schemas.InvalidProblem, many.post("/backfills", dry_run | {"more": 1})),
        (schemas.Problem, many.get("/backfills/7000")),
    ):
        assert_shape(schema(), response.json)
