"""The module `tensorrt` as a listing of the real bindings says it is: same classes, names, parameters, no other.

What is not listed raises AttributeError; a call with the wrong number, names or types of arguments raises TypeError.
What a call gives is of the type that the bindings name; `fake_engine.py` adds what the project needs to get further.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

from tests.support.tensorrt.make_listings import listing_path

# The object that is set there is borrowed: the bindings keep its address and no reference, so that TensorRT reads freed
# memory once the caller lets go of it. Found with 8.6.0 on a GPU.
BORROWED = frozenset({"EngineInspector.execution_context"})
_COMPARED = {"__lt__": int.__lt__, "__le__": int.__le__, "__gt__": int.__gt__, "__ge__": int.__ge__}
Behaviour = Callable[..., Any]


def read_listing(version: str) -> dict[str, Any]:
    return dict(json.loads(listing_path(version).read_text()))


class _Kind(type):
    """As pybind11's metaclass: an object whose base was never initialized is none."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        if made._state is None:
            raise TypeError(f"{cls.__name__}.__init__() of the base class must be called when overriding __init__")
        return made


class Instance(metaclass=_Kind):
    """Every object of the fake. Slots, so that setting an attribute that is not listed fails."""

    __slots__ = ("__weakref__", "_state")
    _state: dict[str, Any] | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Instance:
        made = super().__new__(cls)
        made._state = None
        return made

    __init__: Any = object.__init__


class HostMemory(bytes):
    """IHostMemory has the buffer protocol, which in Python before 3.12 only a subclass of bytes can offer."""

    fake: ClassVar[FakeTensorRT]

    def __getattribute__(self, name: str) -> Any:
        listed = type(self).fake.listing["classes"]["IHostMemory"]
        if name.startswith("__") or name in listed["readonly"]:
            return super().__getattribute__(name)
        raise AttributeError(f"'IHostMemory' object has no attribute {name!r}")

    def __len__(self) -> int:
        raise TypeError("object of type 'IHostMemory' has no len()")

    @property
    def nbytes(self) -> int:
        return bytes.__len__(self)


