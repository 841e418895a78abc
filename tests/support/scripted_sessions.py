"""Sessions without an engine whose inferences take what a script says, and states of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Clock:
    """A session whose inferences take what `milliseconds(i)` says of its i-th; `log` tells who ran when."""

    memory_bytes = None
    notes = ()

    def __init__(self, milliseconds: Callable[[int], float], log: list[Clock] | None = None) -> None:
        self.milliseconds = milliseconds
        self.log = [] if log is None else log
        self.done = 0
        self.calls: list[int] = []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {}

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None: ...

    def around(self) -> dict[str, float]:
        return {"enqueue": 0.25}

    def close(self) -> None: ...

    def time(self, count: int) -> NDArray[np.float64]:
        samples = np.array([self.milliseconds(self.done + i) for i in range(count)])
        self.done += count
        self.calls.append(count)
        self.log.append(self)
        return samples


def steady(milliseconds: float, log: list[Clock] | None = None) -> Clock:
    return Clock(lambda i: milliseconds, log)


def states(*values: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """A device that is in one of these states after the other."""
    return iter(values).__next__


COOL = {"sm_clock_mhz": 1980, "throttled": [], "other_processes": 0}
HOT = {"sm_clock_mhz": 1410, "throttled": ["power brake", "hardware slowdown"], "other_processes": 0}
