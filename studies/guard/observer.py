"""The interface by which a guard reports to observers, for example for metrics."""

from __future__ import annotations

from typing import Protocol

from studies.guard.agreement import Arrays


class Observer(Protocol):
    """Told of requests and of comparisons. What it raises while a request is answered reaches the caller."""

    def on_answer(self, engine: str, seconds: float) -> None:
        """A request was answered; called in its thread.

        Args:
            engine: name of the one that serves now.
            seconds: from the call of `run` to its answer.
        """

    def on_failure(self) -> None:
        """A request was answered by an error; called in its thread."""

    def on_comparison(self, inputs: Arrays, fast: Arrays, safe: Arrays, agrees: bool) -> None:
        """Two engines answered one request; called beside the requests.

        Args:
            agrees: whether all classes are the same; where outputs are no classes, whether the agreement keeps
                the threshold.
        """
