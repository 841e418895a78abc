"""The interface of a crew: the workers of one target, including this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Protocol

from studies.store.records import TakenOver


class Crew(Protocol):
    """This process as one of the workers of a target. `Alone` and `Shared` are the two kinds of crew.

    Attributes:
        alone: whether there can be no other worker.
        lease_s: the seconds without a heartbeat after which a worker counts as lost.
    """

    alone: bool
    lease_s: float

    @property
    def name(self) -> str:
        """Of this worker, unique in the database."""

    @property
    def steady(self) -> bool:
        """Whether this worker can judge others, because its own heartbeat worked throughout the last lease."""

    def state(self, state: str) -> None:
        """Store the state of this worker."""

    def store_time(self) -> None:
        """Store how its time was spent so far, unless that was done a few seconds ago."""

    def end(self, error: BaseException | None = None) -> None:
        """End this worker, as failed where an error ended it that no interrupt led to; again changes nothing."""

    def others(self) -> dict[str, str]:
        """The other workers that are alive: name → state."""

    def rank(self) -> int:
        """The number of living workers that joined before this one."""

    def try_hold(self, task: str) -> AbstractContextManager[bool]:
        """Try to hold a task, and return whether it is held; it is not if another living worker holds it."""

    def hold(self, task: str) -> AbstractContextManager[None]:
        """Hold a task, as soon as no other worker holds it."""

    def once(self, task: str, known: Callable[[], bool], do: Callable[[], object]) -> None:
        """Do a task if its result is not known yet, or wait until another worker has done it.

        Args:
            known: whether it is in the database.
            do: finds it out and stores it. Where that fails in one worker, the next one tries.
        """

    def wait(self, text: str, done: int = 0, total: int = 1) -> None:
        """Wait a moment for other workers, and report that."""

    def give_up_lost(self) -> None:
        """Remove the evaluations that are known to be lost with their workers; nobody continues them."""

    def take_over(self, held: Collection[int]) -> TakenOver | None:
        """An evaluation of a worker that was lost in the middle of it, which is this worker's from now on.

        Args:
            held: evaluations that this worker is at.
        """
