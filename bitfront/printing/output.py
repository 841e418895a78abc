"""Standard output and standard error: sentences, tables, JSON and CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from studies.outputs import escaped_controls, without_controls
from studies.show.terminal.text_table import FittedTable, TextTable, plain_table, wrap_text

JSON_VERSION = 1  # of what --json prints, see docs/json.md; raised when a key is removed or means something else


class SafeConsole(Console):
    """A console that writes no control characters but its own: names from files and databases may hold any."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=without_controls(segment.text))


out = SafeConsole(soft_wrap=True, highlight=False, emoji=False)
err = SafeConsole(stderr=True, soft_wrap=True, highlight=False, emoji=False)


def terminal_width(console: Console = out) -> int | None:
    """Characters in a line; None of a pipe, where a row stays one line for scripts to read."""
    return console.width if is_screen(console) else None


def is_screen(console: Console) -> bool:
    """Whether somebody looks at it; FORCE_COLOR alone, which CI systems set, makes no screen of a pipe."""
    return console.is_terminal and console.file.isatty()


def say(text: str, *, style: str = "", indent: str = "", console: Console = out) -> None:
    """Print a sentence; a terminal breaks it between words, further lines begin with `indent`."""
    for line in wrap_text(text, terminal_width(console), indent):
        console.print(Text(line, style=style), soft_wrap=True)


def say_command(text: str, command: str) -> None:
    """Print a sentence and a command, which is not broken, so that it can be copied."""
    width = terminal_width()
    if width is None or len(text) + len(command) + 1 <= width:
        out.print(Text(f"{text} {command}"))
        return
    say(text)
    out.print(Text(f"  {command}"), soft_wrap=True)


def print_error(text: str, kind: str) -> None:
    """Print a message to standard error, its first word in red; indented lines are commands, which are not broken."""
    first, *others = text.splitlines() or [""]
    begin, *rest = wrap_text(f"{kind}{first}", terminal_width(err))
    err.print(Text(kind, style="bold red") + Text(begin.removeprefix(kind)), soft_wrap=True)
    for line in (*rest, *others):
        if line.startswith("  "):
            err.print(Text(line), soft_wrap=True)
        else:
            say(line, console=err)


def warn(text: str) -> None:
    """Print a warning to standard error."""
    say(f"WARNING: {text}", style="bold yellow", console=err)


# -- tables ------------------------------------------------------------------------------------------------------------


def print_text_table(table: TextTable) -> None:
    """Print a table that fits the terminal; in a pipe every row is one line with all columns."""
    print_fitted(table.fit(terminal_width()))


def print_fitted(table: FittedTable) -> None:
    for line, style in table.lines():
        out.print(Text(line, style=style), soft_wrap=True)
    for sentence in table.sentences():
        say(sentence, style="dim")


def print_cells(header: Sequence[str], cells: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> None:
    """Print rows of texts.

    Args:
        notes: headers of columns whose texts are sentences.
    """
    print_text_table(plain_table(cells, header, notes))


def print_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], notes: Sequence[str] = ()) -> None:
    """Print some values of each row, below their names."""
    cells = [[_cell(row[name]) for name in names] for row in rows]
    print_cells([name.replace("_", " ") for name in names], cells, [name.replace("_", " ") for name in notes])


def print_texts(kind: Any, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    """Print rows as the module `kind` words them, after an empty line."""
    out.print()
    print_table([kind.text_of(row) for row in rows], names)


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return (", " if value and isinstance(value[0], str) else "×").join(map(str, value))
    return "" if value is None else str(value)


# -- for programs ------------------------------------------------------------------------------------------------------


def print_json(verb: str, value: Mapping[str, Any]) -> None:
    """Print what a verb found, with the version of its form, see docs/json.md."""
    text = json.dumps(add_version(verb, value), indent=2, ensure_ascii=False, default=str)
    sys.stdout.write(escaped_controls(text) + "\n")


def print_json_line(verb: str, value: Mapping[str, Any]) -> None:
    """Print a value as JSON in one line, for what is printed again and again."""
    sys.stdout.write(json_line(verb, value) + "\n")


def json_line(verb: str, value: Mapping[str, Any]) -> str:
    """What a verb found in one line."""
    return escaped_controls(json.dumps(add_version(verb, value), ensure_ascii=False, default=str))


def add_version(verb: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {"schema": f"bitfront.{verb}", "schema_version": JSON_VERSION, **value}


def print_csv(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of the same keys as CSV; the values of a list stand in one cell, separated by a semicolon."""
    if rows:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({k: _in_cell(v) for k, v in row.items()} for row in rows)


def _in_cell(value: Any) -> Any:
    text = _join(value) if isinstance(value, list) else value
    return without_controls(text) if isinstance(text, str) else text


def _join(values: Sequence[object]) -> str:
    """Texts or numbers in one cell, none of which holds the separator."""
    return "; ".join(str(value).replace(";", ",") for value in values)
