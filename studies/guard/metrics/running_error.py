"""The distance of values from a reference, as noise over power of the last samples."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray


class RunningError:
    """Squared differences over squares of the reference, summed over the last samples, by name.

    Args:
        samples: that are summed.
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._sums: dict[str, deque[tuple[float, float]]] = {}

    def add(self, name: str, values: NDArray[Any], reference: NDArray[Any]) -> None:
        """Take one more sample into account; values of another shape, or that are no numbers, are infinitely far."""
        self._sums.setdefault(name, deque(maxlen=self._samples)).append(_squares(values, reference))

    def errors(self) -> dict[str, float]:
        """Name → noise over power, at least 0; infinite if there is noise without power, or it is not finite."""
        return {name: _ratio(list(sums)) for name, sums in list(self._sums.items())}


def _squares(values: NDArray[Any], reference: NDArray[Any]) -> tuple[float, float]:
    if values.shape != reference.shape:
        return math.inf, 0.0
    exact = reference.ravel().astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        difference = values.ravel().astype(np.float64) - exact
        noise, power = float(difference @ difference), float(exact @ exact)
    return noise if math.isfinite(noise) else math.inf, power


def _ratio(sums: list[tuple[float, float]]) -> float:
    noise, power = (sum(part) for part in zip(*sums, strict=True))
    if noise == 0:
        return 0.0
    return noise / power if power > 0 and math.isfinite(noise) else math.inf
