"""The architecture: imports go one way."""

from __future__ import annotations

import ast
from pathlib import Path

import flask_backfill

#: From the bottom of the house to its top; a module imports only those before it.
HOUSE = [
    "errors",
    "states",
    "schedules",
    "dags",
    "locks",
    "models",
    "rowsets",
    "settings",
    "plan",
    "store",
    "create",
    "steer",
    "schemas",
    "problems",
    "docs",
    "views",
    "openapi",
    "cli",
    "extension",
    "__init__",
    "demo",
]
#: What only these may know.
FLASK = {"problems", "docs", "views", "cli", "extension", "demo"}
DATABASE = {"locks", "models", "rowsets", "store", "create", "steer", "problems", "extension", "demo"}

PACKAGE = Path(flask_backfill.__file__).parent


def imports(module: str) -> tuple[set[str], set[str]]:
    """Return the modules of the package that a module imports when it is loaded, and the other top-level names."""
    own: set[str] = set()
    others: set[str] = set()
    nodes = list(ast.parse((PACKAGE / f"{module}.py").read_text()).body)
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            own |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            others.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Import):
            others |= {alias.name.partition(".")[0] for alias in node.names}
    return {name if name in HOUSE else "__init__" for name in own}, others


def test_every_module_has_its_place() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(HOUSE)


def test_imports_go_down_only() -> None:
    wrong = [
        f"{module} imports {name}"
        for place, module in enumerate(HOUSE)
        for name in sorted(imports(module)[0])
        if HOUSE.index(name) >= place
    ]
    assert wrong == []


def test_only_some_know_flask_and_the_database() -> None:
    assert {module for module in HOUSE if imports(module)[1] & {"flask", "flask_sqlalchemy"}} == FLASK
    assert {module for module in HOUSE if "sqlalchemy" in imports(module)[1]} == DATABASE


def test_no_file_is_too_long() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in PACKAGE.glob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 550} == {}
