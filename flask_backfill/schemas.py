"""marshmallow schemas: requests, answers, and the problem document. They check, and they document themselves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from enum import StrEnum
from itertools import islice
from typing import Any

import marshmallow as ma
from marshmallow import fields, validate

from .errors import InvalidRequest
from .plan import Request, flat_messages
from .schedules import EARLIEST, LATEST
from .states import BackfillState, DateState, OnFailure, ReprocessBehavior, SkipReason

_MAX_INTEGER = 2**63 - 1  # what a database's integer can hold
_MAX_DEPTH = 30  # MariaDB's JSON functions go no deeper than 32
#: RFC 3339 with an optional time; the offset is looked at afterwards, so that its absence gets its own message.
_DATE = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)?)?", re.ASCII)


# -- fields


class StrictInteger(fields.Integer):
    """A JSON integer: no string, no boolean, no 1.0."""

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> Any:
        if type(value) is not int:
            raise self.make_error("invalid")
        return value


class QueryInteger(fields.Integer):
    """Decimal digits in a query string: Python would take ``1_0``, `` 1`` and other scripts' digits as well."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        if not re.fullmatch(r"-?[0-9]{1,20}", value):
            raise self.make_error("invalid")
        return super()._deserialize(value, *args, **kwargs)


class StrictBoolean(fields.Boolean):
    """A JSON boolean: no string, no number."""

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> Any:
        if not isinstance(value, bool):
            raise self.make_error("invalid")
        return value


class DateOrDateTime(fields.Field[date]):
    """An RFC 3339 datetime with its offset, or a date that means the whole day in the DAG's time zone."""

    default_error_messages = {  # noqa: RUF012 - marshmallow's way
        "invalid": "Not an RFC 3339 date or datetime, such as 2025-03-01 or 2025-03-01T00:00:00Z.",
        "naive": "This datetime has no offset from UTC: add one, such as 'Z', or give the date alone for the whole "
        "day in the DAG's time zone.",
        "outside": f"The year must be from {EARLIEST.year} to {LATEST.year - 1}.",
    }

    def _deserialize(self, value: Any, *_: Any, **__: Any) -> date:
        if not isinstance(value, str) or not _DATE.fullmatch(value):
            raise self.make_error("invalid")
        try:
            parsed = date.fromisoformat(value) if len(value) == 10 else datetime.fromisoformat(value.upper())
        except ValueError as error:
            raise self.make_error("invalid") from error
        if isinstance(parsed, datetime) and parsed.tzinfo is None:
            raise self.make_error("naive")
        if not EARLIEST.year <= parsed.year < LATEST.year:
            raise self.make_error("outside")
        return parsed


class UTCDateTime(fields.AwareDateTime):
    """An instant, answered in UTC with a ``Z``."""

    def _serialize(self, value: datetime | None, *_: Any, **__: Any) -> str | None:
        return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


class Conf(fields.Dict):
    """A JSON object that every database and every client can hold."""

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        conf: dict[str, Any] = super()._deserialize(value, *args, **kwargs)  # type: ignore[no-untyped-call]
        _check_json(conf)
        return conf


class Choice(fields.Enum[Any]):
    """A word out of a StrEnum; the tables hold the words themselves."""

    def __init__(self, enum: type[StrEnum], **kwargs: Any) -> None:
        super().__init__(enum, by_value=fields.String, **kwargs)

    def _serialize(self, value: str | None, *_: Any, **__: Any) -> str | None:
        return None if value is None else str(value)


