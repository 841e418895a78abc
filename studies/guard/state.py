"""The state of a guard: its circuit breaker, and counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from threading import Lock
from typing import Any

from evaluators.forks import renew_in_children


class BreakerState(Enum):
    """The state of the breaker, which decides the engine: the fast one while closed, otherwise the safe one."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


_COUNTS = ("samples", "bad", "good", "trials")
_MOST_COUNT = 10**9
_LATEST_S = 10**11  # of a clock, in the year 5138


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
        for name in _COUNTS:
            _check_number(name, data[name], int, _MOST_COUNT)
        _check_number("agreement", data["agreement"], (int, float), data["samples"] + 1e-3)
        _check_number("probe_at", data["probe_at"], (int, float), _LATEST_S)
        if not isinstance(data["reason"], str):
            raise TypeError(f"reason is {data['reason']!r:.40}")
        return cls(**{**data, "state": BreakerState(data["state"])})


def _check_number(name: str, value: Any, kinds: type[int] | tuple[type[int], type[float]], most: float) -> None:
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r:.40}")
    if not 0 <= value <= most:  # NaN is not either
        raise ValueError(f"{name} is {value!r:.40}, expected a number from 0 to {most:.12g}")


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


class RequestCounts:
    """How many requests were answered, samples compared, and samples left out. No number ever falls.

    A lock costs a tenth of a microsecond. Without one a thread that is stopped between reading and writing would set a
    number back, and Prometheus takes a counter that falls for one that was restarted.
    """

    def __init__(self) -> None:
        self.renew_after_fork()
        renew_in_children(self)

    def renew_after_fork(self) -> None:
        """A child counts its own."""
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
