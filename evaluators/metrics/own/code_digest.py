"""A digest of the code of a function, so that scores of changed code are not mixed with earlier ones.

It covers the bytecode, the defaults, and what the code refers to: functions and classes of the same module or notebook
by their code; numbers, texts, arrays and collections of these by their values; anything else, such as a library's
function or a trained model, by its name or type. Comments, line numbers, doc strings and the function's own name do not
count.
"""

from __future__ import annotations

import dis
import functools
import hashlib
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), np.generic)
_MERGED = (CodeType, frozenset, tuple)  # Python may make one object of two that are equal
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
# Of a class, what says where it stands and not what it does.
_NO_BEHAVIOUR = frozenset({"__dict__", "__doc__", "__firstlineno__", "__module__", "__qualname__", "__weakref__"})


def digest_code(function: Any) -> str:
    """The SHA-256 digest, as hexadecimal text, of a function, a class, or any object that can be called."""
    home = getattr(function, "__module__", None) or type(function).__module__
    return _Digest(home).of(function)


class _Digest:
    """Digests of values, in which each function and class of the user's is looked into once.

    Args:
        home: module whose functions and classes count by their code.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._seen: dict[int, tuple[int, Any]] = {}  # with the object, so that its id is not given to another

    def of(self, value: Any) -> str:
        return hashlib.sha256("\0".join(self._parts(value)).encode("utf-8", "surrogatepass")).hexdigest()

    def _parts(self, value: Any) -> Iterator[str]:
        """Texts that tell the value from any other."""
        if isinstance(value, _PLAIN):
            yield from (type(value).__name__, repr(value))
        elif id(value) in self._seen:
            yield from ("seen", str(self._seen[id(value)][0]))
        else:
            if not isinstance(value, _MERGED):
                self._seen[id(value)] = len(self._seen), value
            yield type(value).__name__
            yield from self._inner_parts(value)

    def _inner_parts(self, value: Any) -> Iterator[str]:
        if isinstance(value, CodeType):
            yield from self._code_parts(value)
        elif isinstance(value, FunctionType):
            yield from self._function_parts(value)
        elif isinstance(value, MethodType):
            yield from (self.of(value.__func__), self.of(value.__self__))
        elif isinstance(value, functools.partial):
            yield from (self.of(value.func), self.of(value.args), self.of(value.keywords))
        elif isinstance(value, staticmethod | classmethod):
            yield self.of(value.__func__)
        elif isinstance(value, property):
            yield from map(self.of, (value.fget, value.fset, value.fdel))
        elif isinstance(value, type):
            yield from self._class_parts(value)
        elif isinstance(value, ModuleType):
            yield value.__name__
        else:
            yield from self._object_parts(value)

    def _object_parts(self, value: Any) -> Iterator[str]:
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            yield from (value.dtype.str, str(value.shape), hashlib.sha256(value.tobytes()).hexdigest())
        elif isinstance(value, tuple | list):
            yield from map(self.of, value)
        elif isinstance(value, set | frozenset):
            yield from sorted(_Digest(self._home).of(item) for item in value)
        elif isinstance(value, Mapping):
            yield from (self.of(item) for pair in value.items() for item in pair)
        else:
            cls = type(value)
            yield from (cls.__module__, cls.__qualname__, str(getattr(value, "__name__", "")))
            if cls.__module__ == self._home:
                yield from (self.of(cls), self.of(dict(getattr(value, "__dict__", {}))))

    def _class_parts(self, cls: type) -> Iterator[str]:
        if cls.__module__ != self._home:
            yield from (cls.__module__, cls.__qualname__)
            return
        yield from map(self.of, cls.__bases__)
        for name, member in sorted(vars(cls).items()):
            if name not in _NO_BEHAVIOUR:
                yield from (name, self.of(member))

    def _function_parts(self, function: FunctionType) -> Iterator[str]:
        if function.__module__ != self._home:
            yield from (str(function.__module__), function.__qualname__)
            return
        yield self.of(function.__code__)
        yield from map(self.of, (function.__defaults__, function.__kwdefaults__, dict(vars(function))))
        for cell in function.__closure__ or ():
            yield self.of(_content(cell))
        for name in sorted(_globals_of(function.__code__)):
            if name in function.__globals__:
                yield from (name, self.of(function.__globals__[name]))

    def _code_parts(self, code: CodeType) -> Iterator[str]:
        yield from (code.co_code.hex(), getattr(code, "co_exceptiontable", b"").hex(), repr(code.co_names))
        yield repr((code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags))
        yield from map(self.of, _constants(code))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return "no value"


def _globals_of(code: CodeType) -> set[str]:
    """Names of modules' variables that the code reads, functions inside it included."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in _GLOBAL}
    return names.union(*(_globals_of(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _constants(code: CodeType) -> tuple[Any, ...]:
    """Constants of the code, without its doc string and the names of functions inside it."""
    constants = code.co_consts
    if constants and isinstance(constants[0], str) and not _reads_first_constant(code):
        constants = (None, *constants[1:])  # as code without a doc string has it
    return tuple(each for each in constants if not (isinstance(each, str) and ".<locals>." in each))


def _reads_first_constant(code: CodeType) -> bool:
    """Whether the first constant, a text, is more than the doc string of the code."""
    return any(step.opcode in dis.hasconst and step.arg == 0 for step in dis.get_instructions(code))
