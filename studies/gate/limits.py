"""How much worse a candidate may be, and in how many processes its latency is measured."""

from __future__ import annotations

from dataclasses import dataclass

from search.errors import ConfigError
from studies.options.quantities import Amount

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
