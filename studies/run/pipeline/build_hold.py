"""Processes that only build, and pausing them while a latency is measured, so that they do not disturb it."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

from evaluators.process.keeper import EvaluatorProcess
from search.values import Assignment

LONGEST_S = 60.0  # that builds stand still: a latency takes a few seconds


@dataclass
class BuilderProcess:
    """A process that only builds.

    Attributes:
        known: uniform assignments that its builder was asked to learn from before the search.
        learns_mix: whether it builds a mix to learn from, which may take longer than the calibration beside it.
    """

    process: EvaluatorProcess
    known: set[Assignment] = field(default_factory=set)
    learns_mix: bool = False


class BuildHold:
    """Stops the processes that build, from entering the context to leaving it; may be entered again meanwhile.

    A process that is stopped in the middle of a build continues it later as if nothing had been. None is stopped for
    longer than a minute: it may hold something that the measurement waits for. Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._changing = threading.RLock()
        self._released = threading.Event()
        self._released.set()
        self._last_moment = threading.Timer(0.0, lambda: None)  # never started
        self._builders: list[EvaluatorProcess] = []

    def add(self, builder: EvaluatorProcess) -> None:
        """Let a process be held from now on."""
        with self._changing:
            self._builders.append(builder)

    def wait_released(self) -> None:
        """Wait until no build is held; for whoever is about to begin one."""
        self._released.wait()

    def __enter__(self) -> None:
        with self._changing:
            self._depth += 1
            if self._depth == 1:
                self._released.clear()
                self._signal(signal.SIGSTOP)
                self._last_moment = threading.Timer(LONGEST_S, self._signal, [signal.SIGCONT])
                self._last_moment.daemon = True
                self._last_moment.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changing:
            self._depth -= 1
            if self._depth == 0:
                self._last_moment.cancel()
                self._signal(signal.SIGCONT)
                self._released.set()

    def _signal(self, number: signal.Signals) -> None:
        for pid in [builder.pid for builder in self._builders if builder.pid is not None]:
            with suppress(ProcessLookupError):  # it has just ended, and its keeper will see that
                os.killpg(pid, number)
