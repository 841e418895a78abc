"""Measured numbers with as many digits as they deserve."""

from __future__ import annotations

import math

from studies.options.limits import MetricScale
from studies.options.quantities import format_ms

_SMALLEST_DECIMALS = 9


def estimate_text(value: float, half: float, metric: MetricScale) -> str:
    """A loss with half of its interval: `0.08 ± 0.15 %`; the interval has at most two digits, and the loss no more.

    Args:
        value, half: in the metric's unit, ratios as shares of one.
    """
    if not math.isfinite(value):
        return ""
    if not (math.isfinite(half) and half > 0):
        return metric.text(value, 3)
    scale, unit = (100.0, " %") if metric.ratio else (1.0, f" {metric.unit}".rstrip())
    decimals = decimals_of(half * scale)
    return f"{_fixed(value * scale, decimals)} ± {half * scale:.{decimals}f}{unit}"


def value_text(value: float, half: float, metric: MetricScale) -> str:
    """A value of the metric with the digits that its interval allows: `95.9 %`."""
    if not math.isfinite(value):
        return ""
    if not (math.isfinite(half) and half > 0):
        return metric.text(value, 3)
    scale, unit = (100.0, " %") if metric.ratio else (1.0, f" {metric.unit}".rstrip())
    return f"{_fixed(value * scale, decimals_of(half * scale))}{unit}"


def latency_text(latency_ms: float, band: float) -> str:
    """A latency with the digits that two measurements of it share, two at least: `0.83 ms`.

    Args:
        band: the share by which two latencies may differ and count as equal.
    """
    if not (math.isfinite(latency_ms) and latency_ms > 0):
        return ""
    if not band > 0:
        return format_ms(latency_ms)
    shared, two_digits = -math.floor(math.log10(latency_ms * band)), 1 - math.floor(math.log10(latency_ms))
    decimals = max(0, min(_SMALLEST_DECIMALS, max(shared, two_digits)))
    return f"{latency_ms:.{decimals}f} ms"


def speedup_text(speedup: float | None) -> str:
    """How many times as fast as FP32: `2.65`."""
    return "" if speedup is None or not math.isfinite(speedup) else f"{speedup:.2f}"


def decimals_of(half: float) -> int:
    """Decimals that show an uncertainty: two digits where they begin with 1 or 2, else one."""
    exponent = math.floor(math.log10(half))
    digits = 2 if half / 10**exponent < 2.95 else 1
    return max(0, min(_SMALLEST_DECIMALS, digits - 1 - exponent))


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text
