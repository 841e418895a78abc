"""Writing the reference of all options from the option table: `python -m bitfront.cli.reference > docs/options.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby

from studies.options.config import option_rows
from studies.options.option import Option

_HEAD = """# Options

Every option of a search. The first column is for the command line, and TOML files (`--config`) have the same names. The
second is for `bitfront.search` [in Python](python.md), which takes plain numbers as numbers, and quantities with a unit
as texts: `batch=16`, `max_drop=0.01`, `latency_budget="2ms"`. This page is made from the option table; each verb's own
page says what its options do in detail.
"""


def write_reference() -> str:
    """The page as Markdown: a table for each heading of the option table."""
    rows = sorted(option_rows(), key=lambda row: _panels().index(row.panel))
    tables = [_table(panel, list(part)) for panel, part in groupby(rows, key=lambda row: row.panel)]
    return "\n".join([_HEAD, *tables])


def _panels() -> list[str]:
    return list(dict.fromkeys(row.panel for row in option_rows()))


def _table(panel: str, rows: list[Option]) -> str:
    lines = ["| option | in Python | default | verbs | |", "|---|---|---|---|---|", *map(_line, rows)]
    return "\n".join([f"## {panel}", "", *lines, ""])


def _line(row: Option) -> str:
    typed = row.shown if row.flag or row.argument else f"{row.shown} {row.metavar}"
    name = row.name.replace("-", "_")
    default = f"`{row.shown_default}`" if row.shown_default else ""
    return f"| `{typed}` | `{name}` | {default} | {', '.join(_verbs(row))} | {row.help.replace('|', chr(92) + '|')} |"


def _verbs(row: Option) -> Iterator[str]:
    """Verbs that take the option, with links to their pages."""
    yield from (f"[{verb}]({verb}.md)" for verb in row.verbs)


if __name__ == "__main__":
    sys.stdout.write(write_reference())
