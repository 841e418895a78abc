"""Tables of text that fit the terminal: no cell is wrapped, and what there is no room for is told below the table."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rich.cells import cell_len, set_cell_size

_GAP = "  "
_ELLIPSIS = "…"
Shorten = Callable[[str, Sequence[str]], tuple[str, list[str]]]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        header: its heading.
        right: whether cells stand at the right, as numbers do.
        drop: columns with a higher number are left out first where there is no room; 0 is never left out.
        least: cells may lose their middle down to this width; 0 if they may not.
        note: where there is no room, its texts are told below the table, each with the rows that it is said of.
        shorten: (header, cells) → shorter ones, where there is no room.
        full_text_below: cells that were shortened stand in full below the table.
    """

    header: str
    right: bool = False
    drop: int = 0
    least: int = 0
    note: bool = False
    shorten: Shorten | None = None
    full_text_below: bool = False


@dataclass(frozen=True)
class TextTable:
    """Columns, and rows of as many cells.

    Attributes:
        key: the place of the column that names a row where a note is told below the table.
        styles: by place of a row, how a terminal shows it, in Rich's words; rows that are absent are plain.
        below: sentences below it at every width.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    key: int = 0
    styles: dict[int, str] = field(default_factory=dict)
    below: tuple[str, ...] = ()

    @property
    def header(self) -> list[str]:
        return [column.header for column in self.columns]

    def without_empty(self, *headers: str) -> TextTable:
        """Without those of these columns in which no row has anything."""
        keep = [
            place
            for place, column in enumerate(self.columns)
            if column.header not in headers or any(row[place] for row in self.rows)
        ]
        columns, rows = [self.columns[place] for place in keep], [[row[place] for place in keep] for row in self.rows]
        return replace(self, columns=columns, rows=rows)

    def fit(self, width: int | None) -> FittedTable:
        """The table within so many characters; None if any width will do.

        What has no room is given up in this order: notes go below the table, headers and cells are shortened, long
        cells lose their middle, columns are left out.
        """
        whole = FittedTable(list(self.columns), self.header, [list(row) for row in self.rows], self.styles, self.below)
        if width is None or whole.width <= width:
            return whole
        for column in self.columns:
            if column.note and whole.width > width:
                whole = whole.with_notes_below(column, self.header[self.key], [row[self.key] for row in self.rows])
        if whole.width > width:
            whole = whole.shorten_cells(self.header[self.key], [row[self.key] for row in self.rows])
        fitted = whole.squeeze(width)
        for column in sorted(whole.columns, key=lambda each: -each.drop):
            if fitted.width > width and column.drop:
                whole = whole.without(column)
                fitted = whole.squeeze(width)
        return fitted


@dataclass(frozen=True)
class FittedTable:
    """What is shown of a table.

    Attributes:
        below: sentences below it.
        left_out: headers of the columns that there was no room for.
    """

    columns: list[Column]
    headers: list[str]
    rows: list[list[str]]
    styles: dict[int, str]
    below: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def widths(self) -> list[int]:
        return [max(map(cell_len, cells)) for cells in zip(self.headers, *self.rows, strict=True)]

    @property
    def width(self) -> int:
        return sum(self.widths) + len(_GAP) * (len(self.columns) - 1)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Each line with its style: the header, then the rows."""
        if any(self.headers):
            yield self._line(self.headers), "bold"
        for place, row in enumerate(self.rows):
            yield self._line(row), self.styles.get(place, "")

    def sentences(self) -> Iterator[str]:
        """What is told below the table."""
        yield from self.below
        if self.left_out:
            yield f"Columns without room: {', '.join(self.left_out)}. A wider terminal or --json shows them."

    def without(self, column: Column) -> FittedTable:
        """The table without a column."""
        at = self.columns.index(column)
        return replace(
            self,
            columns=[*self.columns[:at], *self.columns[at + 1 :]],
            headers=[*self.headers[:at], *self.headers[at + 1 :]],
            rows=[[*row[:at], *row[at + 1 :]] for row in self.rows],
            left_out=(*self.left_out, column.header),
        )

    def with_notes_below(self, column: Column, key_name: str, key: Sequence[str]) -> FittedTable:
        """The table with the texts of a column below it instead, each with the rows that it is said of.

        Args:
            key_name, key: header and cells of the column that names a row.
        """
        at = self.columns.index(column)
        note_lines = _note_lines([row[at] for row in self.rows], key_name, key)
        return replace(self.without(column), below=(*self.below, *note_lines), left_out=self.left_out)

    def shorten_cells(self, key_name: str, key: Sequence[str]) -> FittedTable:
        """The table with the shorter headers and cells of those columns that have such.

        Args:
            key_name, key: header and cells of the column that names a row.
        """
        headers, columns = list(self.headers), [list(cells) for cells in zip(*self.rows, strict=True)]
        full_texts: list[str] = []
        for at, column in enumerate(self.columns):
            if column.shorten is not None and columns:
                before = columns[at]
                headers[at], columns[at] = column.shorten(headers[at], before)
                if column.full_text_below:
                    cells = zip(key, before, columns[at], strict=True)
                    full_texts += [f"{key_name} {name}: {whole}." for name, whole, short in cells if whole != short]
        rows = [list(row) for row in zip(*columns, strict=True)]
        return replace(self, headers=headers, rows=rows, below=(*full_texts, *self.below))

    def squeeze(self, width: int) -> FittedTable:
        """The table with the middle of long cells left out, as far as the columns allow."""
        widths, over = self.widths, self.width - width
        while over > 0:
            places = [at for at, column in enumerate(self.columns) if column.least and widths[at] > column.least]
            if not places:
                break
            widths[max(places, key=lambda at: widths[at])] -= 1
            over -= 1
        headers, *rows = ([*map(shorten_middle, cells, widths)] for cells in (self.headers, *self.rows))
        return replace(self, headers=headers, rows=rows)

    def _line(self, cells: Sequence[str]) -> str:
        padded = []
        for column, cell, width in zip(self.columns, cells, self.widths, strict=True):
            room = " " * (width - cell_len(cell))
            padded.append(room + cell if column.right else cell + room)
        return _GAP.join(padded).rstrip()


