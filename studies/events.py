"""The events of a command while it runs, for any listener. Nothing here knows of a terminal."""

from __future__ import annotations

from typing import Protocol


class Events(Protocol):
    """Told what a command is doing. Its methods must not raise and must return at once."""

    def note(self, text: str) -> None:
        """Say something that is worth a line of its own."""

    def detail(self, text: str) -> None:
        """Say something that explains what happens and that most people can do without."""

    def step(self, text: str, done: int, total: int) -> None:
        """Say how far a long step is that comes before the first candidate."""


class Quiet:
    """Says nothing, whatever a command or a search tells."""

    def note(self, text: str) -> None: ...

    def detail(self, text: str) -> None: ...

    def step(self, text: str, done: int, total: int) -> None: ...

    def stage(self, trial: int, stage: str) -> None: ...

    def evaluation(self, record: object, standing: object, total: int) -> None: ...

    def overview(self, status: object, new: object) -> None: ...

    def wants_end(self) -> bool:
        return False
