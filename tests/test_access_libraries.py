"""Who is let in, and by what: decorators, the libraries that hosts have as such, and what stands in front."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import flask_jwt_extended as jwt
import flask_login
import flask_security
import pytest
import sqlalchemy as sa
from conftest import Database, Host, MakeHost
from flask import Flask, abort, redirect, request
from flask_httpauth import HTTPBasicAuth, HTTPTokenAuth
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from flask_sqlalchemy import SQLAlchemy
from flask_talisman import Talisman
from flask_wtf import CSRFProtect
from test_access import PAGES, View, ask, by_memory, make_office, statuses, untouched, walk
from werkzeug.security import check_password_hash, generate_password_hash

from flask_backfill.views import ROUTES

CREATE = ROUTES[0]


# -- decorators and current_user


@pytest.mark.parametrize("allow_anonymous", [False, True])
def test_decorators_are_around_every_view(sqlite: Database, make_host: MakeHost, allow_anonymous: bool) -> None:
    host = make_host(sqlite, decorators=[lambda _: lambda **_: abort(401)], allow_anonymous=allow_anonymous)
    with untouched(host, statements=0):
        assert statuses(walk(host)) == {401}


def test_the_last_decorator_is_the_outermost(sqlite: Database, make_host: MakeHost) -> None:
    passed: list[str] = []

    def passing(name: str) -> Callable[[View], View]:
        def decorator(view: View) -> View:
            def wrapper(**arguments: Any) -> Any:
                passed.append(name)
                return view(**arguments)

            return wrapper

        return decorator

    host = make_host(sqlite, allow_anonymous=False, decorators=(passing(name) for name in ("inner", "outer")))
    for route in ROUTES:
        passed.clear()
        assert ask(host, route).status_code == 200
        assert passed == ["outer", "inner"]


def test_what_was_written_before_a_refusal_is_rolled_back(sqlite: Database, make_host: MakeHost) -> None:
    """A decorator may answer instead of raising, with a redirect, say."""

    def refuse(view: View) -> View:
        return lambda **values: redirect("/login") if "X-Write" in request.headers else view(**values)

    office = make_office(sqlite, make_host, by_memory, decorators=[refuse])
    with untouched(office.host):
        assert statuses(walk(office.host, headers={"X-Write": "yes", "X-User": "root"})) == {302}


@pytest.mark.parametrize(
    ("user", "name"), [("ada", "ada"), (None, None), ("", ""), (7, "7"), ("x" * 300, "x" * 250)], ids=repr
)
def test_current_user_is_who_created_it(sqlite: Database, make_host: MakeHost, user: Any, name: str | None) -> None:
    host = make_host(sqlite, current_user=lambda: user)
    answers = walk(host)
    assert statuses(answers) == {200}
    assert answers["createBackfill"].json["triggering_user_name"] == name
    assert answers["getBackfill"].json["triggering_user_name"] == name
    assert host.query("SELECT triggering_user_name FROM backfill") == [(name,)]


def test_a_current_user_that_raises_changes_nothing(sqlite: Database, make_host: MakeHost) -> None:
    def current_user() -> str:
        raise RuntimeError("nobody knows")

    host = make_host(sqlite, current_user=current_user)
    host.app.register_error_handler(RuntimeError, lambda error: (str(error), 500))
    with untouched(host):
        answer = ask(host, ROUTES[0])
    assert (answer.status_code, answer.text) == (500, "nobody knows")
    assert statuses({route.operation_id: ask(host, route) for route in PAGES}) == {200}


# -- libraries as decorators


@dataclass(frozen=True)
class Library:
    """How a library says who is asking."""

    decorator: Callable[[View], View]
    configure: Callable[[Flask, SQLAlchemy], None]
    current_user: Callable[[], str | None]
    log_in: Callable[[Host], dict[str, str]]  # as ada; returns the headers of her requests
    forged: dict[str, str]
    when_locked: tuple[int, str] = (503, "application/problem+json")


def define_user(db: SQLAlchemy, *mixins: type) -> Any:
    columns = {"id": db.Column(db.Integer, primary_key=True), "name": db.Column(db.String(80), unique=True)}
    return type("User", (*mixins, db.Model), columns | {"secret": db.Column(db.String(255))})


def add_ada(host: Host, secret: str | None = None) -> None:
    host.execute("INSERT INTO user (name, secret) VALUES ('ada', :secret)", secret=secret)


def with_flask_login() -> Library:
    def configure(app: Flask, db: SQLAlchemy) -> None:
        user = define_user(db, flask_login.UserMixin)
        manager = flask_login.LoginManager(app)

        @manager.user_loader
        def load(user_id: str) -> Any:
            return db.session.get(user, int(user_id))

        @app.post("/login")
        def login() -> str:
            flask_login.login_user(db.session.scalars(sa.select(user).filter_by(name=request.form["name"])).one())
            return ""

    def log_in(host: Host) -> dict[str, str]:
        add_ada(host)
        assert host.client.post("/login", data={"name": "ada"}).status_code == 200
        return {}

    return Library(
        flask_login.login_required,
        configure,
        lambda: flask_login.current_user.name,
        log_in,
        {"Cookie": "session=eyJfdXNlcl9pZCI6IjEifQ.aaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    )


def with_basic_auth() -> Library:
    auth = HTTPBasicAuth()

    def configure(app: Flask, db: SQLAlchemy) -> None:
        user = define_user(db)

        @auth.verify_password
        def verify(name: str, password: str) -> Any:
            found = db.session.scalars(sa.select(user).filter_by(name=name)).one_or_none() if name else None
            return found if found and check_password_hash(found.secret, password) else None

    def header(password: str) -> dict[str, str]:
        return {"Authorization": f"Basic {b64encode(f'ada:{password}'.encode()).decode()}"}

    def log_in(host: Host) -> dict[str, str]:
        add_ada(host, generate_password_hash("right", "pbkdf2:sha256:1"))
        return header("right")

    return Library(auth.login_required, configure, lambda: auth.current_user().name, log_in, header("wrong"))


def with_token_auth() -> Library:
    auth = HTTPTokenAuth("Bearer")

    def configure(app: Flask, db: SQLAlchemy) -> None:
        user = define_user(db)

        @auth.verify_token
        def verify(token: str) -> Any:
            return db.session.scalars(sa.select(user).filter_by(secret=token)).one_or_none() if token else None

    def log_in(host: Host) -> dict[str, str]:
        add_ada(host, "right")
        return {"Authorization": "Bearer right"}

    return Library(
        auth.login_required, configure, lambda: auth.current_user().name, log_in, {"Authorization": "Bearer wrong"}
    )


def with_jwt() -> Library:
    def configure(app: Flask, db: SQLAlchemy) -> None:
        user = define_user(db)
        app.config["JWT_SECRET_KEY"] = "of at least thirty-two bytes, as RFC 7518 asks"  # noqa: S105
        manager = jwt.JWTManager(app)

        @manager.user_lookup_loader
        def load(header: dict[str, Any], data: dict[str, Any]) -> Any:
            return db.session.scalars(sa.select(user).filter_by(name=data["sub"])).one_or_none()

    def log_in(host: Host) -> dict[str, str]:
        add_ada(host)
        with host.app.app_context():
            return {"Authorization": f"Bearer {jwt.create_access_token('ada')}"}

    unsigned = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ."  # alg: none, sub: ada
    return Library(
        jwt.jwt_required(),
        configure,
        lambda: jwt.current_user.name,
        log_in,
        {"Authorization": f"Bearer {unsigned}"},
    )


def configure_flask_security(app: Flask, db: SQLAlchemy) -> None:
    join = db.Table("roles", *(db.Column(f"{name}_id", db.ForeignKey(f"{name}.id")) for name in ("user", "role")))

    class Role(db.Model, flask_security.RoleMixin):  # type: ignore[name-defined]
        id = db.Column(db.Integer, primary_key=True)
        name = db.Column(db.String(80), unique=True)

    class User(db.Model, flask_security.UserMixin):  # type: ignore[name-defined]
        id = db.Column(db.Integer, primary_key=True)
        email = db.Column(db.String(255), unique=True)
        password = db.Column(db.String(255))
        active = db.Column(db.Boolean)
        fs_uniquifier = db.Column(db.String(64), unique=True)
        roles = db.relationship(Role, secondary=join)

    app.config["SECURITY_PASSWORD_SALT"] = "salt"  # noqa: S105
    app.config["SECURITY_PASSWORD_HASH"] = "pbkdf2_sha512"  # noqa: S105
    flask_security.Security(app, flask_security.SQLAlchemyUserDatastore(db, User, Role))


def log_in_with_flask_security(host: Host, **query: str) -> Any:
    store = host.app.extensions["security"].datastore
    with host.app.app_context():
        store.create_user(email="ada@example.com", password=flask_security.hash_password("long and right"))
        store.commit()
    token = host.client.get("/login", headers={"Content-Type": "application/json"}).json["response"]["csrf_token"]
    credentials = {"email": "ada@example.com", "password": "long and right", "csrf_token": token}
    answer = host.client.post("/login", query_string=query, json=credentials)
    assert answer.status_code == 200, answer.text
    return answer.json["response"]["user"]


def with_flask_security_sessions() -> Library:
    def log_in(host: Host) -> dict[str, str]:
        log_in_with_flask_security(host)
        return {}

    return Library(
        flask_security.auth_required("session"),
        configure_flask_security,
        lambda: flask_security.current_user.email,
        log_in,
        {"Cookie": "session=eyJfdXNlcl9pZCI6IjEifQ.aaaaaa.aaaaaaaaaaaaaaaaaaaaaaaaaaa"},
        (500, "text/html"),  # the user is read in a hook, whose errors are the host's own
    )


def with_flask_security_tokens() -> Library:
    def log_in(host: Host) -> dict[str, str]:
        user = log_in_with_flask_security(host, include_auth_token="")
        host.client = host.app.test_client()  # forgets the session
        return {"Authentication-Token": user["authentication_token"]}

    return Library(
        flask_security.auth_token_required,
        configure_flask_security,
        lambda: flask_security.current_user.email,
        log_in,
        {"Authentication-Token": "wrong"},
        (401, "application/json"),  # it takes every error for a wrong token
    )


LIBRARIES = [
    with_flask_login,
    with_basic_auth,
    with_token_auth,
    with_jwt,
    with_flask_security_sessions,
    with_flask_security_tokens,
]


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.__name__)
def library(request: pytest.FixtureRequest) -> Library:
    return request.param()


@pytest.fixture
def guarded(sqlite: Database, make_host: MakeHost, library: Library) -> Host:
    return make_guarded(sqlite, make_host, library)


def make_guarded(database: Database, make_host: MakeHost, library: Library, **arguments: Any) -> Host:
    defaults = {
        "allow_anonymous": False,
        "decorators": [library.decorator],
        "current_user": library.current_user,
        "configure": library.configure,
        "config": {"SECRET_KEY": "secret"},
    }
    return make_host(database, **(defaults | arguments))


def test_nobody_is_let_in(guarded: Host) -> None:
    with untouched(guarded, statements=0):
        # Flask-Security sends browsers to its login page.
        answers = walk(guarded, headers={"Accept": "application/json"})
    assert statuses(answers) == {401}
    assert b"daily" not in b"".join(answer.data for answer in answers.values())


def test_forged_credentials_let_nobody_in(guarded: Host, library: Library) -> None:
    library.log_in(guarded)
    guarded.client = guarded.app.test_client(use_cookies=False)
    with untouched(guarded):
        # Flask-JWT-Extended answers 422 to what is no token of its own.
        assert statuses(walk(guarded, headers=library.forged | {"Accept": "application/json"})) <= {401, 422}


def test_who_is_let_in_is_named(guarded: Host, library: Library) -> None:
    answers = walk(guarded, headers=library.log_in(guarded))
    assert statuses(answers) == {200}
    name = answers["createBackfill"].json["triggering_user_name"]
    assert name in ("ada", "ada@example.com")
    assert answers["getBackfill"].json["triggering_user_name"] == name
    assert guarded.query("SELECT triggering_user_name FROM backfill") == [(name,)]


def test_a_lock_while_a_library_reads_its_user(guarded: Host, library: Library) -> None:
    headers = library.log_in(guarded)
    with untouched(guarded), guarded.database.connect().connect() as other:
        other.exec_driver_sql("BEGIN EXCLUSIVE")
        answer = ask(guarded, CREATE, headers=headers)
        other.rollback()
    assert (answer.status_code, answer.mimetype) == library.when_locked
    assert answer.headers.get("Retry-After") == ("1" if answer.status_code == 503 else None)


def test_browsers_are_sent_to_flask_logins_page(sqlite: Database, make_host: MakeHost) -> None:
    library = with_flask_login()

    def configure(app: Flask, db: SQLAlchemy) -> None:
        library.configure(app, db)
        app.login_manager.login_view = "login"  # type: ignore[attr-defined]

    host = make_guarded(sqlite, make_host, library, configure=configure)
    with untouched(host, statements=0):
        answers = walk(host)
    assert {(answer.status_code, answer.location.partition("?")[0]) for answer in answers.values()} == {(302, "/login")}


def test_browsers_are_sent_to_flask_securitys_page(sqlite: Database, make_host: MakeHost) -> None:
    host = make_guarded(sqlite, make_host, with_flask_security_sessions())
    with untouched(host, statements=0):
        answers = walk(host, headers={"Accept": "text/html"})
    # Flask-Security answers in JSON to who sends JSON.
    assert answers.pop("createBackfill").status_code == answers.pop("createBackfillDryRun").status_code == 401
    assert {(answer.status_code, answer.location.partition("?")[0]) for answer in answers.values()} == {(302, "/login")}


def test_authorize_may_ask_who_is_logged_in(sqlite: Database, make_host: MakeHost, library: Library) -> None:
    """What is asked is the library's own user, on the session that the package uses."""

    def authorize(action: str, _: str) -> bool:
        return (library.current_user() or "").startswith("ada") and action in ("read", "create")

    host = make_guarded(sqlite, make_host, library, authorize=authorize)
    headers = library.log_in(host)
    for route in ROUTES:
        refused = route.method == "PUT" or "dry_run" in route.path
        before = host.tables()
        answer = ask(host, route, headers=headers)
        assert answer.status_code == (403 if refused else 200), route
        assert (host.tables() == before) is (route is not CREATE)


