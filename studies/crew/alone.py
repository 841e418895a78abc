"""The single worker of a study on SQLite, where a lock on a file allows one process at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from search.errors import StudyError
from search.values import digest_of
from studies.crew.presence import Presence
from studies.store.database.database import artifact_folder
from studies.store.database.database_url import parse_url
from studies.store.records import TakenOver


class Alone(Presence):
    """A worker that holds its study's lock: all that other workers left open is lost work, and every task is its own.

    Enter `locked_study` before it.
    """

    alone = True

    def _arrive(self) -> None:
        self._store.workers.end_others(self._target, self.name)

    def others(self) -> dict[str, str]:
        return {}

    def rank(self) -> int:
        return 0

    @contextmanager
    def try_hold(self, task: str) -> Iterator[bool]:
        yield True

    @contextmanager
    def hold(self, task: str) -> Iterator[None]:
        yield

    def once(self, task: str, known: Callable[[], bool], do: Callable[[], object]) -> None:
        if not known():
            do()

    def give_up_lost(self) -> None:
        claims = self._store.claims
        for running in claims.find_running(self._target):
            claims.abandon(running.id)

    def take_over(self, held: Collection[int]) -> TakenOver | None:
        """None: what others left was given up at the start."""
        return None


@contextmanager
def locked_study(folder: Path, database: str, study: str) -> Iterator[None]:
    """One process at a time runs or deletes a study on SQLite; the kernel frees the lock of a process that dies.

    Args:
        folder: of the lock; those of several databases may lie in one.
        database: URL of the study's.

    Raises:
        StudyError: another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = folder.resolve() == artifact_folder(database).resolve()
    key = study if own else [str(parse_url(database)), study]
    lock = FileLock(folder / f"{digest_of(key)[:16]}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StudyError(
            f"running study {study!r}: another process is running it on this database. It is an SQLite file, which "
            "allows one process at a time. "
            "Wait for that process or stop it first. For several workers make the study on a server, for example with "
            "--storage postgresql+psycopg://user@host/database."
        ) from None
    try:
        yield
    finally:
        lock.release()
