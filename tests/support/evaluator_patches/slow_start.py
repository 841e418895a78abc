"""A machine that is busy when a process begins: all is so many times slower in the first measurement it makes.

`BITFRONT_TEST_SLOW_START`: the factor, for candidate and baseline alike.
"""

from __future__ import annotations

import os
from typing import Any

from evaluators.measure import latency
from search.values import Latency

FACTOR = float(os.environ["BITFRONT_TEST_SLOW_START"])
measured: list[int] = []
measure_once = latency._measure_once


def once(session: Any, baseline: Any, plan: Any) -> Latency:
    measurement = measure_once(session, baseline, plan)
    measured.append(1)
    if len(measured) > 1 or measurement.baseline_ms is None:
        return measurement
    factors = {"value_ms": measurement.value_ms * FACTOR, "raw_ms": measurement.raw_ms * FACTOR}
    return latency.replace(measurement, **factors, baseline_ms=measurement.baseline_ms * FACTOR)


latency._measure_once = once
