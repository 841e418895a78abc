"""One of several workers of a study on a server: leases, takeovers, and tasks that one worker does for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from studies.crew.presence import Presence
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
