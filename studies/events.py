"""The events of a command while it runs, for any listener. Nothing here knows of a terminal."""

from __future__ import annotations

from typing import Protocol


class Events(Protocol):
    """Receives the events of a command. Its methods must not raise errors and must return at once."""

    def note(self, text: str) -> None:
        """Report something that deserves a line of its own."""

    def detail(self, text: str) -> None:
        """Report a detail, which most users do not need."""

    def step(self, text: str, done: int, total: int) -> None:
        """Report the progress of a long step before the first candidate."""

    def announce(self, text: str) -> None:
        """Say what is being done now, which deserves a line only if it lasts."""


class Quiet:
    """Ignores all events of a command or a search."""

    def note(self, text: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def step(self, text: str, done: int, total: int) -> None: ...

    def announce(self, text: str) -> None: ...

    def stage(self, trial: int, stage: str) -> None: ...

    def evaluation(self, record: object, standing: object, total: int) -> None: ...

    def report_time(self, run: object) -> None: ...

    def overview(self, status: object, new: object) -> None: ...

    def wants_end(self) -> bool:
        return False
