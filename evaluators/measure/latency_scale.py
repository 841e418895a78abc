"""Scaling measured times by a baseline, which is measured beside the candidates again and again.

On relative targets the truth of a measurement is a ratio: what the candidate took over what the baseline took in
between. Milliseconds are that ratio times the reference, which is what the baseline usually takes. It is derived from
all measurements whenever they are read, so that one bad moment decides nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Of a baseline's time away from the reference, beyond which a measurement is doubtful. Processor time of one engine
# moved by 1.4 times with what the host's other guests did, its ratio to another engine by 4 to 12 %.
BASELINE_LIMIT = 0.5
BUSY_LIMIT = 0.05  # wall time beyond processor time, from which on the machine counts as busy
BUSY = "the machine is busy; latencies are processor time"


def reference_of(baseline_ms: ArrayLike, clean: ArrayLike) -> float | None:
    """What the baseline usually takes: the median over the clean measurements; over all where none is clean.

    Args:
        baseline_ms: (n,) what it took beside each measurement, NaN if there was no baseline.
        clean: (n,) bool, whether nothing is doubtful in that measurement.

    Returns:
        Milliseconds; None if no measurement had a baseline.
    """
    times, good = np.asarray(baseline_ms, dtype=np.float64), np.asarray(clean, dtype=bool)
    known = np.isfinite(times)
    chosen = times[known & good] if (known & good).any() else times[known]
    return _median(chosen) if len(chosen) else None


def _median(values: NDArray[np.float64]) -> float:
    """The median; numpy's own imports its masked arrays for it, and reading verbs would wait for them."""
    middle = [(len(values) - 1) // 2, len(values) // 2]
    return float(np.partition(values, middle)[middle].sum() / 2)


def scale_latencies(raw_ms: ArrayLike, baseline_ms: ArrayLike, reference_ms: float | None) -> NDArray[np.float64]:
    """Latencies in milliseconds: raw × reference ÷ baseline; as timed where there was no baseline, or no reference."""
    raw, times = np.asarray(raw_ms, dtype=np.float64), np.asarray(baseline_ms, dtype=np.float64)
    if reference_ms is None:
        return np.array(raw)
    result: NDArray[np.float64] = np.where(np.isnan(times), raw, raw * (reference_ms / times))
    return result


def off_reference(baseline_ms: ArrayLike, reference_ms: float | None) -> NDArray[np.bool_]:
    """Whether a baseline ran so far from its usual time that what was measured beside it is doubtful."""
    times = np.asarray(baseline_ms, dtype=np.float64)
    if reference_ms is None:
        return np.zeros(times.shape, dtype=bool)
    return np.asarray(np.abs(times / reference_ms - 1) > BASELINE_LIMIT)


def is_busy(raw_ms: float, wall_ms: float | None) -> bool:
    """Whether inferences took clearly longer on the wall than processor time; False where that is not known."""
    return wall_ms is not None and wall_ms > (1 + BUSY_LIMIT) * raw_ms


def share_text(share: float) -> str:
    """`9.1 %`, `11 %`, `246 %`: what is known of a share that was measured; two digits where that are enough."""
    percent = 100 * share
    return f"{percent:.0f} %" if abs(percent) >= 9.95 else f"{percent:.2g} %"


def baseline_doubt(baseline_ms: float | None, reference_ms: float | None) -> str:
    """The doubt about a baseline in words; empty if there is none."""
    if baseline_ms is None or reference_ms is None or not off_reference(baseline_ms, reference_ms):
        return ""
    off = baseline_ms / reference_ms - 1
    return f"the baseline ran {share_text(abs(off))} {'slower' if off > 0 else 'faster'} than usual"
