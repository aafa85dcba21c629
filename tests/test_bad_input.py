"""Wrong and hostile input: the documented 4xx that names the fault, and nothing is asked of the database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import marshmallow as ma
import pytest
import sqlalchemy as sa
from conftest import Host, day
from werkzeug.test import TestResponse

from flask_backfill.schedules import CronSchedule

BODY: dict[str, Any] = {"dag_id": "daily", "from_date": "2025-03-01", "to_date": "2025-03-05"}
VALID = json.dumps(BODY).encode()
JSON = "application/json"
STEERING = ("pause", "unpause", "cancel")
LEAKS = re.compile(
    r"Traceback|File \"|SELECT |INSERT |UPDATE |sqlite|psycopg|pymysql|sqlalchemy|marshmallow|/tests/", re.I
)


def each(names: str, cases: Mapping[str, Any] | str) -> pytest.MarkDecorator:
    """Parametrize with a table of cases by id, or with words that say themselves what they are."""
    table = cases if isinstance(cases, Mapping) else {ascii(word)[1:-1][:30]: word for word in cases.split("|")}
    assert isinstance(cases, Mapping) or len(table) == len(cases.split("|"))
    return pytest.mark.parametrize(names, table.values(), ids=table.keys())


class RegionSchema(ma.Schema):
    name = ma.fields.String(required=True)
    factor = ma.fields.Float(load_default=1.5)


class ParamsSchema(ma.Schema):
    region = ma.fields.Nested(RegionSchema, required=True)
    days = ma.fields.Integer(strict=True, validate=ma.validate.Range(1, 31))


def nothing(run: object) -> None:
    pass


@pytest.fixture
def api(sqlite_host: Host) -> Host:
    """Return a host on SQLite with DAGs of every kind that says no to something."""
    dag = sqlite_host.backfill.dag
    dag("closed", schedule="@daily", allow_backfill=False)(nothing)
    dag("unscheduled", schedule=None)(nothing)
    dag("ended", schedule="@daily", start_date="2024-01-01", end_date="2024-01-10")(nothing)
    dag("chained", schedule="@daily", depends_on_past=True)(nothing)
    dag("monthly", schedule="@monthly")(nothing)
    dag("checked", schedule="@daily", params=ParamsSchema)(nothing)
    return sqlite_host


@contextmanager
def untouched(host: Host, *, statements: int | None = None) -> Iterator[None]:
    """Require that every table stays as it is, and that so many statements are executed."""
    seen: list[str] = []

    def see(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    with host.app.app_context():
        engine = host.db.engine
    before = host.tables()
    sa.event.listen(engine, "before_cursor_execute", see)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", see)
    assert host.tables() == before
    assert statements is None or len(seen) == statements, seen


def problem(response: TestResponse, status: int) -> dict[str, Any]:
    """Return a problem document, which must be well-formed and tell nothing about the inside."""
    assert response.status_code == status, response.text[:1000]
    assert response.mimetype == "application/problem+json"
    document: dict[str, Any] = json.loads(response.data)
    assert {"type", "title", "status", "detail"} <= document.keys()
    assert document["status"] == status
    assert isinstance(document["detail"], str)
    assert document["detail"]
    assert ("errors" in document) == (status == 422)
    for messages in document.get("errors", {}).values():
        assert messages
        assert all(isinstance(message, str) and message in document["detail"] for message in messages)
    assert not LEAKS.search(response.text)
    return document


def send(host: Host, path: str, body: Any, content_type: str | None = JSON, **headers: str) -> TestResponse:
    data = body if isinstance(body, bytes) else json.dumps(body)
    return host.client.post(f"/api/v2{path}", data=data, content_type=content_type, headers=headers)


def refused(host: Host, body: Any, status: int = 422, content_type: str | None = JSON) -> dict[str, Any]:
    """Send to create and to dry run, which must refuse alike and before anything is asked of the database."""
    with untouched(host, statements=0):
        created = problem(send(host, "/backfills", body, content_type), status)
        previewed = problem(send(host, "/backfills/dry_run", body, content_type), status)
    assert created == previewed
    return created


def errors(host: Host, body: Any) -> dict[str, list[str]]:
    """Return the messages by field of a request that must be refused."""
    messages: dict[str, list[str]] = refused(host, body)["errors"]
    return messages


def accepted(host: Host, body: Any) -> dict[str, Any]:
    """Send to dry run and to create, which must accept and agree, and return the backfill."""
    previewed = send(host, "/backfills/dry_run", body)
    assert previewed.status_code == 200, previewed.text[:1000]
    created = send(host, "/backfills", body)
    assert created.status_code == 200, created.text[:1000]
    assert previewed.json["total_entries"] == created.json["dag_run_counts"]["queued"]
    answer: dict[str, Any] = host.get(f"/backfills/{created.json['id']}").json
    assert answer == created.json
    return answer


# -- the body


NO_OBJECTS = {
    "empty": b"",
    "blank": b" \n",
    "cut off": b"{",
    "form": b"dag_id=daily",
    "single quotes": b"{'dag_id': 'daily'}",
    "trailing comma": VALID[:-1] + b",}",
    "two objects": VALID * 2,
    "UTF-16": VALID.decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + VALID,
    "not UTF-8": b'{"dag_id": "\xff"}',
    "control character": b'{"dag_id": "da\0ily"}',
    "leading zero": b'{"max_active_runs": 01}',
    "number of 5000 digits": b'{"max_active_runs": 1' + b"0" * 5000 + b"}",
    "list of objects": b"[" + VALID + b"]",
    "brackets without end": b"[" * 100_000,
    "braces without end": b'{"dag_run_conf": ' + b'{"a":' * 100_000,
    "brackets in the conf": b'{"dag_run_conf": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "over 16 MiB": b" " * 2**24 + VALID,
    **{text: text.encode() for text in ("null", "true", "3", '"daily"', "[]")},
}


@each("body", NO_OBJECTS)
def test_a_body_that_is_no_json_object_is_refused(api: Host, body: bytes) -> None:
    assert errors(api, body).keys() == {"body"}


@each("number", "NaN|Infinity|-Infinity|1e999|-1e999")
@each("field", "dag_run_conf|max_active_runs|from_date")
def test_only_finite_numbers_are_numbers(api: Host, number: str, field: str) -> None:
    value = '{"a": [%s]}' if field == "dag_run_conf" else "%s"
    body = json.dumps(BODY | {field: "here"}).replace('"here"', value.replace("%s", number))
    assert errors(api, body.encode()).keys() == {field if "e9" in number else "body"}


TWICE = {
    "field": (b', "to_date": 1}', "to_date", "'to_date'"),
    "in the conf": (b', "dag_run_conf": {"a": [{"dag_id": 1, "dag_id": 1}]}}', "body", "'dag_id'"),
}


@each("more, field, name", TWICE)
def test_a_name_that_is_there_twice_is_refused(api: Host, more: bytes, field: str, name: str) -> None:
    named = errors(api, VALID[:-1] + more)
    assert named.keys() == {field}
    assert name in named[field][0]


FORMS_AND_TEXT = "|text/plain|text/json|application/x-www-form-urlencoded|multipart/form-data"
OTHER_JSON = "application/jsonp|application/problem+json|application/json-seq"


@each("content_type", f"{FORMS_AND_TEXT}|{OTHER_JSON}")
def test_another_content_type_is_refused(api: Host, content_type: str) -> None:
    assert JSON in refused(api, BODY, 415, content_type or None)["detail"]
    assert send(api, "/backfills", BODY, "Application/JSON; charset=utf-8").status_code == 200


@each("name", "|dagId|DAG_ID|id|state|na\nme|\ud800|\0")
def test_an_unknown_field_is_refused(api: Host, name: str) -> None:
    assert errors(api, BODY | {name: [None]}).keys() == {name}


@pytest.mark.parametrize("field", BODY)
def test_a_missing_field_is_named(api: Host, field: str) -> None:
    assert errors(api, {name: value for name, value in BODY.items() if name != field}).keys() == {field}


def test_every_faulty_field_is_named(api: Host) -> None:
    fields = {"dag_id": 1, "to_date": "soon", "max_active_runs": 0, "dag_run_conf": [], "on_failure": "cry", "extra": 1}
    assert errors(api, fields).keys() == fields.keys() | {"from_date"}


# -- types

VALUES = ["null", "true", "false", "0", "1", "1.0", '""', '"3"', '"true"', '"NONE"', "[]", '["none"]', "{}", '{"a": 1}']
RIGHT = {
    "dag_id": ['"3"', '"true"', '"NONE"'],
    "from_date": [],
    "to_date": [],
    "run_backwards": ["true", "false"],
    "dag_run_conf": ["null", "{}", '{"a": 1}'],
    "reprocess_behavior": [],
    "max_active_runs": ["1"],
    "run_on_latest_version": ["null", "true", "false"],
    "on_failure": [],
}


@pytest.mark.parametrize(
    ("field", "value"), [(name, text) for name in RIGHT for text in VALUES if text not in RIGHT[name]]
)
def test_a_wrong_type_is_refused(api: Host, field: str, value: str) -> None:
    assert errors(api, BODY | {field: json.loads(value)}).keys() == {field}


@pytest.mark.parametrize("number", [0, -1, -5, 1001, 2**31, 2**63, -(2**63), 10**30])
def test_max_active_runs_outside_1_to_1000_is_refused(api: Host, number: int) -> None:
    """Airflow accepted 0 and -5, and the DAG stayed blocked (apache/airflow 47698)."""
    assert "1000" in errors(api, BODY | {"max_active_runs": number})["max_active_runs"][0]


# -- dates

YEARS = "0000-01-01|0001-01-01|1899-12-31|2200-01-01|9999-12-31|10000-01-01|-0001-01-01|1899-12-31T23:59:59Z"
EDGES = "0001-01-01T00:00:00+23:59|9999-12-31T23:59:59-23:59|2200-01-01T00:00:00Z|2025-02-29|2025-13-01|2025-03-00"
FORMS = "2025-3-1|20250301|2025-W10-1|2025-060|03/01/2025|2025-03-01Z|2025-03-01T00Z|2025-03-01T00:00:00 Z|today"
TIMES = "2025-03-01T25:00:00Z|2025-03-01T00:60:00Z|2025-03-01T23:59:60Z|2025-03-01T00:00:00+25:00|1740787200"
NOISE = f" 2025-03-01|2025-03-01T00:00:00Z\n|2025-03-01\0|\uff12025-03-01|2025-03-01[UTC]|{'2025-03-01' * 10_000}"


@each("field", "from_date|to_date")
@each("value", "|".join([YEARS, EDGES, FORMS, TIMES, NOISE]))
def test_what_is_no_date_is_refused(api: Host, field: str, value: str) -> None:
    assert errors(api, BODY | {field: value}).keys() == {field}


@each("field", "from_date|to_date")
@each("value", "2025-03-02T00:00:00|2025-03-02T00:00|2025-03-02 00:00:00.5")
def test_a_datetime_without_an_offset_is_refused_and_told_so(api: Host, field: str, value: str) -> None:
    named = errors(api, BODY | {field: value})
    assert named.keys() == {field}
    assert "offset" in named[field][0]


IMPOSSIBLE = {
    "from after to": ("daily", "2025-03-05", "2025-03-01", "from_date"),
    "from a second after to": ("daily", "2025-03-01T00:00:01Z", "2025-03-01T00:00:00Z", "from_date"),
    "after by the offset": ("daily", "2025-03-01T00:00:00Z", "2025-03-01T01:00:00+02:00", "from_date"),
    "in an hour": ("daily", (datetime.now(UTC) + timedelta(hours=1)).isoformat(), "2199-01-01", "from_date"),
    "future": ("daily", "2199-01-01", "2199-12-31", "from_date"),
    "before start_date": ("ended", "2023-01-01", "2023-12-31", "to_date"),
    "after end_date": ("ended", "2024-01-11", "2025-01-01", "from_date"),
    "no schedule": ("unscheduled", "2025-03-01", "2025-03-05", "dag_id"),
}


@each("dag_id, from_date, to_date, field", IMPOSSIBLE)
def test_an_impossible_range_is_refused(api: Host, dag_id: str, from_date: str, to_date: str, field: str) -> None:
    """apache/airflow 66874, kestra-io/kestra 19097."""
    assert errors(api, {"dag_id": dag_id, "from_date": from_date, "to_date": to_date}).keys() == {field}


CUT = {
    "beyond both ends": ("1900-01-01", "2199-12-31", 10),
    "first day": ("2023-01-01", "2024-01-01", 1),
    "last day": ("2024-01-10", "2025-01-01", 1),
    "one instant": ("2024-01-05T00:00:00Z", "2024-01-05T00:00:00Z", 1),
}


@each("from_date, to_date, runs", CUT)
def test_a_range_that_reaches_beyond_is_cut(api: Host, from_date: str, to_date: str, runs: int) -> None:
    backfill = accepted(api, {"dag_id": "ended", "from_date": from_date, "to_date": to_date})
    assert backfill["dag_run_counts"]["total"] == runs


def test_a_range_without_a_single_date_is_an_error_for_create_only(api: Host) -> None:
    """apache/airflow 68883 left an orphan, kestra-io/kestra 7227 said that it had finished."""
    body = {"dag_id": "monthly", "from_date": "2025-03-02", "to_date": "2025-03-31"}
    with untouched(api, statements=0):
        assert problem(send(api, "/backfills", body), 422)["errors"].keys() == {"from_date", "to_date"}
        previewed = send(api, "/backfills/dry_run", body)
    counts = {"create": 0, "redo": 0, "skip": 0}
    assert previewed.status_code == 200
    assert previewed.json == {"backfills": [], "total_entries": 0, "counts": counts, "skipped": []}


class CountedSchedule(CronSchedule):
    """Knows how many ticks it was asked for."""

    seen = 0

    def ticks(self, start: datetime) -> Iterator[datetime]:
        for tick in super().ticks(start):
            self.seen += 1
            yield tick


def test_a_million_dates_are_refused_before_they_are_made(api: Host) -> None:
    schedule = api.backfill.dags["hourly"].schedule = CountedSchedule("0 * * * *", UTC)
    named = errors(api, {"dag_id": "hourly", "from_date": "1900-01-01", "to_date": "2199-12-31"})
    assert named.keys() == {"from_date", "to_date"}
    assert "10000" in named["from_date"][0]
    assert schedule.seen <= 2 * 10_002


# -- the conf


def nested(levels: int, shape: str) -> dict[str, Any]:
    """Return a conf whose deepest value lies so many levels down."""
    value: Any = {"scalar": "deep", "list": [], "object": {}}[shape]
    for _ in range(levels - 2):
        value = [value] if shape == "list" else {"a": value}
    return {"a": value}


@each("shape", "scalar|list|object")
def test_a_conf_at_the_limit_of_nesting_is_stored_and_one_beyond_is_refused(host: Host, shape: str) -> None:
    message = errors(host, BODY | {"dag_run_conf": nested(200, shape)})["dag_run_conf"][0]
    found = re.search(r"deeper than (\d+) levels", message)
    assert found, message
    limit = int(found[1])
    assert errors(host, BODY | {"dag_run_conf": nested(limit + 1, shape)}) == {"dag_run_conf": [message]}
    host.record("daily", "failed", day(2))
    conf = nested(limit, shape)
    backfill = accepted(host, BODY | {"dag_run_conf": conf, "reprocess_behavior": "failed"})
    assert backfill["dag_run_conf"] == conf
    assert [json.loads(text) for text in stored_confs(host)] == [conf] * 5


def stored_confs(host: Host) -> list[str]:
    kind = "CHAR" if host.database.name == "mariadb" else "VARCHAR"
    return [row[0] for row in host.query(f"SELECT CAST(conf AS {kind}) FROM dag_run")]


def test_a_conf_of_awkward_values_is_stored_as_it_is(host: Host) -> None:
    conf = {
        "integers": [2**63 - 1, -(2**63), 2**53 + 1, 0],
        "floats": [5e-324, 1.7976931348623157e308, 0.1, 1.0],
        "words": [None, True, False, "", " padded ", "null", "1"],
        "text": "\U0001f600 \uffff \u2028 \x01 \x7f ' \" \\ \\u0000 %s %(a)s :a ? $.a {} </script>",
        "": {"a.b": 1, "$": 2, '"': 3, "\\": 4, "\U0001f600": 5, "é": 6, "É": 7, "e": 8, "E": 9},
    }
    backfill = accepted(host, BODY | {"dag_run_conf": conf})
    assert repr(backfill["dag_run_conf"]) == repr(conf)
    assert [repr(json.loads(text)) for text in stored_confs(host)] == [repr(conf)] * 5


@each("text", "\0|a\0b|\ud800|\ude00\ud83d|a\udc80b")
def test_text_that_a_database_cannot_hold_is_refused(host: Host, text: str) -> None:
    assert errors(host, BODY | {"dag_id": text}).keys() == {"dag_id"}
    for conf in ({"a": text}, {text: 1}, {"a": [{"b": [text]}]}, {"a": [{text: {}}]}):
        assert errors(host, BODY | {"dag_run_conf": conf}).keys() == {"dag_run_conf"}


@each("number", {"2**63": 2**63, "-2**63-1": -(2**63) - 1, "10**100": 10**100})
def test_an_integer_beyond_64_bits_is_refused(host: Host, number: int) -> None:
    for conf in ({"a": number}, {"a": [{"b": number}]}):
        assert errors(host, BODY | {"dag_run_conf": conf}).keys() == {"dag_run_conf"}


@each("value", {"long": "x" * 65_537, "in bytes": "é" * 33_000, "list": ["x" * 10] * 6_000})
def test_a_conf_over_64_kib_is_refused(api: Host, value: Any) -> None:
    named = errors(api, BODY | {"dag_run_conf": {"a": value}})
    assert named.keys() == {"dag_run_conf"}
    assert "65536" in named["dag_run_conf"][0]


@each("text", {"ASCII": "x" * 65_500, "in bytes, not in escapes": "é" * 32_750})
def test_a_conf_just_under_64_kib_is_stored(host: Host, text: str) -> None:
    assert accepted(host, BODY | {"dag_run_conf": {"a": text}})["dag_run_conf"] == {"a": text}


def test_a_conf_times_runs_over_16_mib_is_refused(api: Host) -> None:
    body = {"dag_id": "hourly", "dag_run_conf": {"a": "x" * 60_000}, "from_date": "2025-03-01"}
    named = errors(api, body | {"to_date": "2025-03-12"})  # 288 runs
    assert named.keys() == {"dag_run_conf"}
    assert "16777216" in named["dag_run_conf"][0]
    assert accepted(api, body | {"to_date": "2025-03-11"})["dag_run_counts"]["total"] == 264


REFUSED_BY_PARAMS: dict[str, Any] = {
    "null without a required field": (None, ["region"]),
    "required field": ({}, ["region"]),
    "required field inside": ({"region": {}}, ["region.name"]),
    "types inside": ({"region": {"name": 3, "factor": "x"}}, ["region.factor", "region.name"]),
    "range, unknown": ({"region": {"name": "a"}, "days": 32, "more": 1}, ["days", "more"]),
}


@each("conf, names", REFUSED_BY_PARAMS)
def test_a_conf_that_the_params_refuse_names_its_fields(api: Host, conf: Any, names: list[str]) -> None:
    """dagster-io/dagster 3262 swallowed a bad conf."""
    named = errors(api, BODY | {"dag_id": "checked", "dag_run_conf": conf})
    assert named.keys() == {"dag_run_conf"}
    assert sorted(message.partition(":")[0] for message in named["dag_run_conf"]) == names


def test_a_conf_that_the_params_accept_is_completed(api: Host) -> None:
    backfill = accepted(api, BODY | {"dag_id": "checked", "dag_run_conf": {"region": {"name": "north"}}})
    assert backfill["dag_run_conf"] == {"region": {"name": "north", "factor": 1.5}}


# -- the DAG


@each("dag_id", "nope|Daily|daily |\uff44aily|' OR 1=1 --|../daily|" + "x" * 250)
def test_an_unknown_dag_is_not_found(api: Host, dag_id: str) -> None:
    assert dag_id in refused(api, BODY | {"dag_id": dag_id}, 404)["detail"]


def test_a_dag_id_of_251_characters_is_refused(api: Host) -> None:
    assert errors(api, BODY | {"dag_id": "x" * 251}).keys() == {"dag_id"}


def test_a_dag_that_allows_no_backfill_is_refused(api: Host) -> None:
    assert "does not allow backfills" in refused(api, BODY | {"dag_id": "closed"}, 400)["detail"]


UNORDERED = {
    "none by default": ({}, "reprocess_behavior"),
    "none": ({"reprocess_behavior": "none"}, "reprocess_behavior"),
    "backwards": ({"reprocess_behavior": "failed", "run_backwards": True}, "run_backwards"),
}


@each("more, field", UNORDERED)
def test_a_dag_that_depends_on_the_past_keeps_its_order(api: Host, more: dict[str, Any], field: str) -> None:
    """apache/airflow 45731 answered 500."""
    assert errors(api, BODY | {"dag_id": "chained"} | more).keys() == {field}
    assert accepted(api, BODY | {"dag_id": "chained", "reprocess_behavior": "failed"})["state"] == "queued"


# -- queries, paths and headers

LIMITS = f"limit=0|limit=-1|limit=1001|limit=abc|limit=|limit=1.0|limit=1e1|limit=0x10|limit=%00|limit={'9' * 5000}"
LAX_LIMITS = "limit=1_0|limit=%D9%A1|limit=%EF%BC%91|offset=1_0"  # int() takes them all
OFFSETS = f"offset=-1|offset=abc|offset=|offset={2**63}|offset={10**30}"
STATES = "state=nope|state=|state=QUEUED|state=%00"


@each("query", "|".join([LIMITS, LAX_LIMITS, OFFSETS, STATES]))
def test_a_bad_query_parameter_is_refused(api: Host, query: str) -> None:
    api.create()
    for path in ("/backfills", "/backfills/1/dag_runs"):
        with untouched(api, statements=0):
            document = problem(api.get(f"{path}?{query}"), 422)
        assert document["errors"].keys() == {query.partition("=")[0]}


ORDERS = "order_by=|order_by=created_at|order_by=id;--|order_by=ID|order_by=%00|dag_id=%00|dag_id=da%00ily"
ACTIVE = "active=maybe|active=|active=1|active=True|active=yes|state=skipped|state=superseded"


@each("query", "|".join([ORDERS, ACTIVE]))
def test_a_bad_query_parameter_of_the_list_is_refused(api: Host, query: str) -> None:
    with untouched(api, statements=0):
        assert problem(api.get(f"/backfills?{query}"), 422)["errors"].keys() == {query.partition("=")[0]}


ODD = {
    "all parameters": ("limit=1&offset=0&order_by=-id&state=queued&active=true&token=the%20host%27s", 1),
    "largest offset": (f"limit=1000&offset={2**63 - 1}", 0),
    "not UTF-8": ("dag_id=%ED%A0%80%FF%27%3B--", 0),
    "long": (f"dag_id={'x' * 5000}", 0),
}


@each("query, found", ODD)
def test_an_odd_query_finds_what_is_there(host: Host, query: str, found: int) -> None:
    host.create()
    response = host.get(f"/backfills?{query}")
    assert response.status_code == 200
    assert len(response.json["backfills"]) == found


NO_NUMBERS = "-1|+1|1.0|1e0|0x1|1_|x|dry_run|1%20|%201|1%0A|%00|1%00|%D9%A1|%C2%B9|%EF%BC%91|%FF"
NOT_THERE = f"0|2|{2**31}|{2**63 - 1}|{2**63}|{2**64 + 1}|{'9' * 5000}"


@each("backfill_id", f"{NO_NUMBERS}|{NOT_THERE}")
def test_an_id_that_cannot_be_is_not_found(host: Host, backfill_id: str) -> None:
    host.create()
    with untouched(host):
        responses = [host.get(f"/backfills/{backfill_id}"), host.get(f"/backfills/{backfill_id}/dag_runs")]
        responses += [host.put(f"/backfills/{backfill_id}/{action}") for action in STEERING]
    assert len({json.dumps(problem(response, 404)) for response in responses}) == 1


@each("dag_id", "nope|%00|%FF|1|" + "x" * 5000)
def test_an_unknown_dag_in_a_path_is_not_found(api: Host, dag_id: str) -> None:
    with untouched(api, statements=0):
        problem(api.get(f"/dags/{dag_id}"), 404)


@each("action", "|".join(STEERING))
def test_a_backfill_that_has_ended_cannot_be_steered(host: Host, action: str) -> None:
    backfill = host.create()
    assert host.put(f"/backfills/{backfill['id']}/cancel").status_code == 200
    with untouched(host):
        problem(host.put(f"/backfills/{backfill['id']}/{action}"), 409)


@each("key", {"empty": "", "long": "k" * 256})
def test_an_idempotency_key_has_1_to_255_characters(api: Host, key: str) -> None:
    with untouched(api, statements=0):
        response = send(api, "/backfills", BODY, **{"Idempotency-Key": key})
    assert problem(response, 422)["errors"].keys() == {"Idempotency-Key"}


NOT_FOUND = "GET /nothing 404|POST /backfills/ 404|GET /backfills/1/2/3 404|PUT /backfills/1/run 404"
NOT_ALLOWED = "DELETE /backfills 405|DELETE /backfills/1 405|PUT /backfills/dry_run 405|POST /backfills/1/pause 405"


@each("case", f"{NOT_FOUND}|{NOT_ALLOWED}")
def test_unknown_paths_and_methods_stay_the_hosts(api: Host, case: str) -> None:
    method, path, status = case.split()
    response = api.client.open(f"/api/v2{path}", method=method, data=b"{", content_type=JSON)
    assert (response.status_code, response.mimetype) == (int(status), "text/html")


# -- what is accepted


def test_defaults_are_filled_in(host: Host) -> None:
    backfill = accepted(host, BODY)
    given = (backfill[name] for name in ("run_backwards", "reprocess_behavior", "max_active_runs", "on_failure"))
    assert [*given, backfill["dag_run_conf"]] == [False, "none", 10, "continue", None]


@each("value", {"true": True, "false": False, "null": None})
def test_run_on_latest_version_is_accepted_and_ignored(api: Host, value: bool | None) -> None:
    backfill = accepted(api, BODY | {"run_on_latest_version": value, "max_active_runs": 1000})
    assert "run_on_latest_version" not in backfill
    assert backfill["max_active_runs"] == 1000


DATES = {
    "the clocks go forward": ("2025-03-30", "2025-03-29T23:00:00Z", "2025-03-30T21:59:59Z"),
    "the clocks go back": ("2025-10-26", "2025-10-25T22:00:00Z", "2025-10-26T22:59:59Z"),
    "offset": ("2025-03-01T02:00:00+02:00", "2025-03-01T00:00:00Z", "2025-03-01T00:00:00Z"),
    "small letters": ("2025-03-01t00:00:00z", "2025-03-01T00:00:00Z", "2025-03-01T00:00:00Z"),
    "space, no seconds": ("2025-03-01 00:00-05:30", "2025-03-01T05:30:00Z", "2025-03-01T05:30:00Z"),
    "fraction": ("2025-03-01T00:00:00.25Z", "2025-03-01T00:00:00.250000Z", "2025-03-01T00:00:00.250000Z"),
}


@each("given, first, last", DATES)
def test_a_date_is_the_local_day_and_a_datetime_an_instant(host: Host, given: str, first: str, last: str) -> None:
    for dag_id in ("from_berlin", "to_berlin"):
        host.backfill.dag(dag_id, schedule="@monthly", timezone="Europe/Berlin")(nothing)
    begun = accepted(host, {"dag_id": "from_berlin", "from_date": given, "to_date": "2025-12-31"})
    ended = accepted(host, {"dag_id": "to_berlin", "from_date": "2025-01-01", "to_date": given})
    assert (begun["from_date"], ended["to_date"]) == (first, last)
