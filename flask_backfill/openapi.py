"""ROUTES -> the OpenAPI document, by apispec and its marshmallow plugin."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from apispec import APISpec
from apispec.ext.marshmallow import MarshmallowPlugin

from . import schemas
from .errors import (
    AccessDenied,
    AlreadyActive,
    BackfillError,
    BackfillNotFound,
    BackfillsNotAllowed,
    InvalidRequest,
    TryAgain,
    UnsupportedMediaType,
)
from .views import Route

#: Of this API, not of the package.
VERSION = "1.0.0"

_ERRORS: dict[type[BackfillError], tuple[str, str, Any]] = {
    BackfillsNotAllowed: ("BackfillsNotAllowed", "This DAG does not allow backfills.", schemas.Problem),
    AccessDenied: ("AccessDenied", "You may not do this.", schemas.Problem),
    BackfillNotFound: ("NotFound", "There is no such thing, or you may not read it.", schemas.Problem),
    AlreadyActive: (
        "Conflict",
        "The state does not allow this: the DAG has an active backfill already, or this backfill has ended.",
        schemas.ActiveProblem,
    ),
    UnsupportedMediaType: ("UnsupportedMediaType", "The body is not sent as application/json.", schemas.Problem),
    InvalidRequest: ("InvalidRequest", "The request is not valid; `errors` names the fields.", schemas.InvalidProblem),
    TryAgain: (
        "TryAgain",
        "The database is locked, or the data changed meanwhile. Nothing was changed: send the request again later.",
        schemas.Problem,
    ),
}
_BY_STATUS = {error.status: name for error, (name, _, _) in _ERRORS.items()}

_PARAMETERS: dict[str, dict[str, Any]] = {
    "backfill_id": {
        "in": "path",
        "required": True,
        "description": "The backfill's number.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
        "example": 1,
    },
    "dag_id": {
        "in": "path",
        "required": True,
        "description": "The DAG's id.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 250},
        "example": "daily_climate",
    },
    "Idempotency-Key": {
        "in": "header",
        "description": "Any text that is new for every backfill. The same key with the same body answers the "
        "backfill that it made, so a request whose answer got lost can be sent again.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    },
}

_EXAMPLE = {
    "dag_id": "daily_climate",
    "from_date": "2015-03-01",
    "to_date": "2015-04-01",
    "reprocess_behavior": "none",
    "max_active_runs": 3,
}


def build_document(
    routes: Iterable[Route], *, server: str, security_schemes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe the API.

    :param server: the URL or path under which it is mounted.
    :param security_schemes: OpenAPI's Security Scheme Objects by name; a client needs one of them.
    """
    plugin = MarshmallowPlugin()
    spec = APISpec(
        title="Backfills",
        version=VERSION,
        openapi_version="3.1.0",
        plugins=[plugin],
        info={
            "description": "Run the jobs of an app again over past dates: preview, create, watch and steer. A create "
            "is one transaction: after any answer but a 2xx nothing has changed, and the request can be sent again.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        **({"security": [{name: []} for name in security_schemes]} if security_schemes else {}),
        servers=[{"url": server or "/", "description": "Where this API is mounted."}],
        tags=[
            {"name": "backfills", "description": "Runs of a DAG over a range of past dates."},
            {"name": "dags", "description": "What can be backfilled."},
            {"name": "description", "description": "This document."},
        ],
    )
    assert plugin.converter is not None  # noqa: S101 - set by APISpec
    plugin.converter.add_attribute_function(_date_or_datetime)  # type: ignore[no-untyped-call]
    _add_components(spec)
    for name, scheme in security_schemes.items():
        spec.components.security_scheme(name, dict(scheme))
    operations: dict[str, dict[str, Any]] = {}
    for route in routes:
        if not route.is_described:
            continue
        operations.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    for path, methods in operations.items():
        spec.path(path=path, operations=methods)
    return spec.to_dict()


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "description": inspect.cleandoc(route.view.__doc__ or ""),
        "tags": [_tag(route)],
    }
    parameters: list[Any] = list(route.parameters)
    if route.query is not None:
        parameters.append({"in": "query", "schema": route.query})
    if route.operation_id == "createBackfill":
        parameters.append("Idempotency-Key")
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"schema": route.body, "example": _EXAMPLE}
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    operation["responses"] = _responses(route)
    return operation


def _add_components(spec: APISpec) -> None:
    for name, parameter in _PARAMETERS.items():
        spec.components.parameter(name, parameter["in"], parameter)
    spec.components.header(
        "Retry-After",
        {"description": "Seconds to wait before the request is sent again.", "schema": {"type": "integer"}},
    )
    spec.components.header(
        "Location", {"description": "Where the backfill is.", "schema": {"type": "string", "format": "uri-reference"}}
    )
    for error, (name, description, schema) in _ERRORS.items():
        response: dict[str, Any] = {
            "description": description,
            "content": {"application/problem+json": {"schema": schema}},
        }
        if error is TryAgain:
            response["headers"] = {"Retry-After": "Retry-After"}
        spec.components.response(name, response)


def _responses(route: Route) -> dict[str, Any]:
    success: dict[str, Any] = {
        "description": inspect.cleandoc(route.answer.__doc__ or "") if route.answer else "An OpenAPI document.",
        "content": {"application/json": {"schema": route.answer or {"type": "object"}}},
    }
    if route.operation_id == "createBackfill":
        success["headers"] = {"Location": "Location"}
    errors = {str(error.status): _BY_STATUS[error.status] for error in route.errors}
    return {"200": success, **dict(sorted(errors.items()))}


def _tag(route: Route) -> str:
    return {"backfills": "backfills", "dags": "dags"}.get(route.path.split("/")[1], "description")


def _date_or_datetime(_converter: Any, field: Any, **_: Any) -> dict[str, Any]:
    if isinstance(field, schemas.DateOrDateTime):
        # Each with its type: what generates TypeScript takes an alternative without one for `unknown`.
        return {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time"}]}
    return {}
