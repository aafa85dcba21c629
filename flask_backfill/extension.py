"""FlaskBackfill: puts the parts together. Only this module knows the app."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import marshmallow as ma
import sqlalchemy as sa
from flask import Blueprint, Flask, Response, current_app
from flask_sqlalchemy import SQLAlchemy

from .cli import make_group
from .dags import Dag
from .errors import AccessDenied, BackfillError
from .models import map_models
from .openapi import build_document
from .problems import guard, problem_response
from .settings import Settings, read_settings
from .states import RunState
from .store import Record, Store
from .views import ROUTES, Reply, Route

logger = logging.getLogger("flask_backfill")

_KEY = "flask_backfill"
View = Callable[..., Any]


class FlaskBackfill:
    """Backfills for a Flask app, in the app's own database."""

    def __init__(
        self,
        db: SQLAlchemy,
        *,
        decorators: Sequence[Callable[[View], View]] | None = None,
        allow_anonymous: bool = False,
        authorize: Callable[[str, str], bool] | None = None,
        current_user: Callable[[], str | None] | None = None,
        bind_key: str | None = None,
        table_prefix: str = "",
        security_schemes: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Define the tables and the blueprint; no app is needed yet.

        :param db: the app's Flask-SQLAlchemy.
        :param decorators: put around every view, the last one outermost, such as ``[login_required]``. Without any
            every route answers 403.
        :param allow_anonymous: let everybody in.
        :param authorize: called with an action (read, create, dry_run, pause, unpause, cancel) and a DAG's id;
            narrows what the decorators have let in.
        :param current_user: returns the name of who is asking.
        :param bind_key: of the database that holds the tables; the default one if None.
        :param table_prefix: put before the tables' names.
        :param security_schemes: what the documentation says about how clients show who they are: OpenAPI's Security
            Scheme Objects by name, such as ``{"token": {"type": "http", "scheme": "bearer"}}``.
        :raises RuntimeError: the app has tables of these names.
        """
        self.dags: dict[str, Dag] = {}
        self.db = db
        self.models = map_models(_metadata(db, bind_key), table_prefix=table_prefix)
        self.blueprint = Blueprint("backfill", __name__)
        self._decorators = tuple(decorators or ())
        self._allow_anonymous = allow_anonymous
        self._authorize = authorize
        self._current_user = current_user
        self._security_schemes = dict(security_schemes or {})
        for route in ROUTES:
            self.blueprint.add_url_rule(
                route.rule, endpoint=route.operation_id, view_func=self._make_view(route), methods=[route.method]
            )
        self.blueprint.register_error_handler(BackfillError, self._answer_error)

    # -- the app

    def init_app(self, app: Flask, *, url_prefix: str = "/api/v2", register_blueprint: bool = True) -> None:
        """Mount the API on an app.

        :param url_prefix: where.
        :param register_blueprint: False where the host registers ``backfill.blueprint`` itself, inside another
            blueprint, say.
        :raises RuntimeError: the app has one already.
        :raises ValueError: a setting has no possible value.
        """
        if _KEY in app.extensions:
            raise RuntimeError("This app has a FlaskBackfill already; one serves all of its DAGs.")
        app.extensions[_KEY] = read_settings(app.config)
        if register_blueprint:
            app.register_blueprint(self.blueprint, url_prefix=url_prefix)
        app.cli.add_command(make_group(self))

    @property
    def settings(self) -> Settings:
        """Return the current app's settings."""
        settings: Settings = current_app.extensions[_KEY]
        return settings

    # -- DAGs and their ordinary runs

    def dag(
        self,
        dag_id: str | None = None,
        *,
        schedule: str | timedelta | None,
        timezone: str = "UTC",
        start_date: str | date | None = None,
        end_date: str | date | None = None,
        display_name: str | None = None,
        depends_on_past: bool = False,
        params: type[ma.Schema] | ma.Schema | None = None,
        allow_backfill: bool = True,
        retries: int = 0,
        retry_delay: float = 0,
    ) -> Dag:
        """Make something that runs once per period; see :class:`flask_backfill.dags.Dag` for the arguments.

        :raises ValueError: an argument cannot be right, or the id is taken.
        """
        return Dag(
            dag_id,
            register=self._register,
            schedule=schedule,
            timezone=timezone,
            start_date=start_date,
            end_date=end_date,
            display_name=display_name,
            depends_on_past=depends_on_past,
            params=params,
            allow_backfill=allow_backfill,
            retries=retries,
            retry_delay=retry_delay,
        )

    def record_run(self, dag_id: str, logical_date: datetime, state: str) -> bool:
        """Write down one ordinary run of the app's, so that a backfill knows that this date is done.

        Joins the transaction of ``db.session`` and does not commit.

        :param logical_date: aware.
        :param state: queued, running, success, failed or cancelled.
        :return: False, and nothing is changed, where a backfill has this run queued or running.
        :raises LookupError: no such DAG.
        :raises ValueError: the date has no offset, or there is no such state.
        """
        return self.record_runs(dag_id, [logical_date], state) == 1

    def record_runs(self, dag_id: str, logical_dates: Iterable[datetime], state: str) -> int:
        """Write down many ordinary runs at once; see :meth:`record_run`.

        :return: how many were written, which leaves out those that a backfill has queued or running.
        """
        dag = self.dags.get(dag_id)
        if dag is None:
            raise LookupError(f"There is no DAG {dag_id!r}; there are {', '.join(sorted(self.dags)) or 'none'}.")
        dates = {_in_utc(logical_date) for logical_date in logical_dates}
        return self.store().record_runs(dag_id, dag.data_interval_ends(dates), RunState(state), now=datetime.now(UTC))

    def _register(self, dag: Dag) -> None:
        if dag.dag_id in self.dags:
            raise ValueError(f"There is a DAG {dag.dag_id!r} already.")
        self.dags[dag.dag_id] = dag

    # -- what the views need

    def store(self) -> Store:
        """Return the store on the session of the current app context."""
        return Store(self.db.session(), self.models)

    @property
    def narrows(self) -> bool:
        """Tell whether ``authorize`` was given."""
        return self._authorize is not None

    def may(self, action: str, dag_id: str) -> bool:
        """Ask ``authorize``."""
        return self._authorize is None or bool(self._authorize(action, dag_id))

    def user_name(self) -> str | None:
        """Ask ``current_user``."""
        name = self._current_user() if self._current_user else None
        return None if name is None else str(name)

    def openapi(self, server: str) -> Record:
        """Return the description of this API.

        :param server: the URL or path under which it is mounted.
        """
        return build_document(ROUTES, server=server, security_schemes=self._security_schemes)

    # -- views

    def _make_view(self, route: Route) -> View:
        """Put the layers around a view: the guard outermost, so that a lock in a decorator is answered as well."""

        def view(**arguments: Any) -> Response:
            result = route.view(self, **arguments)
            if isinstance(result, Response):
                return result
            reply = result if isinstance(result, Reply) else Reply(result, {})
            data = route.answer().dump(reply.data) if route.answer else reply.data
            response = Response(json.dumps(data) + "\n", mimetype="application/json")
            response.headers.update(reply.headers)
            return response

        view.__name__ = route.operation_id
        view.__doc__ = route.view.__doc__
        decorated: View = view
        for decorator in self._decorators:
            decorated = decorator(decorated)
        if not (self._decorators or self._allow_anonymous):
            decorated = self._refuse
        return guard(decorated, lambda: self.db.session())

    def _refuse(self, **_: Any) -> Response:
        logger.error(
            "Refused a request, since nothing says who may use the backfill API: give FlaskBackfill decorators, such "
            "as decorators=[login_required], or allow_anonymous=True to let everybody in."
        )
        raise AccessDenied("This API is closed. Its log says how to open it. Nothing was changed.")

    def _answer_error(self, error: BackfillError) -> Response:
        response = problem_response(error, retry_after=self.settings.retry_after)
        if self.narrows:
            # As Flask says by itself where authorize has read the session: whether it was asked must not show.
            response.vary.add("Cookie")
        return response


def _metadata(db: SQLAlchemy, bind_key: str | None) -> sa.MetaData:
    """Return the metadata of a bind, which Flask-SQLAlchemy makes for the first model that asks for it."""
    if bind_key not in db.metadatas:
        type("_Bind", (db.Model,), {"__abstract__": True, "__bind_key__": bind_key})
    return db.metadatas[bind_key]


def _in_utc(logical_date: datetime) -> datetime:
    if logical_date.tzinfo is None:
        raise ValueError(f"{logical_date} has no offset from UTC.")
    return logical_date.astimezone(UTC)
