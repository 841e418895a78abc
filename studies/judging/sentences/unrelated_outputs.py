"""Engines whose outputs have nothing in common with FP32's, told wherever a pick is told, whatever the metric says."""

from __future__ import annotations

import math

from studies.judging.sentences.cautions import caution_text
from studies.judging.standing import UNRELATED_BELOW, Standing
from studies.store import suggestions

MARK = "UNRELATED TO FP32"


def unrelated_text(now: Standing, row: int) -> str:
    """What is wrong with the outputs of a row, and what to do; empty where nothing is known to be."""
    if not now.unrelated[row]:
        return ""
    trial, picks = int(now.table.trial[row]), now.picks.names(row)
    named = f"trial {trial}" if trial >= 0 else "the engine built again for this export"
    picked = f" ({', '.join(picks)})" if picks else ""
    compare = suggestions.command("compare", now.study.name, str(trial))
    advice = f" Look at it with `{compare}` before you use it." if trial >= 0 else ""
    return (
        f"{named}{picked} is probably broken: its outputs have nothing in common "
        f"with FP32's (correlation {format_resemblance(float(now.resemblance[row]))}; 1 is equal, below "
        f"{UNRELATED_BELOW} is unrelated), whatever the metric {now.study.metric['name']} says.{advice}"
    )


def pick_warnings(now: Standing) -> list[str]:
    """The caution of the target's backend, and `unrelated_text` of every pick that needs it, fastest first."""
    picked = [row for row in now.shown_rows() if now.picks.names(row)]
    caution = caution_text(now.target.target)
    return [*([caution] if caution else []), *(text for row in picked if (text := unrelated_text(now, row)))]


def format_resemblance(value: float) -> str:
    """A correlation with two digits, never `-0.00`; a dash where it is not known."""
    return "–" if math.isnan(value) else f"{round(value, 2) + 0.0:.2f}"
