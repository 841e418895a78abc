"""Help in panels: options by the headings of the option table, verbs by their purpose. No sentence is cut.

It is drawn here and not by Rich, whose import and layout take as long as all else that `--help` does.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

FOLDED = "Backend "  # panels that begin so are only named; --help-all shows them
WIDEST = 100
START = "Start with these"
# Most searches need no more; by the names of parameters.
FIRST_OF_SEARCH = ("model", "data", "batch", "shape", "max_drop", "latency_budget", "time_limit", "trials")
FIRST_COMMANDS = (
    ("bitfront demo", "Search a shipped example; which takes two to five minutes."),
    (
        "search MODEL --data DATA",
        "Search a model of yours. Most add --max-drop 1% or --latency-budget 2ms, and --time-limit 10m.",
    ),
    ("bitfront export STUDY --out engine/", "Write the fastest mix that keeps the limit, as a folder that runs."),
    ("bitfront report STUDY --out report.html", "See what was found, on one page."),
)
EXAMPLE = "Example: bitfront search resnet.onnx --data data.npz --batch 8 --max-drop 1% --time-limit 10m"
_ALL = "bitfront.help_all"
_BOX, _PLAIN_BOX = "╭╮╰╯─│", "++++-|"
Rows = Sequence[tuple[str, str]]


def show_all_help(context: typer.Context, value: bool) -> None:
    """What `--help-all` does."""
    if value:
        context.meta[_ALL] = True
        typer.echo(context.get_help(), color=context.color)
        raise typer.Exit


class PanelCommand(TyperCommand):
    """A verb whose options stand in panels."""

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        names = [(_argument_name(each), each.required) for each in self.get_params(ctx) if _is_argument(each)]
        pieces = ["[OPTIONS]", *(name if required else f"[{name}]" for name, required in names)]
        formatter.write_usage(ctx.command_path, " ".join(pieces))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        first = FIRST_OF_SEARCH if ctx.info_name == "search" else ()
        panels: dict[str, list[tuple[str, str]]] = {START: []} if first else {}
        for parameter in sorted(self.get_params(ctx), key=lambda each: _place(each.name, first)):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panel = getattr(parameter, "rich_help_panel", None) or "Options"
                if _is_argument(parameter):
                    panel, record = (
                        "Arguments",
                        (_argument_name(parameter), record[1].replace("[required]", "").strip()),
                    )
                panels.setdefault(START if parameter.name in first else panel, []).append(record)
        if first:
            formatter.write("\n" + "\n".join(textwrap.wrap(EXAMPLE, formatter.width, subsequent_indent="  ")) + "\n")
        folded = {} if ctx.meta.get(_ALL) else {name: rows for name, rows in panels.items() if name.startswith(FOLDED)}
        for name, rows in panels.items():
            if name not in folded:
                _write_panel(formatter, name, rows)
        for name, rows in folded.items():
            text = (
                f"{len(rows)} more options for {name.removeprefix(FOLDED)} are shown by {ctx.command_path} --help-all."
            )
            formatter.write("\n".join(textwrap.wrap(text, formatter.width)) + "\n")


class PanelGroup(TyperGroup):
    """The program, whose verbs stand in panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None) or "Of other packages"
            panels.setdefault(panel, []).append((name, command.short_help or (command.help or "").split("\n\n")[0]))
        for name, rows in panels.items():
            _write_panel(formatter, name, rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_panel(formatter, START, FIRST_COMMANDS)
        PanelCommand.format_options(self, ctx, formatter)  # type: ignore[arg-type]
        self.format_commands(ctx, formatter)


def _place(name: str | None, first: Sequence[str]) -> int:
    return first.index(name) if name in first else len(first)


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _argument_name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _write_panel(formatter: Any, name: str, rows: Rows) -> None:
    formatter.write("\n" + "\n".join(_panel_lines(name, rows, formatter.width)) + "\n")


def _panel_lines(name: str, rows: Rows, width: int) -> Iterator[str]:
    """A box around two columns; texts are broken between words."""
    top_left, top_right, bottom_left, bottom_right, across, down = [*_box()]
    inner = width - 4
    first = min(max(len(term) for term, _ in rows), inner // 2 - 2)
    yield f"{top_left}{across} {_colour(name)} {across * (width - len(name) - 5)}{top_right}"
    for term, text in rows:
        room = inner - first - 2
        texts = textwrap.wrap(text.replace("  [", " ["), room, break_long_words=False) or [""]
        terms = textwrap.wrap(term, first, subsequent_indent="  ", break_on_hyphens=False) or [""]
        for at in range(max(len(texts), len(terms))):
            head, tail = (part[at] if at < len(part) else "" for part in (terms, texts))
            yield f"{down} {head.ljust(first)}  {tail.ljust(room)} {down}"
    yield f"{bottom_left}{across * (width - 2)}{bottom_right}"


def _box() -> str:
    """Characters of a box that the output has."""
    try:
        _BOX.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except UnicodeEncodeError:
        return _PLAIN_BOX
    return _BOX


def _colour(name: str) -> str:
    """A heading; Click takes colours away where there is no terminal."""
    return name if os.environ.get("NO_COLOR") else typer.style(name, fg="cyan", bold=True)
