"""A request to a separate evaluator process, answered while this process continues."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.line import EvaluatorLine


class BackgroundCall:
    """One request, begun when this is made; close it whatever happens, which also ends the process.

    Args:
        process: that nobody else uses until this is closed or `result` has come back.
        request: asks it something.
        finish: gets what the process answered, in the thread that waits for it; `result` gives what this returns.
    """

    def __init__(
        self,
        process: EvaluatorProcess,
        request: Callable[[EvaluatorLine], Any],
        finish: Callable[[Any], Any] = lambda answer: answer,
    ) -> None:
        self.process = process
        self.progress: tuple[int, int] = (0, 1)
        self._request, self._finish = request, finish
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="bitfront-background", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._finish(self._request(self.process.ask(on_progress=self._step)))
        except BaseException as error:  # raised again in the thread that asks for the result
            self._error = error

    def _step(self, done: int, total: int) -> None:
        self.progress = (done, total)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the answer, at most so long; whether it is there."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> Any:
        """What the process answered, once it has.

        Raises:
            BitfrontError: what the process raised.
            ProcessDiedError: it died over it.
        """
        self.wait()
        if self._error is not None:
            raise self._error
        return self._answer

    def failure(self) -> str:
        """Why there is no answer, in words; empty if there is one."""
        return "" if self._error is None else str(self._error)

    def close(self) -> None:
        """End the process, in the middle of the request where need be."""
        self.process.cancel()
        self.wait()
        self.process.close()
