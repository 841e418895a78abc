"""The sentence about targets on which no mix is measurably faster than FP32."""

from __future__ import annotations

import numpy as np

from search.values import REFERENCE
from studies.judging.standing import Standing


def no_gain_text(now: Standing) -> str:
    """That no mix which keeps the limits is faster than uniform FP32 by more than the tie band.

    Returns:
        The sentence without its full stop; empty where a mix is faster, where FP32 was not measured or does not keep
        the limits, and where nothing else was measured.
    """
    base = now.measures.row_of(REFERENCE.role)
    feasible = now.judgement.feasible
    others = np.flatnonzero(feasible & (now.table.role != REFERENCE.role))
    if base is None or not feasible[base] or not len(others):
        return ""
    least = float(now.measures.latency_ms[others].min())
    if least * (1 + now.target.band) < now.measures.latency_ms[base]:
        return ""
    which = "No mix that keeps the limits" if now.limits else "No mix"
    return (
        f"{which} is measurably faster than FP32 here (tie band {100 * now.target.band:.2g} %); you can stay with FP32"
    )
