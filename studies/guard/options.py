"""The options of a guard, and the error that it raises."""

from __future__ import annotations

import math
from dataclasses import dataclass

from search.errors import BitfrontError, ConfigError

AGREEMENT = 0.9
COSINE = 0.99


class GuardError(BitfrontError):
    """A request that no engine could answer, or engines and files that a guard cannot work with."""


@dataclass(frozen=True)
class GuardOptions:
    """How much is compared, and when the guard changes engines.

    Attributes:
        share: of the requests whose answers are compared with the other engine's, 0 to 1.
        window: compared samples that are judged together.
        windows: in a row below the threshold, after which the fast engine is left.
        threshold: least mean agreement of a window; None for 0.9 where outputs are classes, else a cosine of 0.99.
        classes: whether outputs are scores of classes along their last axis; None to find out from the first outputs.
        probe_after_s: seconds that the fast engine rests before it is tried again. They double with every trial that
            fails, up to sixteen times as many.
        good_windows: in a row, above the threshold and a quarter of what is missing to 1, after which the fast engine
            serves again.
        compensate: how many of the last compared samples the mean error is taken over that is added to the fast
            engine's outputs; 0 for none.
        queue: compared samples that may wait; more are left out and counted.
        policy_every_s: seconds between two questions to the sensor and the policy.
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