def _check_text(text: str) -> None:
    """Refuse what a database cannot store: NUL (PostgreSQL), and halves of surrogate pairs (UTF-8, RFC 3629)."""
    if "\0" in text:
        raise ma.ValidationError("A NUL character (U+0000) is not allowed.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ma.ValidationError("A lone surrogate (U+D800 to U+DFFF) is not allowed.") from error


def _check_json(conf: dict[str, Any]) -> None:
    level: list[Any] = [conf]
    for _ in range(_MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.keys()
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, str):
                _check_text(value)
            elif isinstance(value, float) and not math.isfinite(value):
                raise ma.ValidationError("Numbers must be finite.")
            elif type(value) is int and not -_MAX_INTEGER - 1 <= value <= _MAX_INTEGER:
                raise ma.ValidationError("Integers must fit into 64 bits; send a larger one as a string.")
        level = inner
        if not level:
            return
    raise ma.ValidationError(f"Nested deeper than {_MAX_DEPTH} levels.")


# -- requests


class CreateBackfillSchema(ma.Schema):
    """Which DAG to run again, over which logical dates, and how."""

    dag_id = fields.String(
        required=True,
        validate=[validate.Length(1, 250), _check_text],
        metadata={"description": "The DAG to run again.", "examples": ["daily_climate"]},
    )
    from_date = DateOrDateTime(
        required=True,
        metadata={
            "description": "The first logical date, included: a datetime with its offset, or a date that begins with "
            "its day in the DAG's time zone.",
            "examples": ["2015-03-01", "2015-03-01T00:00:00Z"],
        },
    )
    to_date = DateOrDateTime(
        required=True,
        metadata={
            "description": "The last logical date, included: a datetime with its offset, or a date that ends with its "
            "day in the DAG's time zone.",
            "examples": ["2015-04-01", "2015-04-01T00:00:00Z"],
        },
    )
    run_backwards = StrictBoolean(
        load_default=False, metadata={"description": "The latest date first. The dates are the same."}
    )
    dag_run_conf = Conf(
        load_default=None,
        allow_none=True,
        metadata={
            "description": "What the tasks get. null: new runs get nothing and redone runs keep what they had; an "
            "object, an empty one too, replaces it.",
            "examples": [{}],
        },
    )
    reprocess_behavior = Choice(
        ReprocessBehavior,
        load_default=ReprocessBehavior.NONE,
        metadata={
            "default": "none",
            "description": "Which existing runs are done again: none (only missing and cancelled ones run), failed, "
            "or completed (failed and successful ones).",
        },
    )
    max_active_runs = StrictInteger(
        load_default=10,
        validate=validate.Range(1, 1000),
        metadata={"description": "How many runs of this backfill may be running at the same time."},
    )
    run_on_latest_version = StrictBoolean(
        load_default=None,
        allow_none=True,
        metadata={"default": None, "description": "Accepted for Airflow's clients, and ignored."},
    )
    on_failure = Choice(
        OnFailure,
        load_default=OnFailure.CONTINUE,
        metadata={
            "default": "continue",
            "description": "stop: the first failed run cancels those that have not started.",
        },
    )

    @ma.post_load
    def make_request(self, data: dict[str, Any], **_: Any) -> Request:
        """Return the request that the planner takes."""
        data.pop("run_on_latest_version", None)
        return Request(**data)


class _Query(ma.Schema):
    class Meta:
        """A host's own query parameters (a token, say) are none of ours."""

        unknown = ma.EXCLUDE


class PageQuery(_Query):
    """Which part of a list."""

    limit = QueryInteger(
        load_default=50,
        validate=validate.Range(1, 1000),
        metadata={"description": "How many entries at most."},
    )
    offset = QueryInteger(
        load_default=0,
        validate=validate.Range(0, _MAX_INTEGER),
        metadata={"description": "How many entries to leave out at the beginning."},
    )


class ListBackfillsQuery(PageQuery):
    """Which backfills to list, and in which order."""

    dag_id = fields.String(validate=_check_text, metadata={"description": "Only those of this DAG."})
    state = Choice(BackfillState, metadata={"description": "Only those in this state."})
    active = fields.Boolean(
        truthy={"true"},
        falsy={"false"},
        metadata={"description": "Only those that have not ended (true), or that have."},
    )
    order_by = fields.String(
        load_default="id",
        validate=validate.OneOf(["id", "-id"]),
        metadata={"description": "id: the oldest first; -id: the newest first."},
    )


class ListDagRunsQuery(PageQuery):
    """Which dates of a backfill to list."""

    state = Choice(DateState, metadata={"description": "Only dates in this state."})


# -- answers


class Answer(ma.Schema):
    """What this API sends."""

    class Meta:
        """Leaves the document open: later versions may send more."""

        unknown = ma.EXCLUDE


class DagRunCounts(Answer):
    """The dates of a backfill by what became of them; ``total`` is their sum at every moment."""

    queued = fields.Integer(required=True, metadata={"description": "Waiting to run."})
    running = fields.Integer(required=True, metadata={"description": "Running now."})
    success = fields.Integer(required=True, metadata={"description": "Ran without an error."})
    failed = fields.Integer(required=True, metadata={"description": "Ran into an error."})
    cancelled = fields.Integer(
        required=True, metadata={"description": "Will not run: the backfill was stopped before."}
    )
    skipped = fields.Integer(required=True, metadata={"description": "Were left alone by the plan."})
    superseded = fields.Integer(required=True, metadata={"description": "Have since been redone by somebody else."})
    total = fields.Integer(required=True, metadata={"description": "All dates of the range."})


class Backfill(Answer):
    """A request to run a DAG over a range of dates, and how far it is."""

    id = fields.Integer(required=True, metadata={"description": "The backfill's number.", "examples": [1]})
    dag_id = fields.String(required=True, metadata={"description": "The DAG.", "examples": ["daily_climate"]})
    dag_display_name = fields.String(required=True, metadata={"description": "The DAG's name for people."})
    from_date = UTCDateTime(required=True, metadata={"description": "The first logical date asked for, in UTC."})
    to_date = UTCDateTime(required=True, metadata={"description": "The last logical date asked for, in UTC."})
    run_backwards = fields.Boolean(required=True, metadata={"description": "Whether the latest date runs first."})
    dag_run_conf = fields.Dict(
        required=True, allow_none=True, metadata={"description": "What the tasks get; null: redone runs keep theirs."}
    )
    reprocess_behavior = Choice(
        ReprocessBehavior, required=True, metadata={"description": "Which existing runs are done again."}
    )
    max_active_runs = fields.Integer(
        required=True, metadata={"description": "How many of its runs may be running at the same time."}
    )
    on_failure = Choice(OnFailure, required=True, metadata={"description": "What a failed run does to the rest."})
    is_paused = fields.Boolean(required=True, metadata={"description": "Whether no further run starts for now."})
    state = Choice(
        BackfillState,
        required=True,
        metadata={
            "description": "queued and running are active; success (no run failed), failed and cancelled have ended."
        },
    )
    dag_run_counts = fields.Nested(DagRunCounts, required=True)
    created_at = UTCDateTime(required=True, metadata={"description": "When it was created."})
    updated_at = UTCDateTime(required=True, metadata={"description": "When it was changed last."})
    completed_at = UTCDateTime(required=True, allow_none=True, metadata={"description": "When it ended."})
    triggering_user_name = fields.String(
        required=True, allow_none=True, metadata={"description": "Who created it, where the app says so."}
    )


class BackfillCollection(Answer):
    """One page of backfills."""

    backfills = fields.List(fields.Nested(Backfill), required=True)
    total_entries = fields.Integer(required=True, metadata={"description": "How many there are in all."})


class DryRunBackfill(Answer):
    """A date that would run."""

    logical_date = UTCDateTime(required=True, metadata={"description": "The run's logical date."})
    partition_key = fields.String(required=True, allow_none=True, metadata={"description": "Always null; Airflow's."})
    partition_date = UTCDateTime(required=True, allow_none=True, metadata={"description": "Always null; Airflow's."})


class DryRunCounts(Answer):
    """The dates of a range by what a create would do with them."""

    create = fields.Integer(required=True, metadata={"description": "Get a new run."})
    redo = fields.Integer(required=True, metadata={"description": "Have a run that is done again."})
    skip = fields.Integer(required=True, metadata={"description": "Have a run that is left alone."})


class SkippedDate(Answer):
    """A date that would be skipped."""

    logical_date = UTCDateTime(required=True, metadata={"description": "The existing run's logical date."})
    exception_reason = Choice(SkipReason, required=True, metadata={"description": "Why its run is left alone."})


class DryRunBackfillCollection(Answer):
    """What a create would do."""

    backfills = fields.List(
        fields.Nested(DryRunBackfill),
        required=True,
        metadata={"description": "The dates that would be created or redone, in the order in which they run."},
    )
    total_entries = fields.Integer(required=True, metadata={"description": "How many dates would run."})
    counts = fields.Nested(DryRunCounts, required=True)
    skipped = fields.List(fields.Nested(SkippedDate), required=True)


class BackfillDagRun(Answer):
    """A date of a backfill and the run for it."""

    logical_date = UTCDateTime(required=True, metadata={"description": "The run's logical date."})
    state = Choice(
        DateState,
        required=True,
        metadata={
            "description": "The run's state; skipped: the plan left it alone; superseded: somebody else has since "
            "redone it."
        },
    )
    exception_reason = Choice(
        SkipReason, required=True, allow_none=True, metadata={"description": "Why the date was skipped, if it was."}
    )
    data_interval_start = UTCDateTime(required=True, metadata={"description": "Where the run's period begins."})
    data_interval_end = UTCDateTime(
        required=True, allow_none=True, metadata={"description": "Where the run's period ends."}
    )
    started_at = UTCDateTime(required=True, allow_none=True, metadata={"description": "When the last try started."})
    ended_at = UTCDateTime(required=True, allow_none=True, metadata={"description": "When the run ended."})
    try_number = fields.Integer(
        required=True, allow_none=True, metadata={"description": "How often the run has started, over all backfills."}
    )
    error = fields.String(required=True, allow_none=True, metadata={"description": "Why the run failed, if it did."})


class BackfillDagRunCollection(Answer):
    """One page of a backfill's dates, in the order in which they run."""

    dag_runs = fields.List(fields.Nested(BackfillDagRun), required=True)
    total_entries = fields.Integer(required=True, metadata={"description": "How many there are in all."})


class Dag(Answer):
    """Something that runs once per period."""

    dag_id = fields.String(required=True, metadata={"description": "The DAG's id.", "examples": ["daily_climate"]})
    dag_display_name = fields.String(required=True, metadata={"description": "Its name for people."})
    schedule = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "Cron fields, a preset, or an elapsed time; null: it has no periods."},
    )
    timezone = fields.String(required=True, metadata={"description": "The IANA name of its time zone."})
    last_tick = UTCDateTime(
        required=True, allow_none=True, metadata={"description": "The last logical date at or before now."}
    )
    next_tick = UTCDateTime(
        required=True, allow_none=True, metadata={"description": "The first logical date after now."}
    )
    allow_backfill = fields.Boolean(required=True, metadata={"description": "Whether it may be backfilled."})
    active_backfill_id = fields.Integer(
        required=True, allow_none=True, metadata={"description": "Its backfill that has not ended, if there is one."}
    )


