"""Sentences broken between words."""

from __future__ import annotations

import textwrap

_LEAST = 20


def wrapped(text: str, width: int | None, indent: str = "") -> list[str]:
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
            line.strip(),
            max(_LEAST, width),
            initial_indent=own,
            subsequent_indent=own + indent,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    return lines
