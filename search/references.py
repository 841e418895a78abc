"""Objects of the user or of other packages, named as `package.module:attribute`."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from search.errors import DataError

_NAME = r"[^\W\d]\w*"
_MODULE = rf"{_NAME}(\.{_NAME})*"
REFERENCE = re.compile(f"{_MODULE}:{_NAME}")
NESTED_REFERENCE = re.compile(f"{_MODULE}:{_MODULE}")  # also `package.module:Class.function`


def import_function(reference: str, purpose: str) -> Callable[..., Any]:
    """Import `package.module:function`, with the current folder importable.

    Args:
        reference: what the user wrote.
        purpose: what it is for, as it reads in messages: `--preprocess`, `data`.

    Raises:
        DataError: it is not of that form, the module cannot be imported, or has no such function.
    """
    if not REFERENCE.fullmatch(reference):
        raise DataError(f"{purpose} {reference!r} is not of the form package.module:function")
    name, _, attribute = reference.partition(":")
    try:
        found = import_module_here(name)
    except Exception as error:
        raise DataError(
            f"{purpose} {reference!r}: importing {name} from {os.getcwd()} or the installed packages failed with "
            f"{short(error)}; run from the folder that holds it, or install it"
        ) from error
    found = getattr(found, attribute, None)
    if not callable(found):
        raise DataError(f"{purpose} {reference!r}: module {name} has no function {attribute}")
    return found  # type: ignore[no-any-return]


def import_module_here(name: str) -> Any:
    """Import with the current folder first; afterwards it stays importable, but last, where it shadows nothing."""
    here = os.getcwd()
    sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def short(error: BaseException) -> str:
    """Kind and message of an error, for messages of our own."""
    return f"{type(error).__name__}: {error}"
