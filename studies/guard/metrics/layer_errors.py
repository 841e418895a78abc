"""Errors inside a network on sampled requests: the error of each group, and the values that its ranges clip."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.values.ranges import TensorRange
from studies.guard.agreement import Arrays
from studies.guard.options import GuardError

_LEAST_REST = 20  # times as long as an emulation took: it has at most so much of the comparing thread

Run = Callable[[Arrays], Arrays]


class LayerErrors:
    """Runs the float model and the quantized one, as written in ONNX, and compares the outputs of their groups.

    It is asked beside the requests, in the thread that compares engines, and runs now and then: at most once in
    `every_s`, and at most a twentieth of the time. Both runs hold the outputs of all groups in memory.

    Args:
        exact, emulated: from inputs by name to float tensors by name, the same of both: the outputs of the groups.
        ranges: name of a tensor, of an input or of a group's output → what INT8 can represent of it.
        every_s: least seconds between two runs.
        samples: last ones that figures are means of.
        clock: in seconds, for tests.
    """

    def __init__(
        self,
        exact: Run,
        emulated: Run,
        ranges: Mapping[str, TensorRange],
        *,
        every_s: float = 10.0,
        samples: int = 16,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._exact, self._emulated, self._ranges = exact, emulated, ranges
        self._every_s, self._clock = every_s, clock
        self._next = clock()
        self._errors = RunningError(samples)
        self._outside: dict[str, deque[tuple[int, int]]] = {name: deque(maxlen=samples) for name in ranges}
        self.runs = 0

    @classmethod
    def open(cls, folder: str | Path, *, threads: int = 1, every_s: float = 10.0, samples: int = 16) -> LayerErrors:
        """The mix of an exported folder, emulated by ONNX Runtime on the processor.

        Args:
            folder: that `bitfront export` wrote; its engine may be one of TensorRT.
            threads: of both runs.
            every_s, samples: as the class takes them.

        Raises:
            GuardError: it is no such folder.
            BitfrontError: the mix cannot be run here.
        """
        from studies.guard.metrics.emulation import open_emulation  # it imports ONNX, which takes a second

        exact, emulated, ranges = open_emulation(Path(folder), threads)
        return cls(exact, emulated, ranges, every_s=every_s, samples=samples)

    def offer(self, inputs: Arrays) -> bool:
        """Run on the inputs of one request if it is time to; whether it was.

        Raises:
            BitfrontError: a model cannot run on them.
        """
        start = self._clock()
        if start < self._next:
            return False
        self._next = start + self._every_s
        self._compare(inputs)
        self._next = max(self._next, self._clock() + _LEAST_REST * (self._clock() - start))
        return True

    def _compare(self, inputs: Arrays) -> None:
        exact, emulated = self._exact(inputs), self._emulated(inputs)
        if exact.keys() != emulated.keys():
            raise GuardError("emulating the quantized model: it and the float model have other groups. Export again.")
        for name, reference in exact.items():
            self._errors.add(name, emulated[name], reference)
        tensors = {**inputs, **exact}
        for name, range_ in self._ranges.items():
            values = tensors.get(name)
            if values is not None:
                inside = np.count_nonzero((values >= range_.low) & (values <= range_.high))
                self._outside[name].append((values.size - int(inside), values.size))
        self.runs += 1

    def errors(self) -> dict[str, float]:
        """Group → noise over power of its output; empty before the first run."""
        return self._errors.errors()

    def saturation(self) -> dict[str, float]:
        """Tensor → share of its values outside the range of INT8, 0 to 1; empty before the first run."""
        shares = {}
        for name, counts in self._outside.items():
            outside, values = (sum(part) for part in zip(*list(counts), strict=True)) if counts else (0, 0)
            if values:
                shares[name] = outside / values
        return shares


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
