"""Telling each trouble once, until it is over: a guard answers thousands of requests a minute."""

from __future__ import annotations

from collections.abc import Callable

from search.errors import BitfrontError


class TroubleReports:
    """Troubles by their source, each told when it begins or changes.

    Args:
        tell: a function that is called with a sentence about each trouble.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._known: dict[str, str] = {}

    def report(self, source: str, text: str) -> None:
        """Tell a trouble, unless the last one of the same source was told in the same words."""
        if self._known.get(source) != text:
            self._known[source] = text
            self._tell(text)

    def settle(self, source: str) -> None:
        """The source works again: its next trouble is told, whatever it is."""
        self._known.pop(source, None)


def sentence_of(error: BaseException) -> str:
    """What went wrong, as a sentence; with the name of the error unless it is one of bitfront's own."""
    text = str(error) if isinstance(error, BitfrontError) else f"{type(error).__name__}: {error}"
    return text if text.endswith((".", "!", "?")) else f"{text}."
