"""The options of a guard, and the error that it raises."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search.errors import BitfrontError, ConfigError

FAST, SAFE = "fast", "safe"  # names of the two engines
AGREEMENT = 0.9
COSINE = 0.99


class GuardError(BitfrontError):
    """A request that neither engine could answer, or engines and files that a guard cannot use."""


@dataclass(frozen=True)
class GuardOptions:
    """How many requests are compared, and when the guard switches engines.

    Attributes:
        share: the share of the requests whose answers are compared with those of the other engine, 0 to 1.
        window: the number of compared samples that are judged together.
        windows: the number of windows in a row below the threshold after which the safe engine takes over.
        threshold: the least mean agreement of a window; None for 0.9 if outputs are classes, else a cosine of 0.99.
        classes: whether outputs are scores of classes along their last axis; None to find out from the first outputs.
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
    classes: bool | None = None
    probe_after_s: float = 60.0
    good_windows: int = 2
    compensate: int = 0
    queue: int = 64
    policy_every_s: float = 1.0

    def __post_init__(self) -> None:
        _check("share", self.share, 0, 1)
        _check("threshold", 0.5 if self.threshold is None else self.threshold, -1, 1)
        _check("probe_after_s", self.probe_after_s, 0, math.inf)
        _check("policy_every_s", self.policy_every_s, 0, math.inf)
        for name in ("window", "windows", "good_windows", "queue"):
            _check(name, getattr(self, name), 1, math.inf)
        _check("compensate", self.compensate, 0, math.inf)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ConfigError(f"making a guard: expected {name} from {least:g} to {most:g}, got {value!r}.")
