"""Check that Python finds bitfront's own packages, and not files of the user with the same names."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

_PACKAGES = ("search", "evaluators", "studies")


def check_packages() -> None:
    """Refuse to import if a module of the user hides one of bitfront's packages.

    Raises:
        ImportError: a package is hidden; the message names the module that was found and says what to do.
    """
    home = Path(__file__).resolve().parent.parent
    for name in _PACKAGES:
        folder = _folder_of(_spec_of(name))
        if folder != home / name:
            raise ImportError(
                f"importing bitfront: expected its package {name!r} in {home / name}, but Python finds "
                f"{_shown(_spec_of(name))} first. Rename that file or folder, or move it elsewhere.",
                name=name,
            )


def _spec_of(name: str) -> ModuleSpec | None:
    """The module that a name would import; nothing is imported."""
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__spec__", None) is not None:
        return known.__spec__
    try:
        return find_spec(name)
    except ValueError:  # of a module without a specification, say one that a notebook made up
        return None


def _folder_of(spec: ModuleSpec | None) -> Path | None:
    """The folder of a package; None if the module is not a package."""
    if spec is None or spec.origin is None or spec.submodule_search_locations is None:
        return None
    return Path(spec.origin).resolve().parent


def _shown(spec: ModuleSpec | None) -> str:
    if spec is None:
        return "none"
    return str(spec.origin or next(iter(spec.submodule_search_locations or ()), "another module"))
