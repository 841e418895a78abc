"""A worker's row in the database, and its heartbeat, which a thread renews until the worker leaves."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from evaluators.stopwatch import current_stopwatch, time_spent
from studies.events import Events, Quiet
from studies.interrupts import came_of_interrupt
from studies.store.store import Store

Me = TypeVar("Me", bound="Presence")

_BEATS = 4  # in a lease
_SILENCE = 0.75  # of a lease, after which a worker does not know how the others are
_MOST_POLL_S = 1.0
_SPENT_EVERY_S = 5.0
_LAST_S = 5.0  # for a beat that is under way when the worker ends


class Presence:
    """A worker of one target, from entering to leaving the context; meanwhile a thread renews all that it holds.

    What it knows of other workers is told apart by its two kinds, `Alone` and `Shared`.

    Args:
        lease_s: without a sign of life for so long it counts as lost; all workers of a study have the same.
        device: that it measures on, for people.
        state: what it is doing, as in `WorkerRecord`.
        events: told what it waits for.
    """

    def __init__(
        self,
        store: Store,
        study_target_id: int,
        *,
        lease_s: float,
        device: str = "",
        state: str = "starting",
        events: Events | None = None,
    ) -> None:
        self.name = ""
        self.lease_s = lease_s
        self._poll_s = min(_MOST_POLL_S, lease_s / _BEATS)
        self._store = store
        self._target = study_target_id
        self._device = device
        self._state = state
        self._events = events or Quiet()
        self._watch = current_stopwatch()
        self._last_beat = self._last_spent = time.monotonic()
        self._steady_from = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="bitfront-heartbeat", daemon=True)

    def __enter__(self: Me) -> Me:
        self.name = self._store.workers.join(
            self._target, host=socket.gethostname(), device=self._device, pid=os.getpid(), state=self._state
        )
        try:
            self._arrive()
            self._last_beat = time.monotonic()
            self._thread.start()
        except BaseException:
            with suppress(Exception):
                self._store.workers.end(self.name)
            raise
        return self

    def _arrive(self) -> None:
        """What a worker does as soon as it has joined."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(Exception):  # the error that brought us here says more; others will see it end by its silence
            self.end(error)

    def end(self, error: BaseException | None = None) -> None:
        """End this worker; again changes nothing.

        Args:
            error: that ends it, for which it counts as failed, unless an interrupt led to it.
        """
        if not self._over.is_set():
            self._over.set()
            self._thread.join(_LAST_S)
            failed = isinstance(error, Exception) and not came_of_interrupt(error)
            self._store.workers.end(self.name, "failed" if failed else "ended", self._spent())

    def state(self, state: str) -> None:
        """Say what it is doing."""
        if state != self._state:
            self._store.workers.set_state(self.name, state)
            self._state = state

    def store_time(self) -> None:
        """Store where the time went until now, unless that was done a few seconds ago."""
        now, spent = time.monotonic(), self._spent()
        if spent and now >= self._last_spent + _SPENT_EVERY_S:
            self._last_spent = now
            self._store.workers.set_spent(self.name, spent)

    def _spent(self) -> dict[str, float]:
        return {} if self._watch is None else self._watch.seconds()

    @property
    def steady(self) -> bool:
        """Whether it could say that it is alive throughout the last lease.

        If not, the others may not have been able to either, because the server was down, and may not be lost.
        """
        now = time.monotonic()
        return now >= self._steady_from and now - self._last_beat <= _SILENCE * self.lease_s

    def wait(self, text: str, done: int = 0, total: int = 1) -> None:
        """Wait a moment for other workers, and say so."""
        self._events.step(text, done, total)
        with time_spent("waiting"):
            time.sleep(self._poll_s)

    # -- the thread ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Renew, until the end; what fails is tried again soon, for a server that restarts must not stop a worker."""
        pause_s = self.lease_s / _BEATS
        while not self._over.wait(pause_s):
            pause_s = self._poll_s / _BEATS
            with suppress(Exception):
                self._store.workers.beat(self.name, self._spent())
                pause_s = self.lease_s / _BEATS
                now = time.monotonic()
                if now - self._last_beat > _SILENCE * self.lease_s:
                    self._steady_from = now + self.lease_s
                self._last_beat = now
