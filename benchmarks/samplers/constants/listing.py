"""The constants at the head of the sampler's modules, with the reasons that stand beside them as comments."""

from __future__ import annotations

import ast
import importlib
import io
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import ROOT

PACKAGES = ("search/sampler", "search/forecast", "search/regression", "search/solver")


@dataclass(frozen=True)
class Constant:
    """One assignment at the head of a module.

    Attributes:
        file: of the module, from the root of the source tree.
        names: of what is assigned; several are explained together.
        reason: what the comment or the docstring beside it says; empty without one.
    """

    file: str
    names: tuple[str, ...]
    reason: str

    @property
    def module(self) -> ModuleType:
        return importlib.import_module(self.file.removesuffix(".py").replace("/", "."))

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(getattr(self.module, name) for name in self.names)

    @property
    def key(self) -> str:
        return f"{self.file} {', '.join(self.names)}"


def constants() -> list[Constant]:
    """Every number, or group of numbers, that a module of the sampler's packages has as a constant, in order."""
    files = (file for package in PACKAGES for file in sorted((ROOT / package).glob("*.py")))
    return [constant for file in files for constant in _of_file(file) if all(map(is_number, constant.values))]


def is_number(value: Any) -> bool:
    """Whether it is a number, or made of nothing else."""
    if is_dataclass(value) and not isinstance(value, type):
        return all(is_number(getattr(value, field.name)) for field in fields(value))
    if isinstance(value, tuple):
        return bool(value) and all(map(is_number, value))
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _of_file(file: Path) -> Iterator[Constant]:
    source = file.read_text()
    body, comments = ast.parse(source).body, _comments(source)
    lines = source.splitlines()
    alone = {line: text for line, text in comments.items() if lines[line - 1].startswith("#")}
    for number, statement in enumerate(body):
        names = _names(statement)
        if names and all(name.strip("_").isupper() for name in names):
            docstring = _docstring(body[number + 1]) if number + 1 < len(body) else ""
            reason = " ".join(filter(None, (_reason(statement, comments, alone), docstring)))
            yield Constant(file.relative_to(ROOT).as_posix(), names, reason)


def _names(statement: ast.stmt) -> tuple[str, ...]:
    """Of a plain assignment; nothing for other statements, and none of type aliases."""
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return (statement.target.id,)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ()
    target = statement.targets[0]
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return tuple(part.id for part in parts if isinstance(part, ast.Name))


def _comments(source: str) -> dict[int, str]:
    """Line → its comment."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def _reason(statement: ast.stmt, comments: Mapping[int, str], alone: Mapping[int, str]) -> str:
    """The comment on the statement's last line, else those on the lines above it, which hold nothing else."""
    last = statement.end_lineno or statement.lineno
    if last in comments:
        return comments[last]
    line, found = statement.lineno - 1, list[str]()
    while line in alone:
        found.insert(0, alone[line])
        line -= 1
    return " ".join(found)


def _docstring(statement: ast.stmt) -> str:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return " ".join(value.value.split()) if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