def test_roles_are_asked_after_the_login(sqlite: Database, make_host: MakeHost) -> None:
    """The last decorator is the outermost, and so comes first."""
    library = with_flask_security_sessions()
    decorators = [flask_security.roles_required("operator"), library.decorator]
    host = make_guarded(sqlite, make_host, library, decorators=decorators)
    accept = {"Accept": "application/json"}
    assert statuses(walk(host, headers=accept)) == {401}
    library.log_in(host)
    with untouched(host):
        assert statuses(walk(host, headers=accept)) == {403}
    store = host.app.extensions["security"].datastore
    with host.app.app_context():
        store.add_role_to_user(store.find_user(email="ada@example.com"), store.create_role(name="operator"))
        store.commit()
    assert statuses(walk(host, headers=accept)) == {200}


# -- Flask-WTF


class Page(HTMLParser):
    """What a Content-Security-Policy looks at, and the token for what is tried out."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.inline: list[str] = []
        self.token = ""
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._tag = tag
        self.links += [value for name, value in values.items() if name in ("src", "href", "action", "srcdoc", "data")]
        self.inline += [f"{tag} {name}" for name in values if name == "style" or name.startswith("on")]
        if values.get("name") == "csrf-token":
            self.token = values["content"]

    def handle_endtag(self, _: str) -> None:
        self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style") and data.strip():
            self.inline.append(data)


def test_sessions_need_the_csrf_token_which_the_page_has(sqlite: Database, make_host: MakeHost) -> None:
    library = with_flask_login()

    def configure(app: Flask, db: SQLAlchemy) -> None:
        library.configure(app, db)
        CSRFProtect(app).exempt(app.view_functions["login"])

    host = make_guarded(sqlite, make_host, library, configure=configure)
    library.log_in(host)
    page = host.get("/docs")
    token = Page(page.text).token
    assert len(token) > 20
    for headers in ({}, {"X-CSRFToken": "wrong"}, {"X-CSRFToken": token[:-1]}):
        with untouched(host):
            for route in ROUTES:
                answer = ask(host, route, headers=headers)
                if route.method == "GET":
                    assert answer.status_code == (404 if "backfill_id" in route.parameters else 200)
                else:
                    assert (answer.status_code, answer.mimetype) == (400, "text/html")
    assert statuses(walk(host, headers={"X-CSRFToken": token})) == {200}
    other = host.app.test_client()
    assert other.post("/login", data={"name": "ada"}).status_code == 200
    host.client = other
    assert ask(host, CREATE, headers={"X-CSRFToken": token}).status_code == 400, "another session's token"


@pytest.mark.parametrize("make_library", [with_basic_auth, with_token_auth, with_jwt])
def test_tokens_need_no_csrf_token_where_the_blueprint_is_exempt(
    sqlite: Database, make_host: MakeHost, make_library: Callable[[], Library]
) -> None:
    library = make_library()
    csrf = CSRFProtect()

    def configure(app: Flask, db: SQLAlchemy) -> None:
        library.configure(app, db)
        csrf.init_app(app)
        app.add_url_rule("/form", view_func=lambda: "", methods=["POST"], endpoint="form")

    host = make_guarded(sqlite, make_host, library, configure=configure)
    headers = library.log_in(host)
    with untouched(host):
        assert ask(host, CREATE, headers=headers).status_code == 400
    csrf.exempt(host.backfill.blueprint)
    with untouched(host):
        assert ask(host, CREATE).status_code == 401
    assert statuses(walk(host, headers=headers)) == {200}
    assert host.client.post("/form").status_code == 400, "the host's own forms stay protected"


# -- Flask-Limiter, Flask-Talisman


def test_a_limit_is_the_hosts_answer(sqlite: Database, make_host: MakeHost) -> None:
    limiter = Limiter(get_remote_address, storage_uri="memory://", headers_enabled=True)

    def configure(app: Flask, db: SQLAlchemy) -> None:
        limiter.init_app(app)
        app.register_error_handler(429, lambda _: ("the host's: slower", 429))
        app.add_url_rule("/own", view_func=lambda: "own", endpoint="own")

    host = make_host(sqlite, configure=configure)
    limiter.limit("1 per hour")(host.backfill.blueprint)  # and per route
    answers = walk(host)
    assert statuses(answers) == {200}
    assert {answer.headers["X-RateLimit-Remaining"] for answer in answers.values()} == {"0"}
    with untouched(host, statements=0):
        answers = walk(host)
    assert {(answer.status_code, answer.text) for answer in answers.values()} == {(429, "the host's: slower")}
    assert host.client.get("/own").text == "own"


@pytest.mark.parametrize("nonces", [[], ["script-src", "style-src"]], ids=["self", "nonces"])
def test_a_strict_content_security_policy_lets_the_page_run(
    sqlite: Database, make_host: MakeHost, nonces: list[str]
) -> None:
    policy = {"default-src": "'self'", "script-src": "'self'", "style-src": "'self'", "object-src": "'none'"}

    def configure(app: Flask, db: SQLAlchemy) -> None:
        Talisman(app, content_security_policy=policy, content_security_policy_nonce_in=nonces)

    host = make_host(sqlite, configure=configure)
    with untouched(host, statements=0):
        assert statuses(walk(host)) == {302}, "Talisman's own way to HTTPS"
    answers = walk(host, base_url="https://localhost")
    assert statuses(answers) == {200}
    for answer in answers.values():
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    page = Page(answers["getDocs"].text)
    assert page.inline == []
    kinds = {"css": "text/css", "js": "/javascript", "png": "image/png"}
    assert {link.rpartition(".")[2] for link in page.links} == set(kinds)
    for link in page.links:
        assert ":" not in link
        assert not link.startswith("/"), "beside the page, wherever it is mounted"
        asset = host.client.get(f"/api/v2/{link}", base_url="https://localhost", buffered=True)
        # Under nosniff a browser runs nothing of another type.
        assert asset.status_code == 200
        assert asset.mimetype.endswith(kinds[link.rpartition(".")[2]])