def shorten_middle(text: str, width: int) -> str:
    """The text with its middle replaced by `…`, where it is wider than this; names differ most at their ends."""
    if cell_len(text) <= width:
        return text
    head = (width - 1) // 3
    tail = width - 1 - head
    cut = 0
    while cell_len(text[cut:]) > tail:
        cut += 1
    return set_cell_size(text, head).rstrip() + _ELLIPSIS + text[cut:]


def plain_table(rows: Sequence[Sequence[str]], header: Sequence[str], notes: Sequence[str] = ()) -> TextTable:
    """A table of which only the columns are known: numbers stand at the right, long texts lose their middle.

    Args:
        notes: headers of columns whose texts are sentences.
    """
    columns = []
    for place, name in enumerate(header):
        cells = [row[place] for row in rows]
        number = any(cells) and all(not cell or cell[0] in "+-–∞.0123456789" for cell in cells) and place > 0
        note = name in notes
        columns.append(
            Column(name, number, drop=place if place > 1 else 0, least=0 if number or note else 14, note=note)
        )
    return TextTable(columns, rows)


def _note_lines(texts: Sequence[str], key_name: str, key: Sequence[str]) -> Iterator[str]:
    """Each text once, with the rows that it is said of."""
    names_by_text: dict[str, list[str]] = {}
    for text, name in zip(texts, key, strict=True):
        for part in filter(None, text.split("; ")):
            names_by_text.setdefault(part, []).append(name)
    for part, names in names_by_text.items():
        yield f"{key_name}{'s' * (len(names) > 1)} {', '.join(names)}: {part}."


_LEAST = 20
_NARROW = "\N{NO-BREAK SPACE}"  # textwrap breaks no line there
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|±|×|[a-zA-Zµ°]{1,3}/?s?(?![\w.])))|(?<=[±×≤≥]) (?=[\d-])| (?=±)")


def wrap_text(text: str, width: int | None, indent: str = "") -> list[str]:
    """The lines of a text, broken between words alone.

    Args:
        width: characters in a line; None for lines of any length.
        indent: begins the further lines of what was one.
    """
    if width is None:
        return text.splitlines() or [""]
    lines = []
    for line in text.splitlines() or [""]:
        own = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            _BEFORE_UNIT.sub(_NARROW, line.strip()),
            max(_LEAST, width),
            initial_indent=own,
            subsequent_indent=own + indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return [line.replace(_NARROW, " ") for line in lines]
