"""Adding the mean error of the last compared samples to the fast engine's outputs."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.forks import renew_in_children
from studies.guard.agreement import Arrays, is_float


class Compensation:
    """A running mean of safe − fast, per element of each float output. Any thread may call it.

    It helps where the error of a stream of requests varies slowly, as from frame to frame of a video; where samples
    have nothing to do with each other it adds noise.

    Args:
        samples: that the mean is taken over.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """A child begins with no errors."""
        self._lock = Lock()
        self._errors: dict[str, deque[NDArray[Any]]] = {}
        self._mean: dict[str, NDArray[Any]] = {}

    def add(self, fast: Arrays, safe: Arrays) -> None:
        """Take one more compared sample into account; an output of another shape than before begins again."""
        error = {n: safe[n] - fast[n] for n in safe if is_float(safe[n]) and safe[n].shape == fast[n].shape}
        if not all(np.isfinite(array).all() for array in error.values()):
            return
        with self._lock:
            for name, array in error.items():
                known = self._errors.setdefault(name, deque(maxlen=self._samples))
                if known and known[-1].shape != array.shape:
                    known.clear()
                known.append(array)
            means = {name: np.mean(self._errors[name], axis=0, dtype=array.dtype) for name, array in error.items()}
            self._mean = {**self._mean, **means}

    def forget(self) -> None:
        """Begin again: what the fast engine did wrong before it was left says nothing of it afterwards."""
        with self._lock:
            self._errors, self._mean = {}, {}

    def apply(self, outputs: Arrays) -> dict[str, NDArray[Any]]:
        """Outputs with the mean error added, where it has their shape."""
        mean = self._mean
        return {n: a + mean[n] if n in mean and mean[n].shape == a.shape else a for n, a in outputs.items()}
