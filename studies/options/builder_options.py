"""Options of single backends in the option table.

These are the backends that `--backend auto` may choose. What others declare is given by `--backend-option`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from evaluators.backends.kind import BackendKind, BackendOption
from evaluators.backends.registry import shipped_kinds
from studies.options.option import Option, Verbs
from studies.options.value_kinds import kind_of

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
