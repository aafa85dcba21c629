"""The view functions, and ROUTES, from which the blueprint and the OpenAPI document are made.

A view parses, authorises, asks the store, and returns plain data. It neither commits nor rolls back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import marshmallow as ma
from flask import Response, request, url_for

from . import docs, schemas, steer
from .create import IdempotencyKey, create_backfill, plan_backfill
from .dags import Dag
from .errors import (
    AccessDenied,
    AlreadyActive,
    BackfillError,
    BackfillNotFound,
    BackfillsNotAllowed,
    DagNotFound,
    DocsNotInstalled,
    InvalidRequest,
    TryAgain,
    UnsupportedMediaType,
)
from .plan import Prepared, Request, prepare, require_periods
from .settings import Settings
from .store import Record, Store

logger = logging.getLogger("flask_backfill")

#: A body is read up to here; far more than the largest valid one.
_MAX_BODY_BYTES = 16 * 2**20
_MAX_ID = 2**63 - 1


class Api(Protocol):
    """What the views need of the extension."""

    dags: Mapping[str, Dag]

    @property
    def settings(self) -> Settings:
        """Return the current app's settings."""

    def store(self) -> Store:
        """Return the store on the request's session."""

    def may(self, action: str, dag_id: str) -> bool:
        """Ask the host."""

    @property
    def narrows(self) -> bool:
        """Tell whether the host wants to be asked at all."""

    def user_name(self) -> str | None:
        """Return who is asking."""

    def openapi(self, server: str) -> Record:
        """Return the description of this API."""


@dataclass(frozen=True)
class Reply:
    """Data with headers."""

    data: Record
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Route:
    """One operation of the API."""

    method: str
    path: str
    operation_id: str
    view: Callable[..., Record | Reply | Response]
    summary: str
    answer: type[ma.Schema] | None
    body: type[ma.Schema] | None = None
    query: type[ma.Schema] | None = None
    parameters: tuple[str, ...] = ()  # of the path
    errors: tuple[type[BackfillError], ...] = (AccessDenied, TryAgain)
    is_described: bool = True  # False: a page for people, not a part of the API

    @property
    def rule(self) -> str:
        """Return the path in Flask's notation."""
        return self.path.replace("{", "<").replace("}", ">")


# -- backfills


def create(api: Api) -> Reply:
    """Create a backfill with all its runs, in one transaction: after any other answer nothing has changed."""
    asked, prepared = _prepare(api, "create")
    require_periods(prepared)
    user_name = api.user_name()
    key = request.headers.get("Idempotency-Key")
    if key is not None and not 1 <= len(key) <= 255:
        raise InvalidRequest({"Idempotency-Key": ["Give 1 to 255 characters."]})
    backfill = create_backfill(
        api.store(),
        prepared,
        user_name=user_name,
        idempotency=None if key is None else IdempotencyKey.of(key, user=user_name, request=asked),
        now=_now(),
    )
    location = url_for(f".{GET_BACKFILL}", backfill_id=backfill["id"])
    return Reply(_shown(api, backfill), {"Location": location})


def dry_run(api: Api) -> Record:
    """Tell what a create of this request would do. Nothing is written."""
    _, prepared = _prepare(api, "dry_run")
    plan = plan_backfill(api.store(), prepared)
    dates = list(plan.to_run)
    return {
        "backfills": [
            {"logical_date": logical_date, "partition_key": None, "partition_date": None} for logical_date in dates
        ],
        "total_entries": len(dates),
        "counts": plan.counts,
        "skipped": [
            {"logical_date": period.logical_date, "exception_reason": plan.skipped[period.logical_date]}
            for period in plan.periods
            if period.logical_date in plan.skipped
        ],
    }


def list_backfills(api: Api) -> Record:
    """List backfills, those of DAGs that are in no code any more among them."""
    query = _query(schemas.ListBackfillsQuery)
    store = api.store()
    backfills, total = store.backfills(
        dag_id=query.get("dag_id"),
        state=query.get("state"),
        active=query.get("active"),
        among=_readable(api, store.dag_ids()) if api.narrows else None,
        limit=query["limit"],
        offset=query["offset"],
        descending=query["order_by"] == "-id",
    )
    return {"backfills": [_shown(api, backfill) for backfill in backfills], "total_entries": total}


def get_backfill(api: Api, backfill_id: str) -> Record:
    """Return one backfill with its state and the counts of its dates."""
    number = _readable_backfill(api, backfill_id)
    return _shown(api, api.store().backfill(number))


def list_dag_runs(api: Api, backfill_id: str) -> Record:
    """List the dates of a backfill in the order in which they run, each with its run or why it has none."""
    query = _query(schemas.ListDagRunsQuery)
    number = _readable_backfill(api, backfill_id)
    dag_runs, total = api.store().dag_runs(
        number, state=query.get("state"), limit=query["limit"], offset=query["offset"]
    )
    return {"dag_runs": dag_runs, "total_entries": total}


