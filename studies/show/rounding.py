"""Numbers with the digits that their uncertainty allows, and none more."""

from __future__ import annotations

import math
from typing import TypeGuard

from studies.options.limits import MetricScale

_USUAL_DIGITS = 3
_MOST_DECIMALS = 9


def estimate_text(value: float | None, low: float | None, high: float | None, metric: MetricScale) -> str:
    """`0.08 ± 0.15 %`: a loss with half of its interval, both to the interval's second digit.

    A dash where there is no value; without an interval, three significant digits.
    """
    if not _finite(value):
        return "–"
    half = (high - low) / 2 if _finite(low) and _finite(high) else math.nan
    factor = 100 if metric.ratio else 1
    decimals = decimals_of(half * factor, 2)
    if decimals is None:
        return metric.text(value, _USUAL_DIGITS)
    unit = "%" if metric.ratio else metric.unit
    return f"{fixed(value * factor, decimals)} ± {fixed(half * factor, decimals)} {unit}".rstrip()


def value_text(value: float | None, half: float, metric: MetricScale) -> str:
    """`95.9 %`: a metric to the first digit of its interval; of percentages one decimal at most.

    Args:
        half: half of the interval of its loss; NaN where that is not known.
    """
    if not _finite(value):
        return "–"
    factor = 100 if metric.ratio else 1
    decimals = decimals_of(half * factor, 1)
    if decimals is None:
        return metric.text(value, _USUAL_DIGITS)
    unit = "%" if metric.ratio else metric.unit
    return f"{fixed(value * factor, min(decimals, 1) if metric.ratio else decimals)} {unit}".rstrip()


def latency_text(value_ms: float | None) -> str:
    """`0.942 ms`: three significant digits, as latencies repeat within a percent at best; a dash without a value."""
    if not _finite(value_ms):
        return "–"
    decimals = decimals_of(value_ms, _USUAL_DIGITS)
    return f"{fixed(value_ms, decimals or 0)} ms"


def decimals_of(half: float, digits: int) -> int | None:
    """How many decimals show so many significant digits of a positive number; None of others."""
    if not math.isfinite(half) or half <= 0:
        return None
    return min(_MOST_DECIMALS, max(0, digits - 1 - math.floor(math.log10(half))))


def fixed(value: float, decimals: int) -> str:
    """A number with so many decimals; zero has no sign."""
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if not float(text) else text


def _finite(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
