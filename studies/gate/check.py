"""The limits of a gate, and one check of it: the estimate, its bounds, the limit, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from evaluators.measure.intervals import student_point
from search.errors import ConfigError
from studies.options.quantities import Amount

LEVEL = 0.01
"""Probability of a wrong verdict, over all checks of one gate together."""
_POWER_LEVEL = 0.07  # a difference is called detectable where it is missed so often; with room to the one in ten


class GateVerdict(Enum):
    """What a check says, or a gate as a whole."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class GateCheck:
    """One check with its verdict.

    Attributes:
        name: `loss` or `latency`.
        verdict: holds where the upper bound is within the limit, fails where the lower bound is beyond it.
        limit: the most that is allowed: a drop in the unit of the metric, or a slowdown relative to the baseline.
        estimate, low, high: of the same; None if nothing could be measured.
        level: error probability of each of the two bounds, of which only one can mislead.
        smallest: what would be found to exceed the limit in nine of ten cases; None if that cannot be told.
        test: how the bounds were found, in words.
        units: how many samples, clusters, batches or processes they come from.
        reason: why the verdict is what it is, one sentence.
        details: further numbers, by name, as JSON values.
    """

    name: str
    verdict: GateVerdict
    limit: float
    estimate: float | None
    low: float | None
    high: float | None
    level: float
    smallest: float | None
    test: str
    units: str
    reason: str
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "limit": self.limit,
            "estimate": self.estimate,
            "low": self.low,
            "high": self.high,
            "level": self.level,
            "smallest_detectable": self.smallest,
            "test": self.test,
            "units": self.units,
            "reason": self.reason,
            **self.details,
        }


def divide_level(checks: int) -> float:
    """The level of each bound of each check, so that all of them together hold `LEVEL` (Bonferroni).

    A check has two bounds, but its true value lies on one side of the limit, so only one of them can mislead.
    """
    return LEVEL / max(1, checks)


def combine_verdicts(checks: Sequence[GateCheck]) -> GateVerdict:
    """Fails where one check fails; holds where all hold; else it was not judged."""
    verdicts = {check.verdict for check in checks}
    if GateVerdict.FAILS in verdicts:
        return GateVerdict.FAILS
    return GateVerdict.HOLDS if verdicts == {GateVerdict.HOLDS} else GateVerdict.NOT_JUDGED


def one_sided_point(level: float, freedom: int) -> float:
    """The point of Student's t that leaves `level` above it."""
    from scipy.special import ndtri

    return student_point(float(ndtri(1 - level)), freedom)


def detectable_excess(error: float, freedom: int, level: float) -> float:
    """How far beyond a limit a true mean is found to be so in nine of ten cases, by a one-sided t test.

    Args:
        error: standard error of the mean, estimated with `freedom` degrees of freedom; an upper bound of it, which
            holds in more than nine of ten cases, is what is reckoned with.
    """
    from scipy.special import chdtri

    widening = math.sqrt(freedom / float(chdtri(freedom, 1 - _POWER_LEVEL)))
    return (one_sided_point(level, freedom) + one_sided_point(_POWER_LEVEL, freedom)) * error * widening


LEAST_PROCESSES = 3
PROCESSES = 6  # in which all orders of three engines come once


@dataclass(frozen=True)
class GateLimits:
    """What a candidate may be worse by; None if it is not asked.

    Attributes:
        max_drop: most loss against the baseline, in the unit of the metric: 0.01 of a share.
        max_slowdown: most slowdown against the baseline, relative: 0.03.
        processes: in which latencies are measured.
    """

    max_drop: float | Amount | None = None
    max_slowdown: float | None = None
    processes: int = PROCESSES

    @property
    def checks(self) -> int:
        """How many checks there are."""
        return sum(limit is not None for limit in (self.max_drop, self.max_slowdown))


def check_limits(limits: GateLimits) -> None:
    """Refuse a gate that would check nothing, or latency in too few processes.

    Raises:
        ConfigError: naming what is missing.
    """
    if not limits.checks:
        raise ConfigError(
            "gating: expected --max-drop, --max-slowdown or both, got neither. Say how much worse the candidate may "
            "be, for example --max-drop 1% --max-slowdown 3%."
        )
    if limits.processes < LEAST_PROCESSES:
        raise ConfigError(
            f"--processes {limits.processes}: expected at least {LEAST_PROCESSES}, so that they show how far processes "
            "differ."
        )