def pause(api: Api, backfill_id: str) -> Record:
    """Let no further run start; what is running finishes. Nothing happens if it is paused already."""
    backfill = _lock(api, backfill_id, "pause")
    return _shown(api, steer.set_paused(api.store(), backfill, True, now=_now()))


def unpause(api: Api, backfill_id: str) -> Record:
    """Let runs start again. Nothing happens if it is not paused."""
    backfill = _lock(api, backfill_id, "unpause")
    return _shown(api, steer.set_paused(api.store(), backfill, False, now=_now()))


def cancel(api: Api, backfill_id: str) -> Record:
    """End a backfill: no further run starts, what is running finishes."""
    backfill = _lock(api, backfill_id, "cancel")
    return _shown(api, steer.cancel(api.store(), backfill, now=_now()))


# -- DAGs


def list_dags(api: Api) -> Record:
    """List the DAGs of this app."""
    dag_ids = _readable(api, sorted(api.dags))
    active = api.store().active_backfills(dag_ids)
    dags = [_dag(api.dags[dag_id], active.get(dag_id)) for dag_id in dag_ids]
    return {"dags": dags, "total_entries": len(dags)}


def get_dag(api: Api, dag_id: str) -> Record:
    """Return one DAG."""
    dag = _find_dag(api, dag_id, "read")
    return _dag(dag, api.store().active_backfills([dag_id]).get(dag_id))


# -- the description


def get_openapi(api: Api) -> Record:
    """Return this API's description."""
    here = url_for(f".{GET_OPENAPI}")
    return api.openapi(here.removesuffix("/openapi.json"))


def get_docs(_: Api) -> Response:
    """Show this API's description, and let it be tried out."""
    return docs.page()


def get_docs_asset(_: Api, asset: str) -> Response:
    """Answer a file of the documentation page."""
    return docs.asset(asset)


# -- what views share


def _now() -> datetime:
    return datetime.now(UTC)


def _prepare(api: Api, action: str) -> tuple[Request, Prepared]:
    """Do all of a create and a dry run that needs no database."""
    if request.mimetype != "application/json":
        raise UnsupportedMediaType
    if (request.content_length or 0) > _MAX_BODY_BYTES:
        raise InvalidRequest({"body": [f"The body is larger than {_MAX_BODY_BYTES} bytes."]})
    asked: Request = schemas.load(schemas.CreateBackfillSchema(), schemas.parse_json(request.get_data()))
    dag = _find_dag(api, asked.dag_id, action)
    return asked, prepare(dag, asked, now=_now(), settings=api.settings)


def _query(schema: type[ma.Schema]) -> Any:
    return schemas.load(schema(), request.args.to_dict())


def _find_dag(api: Api, dag_id: str, action: str) -> Dag:
    """Return a DAG with which the user may do this; what one may not read looks as if it were not there."""
    dag = api.dags.get(dag_id)
    # Asked about an unknown one too, so that not even the time or the cookies of the answer tell them apart.
    may_read = api.may("read", dag_id)
    if dag is None or not may_read:
        raise DagNotFound(dag_id)
    _require(api, action, dag_id)
    return dag


def _readable_backfill(api: Api, backfill_id: str) -> int:
    """Return the number of a backfill that the user may read."""
    number = _number(backfill_id)
    _require_readable(api, api.store().dag_id(number))
    return number


def _lock(api: Api, backfill_id: str, action: str) -> steer.LockedBackfill:
    """Lock a backfill with which the user may do this.

    On SQLite nothing may be read before the lock. On the servers it is the other way round: who waits for a row, or
    is told that it is locked, knows that it is there.
    """
    number = _number(backfill_id)
    store = api.store()
    if not api.narrows or store.locks_whole_database:
        backfill = steer.lock_backfill(store, number)
        _require_readable(api, backfill.dag_id)
        _require(api, action, backfill.dag_id)
        return backfill
    dag_id = _require_readable(api, store.dag_id(number))
    _require(api, action, dag_id)
    return steer.lock_backfill(store, number)


def _require_readable(api: Api, dag_id: str | None) -> str:
    """Return the DAG of a backfill that the user may read; None is that of one which is not there."""
    if dag_id is None or not api.may("read", dag_id):
        raise BackfillNotFound
    return dag_id


def _number(backfill_id: str) -> int:
    """Return an id as a number; what cannot be one is not there."""
    if not (backfill_id.isascii() and backfill_id.isdigit() and len(backfill_id) < 20 and int(backfill_id) <= _MAX_ID):
        raise BackfillNotFound
    return int(backfill_id)


def _require(api: Api, action: str, dag_id: str) -> None:
    if action != "read" and not api.may(action, dag_id):
        raise AccessDenied(f"You may see DAG {dag_id}, but not do this ({action}). Nothing was changed.")


def _readable(api: Api, dag_ids: Iterable[str]) -> list[str]:
    return [dag_id for dag_id in dag_ids if api.may("read", dag_id)]