class DagCollection(Answer):
    """The DAGs of this app."""

    dags = fields.List(fields.Nested(Dag), required=True)
    total_entries = fields.Integer(required=True, metadata={"description": "How many there are."})


class Problem(Answer):
    """What went wrong (RFC 9457). Nothing was changed."""

    type = fields.String(required=True, metadata={"description": "Always about:blank: the status says the kind."})
    title = fields.String(required=True, metadata={"description": "The status in words."})
    status = fields.Integer(required=True, metadata={"description": "The HTTP status."})
    detail = fields.String(required=True, metadata={"description": "What happened, and what to do next."})


class ActiveProblem(Problem):
    """The backfill's state does not allow this (RFC 9457). Nothing was changed."""

    backfill_id = fields.Integer(metadata={"description": "The DAG's active backfill, where one is in the way."})
    state = fields.String(
        validate=validate.OneOf([BackfillState.QUEUED.value, BackfillState.RUNNING.value]),
        metadata={"description": "The state of that backfill."},
    )


class InvalidProblem(Problem):
    """The request is not valid (RFC 9457). Nothing was changed."""

    errors = fields.Dict(
        keys=fields.String(),
        values=fields.List(fields.String()),
        required=True,
        metadata={"description": "Messages by field, or by header, or 'body'."},
    )


