"""Adding the mean error of the last compared samples to the fast engine's outputs."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.guard.agreement import Arrays


class Compensation:
    """A running mean of safe − fast, per element of each float output.

    It helps where the error of a stream of requests varies slowly, as from frame to frame of a video; where samples
    have nothing to do with each other it adds noise.

    Args:
        samples: that the mean is taken over.
    """

    def __init__(self, samples: int) -> None:
        self._errors: deque[dict[str, NDArray[Any]]] = deque(maxlen=samples)
        self._mean: dict[str, NDArray[Any]] = {}

    def add(self, fast: Arrays, safe: Arrays) -> None:
        """Take one more compared sample into account; one of another shape than those before begins again."""
        error = {n: safe[n] - fast[n] for n in safe if safe[n].dtype.kind == "f" and safe[n].shape == fast[n].shape}
        if not all(np.isfinite(array).all() for array in error.values()):
            return
        if self._errors and any(error[n].shape != array.shape for n, array in self._errors[-1].items() if n in error):
            self._errors.clear()
        self._errors.append(error)
        self._mean = {n: np.mean([each[n] for each in self._errors], axis=0, dtype=error[n].dtype) for n in error}

    def apply(self, outputs: Arrays) -> dict[str, NDArray[Any]]:
        """Outputs with the mean error added, where it has their shape."""
        mean = self._mean
        return {n: a + mean[n] if n in mean and mean[n].shape == a.shape else a for n, a in outputs.items()}