def _shown(api: Api, backfill: Record) -> Record:
    """Add the DAG's name for people; a DAG that is in no code any more has its id."""
    dag = api.dags.get(backfill["dag_id"])
    return backfill | {"dag_display_name": dag.dag_display_name if dag else backfill["dag_id"]}


def _dag(dag: Dag, active_backfill_id: int | None) -> Record:
    now = _now()
    return {
        "dag_id": dag.dag_id,
        "dag_display_name": dag.dag_display_name,
        "schedule": dag.schedule_text,
        "timezone": dag.timezone,
        "last_tick": dag.last_tick(now),
        "next_tick": dag.next_tick(now),
        "allow_backfill": dag.allow_backfill,
        "active_backfill_id": active_backfill_id,
    }


GET_BACKFILL = "getBackfill"
GET_OPENAPI = "getOpenapi"

_PLANNING_ERRORS = (BackfillsNotAllowed, AccessDenied, DagNotFound, UnsupportedMediaType, InvalidRequest, TryAgain)
_READ_ONE_ERRORS = (AccessDenied, BackfillNotFound, TryAgain)
_STEERING_ERRORS = (AccessDenied, BackfillNotFound, AlreadyActive, TryAgain)

ROUTES = (
    Route(
        method="POST",
        path="/backfills",
        operation_id="createBackfill",
        view=create,
        summary="Create a backfill",
        body=schemas.CreateBackfillSchema,
        answer=schemas.Backfill,
        errors=(*_PLANNING_ERRORS, AlreadyActive),
    ),
    Route(
        method="POST",
        path="/backfills/dry_run",
        operation_id="createBackfillDryRun",
        view=dry_run,
        summary="Preview a backfill",
        body=schemas.CreateBackfillSchema,
        answer=schemas.DryRunBackfillCollection,
        errors=_PLANNING_ERRORS,
    ),
    Route(
        method="GET",
        path="/backfills",
        operation_id="listBackfills",
        view=list_backfills,
        summary="List backfills",
        query=schemas.ListBackfillsQuery,
        answer=schemas.BackfillCollection,
        errors=(AccessDenied, InvalidRequest, TryAgain),
    ),
    Route(
        method="GET",
        path="/backfills/{backfill_id}",
        operation_id=GET_BACKFILL,
        view=get_backfill,
        summary="Get a backfill",
        parameters=("backfill_id",),
        answer=schemas.Backfill,
        errors=_READ_ONE_ERRORS,
    ),
    Route(
        method="GET",
        path="/backfills/{backfill_id}/dag_runs",
        operation_id="listBackfillDagRuns",
        view=list_dag_runs,
        summary="List the dates of a backfill",
        parameters=("backfill_id",),
        query=schemas.ListDagRunsQuery,
        answer=schemas.BackfillDagRunCollection,
        errors=(*_READ_ONE_ERRORS, InvalidRequest),
    ),
    Route(
        method="PUT",
        path="/backfills/{backfill_id}/pause",
        operation_id="pauseBackfill",
        view=pause,
        summary="Pause a backfill",
        parameters=("backfill_id",),
        answer=schemas.Backfill,
        errors=_STEERING_ERRORS,
    ),
    Route(
        method="PUT",
        path="/backfills/{backfill_id}/unpause",
        operation_id="unpauseBackfill",
        view=unpause,
        summary="Unpause a backfill",
        parameters=("backfill_id",),
        answer=schemas.Backfill,
        errors=_STEERING_ERRORS,
    ),
    Route(
        method="PUT",
        path="/backfills/{backfill_id}/cancel",
        operation_id="cancelBackfill",
        view=cancel,
        summary="Cancel a backfill",
        parameters=("backfill_id",),
        answer=schemas.Backfill,
        errors=_STEERING_ERRORS,
    ),
    Route(
        method="GET",
        path="/dags",
        operation_id="listDags",
        view=list_dags,
        summary="List DAGs",
        answer=schemas.DagCollection,
    ),
    Route(
        method="GET",
        path="/dags/{dag_id}",
        operation_id="getDag",
        view=get_dag,
        summary="Get a DAG",
        parameters=("dag_id",),
        answer=schemas.Dag,
        errors=(AccessDenied, DagNotFound, TryAgain),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        operation_id=GET_OPENAPI,
        view=get_openapi,
        summary="Get this description",
        answer=None,
        errors=(AccessDenied,),
    ),
    Route(
        method="GET",
        path="/docs",
        operation_id="getDocs",
        view=get_docs,
        summary="Show the documentation page",
        answer=None,
        errors=(AccessDenied, DocsNotInstalled),
        is_described=False,
    ),
    Route(
        method="GET",
        path="/docs/{asset}",
        operation_id="getDocsAsset",
        view=get_docs_asset,
        summary="Get a file of the documentation page",
        parameters=("asset",),
        answer=None,
        errors=(AccessDenied, DocsNotInstalled),
        is_described=False,
    ),
)
