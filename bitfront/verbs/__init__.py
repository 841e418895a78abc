"""The verbs: functions that take typed arguments, tell `events` what happens, and return small objects.

They raise the errors of `search.errors`. The command line is made of their signatures and docstrings; below each stands
the printer of its result, which the command alone calls.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# Each with the module it is in, which is imported when the function is first asked for. No module has the name of a
# function: importing it would put it in the function's place.
_MODULES = {
    **dict.fromkeys(("search", "resume", "worker", "delete"), "searches"),
    **dict.fromkeys(("front", "show", "status", "watch_status"), "readings"),
    **dict.fromkeys(("compare", "sensitivity", "evaluate", "drift"), "analyses"),
    **dict.fromkeys(("export", "report", "recover"), "deliveries"),
    **dict.fromkeys(("inspect", "gate"), "engine_files"),
    "doctor": "host_check",
    "dashboard": "dashboard_server",
    **dict.fromkeys(("demo", "write_example"), "example"),
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
