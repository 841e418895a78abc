"""Classes that an option selects by name: shipped ones, registered ones, and those given as `package.module:Class`.

Another package registers a class by an entry point, `[project.entry-points."GROUP"]` in its `pyproject.toml`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from search.errors import BitfrontError
from search.references import import_function, names_function

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, SelectableGroups

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Extensible(Generic[Kind]):
    """The classes that an option may name.

    Attributes:
        option: the option as it is typed, for messages: `--sampler`.
        base: the class that all of them derive from.
        shipped: the classes of this project by name, as `package.module:Class`. They are imported on first use.
        group: the group of entry points by which other packages register theirs.
        error: the error to raise if a name cannot be used.
        others: further names that the option takes, for messages.
        facts: attributes that every class has to define.
        noun: the word for such a class in messages; empty to use the option's name.
    """

    option: str
    base: type[Kind]
    shipped: Mapping[str, str]
    group: str
    error: type[BitfrontError]
    others: tuple[str, ...] = ()
    facts: tuple[str, ...] = ("name",)
    noun: str = ""

    def names(self) -> tuple[str, ...]:
        """Every name that is registered, those of this project first."""
        return registered_names(self.shipped, self.group)

    def make(self, name: str) -> Kind:
        """Make an instance of the class of a name: one of `names`, or `package.module:Class`.

        Raises:
            BitfrontError: of class `error`: there is no such name, or it is not the name of such a class.
            DataError: the module of the class cannot be imported.
        """
        if name in self.shipped:
            return _make_shipped(self.shipped[name])  # type: ignore[no-any-return]
        if names_function(name):
            return self._instance(import_function(name, self.option), name)
        if name in (registered := _list_registered(self.group)):
            return self._instance(load_entry_point(registered[name], self.error), name)
        known = ", ".join((*self.others, *self.names()))
        what = self.noun or self.option.removeprefix("--")
        raise self.error(f"{self.option} {name}: there is no such {what}; known are {known}, and package.module:Class.")

    def _instance(self, candidate: Any, name: str) -> Kind:
        if not (isinstance(candidate, type) and issubclass(candidate, self.base)):
            wanted = self.base.__name__
            raise self.error(
                f"{self.option} {name}: expected a subclass of {wanted}, got {candidate!r}. Name its class."
            )
        lacking = [fact for fact in self.facts if not getattr(candidate, fact, "")]
        try:
            made = candidate()
        except TypeError as error:
            why = f"{candidate.__name__} cannot be made: {error}"
            raise self.error(f"{self.option} {name}: {why}. Correct the class.") from error
        if lacking:
            said = " and ".join(lacking)
            raise self.error(f"{self.option} {name}: {candidate.__name__} does not define {said}. Add them.")
        own_name = getattr(candidate, "name", "")
        if not re.fullmatch(r"\w[\w.-]*", own_name):
            named = f"{candidate.__name__} is named {own_name!r}, expected letters, digits, '-', '_' and '.'"
            raise self.error(f"{self.option} {name}: {named}. Rename it.")
        return made


def registered_names(shipped: Collection[str], group: str) -> tuple[str, ...]:
    """The names of the shipped classes, followed by those that other packages register by a group of entry points."""
    return (*shipped, *sorted(_list_registered(group).keys() - {*shipped}))


def load_registered(group: str, error: type[BitfrontError]) -> list[tuple[str, Any]]:
    """Load everything that other packages register by a group of entry points; names with their objects.

    Raises:
        BitfrontError: of class `error`: one of them cannot be imported.
    """
    return [(name, load_entry_point(point, error)) for name, point in sorted(_list_registered(group).items())]


def load_entry_point(point: EntryPoint, error: type[BitfrontError]) -> Any:
    """Load the object of an entry point of another package.

    Raises:
        BitfrontError: of class `error`: it cannot be imported.
    """
    try:
        return point.load()
    except Exception as cause:
        raise error(
            f"loading {point.value}, which an installed package registers as {point.name} of {point.group}, failed "
            f"with {type(cause).__name__}: {cause}. Correct or remove that package."
        ) from cause


@cache
def _make_shipped(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module), attribute)()


def _list_registered(group: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in _read_entry_points(tuple(sys.path)).select(group=group)}


@cache
def _read_entry_points(_path: tuple[str, ...]) -> SelectableGroups:
    """All entry points on this module path, kept because finding them reads a file of every installed package."""
    from importlib.metadata import entry_points

    return entry_points()
