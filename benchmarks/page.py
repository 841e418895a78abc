"""Tables in Markdown, kept beside the JSON that they are made from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks import RESULTS


def write_tables(name: str, title: str, command: str, text: str, folder: Path = RESULTS) -> None:
    """Write NAME.md: the title, the command that makes the file again, and the tables."""
    (folder / f"{name}.md").write_text(f"# {title}\n\nMade by `{command}`.\n\n{text}\n")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; nothing without rows."""
    if not rows:
        return ""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])
