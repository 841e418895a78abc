"""The state of a guard: its circuit breaker, and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from threading import Lock
from typing import Any


class BreakerState(Enum):
    """The state of the breaker, which decides the engine: the fast one while closed, otherwise the safe one."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_NUMBERS = (int, float)
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("samples", "bad", "good", "trials"), int),
    **dict.fromkeys(("agreement", "probe_at"), _NUMBERS),
    "reason": str,
}  # of the values of a breaker in JSON


@dataclass(frozen=True)
class Breaker:
    """The circuit breaker, as it is stored and shared.

    Attributes:
        samples, agreement: of the window that is being filled: how many, and the sum of their agreements.
        bad, good: windows in a row below the threshold; above the one to come back.
        probe_at: time of the clock, in seconds, at which an open breaker is half open.
        trials: how often the fast engine was left since it last served for good.
        reason: why it was left.
    """

    state: BreakerState = BreakerState.CLOSED
    samples: int = 0
    agreement: float = 0.0
    bad: int = 0
    good: int = 0
    probe_at: float = 0.0
    trials: int = 0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Breaker:
        """Raises ValueError, KeyError or TypeError for what `to_json` did not give."""
        for name, kinds in _KINDS.items():
            if not isinstance(data[name], kinds) or isinstance(data[name], bool):
                raise TypeError(f"{name} is {data[name]!r}")
        return cls(**{**data, "state": BreakerState(data["state"])})


@dataclass(frozen=True)
class GuardState:
    """The state that a policy and a monitoring system receive.

    Attributes:
        breaker: state of the circuit breaker.
        reason: why the safe engine took over last; empty if it never did.
        engine: name of the engine that answers.
        requests, compared, dropped: the numbers of answered requests, of compared samples, and of samples left out
            because comparing was too slow.
        agreement: mean of the last full window; None before there was one.
        sensors: what the sensor said, for example `temperature_c`.
    """

    breaker: BreakerState
    reason: str
    engine: str
    requests: int
    compared: int
    dropped: int
    agreement: float | None
    sensors: Mapping[str, float] = field(default_factory=dict)


class Counts:
    """How many requests were answered, samples compared, and samples left out. No number ever falls.

    A lock costs a tenth of a microsecond. Without one a thread that is stopped between reading and writing would set a
    number back, and Prometheus takes a counter that falls for one that was restarted.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers = dict.fromkeys(("requests", "compared", "dropped"), 0)

    def add(self, name: str) -> None:
        """Count one more."""
        with self._lock:
            self._numbers[name] += 1

    def numbers(self) -> dict[str, int]:
        """All numbers by name."""
        with self._lock:
            return dict(self._numbers)
