"""Judging whether a candidate is slower than allowed, from times measured in turn with two copies of the baseline.

Inferences of one process are alike, and processes differ: where an engine lies in memory, which core it got. So every
process counts once, by the logarithm of how many times the baseline's latency the candidate takes in it, and the
interval is that of Student's t over processes. How far equal engines differ is measured in the same processes, by the
second copy of the baseline, and the interval is widened by that: the tie band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.gate.check import LEAST_PROCESSES, GateCheck, GateVerdict, detectable_excess, one_sided_point
from studies.gate.loss import judge_bounds
from studies.options.quantities import format_percent

Floats = NDArray[np.float64]

LEAST_BAND = 0.01  # no two engines are told apart by less


@dataclass(frozen=True)
class ProcessTimes:
    """What three engines took in one process, run in turn: the target's statistic of each, in milliseconds."""

    candidate_ms: float
    baseline_ms: float
    copy_ms: float

    @property
    def log_slowdown(self) -> float:
        """The logarithm of how many times the baseline's latency the candidate takes."""
        return math.log(self.candidate_ms) - (math.log(self.baseline_ms) + math.log(self.copy_ms)) / 2

    @property
    def tie(self) -> float:
        """The logarithm of the ratio between the latencies of the baseline and its copy, which are equal engines."""
        return math.log(self.copy_ms) - math.log(self.baseline_ms)


def judge_latency(times: Sequence[ProcessTimes], limit: float, level: float, known_band: float = 0.0) -> GateCheck:
    """Hold the slowdown of a candidate to a limit.

    Args:
        times: of each process, at least three.
        limit: the most slowdown that is allowed, relative: 0.03.
        level: of each bound.
        known_band: the tie band that a study measured on this target, relative; 0 if there is none.

    Raises:
        ValueError: fewer than three processes.
    """
    if len(times) < LEAST_PROCESSES:
        raise ValueError(f"judging a latency: expected at least {LEAST_PROCESSES} processes, got {len(times)}")
    if any(min(each.candidate_ms, each.baseline_ms, each.copy_ms) <= 0 for each in times):
        return _not_timed(times, limit, level)
    band = max(LEAST_BAND, known_band, measure_band(times))
    slowdowns, freedom = np.array([each.log_slowdown for each in times]), len(times) - 1
    middle, error, tie = float(np.mean(slowdowns)), _standard_error(slowdowns), math.log1p(band)
    half = one_sided_point(level, freedom) * error + tie
    low, high = math.expm1(middle - half), math.expm1(middle + half)
    verdict = judge_bounds(low, high, limit)
    return GateCheck(
        "latency",
        verdict,
        limit,
        math.expm1(middle),
        low,
        high,
        level,
        math.expm1(math.log1p(limit) + tie + detectable_excess(error, freedom, level)),
        "t test over processes, widened by the tie band",
        f"{len(times)} processes",
        _reason(verdict, (low, high), limit, band),
        _details(times, band),
    )


def measure_band(times: Sequence[ProcessTimes]) -> float:
    """How far two equal engines are apart over these processes, relative.

    What differs from process to process is in the interval already; this is what they have in common.
    """
    return math.expm1(abs(float(np.mean([each.tie for each in times]))))


def _not_timed(times: Sequence[ProcessTimes], limit: float, level: float) -> GateCheck:
    units, reason = (
        f"{len(times)} processes",
        "an inference is too short for the clock of this machine; give a larger --batch",
    )
    return GateCheck("latency", GateVerdict.NOT_JUDGED, limit, None, None, None, level, None, "none", units, reason)


def _details(times: Sequence[ProcessTimes], band: float) -> dict[str, Any]:
    return {
        "tie_band": band,
        "candidate_ms": float(np.median([each.candidate_ms for each in times])),
        "baseline_ms": float(np.median([[each.baseline_ms, each.copy_ms] for each in times])),
        "ratios": [math.exp(each.log_slowdown) for each in times],
        "tie_ratios": [math.exp(each.tie) for each in times],
    }


def _standard_error(values: Floats) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _reason(verdict: GateVerdict, bounds: tuple[float, float], limit: float, band: float) -> str:
    low, high = (format_percent(bound) for bound in bounds)
    allowed, tie = format_percent(limit), format_percent(band)
    if verdict is GateVerdict.FAILS:
        return f"the candidate is at least {low} slower, more than the {allowed} that are allowed"
    if verdict is GateVerdict.HOLDS and bounds[1] < 0:
        return f"the candidate is at least {format_percent(-bounds[1])} faster, and {allowed} slower are allowed"
    if verdict is GateVerdict.HOLDS:
        return f"the candidate is at most {high} slower, within the {allowed} that are allowed"
    interval = f"the slowdown lies between {low} and {high}, and {allowed} are allowed, with a tie band of {tie}"
    if limit < band:
        return f"{interval}. Even an engine as fast as the baseline cannot keep a limit below the tie band; allow more"
    return f"{interval}. More --processes or an idle machine would give a narrower interval"
