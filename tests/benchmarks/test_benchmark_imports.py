"""What benchmarks and examples take from the project is there: most of them take too long to be run here."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PROJECT = {"search", "evaluators", "studies", "tests"}
SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name` of the project's."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PROJECT:
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_is_there(path: Path) -> None:
    for module, name in imported(path):
        found = importlib.import_module(module)
        if not hasattr(found, name):
            importlib.import_module(f"{module}.{name}")


@pytest.mark.slow
def test_there_are_such_imports() -> None:
    assert sum(len(list(imported(path))) for path in SCRIPTS) > 100
