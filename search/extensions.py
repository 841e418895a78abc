"""Classes that are named: those of this project, those that other packages register, those given as module and class.

Another package registers a class by an entry point, `[project.entry-points."GROUP"]` in its `pyproject.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from search.errors import BitfrontError
from search.references import REFERENCE, import_function

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Extensible(Generic[Kind]):
    """The classes that an option may name.

    Attributes:
        option: as it is typed, for messages: `--sampler`.
        base: what every such class derives from.
        shipped: name → `package.module:Class`, of this project; imported when they are asked for.
        group: of entry points.
        error: raised where a name stands for nothing that can be used.
        others: further names that the option takes, for messages.
    """

    option: str
    base: type[Kind]
    shipped: Mapping[str, str]
    group: str
    error: type[BitfrontError]
    others: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Every name that is registered, those of this project first."""
        return (*self.shipped, *sorted(_registered(self.group).keys() - self.shipped.keys()))

    def make(self, name: str) -> Kind:
        """An instance of the class of a name: one of `names`, or `package.module:Class`.

        Raises:
            BitfrontError: of class `error`: there is no such name, or what it stands for is no such class.
            DataError: a module that is named cannot be imported.
        """
        if name in self.shipped:
            return _shipped(self.shipped[name])  # type: ignore[no-any-return]
        if REFERENCE.fullmatch(name):
            return self._instance(import_function(name, self.option), name)
        if name in (registered := _registered(self.group)):
            return self._instance(self._load(registered[name]), name)
        known = ", ".join((*self.others, *self.names()))
        what = self.option.removeprefix("--")
        raise self.error(f"{self.option} {name}: there is no such {what}; known are {known}, and package.module:Class.")

    def _load(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except Exception as error:
            raise self.error(
                f"{self.option} {point.name}: loading {point.value}, which an installed package registers, failed with "
                f"{type(error).__name__}: {error}. Mend or remove that package."
            ) from error

    def _instance(self, found: Any, name: str) -> Kind:
        if not (isinstance(found, type) and issubclass(found, self.base)):
            wanted = self.base.__name__
            raise self.error(f"{self.option} {name}: expected a subclass of {wanted}, got {found!r}. Name its class.")
        try:
            return found()
        except TypeError as error:
            made = f"{found.__name__} cannot be made: {error}"
            raise self.error(f"{self.option} {name}: {made}. Mend the class.") from error


@cache
def _shipped(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)()


@cache
def _registered(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=group)}
