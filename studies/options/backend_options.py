"""Options of single backends: rows of the table for those that auto chooses, `--backend-option` for the others."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evaluators.backends.kind import BackendKind, BackendOption
from evaluators.backends.registry import shipped_kinds
from search.errors import ConfigError
from studies.options.option import Option, Verbs
from studies.options.value_kinds import SWITCH, kind_of

OPTION = "--backend-option"


def read_values(kind: BackendKind, texts: Sequence[str]) -> dict[str, Any]:
    """What was given for a backend.

    Args:
        texts: `NAME=VALUE` each.

    Returns:
        By keyword of the backend; options that were not given are absent.

    Raises:
        ConfigError: naming all that the backend does not have, that is given twice, or that cannot be read.
    """
    rows = {row.option.lstrip("-"): row for row in kind.options}
    values: dict[str, Any] = {}
    problems: list[str] = []
    for text in texts:
        name, _, written = text.partition("=")
        row = rows.get(name.strip().replace("_", "-"))
        if row is None:
            problems.append(_unknown_text(kind, name, rows))
            continue
        try:
            value = reader_of(row)(written.strip(), f"{OPTION} {name}")
        except ConfigError as error:
            problems.append(str(error))
            continue
        if row.many:
            value = [*values.get(row.keyword, ()), value]
        elif row.keyword in values:
            problems.append(f"{OPTION} {name}: the option is given twice; keep one")
        values[row.keyword] = value
    if problems:
        raise ConfigError("\n".join(problems))
    return values


def absolute_texts(kind: BackendKind, texts: Sequence[str]) -> list[str]:
    """Options of a backend as `NAME=VALUE`, their paths made absolute, so that they hold from any folder."""
    types = {row.option.lstrip("-"): row.type for row in kind.options}
    options = []
    for text in texts:
        name, _, value = text.partition("=")
        path = types.get(name.strip().replace("_", "-")) in ("file", "folder") and value != "none"
        options.append(f"{name}={Path(value).absolute()}" if path else text)
    return options


def reader_of(row: BackendOption) -> Callable[[str, str], Any]:
    """What reads the text of an option, told the text and the option as it is shown; it raises ConfigError."""
    special: Mapping[str, Callable[[str, str], Any]] = {"file": _file, "folder": _folder, "flag": SWITCH.read}
    return special.get(row.type, kind_of(row).read)


def _unknown_text(kind: BackendKind, name: str, known: Mapping[str, BackendOption]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    there = f"there are {', '.join(known)}" if known else "it has none"
    return f"{OPTION} {name}: backend {kind.name} has no such option; {f'did you mean {near[0]}?' if near else there}"


def _file(text: str, option: str) -> str:
    if not Path(text).is_file():
        raise ConfigError(f"{option} {text}: there is no such file. Give the path of an existing file.")
    return str(Path(text).absolute())


def _folder(text: str, option: str) -> str:
    return text if text == "none" else str(Path(text).absolute())


_TYPES = {"count": int, "size": int, "duration": float, "flag": bool, "switch": bool}
FINAL = "final_"  # before the keyword of an option that exports are built with


@cache
def builder_options() -> tuple[Option, ...]:
    """The options of the backends that `--backend auto` may choose; those of all others are `--backend-option`."""
    return tuple(option for kind, row in _rows() for option in _options_of(kind, row))


def export_options() -> tuple[Option, ...]:
    """The options with which one engine can be built for an export, by the names that `export` takes them by."""
    facts = {
        "verbs": ("export",),
        "default_text": "the study's own",
        "help": "An option of the builder for this engine alone.",
    }
    return tuple(_option(kind, row, FINAL + row.keyword, **facts) for kind, row in _rows() if row.final)


def _rows() -> list[tuple[BackendKind, BackendOption]]:
    return [(kind, row) for kind in shipped_kinds() if kind.automatic for row in kind.options]


def _options_of(kind: BackendKind, row: BackendOption) -> list[Option]:
    options = [_option(kind, row, row.keyword, verbs=tuple(dict.fromkeys((*Verbs.BUILDING, *row.verbs))))]
    if row.final:
        what = f"--{options[0].name} of the engines that are exported."
        name = FINAL.replace("_", "-") + options[0].name
        options.append(_option(kind, row, FINAL + row.keyword, name=name, help=what, default_text="the search's"))
    return options


def _option(kind: BackendKind, row: BackendOption, item: str, **facts: object) -> Option:
    final = item.startswith(FINAL)
    plain = BackendOption(**{**vars(row), "auto": row.auto and not final})
    each: Any = _TYPES.get(row.type, str)
    known = {
        "name": row.option.removeprefix("--"),
        "field": "builder_options",
        "item": item,
        "kind": kind_of(plain),
        "help": row.help,
        "metavar": row.metavar,
        "default": None if row.auto or final else row.default,
        "default_text": "auto" if row.auto and not final else row.default_text,
        "panel": f"Backend {kind.name}",
        "many": row.many,
        "flag": row.type == "flag",
        "switch": row.type == "switch",
        "backend": kind.name,
        "type": tuple[each, ...] if row.many else each,
        "from_json": tuple if row.many else None,
    }
    return Option(**{**known, **facts})  # type: ignore[arg-type]
