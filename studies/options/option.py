"""A row of the option table: the name of an option, how its value is read and written, and the verbs that take it.

Command line, TOML files, help and the reference page are read from these rows. Most of them are the metadata of the
fields of `SearchConfig`; limits and backends add theirs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from search.errors import ConfigError, InputError


class Verbs:
    """Sets of verbs that take an option."""

    READING_STUDIES = ("resume", "worker", "sensitivity", "export", "show", "compare")  # with files
    ANALYSES = ("inspect", "sensitivity", "evaluate", "recover")  # look at a model that needs no study
    BUILDING = ("search", "evaluate", "recover")  # decide how engines are built and scored
    RECOVERING = ("search", "resume", "sensitivity", "evaluate", "recover")  # make INT8 lose less, or made it
    JOINING = ("search", "resume", "worker")
    CONTINUING = ("search", "resume")
    NAMING_AGAIN = ("resume", "worker", "export")  # take what a study names once more, which allows it
    ON_HOST = (*JOINING, *ANALYSES)
    RUNNING = (*ON_HOST, "gate")  # run engines on this host
    SCORING = (*BUILDING, "gate")
    READING_FILES = tuple(dict.fromkeys((*ON_HOST, *READING_STUDIES)))


NAMED_AGAIN = dict.fromkeys(Verbs.NAMING_AGAIN, "The study's own, named again, so that it may run here.")


@dataclass(frozen=True)
class ValueKind:
    """How values of one kind are read from a text and written as one.

    Attributes:
        read: (text, the option as messages show it) → value; raises ConfigError.
        write: value → a text that `read` takes for it.
        choices: the texts that it takes, where these can be listed.
    """

    read: Callable[[str, str], Any]
    write: Callable[[Any], str] = str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Option:
    """One row of the option table.

    Attributes:
        name: on the command line and in TOML files: `time-limit`.
        field: of `SearchConfig`, which it fills.
        kind: how its value is read and written.
        help: one line.
        metavar: stands for the value in help.
        verbs: that take it on the command line.
        default: the value where it is not given.
        default_text: what help says of the default, where that is not the value itself.
        panel: the heading that it stands under in help and reference.
        helps: by verb, where it means something else there.
        item: its key in the field, where that is a mapping; empty if the option fills the whole field.
        argument: the verbs that take it by its place and not by its name.
        many: it may be repeated; the value is a tuple.
        flag: it takes no value.
        switch: `on` or `off`; a file may say true or false.
        clearable: the word `none` takes the value away.
        backend: the only one that has it; empty for all.
        type: the type of its value, as annotations have it; None is taken beside it where it is the default.
        from_json: makes its value of the plain one in a stored configuration.
    """

    name: str
    field: str
    kind: ValueKind
    help: str
    metavar: str = "TEXT"
    verbs: tuple[str, ...] = ("search",)
    default: Any = None
    default_text: str = ""
    panel: str = ""
    helps: Mapping[str, str] = dataclasses.field(default_factory=dict)
    item: str = ""
    argument: tuple[str, ...] = ()
    many: bool = False
    flag: bool = False
    switch: bool = False
    clearable: bool = False
    backend: str = ""
    type: Any = Any
    from_json: Callable[[Any], Any] | None = None

    @property
    def key(self) -> str:
        """The key of its value in a stored configuration, and its name in Python."""
        return self.item or self.field

    @property
    def shown(self) -> str:
        """As messages show it: `--time-limit`."""
        return self.name.upper() if "search" in self.argument else f"--{self.name}"

    @property
    def shown_default(self) -> str:
        """The default as help and reference show it; empty if nothing is taken."""
        if self.default_text:
            return self.default_text
        if self.default is None or self.flag or self.many:
            return ""
        return self.kind.write(self.default)

    def text_of(self, value: Any) -> str:
        """A value as a text that its reader takes."""
        return "none" if value is None and self.clearable else self.kind.write(value)


def option(kind: ValueKind, help: str, default: Any = MISSING, *, name: str = "", **facts: Any) -> Any:  # noqa: A002
    """A field of the configuration with its row of the option table; `facts` as in `Option`, and `repr`.

    Args:
        default: the value, or a function that makes it.
        name: where it is not that of the field with hyphens.
    """
    shown = bool(facts.pop("repr", True))
    row = {"name": name, "kind": kind, "help": help, **facts}
    if callable(default):
        return dataclasses.field(default_factory=default, repr=shown, metadata={"option": row})
    return dataclasses.field(default=default, repr=shown, metadata={"option": row})


def make_row(name: str, default: Any, facts: Mapping[str, Any]) -> Option:
    """The row of a field of the configuration.

    Args:
        facts: as `option` keeps them in the field's metadata.
    """
    attributes = {**facts, "name": facts["name"] or name.replace("_", "-")}
    known = default if isinstance(default, str | int | float | tuple) else None
    return Option(**attributes, field=name, default=known)


def read_stored(data: Mapping[str, Any], rows: Mapping[str, Option], mappings: Sequence[str]) -> dict[str, Any]:
    """Values of fields from a stored configuration.

    Args:
        data: plain JSON values by key of their row.
        rows: every row that may be stored, by key.
        mappings: the fields that are mappings; of these what has its default is left out.

    Raises:
        ConfigError: a key is of no row.
        TypeError, KeyError, ValueError: a value has another form than is stored.
    """
    if unknown := sorted(data.keys() - rows.keys()):
        raise ConfigError(
            "reading a stored configuration: expected options and limits that are known here, got "
            f"{', '.join(unknown)}; use the program that made the study, or register those limits"
        )
    values: dict[str, Any] = {name: {} for name in mappings}
    for key, stored in data.items():
        row = rows[key]
        value = row.from_json(stored) if row.from_json is not None and stored is not None else stored
        if not row.item:
            values[row.field] = value
        elif value != row.default:
            values[row.field][row.item] = value
    return values


def run_checks(*checks: Callable[[], object]) -> None:
    """Run every check, also those behind one that refuses, and raise together what they refused.

    Raises:
        InputError: the error itself where one check refused, else a ConfigError that lists the messages in order.
    """
    errors = filter(None, map(_refusal_of, checks))
    refusals = {str(error): error for error in errors}  # two options may name the same file that is not there
    if len(refusals) == 1:
        raise next(iter(refusals.values()))
    if refusals:
        listed = "\n".join("  - " + message.replace("\n", "\n    ") for message in refusals)
        raise ConfigError(f"{len(refusals)} things are wrong:\n{listed}")


def _refusal_of(check: Callable[[], object]) -> InputError | None:
    try:
        check()
    except InputError as error:
        return error
    return None


def raise_mistakes(problems: Sequence[str]) -> None:
    """Raise one ConfigError that lists the problems, each of one or more lines; nothing if there are none."""
    lines = [line for problem in problems for line in problem.split("\n")]
    if len(lines) == 1:
        raise ConfigError(lines[0])
    if lines:
        listed = "\n".join(f"  {line}" for line in lines)
        raise ConfigError(f"{len(lines)} things are wrong with the options:\n{listed}")