class FakeTensorRT:
    """Makes the module of one version.

    Args:
        version: of a listing in `tests/data`.
        behaviours: qualified name of a method or property, such as `OnnxParser.parse`, → what it does: it gets the
            object and the arguments by name.
    """

    def __init__(self, version: str, behaviours: Mapping[str, Behaviour] | None = None) -> None:
        self.listing = read_listing(version)
        self.behaviours: dict[str, Behaviour] = {
            "Dims.__len__": lambda dims: len(dims._state["shape"]),
            "Dims.__getitem__": lambda dims, arg0: dims._state["shape"][arg0],
            **(behaviours or {}),
        }
        self.used: set[str] = set()
        self.classes: dict[str, Any] = {}
        for name in self.listing["classes"]:
            self._define(name)
        self.module = ModuleType("tensorrt")
        self._fill_module()

    def create(self, kind: str, **state: Any) -> Any:
        """An object of a class, whether or not it has a constructor."""
        made = Instance.__new__(self.classes[kind])
        made._state = state
        return made

    def member(self, kind: str, name: str) -> Any:
        return self.classes[kind].__members__[name]

    def dims(self, shape: Sequence[int]) -> Any:
        return self.create("Dims", shape=tuple(shape))

    def memory(self, data: bytes) -> HostMemory:
        made: HostMemory = self.classes["IHostMemory"](data)
        return made

    # -- classes ---------------------------------------------------------------------------------------------------

    def _fill_module(self) -> None:
        module = self.module
        module.__dict__["__version__"] = self.listing["version"]
        for name, cls in self.classes.items():
            if "." not in name:
                setattr(module, name, cls)
        for name, member in self.listing["names"].items():
            setattr(module, name, self._named(member))
        for name, signatures in self.listing["functions"].items():
            setattr(module, name, self._function(name, signatures))

    def _named(self, name: str) -> Any:
        """A class, or a member of one, by its qualified name."""
        if name in self.classes:
            return self.classes[name]
        kind, _, member = name.rpartition(".")
        return self.classes[kind].__members__[member]

    def _define(self, name: str) -> Any:
        if name in self.classes:
            return self.classes[name]
        listed = self.listing["classes"][name]
        if name == "IHostMemory":
            self.classes[name] = type(name, (HostMemory,), {"fake": self})
            return self.classes[name]
        bases = tuple(self._define(base) for base in listed.get("bases", ()) if base in self.listing["classes"])
        body: dict[str, Any] = {"__slots__": (), "__qualname__": name, "__init__": self._constructor(name, [])}
        for method, signatures in listed.get("methods", {}).items():
            static = any(len(s) == 1 or not s[1].startswith(("self", "this")) for s in signatures)
            body[method] = (
                staticmethod(self._function(f"{name}.{method}", signatures))
                if static
                else self._method(name, method, signatures)
            )
        for kind in ("readonly", "writable"):
            for attribute, returned in listed.get(kind, {}).items():
                body[attribute] = self._property(name, attribute, returned, writable=kind == "writable")
        self.classes[name] = cls = _Kind(name, bases or (Instance,), body)
        if "members" in listed:
            members = {n: self.create(name, name=n, value=value) for n, value in listed["members"].items()}
            cls.__members__ = members  # type: ignore[attr-defined]
            for member, value in members.items():
                setattr(cls, member, value)
        for attribute, meant in listed.get("names", {}).items():
            self._define(meant if meant in self.listing["classes"] else meant.rpartition(".")[0])
            setattr(cls, attribute, self._named(meant))
        return cls

    def _constructor(self, owner: str, signatures: Sequence[Sequence[str]]) -> Behaviour:
        def construct(made: Any, *args: Any, **kwargs: Any) -> None:
            if not signatures:
                raise TypeError(f"tensorrt.{owner}: No constructor defined!")
            arguments, _ = self._bound(f"{owner}.__init__", signatures, args, kwargs)
            made._state = arguments
            after = self.behaviours.get(f"{owner}.__init__")
            if after is not None:
                after(made, **arguments)

        return construct

    def _method(self, owner: str, name: str, signatures: Sequence[Sequence[str]]) -> Behaviour:
        if name == "__init__":
            return self._constructor(owner, signatures)
        if "members" in self.listing["classes"][owner] and name.startswith("__"):
            return _enum_method(name)
        key = f"{owner}.{name}"

        def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
            arguments, returned = self._bound(key, signatures, args, kwargs)
            behaviour = self.behaviours.get(key)
            return behaviour(instance, **arguments) if behaviour is not None else self._plausible(returned)

        return method

    def _function(self, name: str, signatures: Sequence[Sequence[str]]) -> Behaviour:
        def function(*args: Any, **kwargs: Any) -> Any:
            arguments, returned = self._bound(name, signatures, args, kwargs)
            behaviour = self.behaviours.get(name)
            return behaviour(**arguments) if behaviour is not None else self._plausible(returned)

        return function

    def _property(self, owner: str, name: str, kind: str, *, writable: bool) -> property:
        key = f"{owner}.{name}"

        def read(instance: Any) -> Any:
            self.used.add(key)
            if key in self.behaviours:
                return self.behaviours[key](instance)
            if name not in instance._state:
                instance._state[name] = self._plausible(kind)
            value = instance._state[name]
            return value() if key in BORROWED else value

        def write(instance: Any, value: Any) -> None:
            self.used.add(key)
            if not self._fits(kind, value):
                raise TypeError(f"tensorrt.{key} takes {kind}, not {value!r}")
            instance._state[name] = weakref.ref(value) if key in BORROWED else value

        return property(read, write if writable else None)

    # -- calls -----------------------------------------------------------------------------------------------------

    def _bound(
        self, key: str, signatures: Sequence[Sequence[str]], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], str]:
        """Arguments by name and what the call returns, from the first overload that takes them."""
        self.used.add(key)
        for returned, *parameters in signatures:
            arguments = self._match(
                [p for p in parameters if p != "/" and not p.startswith(("self", "this"))], args, kwargs
            )
            if arguments is not None:
                return arguments, returned
        raise TypeError(f"tensorrt.{key}(): incompatible arguments {args} {dict(kwargs)}; supported: {signatures}")

    def _match(
        self, parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        if len(args) > len(parameters):
            return None
        arguments: dict[str, Any] = {}
        for i, parameter in enumerate(parameters):
            name, _, rest = parameter.partition(": ")
            kind, _, default = rest.partition(" = ")
            by_name = name in kwargs and not re.fullmatch(r"arg\d+", name)
            if i < len(args) and not by_name:
                arguments[name] = args[i]
            elif by_name and i >= len(args):
                arguments[name] = kwargs[name]
            elif not default:
                return None
            if (
                name in arguments
                and not (default and arguments[name] is None)
                and not self._fits(kind, arguments[name])
            ):
                return None
        return arguments if kwargs.keys() <= arguments.keys() else None

    def _resolved(self, kind: str) -> str | None:
        """The listed class that a type means: some are named as in C++, `IBuilder` for `Builder`."""
        names = self.listing["classes"]
        nested = next((name for name in names if name.endswith(f".{kind}")), None)
        return next((name for name in (kind, kind[1:]) if name in names), nested)

    def _fits(self, kind: str, value: Any) -> bool:
        cls = self._resolved(kind)
        if cls is not None:
            if "Dims" in cls and isinstance(value, tuple | list):
                return all(hasattr(n, "__index__") for n in value)
            is_enum = "members" in self.listing["classes"][cls]
            return isinstance(value, self.classes[cls]) or (value is None and not is_enum)
        kind = kind.lower()
        if re.match(r"(list|tuple|sequence)\b", kind):
            return isinstance(value, tuple | list)
        return _PRIMITIVES.get(kind, lambda _: True)(value)

    def _plausible(self, kind: str) -> Any:
        cls = self._resolved(kind)
        if cls == "Dims":
            return self.dims(())
        if cls == "IHostMemory":
            return self.memory(b"")
        if cls is not None:
            members = getattr(self.classes[cls], "__members__", None)
            return next(iter(members.values())) if members else self.create(cls)
        if re.match(r"list\b", kind, re.IGNORECASE):
            return []
        if re.match(r"tuple\b", kind, re.IGNORECASE):
            return ()
        plausible = {"int": 0, "SupportsInt": 0, "float": 0.0, "SupportsFloat": 0.0, "bool": True, "str": ""}
        return plausible.get(kind)


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


def _is_int(value: Any) -> bool:
    return not isinstance(value, str | float) and (hasattr(value, "__index__") or hasattr(value, "__int__"))


_PRIMITIVES: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "buffer": _is_buffer,
    "capsule": lambda value: isinstance(value, Instance),
    "capsuletype": lambda value: isinstance(value, Instance),
    "float": lambda value: hasattr(value, "__float__") or hasattr(value, "__index__"),
    "int": _is_int,
    "list": lambda value: isinstance(value, list),
    "str": lambda value: isinstance(value, str | bytes),
    "supportsfloat": lambda value: hasattr(value, "__float__") or hasattr(value, "__index__"),
    "supportsint": _is_int,
    "tuple": lambda value: isinstance(value, tuple),
}


def _enum_method(name: str) -> Behaviour:
    """What pybind11's enumerations do: equal only to members of their own class, no order unless it is listed."""

    def number(member: Any, *_: Any) -> int:
        return int(member._state["value"])

    def equal(member: Any, other: Any) -> bool:
        return type(member) is type(other) and number(member) == number(other)

    def compared(member: Any, other: Any) -> bool:
        if type(member) is not type(other):
            raise TypeError("Expected an enumeration of matching type!")
        return bool(_COMPARED[name](number(member), number(other)))

    if name == "__eq__":
        return equal
    if name == "__ne__":
        return lambda member, other: not equal(member, other)
    return compared if name in _COMPARED else number
