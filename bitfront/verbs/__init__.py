"""The verbs of the command line as functions of the same names.

The functions take typed arguments, report events to an `events` object, raise the errors of `search.errors` and return
small objects. They print nothing, and do not use a terminal.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each with the module it is in, which is imported when the function is first asked for. No module has the name of a
# function: importing it would put it in the function's place.
_MODULES = {
    **dict.fromkeys(("search", "check_search", "resume", "worker"), "searches"),
    **dict.fromkeys(("front", "trials", "show", "status", "watch", "studies", "targets", "exists"), "readings"),
    **dict.fromkeys(("layers", "profile", "remeasure", "compare", "sensitivity", "evaluate"), "analyses"),
    **dict.fromkeys(("export", "report"), "deliveries"),
    **dict.fromkeys(("inspect", "gate"), "engine_files"),
    "recover": "recovery",
    **dict.fromkeys(("drift", "renew"), "fresh_data"),
    "delete": "deletion",
    "doctor": "host_check",
    **dict.fromkeys(("dashboard", "dashboard_command"), "dashboard_server"),
    **dict.fromkeys(("demo", "write_example"), "example"),
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
