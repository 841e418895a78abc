"""Comparing sampled requests in a separate thread, so that requests do not wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
_POLL_S = 0.05
Item = TypeVar("Item")


@dataclass(frozen=True)
class Sample:
    """A request and the answer it got.

    Attributes:
        engine: name of the engine that gave the answer.
    """

    inputs: Arrays
    outputs: Arrays
    engine: str

    @classmethod
    def copy_of(cls, inputs: Arrays, outputs: Arrays, engine: str) -> Sample:
        """With copies: the caller may write into its arrays as soon as it has its answer."""
        one, two = ({name: np.array(array) for name, array in arrays.items()} for arrays in (inputs, outputs))
        return cls(one, two, engine)


class Shadow(Generic[Item]):
    """A queue of samples and the thread that works it off.

    Args:
        work: called with each sample; what it raises is passed to `failed`.
        idle: called between samples, and every 50 ms.
    """

    def __init__(
        self,
        size: int,
        work: Callable[[Item], None],
        failed: Callable[[Exception], None],
        idle: Callable[[], None],
    ) -> None:
        self._queue: Queue[Item] = Queue(size)
        self._on_sample = work
        self._failed = failed
        self._idle = idle
        self._stop = Event()
        self._thread = Thread(target=self._work, name="bitfront guard", daemon=True)
        self._thread.start()

    def offer(self, sample: Item) -> bool:
        """Whether there was room for it; never waits."""
        try:
            self._queue.put_nowait(sample)
        except Full:
            return False
        return True

    def drain(self) -> None:
        """Wait until everything that was offered has been worked on."""
        self._queue.join()

    def close(self) -> None:
        """End the thread; what still waits is left out."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.is_set():
            self._attempt(self._idle)
            with suppress(Empty):
                sample = self._queue.get(timeout=_POLL_S)
                self._attempt(self._on_sample, sample)
                self._queue.task_done()

    def _attempt(self, action: Callable[..., None], *arguments: Item) -> None:
        """The thread outlives whatever fails in it."""
        try:
            action(*arguments)
        except Exception as error:
            self._failed(error)
