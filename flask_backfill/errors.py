"""What can go wrong, as exceptions: each knows its HTTP status, and its docstring is its default message.

This is the bottom of the house: nothing here knows Flask or the database.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar


class BackfillError(Exception):
    """The request could not be carried out. Nothing was changed."""

    status: ClassVar[int] = 500

    def __init__(self, detail: str | None = None, **members: Any) -> None:
        """Say what happened.

        :param detail: the sentence for the user; the class's docstring by default.
        :param members: further members of the problem document (RFC 9457, 3.2).
        """
        self.detail = detail or inspect.cleandoc(type(self).__doc__ or "")
        self.members = members
        super().__init__(self.detail)


class BackfillsNotAllowed(BackfillError):
    """This DAG does not allow backfills."""

    status = 400


class AccessDenied(BackfillError):
    """You may not do this."""

    status = 403


class DagNotFound(BackfillError):
    """Could not find dag"""

    status = 404

    def __init__(self, dag_id: str) -> None:
        super().__init__(f"Could not find dag {dag_id}")


class BackfillNotFound(BackfillError):
    """Backfill not found"""

    status = 404


class DocsNotInstalled(BackfillError):
    """The documentation page needs flask-swagger-ui: pip install 'flask-backfill[docs]'. The description itself is at
    openapi.json, beside this page."""

    status = 404


class AlreadyActive(BackfillError):
    """There is already a running backfill for this dag"""

    status = 409

    def __init__(self, dag_id: str, *, backfill_id: int, state: str) -> None:
        super().__init__(f"There is already a running backfill for dag {dag_id}", backfill_id=backfill_id, state=state)


class AlreadyCompleted(BackfillError):
    """Backfill is already completed."""

    status = 409


class UnsupportedMediaType(BackfillError):
    """Send the body as JSON, with the header 'Content-Type: application/json'. Nothing was changed."""

    status = 415


class InvalidRequest(BackfillError):
    """The request is not valid. Nothing was changed."""

    status = 422

    def __init__(self, errors: Mapping[str, list[str]]) -> None:
        """Name the fields.

        :param errors: messages by field, or by header or ``body`` where it is not one field's fault.
        """
        super().__init__("; ".join(f"{field}: {' '.join(messages)}" for field, messages in errors.items()))
        self.members["errors"] = dict(errors)


class TryAgain(BackfillError):
    """The data changed while this request was being carried out. Nothing was changed by it: the same
    request can be sent again."""

    status = 503


class DatabaseLocked(TryAgain):
    """Database is locked: another transaction held what this one needs for longer than it may wait.
    Nothing was changed: the same request can be sent again."""


class UnsupportedEngine(BackfillError):
    """The database engine commits every statement by itself, so nothing could be taken back. Nothing was
    changed."""
