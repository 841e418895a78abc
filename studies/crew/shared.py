"""A worker on a server, one of several with leases and takeovers, and the single worker of a study on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from search.errors import StudyError
from search.values import digest_of
from studies.crew.presence import Presence
from studies.store.database.database import artifact_folder
from studies.store.database.database_url import parse_url
from studies.store.records import TakenOver


class SharedCrew(Presence):
    """A worker among others, any of which may come, end or be lost at any moment."""

    alone = False

    def others(self) -> dict[str, str]:
        live = self._store.workers.live(self._target, self.lease_s)
        return {name: state for name, state in live.items() if name != self.name}

    def rank(self) -> int:
        live = list(self._store.workers.live(self._target, self.lease_s))
        return live.index(self.name) if self.name in live else len(live)

    @contextmanager
    def try_hold(self, task: str) -> Iterator[bool]:
        held = self._store.tasks.take(self._target, task, self.name, self.lease_s)
        try:
            yield held
        finally:
            if held:
                with suppress(Exception):  # the error that brought us here says more; the task is free after a lease
                    self._store.tasks.release(self._target, task, self.name)

    @contextmanager
    def hold(self, task: str) -> Iterator[None]:
        while True:
            with self.try_hold(task) as mine:
                if mine:
                    yield
                    return
            self.wait(f"waiting for another worker: {task}")

    def once(self, task: str, known: Callable[[], bool], do: Callable[[], object]) -> None:
        while not known():
            with self.try_hold(task) as mine:
                if mine:
                    if not known():
                        do()
                    return
            self.wait(f"waiting for another worker: {task}")

    def give_up_lost(self) -> None:
        """Nothing: what others may still be at is theirs, and is taken over once its lease is over."""

    def take_over(self, held: Collection[int]) -> TakenOver | None:
        """None too while this worker does not know how the others are."""
        if not self.steady:
            return None
        return self._store.claims.take_over(self._target, self.name, self.lease_s, held=held)


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
