"""Objects of the user or of other packages, named as `package.module:attribute` or `file.py:attribute`."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

from search.errors import DataError

_NAME = r"[^\W\d]\w*"
_MODULE = rf"{_NAME}(\.{_NAME})*"
_FILE = r"[^\n?]*[^\n?/\\]\.py"
REFERENCE = re.compile(f"{_MODULE}:{_NAME}")
NESTED_REFERENCE = re.compile(f"({_MODULE}|{_FILE}):{_MODULE}")  # also `package.module:Class.function`
_CALL = re.compile(rf"(?P<module>{_MODULE}|{_FILE}):(?P<function>{_NAME})(\?(?P<arguments>.*))?")
_WORDS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class Call:
    """A function with its keyword arguments, as a text names them: `loaders.py:load?split=val&size=224`.

    Attributes:
        module: dotted name of a module, or the path of a file that ends with `.py`.
        arguments: numbers, `true`, `false` and `none` are values of Python; everything else is a text.
    """

    module: str
    function: str
    arguments: Mapping[str, Any]

    @property
    def reference(self) -> str:
        """The function alone, as `import_function` takes it."""
        return f"{self.module}:{self.function}"


def names_function(text: str) -> bool:
    """Whether a text has the form `package.module:function` or `file.py:function`, with or without arguments."""
    return _CALL.fullmatch(text) is not None


def parse_call(text: str) -> Call:
    """Read what data are named by: `package.module:function` or `file.py:function`, or with arguments behind it.

    Args:
        text: what the user wrote; arguments are `?name=value&…`.

    Raises:
        DataError: the text has another form, or an argument has no name, no value, or is given twice.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        raise DataError(f"data {text!r} is not of the form package.module:function or file.py:function")
    return Call(match["module"], match["function"], parse_arguments(match["arguments"] or "", f"data {text!r}"))


def parse_arguments(text: str, doing: str) -> dict[str, Any]:
    """Read `name=value&…`.

    Args:
        doing: the beginning of error messages.

    Raises:
        DataError: an argument has no name, no value, or is given twice.
    """
    arguments: dict[str, Any] = {}
    for part in filter(None, text.split("&")):
        name, equals, value = part.partition("=")
        if not (equals and name.isidentifier()) or name in arguments:
            raise DataError(
                f"{doing}: expected arguments as name=value, each name once, with & between them, got {part!r}. Write "
                "it like loaders.py:load?split=val&size=224, in quotes on a command line"
            )
        arguments[name] = _value(unquote(value))
    return arguments


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        if re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def import_function(reference: str, purpose: str) -> Callable[..., Any]:
    """Import `package.module:function`, with the current folder importable, or `file.py:function`.

    Args:
        reference: what the user wrote.
        purpose: what it is for, as it reads in messages: `--preprocess`, `data`.

    Raises:
        DataError: it is not of that form, the module cannot be imported, or has no such function.
    """
    if not names_function(reference) or "?" in reference:
        raise DataError(f"{purpose} {reference!r} is not of the form package.module:function or file.py:function")
    name, _, attribute = reference.rpartition(":")
    try:
        module = import_module_here(name)
    except Exception as error:
        instead = ", or write the samples into an .npz file and give that" if purpose == "data" else ""
        raise DataError(f"{purpose} {reference!r}: {import_failure(name, error, instead)}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise DataError(f"{purpose} {reference!r}: {_kind(name)} {name} has no function {attribute}")
    return function  # type: ignore[no-any-return]


def import_failure(name: str, error: Exception, instead: str = "") -> str:
    """The error message for a module or file that cannot be imported.

    Args:
        instead: what else the user can do where it imports a package that is not installed; begins with a comma.
    """
    if missing := _missing_import(name, error):
        return (
            f"{name} imports {missing}, which is not installed in the environment that bitfront runs in "
            f"({sys.prefix}); install {missing} there{instead}"
        )
    if is_file(name):
        return f"importing {name} (looked from {os.getcwd()}) failed with {short(error)}; check the path and the file"
    return (
        f"importing {name} from {os.getcwd()} or the installed packages failed with {short(error)}; run from the "
        "folder that holds it, or install it"
    )


def _missing_import(name: str, error: Exception) -> str:
    """The module that is missing where it is one that the named module or file imports; else empty."""
    module = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    return "" if f"{name}.".startswith(f"{module}.") else module


def is_file(module: str) -> bool:
    """Whether the part of a reference before its colon is a file and not the name of a module."""
    return module.endswith(".py")


def _kind(module: str) -> str:
    return "file" if is_file(module) else "module"


def absolute_reference(text: str) -> str:
    """A reference with the path of its file made absolute; any other text unchanged."""
    match = re.fullmatch(rf"(?P<file>{_FILE})(?P<rest>:.*)", text)
    if match is None or not os.path.isfile(match["file"]):
        return text
    return os.path.abspath(match["file"]) + match["rest"]


def import_module_here(name: str) -> ModuleType:
    """Import a module with the current folder first, or a file with its own folder first.

    Afterwards the folder stays importable, but as the last one, so that it hides no other module.
    """
    if is_file(name):
        return _import_file(Path(name).absolute())
    with _importable(os.getcwd()):
        return importlib.import_module(name)


def _import_file(path: Path) -> ModuleType:
    """Import a file by its own name, if no other module has that name, so that other processes find it too."""
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    name = path.stem
    with _importable(str(path.parent)):
        if _is_free(name, path):
            return importlib.import_module(name)
        own = f"_bitfront_file_{name}_{zlib.crc32(os.fsencode(path)):08x}"
        if own in sys.modules:
            return sys.modules[own]
        spec = importlib.util.spec_from_file_location(own, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = sys.modules[own] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[own]
            raise
        return module


def _is_free(name: str, path: Path) -> bool:
    """Whether a file can be imported as a module of this name without hiding another one."""
    if not name.isidentifier() or name in sys.builtin_module_names or name in sys.stdlib_module_names:
        return False
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) == str(path)
    others = [folder for folder in sys.path if folder and os.path.abspath(folder) != str(path.parent)]
    spec = importlib.machinery.PathFinder.find_spec(name, others)
    return spec is None or spec.origin is None


@contextmanager
def _importable(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def short(error: BaseException) -> str:
    """The type and the message of an error, to be quoted in another message."""
    return f"{type(error).__name__}: {error}"
