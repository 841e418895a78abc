"""Comparing sampled requests in a separate thread, so that requests do not wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from threading import Event, Lock, Thread, current_thread
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluators.forks import renew_in_children

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

    A forked process begins with an empty queue, and starts a thread of its own when `wake` or `offer` is called.

    Args:
        work: called with each sample; what it raises is passed to `failed`.
        idle: called between samples, and every 50 ms.
    """

    def __init__(
        self,
        size: int,
        work: Callable[[Item], None],
        failed: Callable[[BaseException], None],
        idle: Callable[[], None],
    ) -> None:
        self._size = size
        self._on_sample = work
        self._failed = failed
        self._idle = idle
        self._closed = False
        self.renew_after_fork()
        renew_in_children(self)
        self.wake()

    def renew_after_fork(self) -> None:
        """Begin with an empty queue and without a thread."""
        self._queue: Queue[Item] = Queue(self._size)
        self._stop = Event()
        self._starting = Lock()
        self._thread: Thread | None = None

    def wake(self) -> None:
        """Start the thread where there is none yet; never waits for its work."""
        if self._thread is None and not self._closed:
            with self._starting:
                if self._thread is None:
                    thread = Thread(target=self._work, name="bitfront guard", daemon=True)
                    thread.start()
                    self._thread = thread

    def offer(self, sample: Item) -> bool:
        """Whether there was room for it; never waits."""
        self.wake()
        try:
            self._queue.put_nowait(sample)
        except Full:
            return False
        return True

    def drain(self) -> None:
        """Wait until everything that was offered has been worked on, or until this is closed."""
        done = self._queue.all_tasks_done
        with done:
            while self._queue.unfinished_tasks and not self._closed:
                done.wait(_POLL_S)

    def close(self, timeout_s: float) -> bool:
        """End the thread; what still waits is left out.

        Args:
            timeout_s: the most seconds to wait for the sample that is being worked on.

        Returns:
            Whether the thread has ended. One that has not ends with its sample, or with the process.
        """
        self._closed = True
        self._stop.set()
        thread = self._thread
        if thread is None or thread is current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

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
        except BaseException as error:  # an engine that calls `sys.exit`, too
            self._failed(error)
