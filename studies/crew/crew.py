"""The interface of a crew, which is the workers of one target, and the error of a run whose study is deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from search.errors import BitfrontError, RunError, StudyError
from studies.store.records import StudyRecord, TakenOver
from studies.store.store import Store


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
        """The name of this worker, unique in the database."""

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


@contextmanager
def reported_deletion(store: Store, study: StudyRecord) -> Iterator[None]:
    """Let whatever fails because the study is gone say that it is: Optuna and the database miss one row of many.

    Args:
        study: as it was read when the run began.

    Raises:
        RunError: it was deleted meanwhile.
    """
    try:
        yield
    except Exception as error:
        if _is_gone(store, study):
            raise RunError(
                f"working on study {study.name!r}: another process deleted it, with all its results. "
                "`bitfront search` makes a new study."
            ) from error
        raise


def _is_gone(store: Store, study: StudyRecord) -> bool:
    """Also where another one has its name now, and on SQLite its id."""
    try:
        now = store.studies.load(study.name)
    except StudyError:
        return True
    except BitfrontError:  # the database is away, which the first error says
        return False
    return (now.id, now.created_at) != (study.id, study.created_at)
