"""Tables of docs/benchmarks-tables.md: Markdown between the marks `<!-- NAME begin: … -->` and `<!-- NAME end -->`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks import DOCS


def write_section(name: str, text: str, page: Path = DOCS) -> None:
    """Replace what stands between the marks of `name` in a page; raises ValueError as `replace_section`."""
    page.write_text(replace_section(page.read_text(), name, text))


def replace_section(page: str, name: str, text: str) -> str:
    """`page` with `text` between the marks of `name`, in place of what stood there.

    Raises:
        ValueError: the page does not have both marks once each.
    """
    begin, end = re.findall(rf"<!-- {name} begin\b[^>]*-->", page), f"<!-- {name} end -->"
    if len(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"expected the marks '<!-- {name} begin: … -->' and '{end}' once each in the page")
    head, mark, rest = page.partition(begin[0])
    return f"{head}{mark}\n{text}\n{end}{rest.partition(end)[2]}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; nothing without rows."""
    if not rows:
        return ""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])
