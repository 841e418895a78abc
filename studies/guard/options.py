"""The options of a guard, and the error that it raises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from search.errors import BitfrontError, ConfigError

FAST, SAFE = "fast", "safe"  # names of the two engines
CLASSES, BOXES, VALUES = "classes", "boxes", "values"  # what outputs are
# Least mean agreement of a window where the user names none. A relative error of 0.15 is a ratio of signal to noise of
# 16.5 dB; where errors are mere noise it is a cosine of 0.989.
THRESHOLDS = {CLASSES: 0.9, BOXES: 0.75, VALUES: 0.85}

Decoder = Callable[[Mapping[str, NDArray[Any]], int], Sequence[NDArray[Any]]]


class GuardError(BitfrontError):
    """A request that neither engine could answer, or engines and files that a guard cannot use."""


@dataclass(frozen=True)
class GuardOptions:
    """How many requests are compared, and when the guard switches engines.

    Attributes:
        share: the share of the requests whose answers are compared with those of the other engine, 0 to 1.
        window: the number of compared samples that are judged together.
        windows: the number of windows in a row below the threshold after which the safe engine takes over.
        threshold: the least mean agreement of a window, 0 to 1; None for 0.9 if outputs are classes, 0.75 if they are
            boxes, else 0.85, which is a relative error of 0.15.
        outputs: what outputs are: `classes`, scores along their last axis; `boxes`; or `values`, whose scale and offset
            count; None to find out from the first outputs.
        decode: a function that makes boxes of outputs, where these are not boxes (n, k, 6) already. It takes the
            outputs by name and the number n of samples, and returns n arrays (k, 6) of x1, y1, x2, y2, score, class.
        probe_after_s: the seconds before the fast engine is tried again. They double with every failed trial, up to
            sixteen times as many.
        good_windows: the number of good windows in a row after which the fast engine answers again. A window is good
            above the threshold plus a quarter of the distance from there to 1.
        compensate: the number of last compared samples whose mean error is added to the fast engine's outputs; 0 for
            none.
        queue: the number of samples that may wait for comparison; further ones are left out and counted.
        policy_every_s: the seconds between two calls of the sensor and the policy.
    """

    share: float = 0.01
    window: int = 50
    windows: int = 5
    threshold: float | None = None
    outputs: str | None = None
    decode: Decoder | None = None
    probe_after_s: float = 60.0
    good_windows: int = 2
    compensate: int = 0
    queue: int = 64
    policy_every_s: float = 1.0

    def __post_init__(self) -> None:
        _check("share", self.share, 0, 1)
        _check("threshold", 0.5 if self.threshold is None else self.threshold, 0, 1)
        if self.outputs not in (None, *THRESHOLDS):
            raise ConfigError(
                f"making a guard: expected outputs to be one of {', '.join(THRESHOLDS)}, got {self.outputs!r}."
            )
        if self.decode is not None and self.outputs not in (None, BOXES):
            raise ConfigError(f"making a guard: decode makes boxes, but outputs are said to be {self.outputs}.")
        _check("probe_after_s", self.probe_after_s, 0, math.inf)
        _check("policy_every_s", self.policy_every_s, 0, math.inf)
        for name in ("window", "windows", "good_windows", "queue"):
            _check(name, getattr(self, name), 1, math.inf)
        _check("compensate", self.compensate, 0, math.inf)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"making a guard: expected {name} from {least:g} to {most:g}, got {value!r}.")
