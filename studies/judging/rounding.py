"""Measured numbers as texts, with the digits that their uncertainty allows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeGuard

from search.values import LossEstimate
from studies.options.limits import MetricScale

_USUAL_DIGITS = 3
_EXACT_DIGITS = 4  # of a value whose loss is exactly zero, as that of FP32 with most metrics
_MOST_DECIMALS = 9
_ROUNDING = 1e-6  # of the last digit that is shown: no more than this above it is the same


def estimate_text(
    value: float | None, low: float | None, high: float | None, metric: MetricScale, *, missing: str = ""
) -> str:
    """A loss with half of its interval: `0.08 ± 0.15 %`; both end in the same digit.

    Args:
        value, low, high: the loss and the ends of its interval in the metric's unit, ratios as shares of one. Without
            an interval the loss has three significant digits.
        missing: the text for a loss that is not known.
    """
    if not _finite(value):
        return missing
    half = half_width(low, high)
    decimals = decimals_of(half * _factor(metric))
    if decimals is None:
        return metric.text(value, _USUAL_DIGITS)
    return f"{_scale_text(value, decimals, metric)} ± {_scale_text(half, decimals, metric)} {_unit(metric)}".rstrip()


def scores_text(
    value: float | None, loss: float | None, low: float | None, high: float | None, metric: MetricScale
) -> str:
    """The metric with its loss: `top1 95.9 %, loss 0.08 ± 0.15 %`, or `sqnr 42.0 ± 1.3 dB`.

    Of a metric that compares with FP32 the loss says nothing more than its value.

    Args:
        low, high: the ends of the loss's interval.
    """
    half = half_width(low, high)
    if not metric.relative:
        return f"{metric.name} {value_text(value, half, metric)}, loss {estimate_text(loss, low, high, metric)}"
    low, high = (None, None) if value is None else (value - half, value + half)
    return f"{metric.name} {estimate_text(value, low, high, metric)}"


def score_name(metric: MetricScale) -> str:
    """What a table calls what `shown_score` gives."""
    return metric.name if metric.relative else "loss"


def score_verb(metric: MetricScale) -> str:
    """What an engine does with what `shown_score` gives: it `loses` 1 %, or `has sqnr` 42 dB."""
    return f"has {metric.name}" if metric.relative else "loses"


def shown_score(estimate: LossEstimate | None, metric: MetricScale) -> tuple[float | None, float | None, float | None]:
    """A loss and its interval; of a metric that compares with FP32 the value itself and its interval."""
    if estimate is None or not metric.relative:
        return (None, None, None) if estimate is None else (estimate.loss, estimate.low, estimate.high)
    if estimate.value is None:
        return None, None, None
    below, above = estimate.loss - estimate.low, estimate.high - estimate.loss
    if metric.higher_is_better:
        below, above = above, below
    return estimate.value, estimate.value - below, estimate.value + above


def shown_score_text(estimate: LossEstimate | None, metric: MetricScale, *, missing: str = "") -> str:
    """`shown_score` with half of its interval."""
    value, low, high = shown_score(estimate, metric)
    return estimate_text(value, low, high, metric, missing=missing)


def bounded_text(value: float | None, bound: float | None, metric: MetricScale) -> str:
    """A loss with what it is at most: `0.2 %, ≤ 0.9 %`. The bound is rounded up, so that it promises no more.

    Or a value with what it is at worst: `42.5 dB, ≥ 41.0 dB`.

    Args:
        value, bound: in the metric's unit, ratios as shares of one. Without a bound, of which there is none of too few
            samples, that is said; without a value the text is empty.
    """
    if not _finite(value):
        return ""
    if not _finite(bound):
        return f"{metric.text(value, _USUAL_DIGITS)}, too few samples for a bound"
    decimals = decimals_of(abs(bound - value) * _factor(metric))
    if decimals is None:
        return metric.text(value, _USUAL_DIGITS)
    return f"{_scale_text(value, decimals, metric)} {_unit(metric)}".rstrip() + f", {worst_text(value, bound, metric)}"


def worst_text(value: float, worst: float, metric: MetricScale) -> str:
    """What a value is at most, or at least where that is below it: `≤ 0.9 %`; rounded away from the value."""
    scaled, above = worst * _factor(metric), worst >= value
    decimals = decimals_of(abs(worst - value) * _factor(metric)) or 0
    shown = math.ceil(scaled * 10**decimals - _ROUNDING) if above else math.floor(scaled * 10**decimals + _ROUNDING)
    return f"{'≤' if above else '≥'} {format_fixed(shown / 10**decimals, decimals)} {_unit(metric)}".rstrip()


def interval_text(low: float, high: float, metric: MetricScale) -> str:
    """Both ends of an interval: `12.6 … 14.3 %`, with the digits that `estimate_text` shows of it.

    One value where both ends are the same.
    """
    decimals = decimals_of(half_width(low, high) * _factor(metric))
    if decimals is None:
        return metric.text(low, _USUAL_DIGITS)
    return f"{_scale_text(low, decimals, metric)} … {_scale_text(high, decimals, metric)} {_unit(metric)}".rstrip()


def value_text(value: float | None, half: float, metric: MetricScale, *, missing: str = "") -> str:
    """A value of the metric: `95.9 %`; it ends in the same digit as the interval of its loss.

    Args:
        half: half of the interval of its loss; NaN if that is not known: then three significant digits; zero
            if the loss is exact: then four.
        missing: the text for a value that is not known.
    """
    if not _finite(value):
        return missing
    decimals = decimals_of(half * _factor(metric))
    if decimals is None:
        return metric.text(value, _EXACT_DIGITS if half == 0 else _USUAL_DIGITS)
    return f"{_scale_text(value, decimals, metric)} {_unit(metric)}".rstrip()


def least_half(halves: Iterable[float]) -> float:
    """The smallest half of an interval among those of a table, by which a value without an interval of its own is
    rounded: the loss of FP32 is exactly zero with most metrics, but its value stands beside theirs.

    Zero if none is known.
    """
    return min((half for half in halves if math.isfinite(half) and half > 0), default=0.0)


def rate_text(samples_per_s: float | None, *, missing: str = "") -> str:
    """Samples a second with three digits: `83,200`."""
    if not _finite(samples_per_s) or samples_per_s <= 0:
        return missing
    return f"{float(f'{samples_per_s:.3g}'):,.10g}"


def latency_text(latency_ms: float | None, band: float = 0.0, *, missing: str = "") -> str:
    """A latency with the digits that two measurements of it share, two at least: `0.83 ms`.

    Args:
        band: the share by which two latencies may differ and still count as equal; 0 if it is not known: then three
            significant digits.
        missing: the text for a latency that is not known.
    """
    if not _finite(latency_ms) or latency_ms <= 0:
        return missing
    exponent = math.floor(math.log10(latency_ms))
    decimals = (
        max(-math.floor(math.log10(latency_ms * band)), 1 - exponent) if band > 0 else _USUAL_DIGITS - 1 - exponent
    )
    return f"{format_fixed(latency_ms, max(0, min(_MOST_DECIMALS, decimals)))} ms"


def speedup_text(speedup: float | None, *, doubtful: bool = False) -> str:
    """How many times as fast as FP32: `2.65`, or `≈ 2.6?` from a doubtful latency; empty if that is not known."""
    if not _finite(speedup):
        return ""
    return f"≈ {speedup:.2g}?" if doubtful else f"{speedup:.2f}"


def half_width(low: float | None, high: float | None) -> float:
    """Half of an interval; NaN if an end of it is not known."""
    return (high - low) / 2 if _finite(low) and _finite(high) else math.nan


def decimals_of(half: float) -> int | None:
    """The decimals that show an uncertainty: two digits of it where it begins with 1 or 2, otherwise one.

    None if there is no uncertainty: half is 0, negative or not finite.
    """
    if not math.isfinite(half) or half <= 0:
        return None
    exponent = math.floor(math.log10(half))
    digits = 2 if half / 10**exponent < 2.95 else 1
    return max(0, min(_MOST_DECIMALS, digits - 1 - exponent))


def format_fixed(value: float, decimals: int) -> str:
    """A number with so many decimals; zero has no sign."""
    text = f"{value:.{decimals}f}"
    return text if float(text) else text.removeprefix("-")


def _scale_text(value: float, decimals: int, metric: MetricScale) -> str:
    return format_fixed(value * _factor(metric), decimals)


def _factor(metric: MetricScale) -> float:
    return 100.0 if metric.ratio else 1.0


def _unit(metric: MetricScale) -> str:
    return "%" if metric.ratio else metric.unit


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
