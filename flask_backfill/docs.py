"""The documentation page: Swagger UI, from the package flask-swagger-ui, with nothing from elsewhere.

The page and its assets are views like the others, so that the same decorators guard them; flask-swagger-ui's own
blueprint would stand beside the host's access rules, and its inline script is refused by a strict
Content-Security-Policy.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from flask import Response, current_app, render_template_string, send_from_directory

from .errors import DocsNotInstalled

_OWN = Path(__file__).parent / "page"


def page() -> Response:
    """Answer the page.

    :raises DocsNotInstalled: flask-swagger-ui is missing.
    """
    _swagger_ui()
    # Flask-WTF puts this function there; what is tried out on the page has to carry its token.
    make_token = current_app.jinja_env.globals.get("csrf_token")
    token = make_token() if callable(make_token) else ""
    template = (_OWN / "docs.html").read_text(encoding="utf-8")
    return Response(render_template_string(template, csrf_token=token), mimetype="text/html")


def asset(name: str) -> Response:
    """Answer a file that the page needs.

    :raises DocsNotInstalled: flask-swagger-ui is missing.
    :raises werkzeug.exceptions.NotFound: there is no such file.
    """
    directory = _OWN if name == "docs.js" else _swagger_ui()
    return send_from_directory(directory, name)


def _swagger_ui() -> Path:
    """Return where Swagger UI's files are."""
    spec = importlib.util.find_spec("flask_swagger_ui")
    if spec is None or spec.origin is None:
        raise DocsNotInstalled
    return Path(spec.origin).parent / "dist"
