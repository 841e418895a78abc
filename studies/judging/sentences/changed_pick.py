"""The sentence about a pick that another evaluation took over when it was confirmed."""

from __future__ import annotations

import numpy as np

from studies.judging.points import Point
from studies.judging.rules.verdicts import Verdict
from studies.judging.standing import Standing


def other_pick_text(now: Standing, pick: str, before: Point, row: int) -> str:
    """That another evaluation is exported than the one that was the pick before it was confirmed, and why.

    Args:
        now: the study after the confirmation.
        pick: `best`, `accurate` and so on.
        before: the evaluation that was the pick, with its figures of then.
        row: the row that is the pick now.

    Returns:
        The sentence without its full stop; empty if the pick is the same.
    """
    if now.table.id[row] == before.id:
        return ""
    label = "the best" if pick == "best" else f"the pick {pick!r}"
    why = _why(now, before)
    return f"trial {before.trial} was {label} so far, but {why}; trial {now.table.trial[row]} is exported instead"


def _why(now: Standing, before: Point) -> str:
    """What was found out of the evaluation that was the pick."""
    found = now.point(int(np.flatnonzero(now.table.id == before.id)[0]))
    if now.final.unscorable[found.row]:
        return "its outputs on the final samples hold NaN or infinity"
    if found.final.verdict is Verdict.FAILS:
        return "it misses the limits on the final samples"
    return "its figures on the final samples are worse"
