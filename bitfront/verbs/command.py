"""What the command of a verb needs to know beside the verb's signature and docstring.

`bitfront.cli.parameters` makes the command. Parameters before the `*` of a signature are arguments, unless `Typed`
names an option; the others are options. The first paragraph of the docstring is the help of the verb, its `Args:` that
of the options. Some parameters stand for rows of the option table: `config`, `changes`, `limits` and `thresholds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Typed:
    """How a parameter is typed, as metadata of its type: `Annotated[Path | None, Typed("DIR", "--out")]`.

    Attributes:
        metavar: stands for the value in help.
        name: of the option; empty for the name of the parameter.
        read: (text, option) → value, where the type alone does not say how a text is read; raises ConfigError.
    """

    metavar: str = ""
    name: str = ""
    read: Callable[[str, str], Any] | None = None


@dataclass(frozen=True)
class Printer:
    """How one kind of result is shown.

    Attributes:
        text: prints it. Its own keyword parameters are further options of the command.
        kind: the class of the results that it prints; empty for all of the verb.
        json: the plain values of a result; None for its method `to_json`.
        csv: the rows of a result; None if it has no table. `json` and `csv` get what `text` gets.
        exit_code: of a result; None for 0.
        warn: what is said of a result on stderr however it is shown.
        write: writes the files that were asked for, after the result was shown; it gets what `text` gets.
        quiet: whether the command takes `--quiet`.
        tells: whether progress is shown beside `--json` too.
    """

    text: Callable[..., None]
    kind: str = ""
    json: Callable[..., Mapping[str, Any]] | None = None
    csv: Callable[..., Rows] | None = None
    exit_code: Callable[[Any], int] | None = None
    warn: Callable[[Any], None] | None = None
    write: Callable[..., None] | None = None
    quiet: bool = False
    tells: bool = False


def prints(*verbs: Callable[..., Any], **how: Any) -> Callable[[Function], Function]:
    """Make a function the printer of these verbs' results; `how` as in `Printer`."""

    def add(text: Function) -> Function:
        for verb in verbs:
            verb.__dict__.setdefault("printers", []).append(Printer(text, **how))
        return text

    return add


def printers_of(verb: Callable[..., Any]) -> Sequence[Printer]:
    """The printers of a verb, in the order in which they were added."""
    printers: Sequence[Printer] = verb.__dict__["printers"]
    return printers


def asks(question: str) -> Callable[[Function], Function]:
    """Let the command of a verb ask before it begins, unless `--yes` is given.

    Args:
        question: with the names of parameters in braces.
    """

    def add(verb: Function) -> Function:
        verb.__dict__["question"] = question
        return verb

    return add
