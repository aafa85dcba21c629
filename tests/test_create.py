"""The create, as a client sees it."""

from __future__ import annotations

from conftest import Host


def test_create_writes_every_run_before_it_answers(host: Host) -> None:
    backfill = host.create("etl")
    assert backfill["state"] == "queued"
    assert [row["state"] for row in host.dates(backfill["id"])] == ["queued"] * 5
    assert len(host.query("SELECT * FROM task_instance")) == 15
