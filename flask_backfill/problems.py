"""Exception -> problem document (RFC 9457), and the guard that turns lock errors into our own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from http import HTTPStatus
from typing import Any

from flask import Response, current_app
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from .errors import BackfillError, DatabaseLocked, TryAgain
from .locks import lock_family, roll_back

_SQLITE_DETAIL = (
    "Database is locked: another connection was writing to this SQLite database for longer than this request may "
    "wait. Nothing was changed, and the same request can be sent again. If this happens often, PostgreSQL or MySQL "
    "takes concurrent writers better."
)


def problem_response(error: BackfillError, *, retry_after: int) -> Response:
    """Answer an error.

    :param retry_after: seconds that a client should wait after a 503.
    """
    document = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.detail,
        **error.members,
    }
    response = Response(json.dumps(document) + "\n", error.status, mimetype="application/problem+json")
    if isinstance(error, TryAgain):
        response.headers["Retry-After"] = str(retry_after)
    return response


def guard(view: Callable[..., Any], session: Callable[[], Session]) -> Callable[..., Response]:
    """Make a view one transaction: commit where it answers 2xx, roll back where it does not.

    The answer is complete before the commit, so that nothing after it can change what the client is told. A lock
    error becomes ours, wherever it shows: in a decorator of the host's, in a SELECT, at COMMIT. Every other
    exception goes on to the host's own handlers, untouched.
    """

    @wraps(view)
    def guarded(**arguments: Any) -> Response:
        with rolling_back(session):
            response = current_app.make_response(view(**arguments))
            if 200 <= response.status_code < 300:
                session().commit()
            else:
                roll_back(session())
        return response

    return guarded


@contextmanager
def rolling_back(session: Callable[[], Session]) -> Iterator[None]:
    """Roll back whatever goes wrong inside, and turn lock errors into our own.

    :raises DatabaseLocked: for a lock error of the database.
    """
    try:
        yield
    except DBAPIError as error:
        roll_back(session())
        family = lock_family(error)
        if family is None:
            raise
        raise DatabaseLocked(_SQLITE_DETAIL if family == "sqlite" else None) from error
    except BaseException:
        roll_back(session())
        raise
