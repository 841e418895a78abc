"""What benchmarks and examples take from the project is there: most of them take too long to be run here."""

from __future__ import annotations

import ast
import importlib
import importlib.util

from tests.support.paths import ROOT

PROJECT = {"bitfront", "search", "evaluators", "studies", "benchmarks", "tests"}


def test_every_name_that_a_script_imports_is_there() -> None:
    scripts = [path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
    names = set()
    for path in scripts:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PROJECT:
                names |= {(node.module, alias.name) for alias in node.names}
    assert len(names) > 100
    missing = []
    for module, name in sorted(names):
        there = hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}")
        missing += [] if there else [f"{module}.{name}"]
    assert missing == []