# -- reading


def load(schema: ma.Schema, data: Mapping[str, Any]) -> Any:
    """Check and convert what a client sent.

    :raises InvalidRequest: names the fields.
    """
    try:
        return schema.load(data)
    except ma.ValidationError as error:
        raise InvalidRequest(_by_field(error.messages_dict)) from error


def parse_json(text: bytes) -> dict[str, Any]:
    """Read a JSON object, strictly (RFC 8259): no NaN, no name twice.

    :raises InvalidRequest: it is none.
    """

    doubled: list[tuple[dict[str, Any], str]] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, value in pairs:
            if name in members:
                doubled.append((members, name))
            members[name] = value
        return members

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is no JSON number")

    try:
        value = json.loads(
            text.decode(), object_pairs_hook=collect, parse_constant=no_constant, parse_int=_parse_integer
        )
    except RecursionError:
        raise InvalidRequest({"body": [f"Nested deeper than {_MAX_DEPTH} levels."]}) from None
    except ValueError as error:
        raise InvalidRequest({"body": [f"Not JSON: {error}."]}) from error
    if not isinstance(value, dict):
        raise InvalidRequest({"body": ["Not a JSON object."]})
    for members, name in doubled:
        field = name if members is value else "body"
        raise InvalidRequest({field: [f"The name {name!a} is there twice."]})
    return value


def _parse_integer(digits: str) -> int:
    if len(digits) > 400:  # more than the largest float has; from 4,300 on Python refuses with a hint for programmers
        raise ValueError("an integer has more than 400 digits")
    return int(digits)


def _by_field(messages: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the messages of the first fields; a hostile body may have any number."""
    return {
        "body" if field == ma.exceptions.SCHEMA else field: flat_messages(inner)
        for field, inner in islice(messages.items(), 50)
    }
