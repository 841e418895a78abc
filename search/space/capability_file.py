"""Reading capabilities files, with a message for every mistake."""

from __future__ import annotations

import difflib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from search.errors import ConfigError
from search.space.capability_rules import OPS, SYMMETRIC, WITHOUT, CapabilityRules, keys_of
from search.values import ATTENTION, FREE, REFERENCE, Precision

OP_TYPES = ("Conv", "ConvTranspose", "Gemm", "MatMul", ATTENTION, *FREE)
_NAME = "name"
_LOWER = tuple(p.label for p in sorted(Precision) if p is not REFERENCE)
_INTEGERS = tuple(p.label for p in sorted(Precision) if p.recovered)


def read_capability_file(path: Path, option: str = "--capabilities") -> CapabilityRules:
    """Read a capabilities file in TOML, or in JSON where it begins with a brace.

    Args:
        option: the name of the option in messages.

    Raises:
        ConfigError: the file cannot be read, or has mistakes, which are all named.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"bytes that are not UTF-8: {error.reason}"
        raise ConfigError(f"{option} {path}: expected a readable TOML file, got {reason}; check it") from error
    return read_capability_rules(text, path.stem, f"{option} {path}")


def read_capability_rules(text: str, name: str, shown: str) -> CapabilityRules:
    """Read the rules of a capabilities file.

    Args:
        text: TOML, or JSON that begins with a brace.
        name: of what it speaks of, where it does not say so itself.
        shown: where it comes from, as messages show it.

    Raises:
        ConfigError: naming every mistake.
    """
    data = _parse(text, shown)
    problems = list(_problems(data))
    if problems:
        raise ConfigError("\n".join(f"{shown}: {problem}" for problem in problems))
    tables = {label: data[label] for label in sorted(data.keys() - {_NAME})}
    return CapabilityRules(str(data.get(_NAME, name)), tables)


def _parse(text: str, shown: str) -> dict[str, Any]:
    as_json = text.lstrip().startswith("{")
    # By name: type checkers would look for the backport, which newer Pythons do not install.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = json.loads(text) if as_json else toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{shown}: expected {'JSON' if as_json else 'TOML'}, got {error}; correct it there"
        ) from error
    return data


def _problems(data: Mapping[str, Any]) -> Iterable[str]:
    """The mistakes in a file, one sentence each."""
    if _NAME in data and not (isinstance(data[_NAME], str) and data[_NAME].strip()):
        yield f"name: expected a text in quotes, got {data[_NAME]!r}"
    for label in data.keys() - {_NAME}:
        if label == REFERENCE.label:
            yield f"[{label}]: every target runs everything in {REFERENCE.name}; remove the table"
        elif label not in _LOWER:
            yield f"{label!r}: expected the name of a precision, {' or '.join(_LOWER)}, or `name`{_near(label, _LOWER)}"
        elif not isinstance(data[label], Mapping):
            yield f"{label}: expected a table, got {data[label]!r}; write [{label}] and its keys below"
        else:
            yield from (f"[{label}] {problem}" for problem in _table_problems(label, data[label]))
    if not data.keys() - {_NAME}:
        yield f'the file has no rules; write a table such as [{_INTEGERS[-1]}] with `without = ["MatMul"]`'


def _table_problems(label: str, table: Mapping[str, Any]) -> Iterable[str]:
    keys = keys_of(Precision.parse(label))
    checks: dict[str, Callable[[Any], str]] = {OPS: _ops_problem, WITHOUT: _ops_problem, SYMMETRIC: _switch_problem}
    for key, value in table.items():
        if key not in keys:
            yield f"{key}: the keys of {label.upper()} are {', '.join(keys)}{_near(key, keys)}"
        elif problem := checks.get(key, _size_problem)(value):
            yield f"{key}: {problem}"
    if {OPS, WITHOUT} <= table.keys():
        yield f"{OPS} and {WITHOUT}: both were given; give either all op types that are run or those that are not"


def _ops_problem(value: Any) -> str:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return f'expected a list of op types, got {value!r}; write it like ["Conv", "Gemm"]'
    unknown = [each for each in value if each not in OP_TYPES]
    if unknown:
        named = ", ".join(map(repr, unknown))
        near = _near(unknown[0], OP_TYPES)
        return f"expected op types that groups are made of, {', '.join(OP_TYPES)}, got {named}{near}"
    return ""


def _switch_problem(value: Any) -> str:
    return "" if isinstance(value, bool) else f"expected true or false without quotes, got {value!r}"


def _size_problem(value: Any) -> str:
    good = isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31
    return "" if good else f"expected a whole number from 1 on, got {value!r}"


def _near(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {matches[0]}?" if matches else ""
