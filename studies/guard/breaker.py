"""The circuit breaker as pure functions of its state: no clock, no thread, no file."""

from __future__ import annotations

from dataclasses import replace

from studies.guard.options import GuardOptions
from studies.guard.state import Breaker, BreakerState

_MOST_DOUBLINGS = 4
_LONGEST_REST = 2**_MOST_DOUBLINGS
_ROUNDING = 1e-9  # of a mean: fifty agreements of 0.9 sum to less than 45


def add_sample(breaker: Breaker, agreement: float, threshold: float, options: GuardOptions, now: float) -> Breaker:
    """The breaker after one more compared sample.

    Args:
        agreement: of the two engines on it, 1 for equal.
        threshold: least mean of a window.
        now: time of the clock in seconds.
    """
    filled = replace(breaker, samples=breaker.samples + 1, agreement=breaker.agreement + agreement)
    if filled.samples < options.window:
        return filled
    mean = filled.agreement / filled.samples
    fresh = replace(filled, samples=0, agreement=0.0)
    if breaker.state is BreakerState.CLOSED:
        return _judge_serving(fresh, mean, threshold, options, now)
    if breaker.state is BreakerState.HALF_OPEN:
        if mean < return_threshold(threshold) - _ROUNDING:
            return leave(fresh, f"tried again, the fast engine agreed {mean:.3g} in a window", options, now)
        good = replace(fresh, good=fresh.good + 1)
        if good.good < options.good_windows:
            return good
        return replace(good, state=BreakerState.CLOSED, good=0, bad=0)
    return fresh


def _judge_serving(breaker: Breaker, mean: float, threshold: float, options: GuardOptions, now: float) -> Breaker:
    if mean >= threshold - _ROUNDING:
        return replace(breaker, bad=0, trials=0)
    bad = replace(breaker, bad=breaker.bad + 1)
    if bad.bad < options.windows:
        return bad
    why = f"{options.windows} windows of {options.window} samples in a row agreed less than {threshold:g}"
    return leave(bad, f"{why}; the last one {mean:.3g}", options, now)


def return_threshold(threshold: float) -> float:
    """Least mean of a window to come back: higher than the one to leave, so that the guard does not go to and fro."""
    return threshold + (1 - threshold) / 4


def leave(breaker: Breaker, reason: str, options: GuardOptions, now: float) -> Breaker:
    """Leave the fast engine for a while: longer each time, until it has served well again.

    Of many requests that fail at once the first one leaves it; the others change nothing.
    """
    if breaker.state is BreakerState.OPEN:
        return breaker
    rest = options.probe_after_s * 2 ** min(breaker.trials, _MOST_DOUBLINGS)
    return Breaker(BreakerState.OPEN, probe_at=now + rest, trials=breaker.trials + 1, reason=reason)


def at(breaker: Breaker, options: GuardOptions, now: float) -> Breaker:
    """The breaker at a time: open, it becomes half open when it has rested.

    A clock that was set back does not prolong the rest beyond the longest one.
    """
    if breaker.state is not BreakerState.OPEN:
        return breaker
    longest = options.probe_after_s * _LONGEST_REST
    if now < breaker.probe_at <= now + longest:
        return breaker
    return replace(breaker, state=BreakerState.HALF_OPEN, samples=0, agreement=0.0, good=0)


def describe(breaker: Breaker) -> str:
    """What a breaker that has just changed its state means, in a sentence."""
    if breaker.state is BreakerState.OPEN:
        return f"the safe engine answers all requests now: {breaker.reason}"
    if breaker.state is BreakerState.HALF_OPEN:
        return "the fast engine is tried again on a share of the requests; the safe one answers"
    return "the fast engine answers again"
