"""Parts of HTML: one page written to a file, a table for a notebook."""

from __future__ import annotations

import contextlib
import html
import os
import uuid
from collections.abc import Sequence
from pathlib import Path

from search.errors import ArtifactError
from studies.outputs import check_file
from studies.show.terminal.text_table import Column, TextTable


def write_page(page: str, path: Path, what: str) -> None:
    """Write a page; `path` is either the old file or the whole new one, never a part.

    Args:
        what: names it in messages, for example `the report`.

    Raises:
        ConfigError: the folder is not there or cannot be written, or the path is a folder, device or pipe.
        ArtifactError: the file cannot be written.
    """
    check_file(path, f"writing {what}")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise ArtifactError(f"writing {what} {path}: {error.strerror}; free some space or give another path") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def plotly_library() -> str:
    """Plotly's JavaScript for lines, points and bars, to stand inside a script: a quarter of the whole library."""
    file = Path(__file__).parent / "plotly" / "plotly-basic.min.js"
    # A closing tag inside the library would end the script; none is there today.
    return file.read_text(encoding="utf-8").replace("</script", "<\\/script")


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
    styled_cells = zip(styles, map(html.escape, cells), strict=True)
    return "".join(["<tr>", *(f'<{kind} style="{style}">{cell}</{kind}>' for style, cell in styled_cells), "</tr>"])
