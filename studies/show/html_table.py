"""The table of a front as HTML, for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence

from studies.show.terminal.text_table import Column, TextTable


def write_table(title: str, table: TextTable) -> str:
    """The table below its title, which is in bold."""
    head = _row("th", table.header, table.columns)
    body = "".join(_row("td", row, table.columns) for row in table.rows)
    return f"<p><b>{html.escape(title)}</b></p><table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _row(kind: str, cells: Sequence[str], columns: Sequence[Column]) -> str:
    """Cells of a table in a notebook; only notes are broken into lines."""
    styles = [
        f"text-align: {'right' if column.right else 'left'}; white-space: {'normal' if column.note else 'nowrap'}"
        for column in columns
    ]
    found = zip(styles, map(html.escape, cells), strict=True)
    return "".join(["<tr>", *(f'<{kind} style="{style}">{cell}</{kind}>' for style, cell in found), "</tr>"])
