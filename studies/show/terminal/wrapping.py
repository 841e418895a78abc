"""Wrapping sentences between words, but never between a number and its unit."""

from __future__ import annotations

import re
import textwrap

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
