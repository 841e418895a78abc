"""The engine that answers when no other may: what fails in it is an error or is told, never silence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from studies.guard.agreement import all_finite
from studies.guard.engines import Arrays, Run
from studies.guard.options import GuardError
from studies.guard.reports import TroubleReports

_SOURCE = "safe engine"


class SafeEngine:
    """The safe engine of a guard. Any thread may call `answer`.

    Args:
        run: from inputs by name to outputs by name.
        troubles: told if outputs hold NaN or Inf.
    """

    def __init__(self, run: Run, troubles: TroubleReports) -> None:
        self._run, self._troubles = run, troubles

    def answer(self, inputs: Mapping[str, NDArray[Any]], why: str) -> Arrays:
        """Outputs by name.

        Args:
            why: this engine is asked, for messages: `the fast engine raised RuntimeError: no memory`.

        Raises:
            GuardError: the engine raised an error.
        """
        try:
            outputs = self._run(inputs)
        except Exception as error:
            raise GuardError(
                f"answering a request: {why}; the safe engine raised {type(error).__name__}: {error}. No engine can "
                "answer this request. Check its inputs, then the device."
            ) from error
        if all_finite(outputs):
            self._troubles.settle(_SOURCE)
        else:
            self._troubles.report(
                _SOURCE,
                "the safe engine gave NaN or Inf, and this answer is returned as it is. If the inputs of the request "
                "were finite, the safe engine is broken too.",
            )
        return outputs
