"""The smallest loss that the samples of a study can distinguish from none, and whether the limits need less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from search.values import REFERENCE
from studies.judging.findings.sample_size import Spread, deviation_of
from studies.judging.rules.picks import MOST_IN_LINE
from studies.judging.rules.verdicts import Verdict
from studies.judging.standing import Standing, best_point
from studies.options.quantities import format_metric

_SPLITS = ("search", "final")


@dataclass(frozen=True)
class Resolution:
    """How finely the samples of one split tell losses apart.

    Attributes:
        split: `search` or `final`.
        samples, clusters: of the split; no clusters where the data have none.
        loss: the smallest that can be told from none, in the metric's unit.
        allowed: the loss that the limits allow; None without such limits.
        needed: samples that would tell `allowed` from none; None where these do.
    """

    split: str
    samples: int
    clusters: int | None
    loss: float
    allowed: float | None
    needed: int | None

    @property
    def subject(self) -> str:
        """`2,500 search samples (417 clusters)`."""
        return self.subject_with()

    def subject_with(self, *more: str) -> str:
        """`2,500 search samples (417 clusters, about 0.3 %)`."""
        inside = [*([] if self.clusters is None else [f"{self.clusters:,} clusters"]), *more]
        return f"{self.samples:,} {self.split} samples" + (f" ({', '.join(inside)})" if inside else "")


def find_resolutions(now: Standing) -> tuple[Resolution, ...]:
    """How finely the search and the final split tell losses apart; empty if that is not known yet.

    For shares the number of samples or clusters tells what can be shown at best. A uniform assignment below FP32 that
    was scored shows how much samples vary. Final samples have to tell the loss of the last candidate in line too.
    """
    spread = _spread(now)
    known, allowed = _allowed_loss(now)
    if spread is None or not known:
        return ()
    return tuple(_resolution(now, spread, split, allowed) for split in _SPLITS if split in now.study.data)


def resolution_text(resolutions: Sequence[Resolution], now: Standing) -> str:
    """`1,000 search samples can at best show that a loss is below about 0.3 %, 600 final samples below about 0.5 %`."""
    few = [f"{each.subject} are too few for any bound" for each in resolutions if not math.isfinite(each.loss)]
    known = [
        (each.subject, f"below about {_loss_text(each.loss, now)}") for each in resolutions if math.isfinite(each.loss)
    ]
    first = [f"{subject} can at best show that a loss is {below}" for subject, below in known[:1]]
    return ", ".join([*first, *(f"{subject} {below}" for subject, below in known[1:]), *few])


def coarse_text(resolutions: Sequence[Resolution], now: Standing) -> str:
    """That samples are too few to tell the loss that the limits allow, of which splits; empty if they are enough.

    Nothing is said of the final samples where they showed that the recommended mix keeps the limits.
    """
    best = best_point(now)
    kept = best is not None and best.final.scored and best.final.verdict is Verdict.SURELY
    few = [
        each
        for each in resolutions
        if each.allowed is not None and each.needed and not (kept and each.split == "final")
    ]
    if not few or few[0].allowed is None:
        return ""
    needed = "At least about {} are needed".format(
        " and ".join(f"{each.needed:,} {each.split} samples" for each in few)
    )
    if not all(math.isfinite(each.loss) for each in few):
        blind = " and ".join(each.subject for each in few if not math.isfinite(each.loss))
        return f"{blind} are too few for any bound of a loss, so no pick can be called kept. {needed}"
    samples = " and ".join(each.subject_with(f"about {_loss_text(each.loss, now)}") for each in few)
    rows = _lower_rows(now)
    shown = "can show of a mix that differs from FP32 in as many samples as all INT8" if rows else "can show at best"
    which = "such mixes" if rows else "candidates"
    return (
        f"the allowed loss of {_loss_text(few[0].allowed, now)} is smaller than what {samples} {shown}, so chance "
        f"decides which {which} seem to keep the limit. {needed}{' for them' if rows else ''}"
    )


def is_certain_pick_slow(now: Standing) -> bool:
    """Whether the mix that the search would recommend is slower than one that keeps the allowed loss by its estimate.

    What is recommended has to be certain on the final samples. Forecasts go by estimates, so to them nothing is better
    than the faster mix, and mixes between the two, which may be certain, would never be looked for. FP32 does not
    count, because it is always certain.
    """
    allowed = next((each.allowed for each in find_resolutions(now) if each.split == "final"), None)
    if allowed is None:
        return False
    wider = np.sqrt(int(now.study.data["search"]) / int(now.study.data["final"]))  # with fewer final samples
    upper = now.table.loss + wider * (now.table.loss_upper - now.table.loss)
    keeps = now.judgement.feasible & (now.table.role != REFERENCE.role)
    sure_ms = now.measures.latency_ms[keeps & (upper <= allowed)].min(initial=np.inf)
    fastest_ms = now.measures.latency_ms[keeps].min(initial=np.inf)
    return bool(np.isfinite(sure_ms) and sure_ms > fastest_ms * (1 + now.target.band))


def _resolution(now: Standing, spread: Spread, split: str, allowed: float | None) -> Resolution:
    samples, clusters = int(now.study.data[split]), now.study.clusters(split)
    tries = MOST_IN_LINE if split == _SPLITS[1] else 1
    loss, needed = spread.smallest_loss(samples, clusters, tries), None
    if allowed is not None and 0 < allowed < loss:
        needed = spread.needed_samples(allowed, samples, clusters, tries)
    return Resolution(split, samples, clusters, loss, allowed, needed)


def _allowed_loss(now: Standing) -> tuple[bool, float | None]:
    """Whether the allowed loss is known yet, and what it is: of both limits, the narrower."""
    limits, value = now.limits, now.measures.fp32_value
    reference = None if np.isnan(value) else value
    if limits.needs_reference and reference is None:
        return False, None
    return True, min(limits.allowed_losses(reference, now.metric.higher_is_better), default=None)


def is_measured(now: Standing) -> bool:
    """Whether the loss of a uniform assignment below FP32 says how much samples vary, or none will."""
    return bool(_lower_rows(now)) or now.measures.finished_count > len(now.measures.baselines)


def _spread(now: Standing) -> Spread | None:
    metric, rows = now.study.metric, _lower_rows(now)
    over_all = metric.get("kind", "per_sample") != "per_sample"
    batch = int(now.study.model["inputs"][0][2][0]) if over_all else None
    if not rows:
        return Spread(ratio=True) if metric["ratio"] and not over_all else None
    # The one whose loss is nearest to the allowed one.
    allowed = _allowed_loss(now)[1] or 0.0
    row = min(rows, key=lambda row: abs(float(now.table.loss[row]) - allowed))
    low, high = float(now.table.loss_low[row]), float(now.table.loss_high[row])
    deviation = deviation_of(low, high, int(now.table.samples[row]), now.study.clusters("search"), batch)
    return Spread(metric["ratio"], deviation, batch) if deviation > 0 else None


def _lower_rows(now: Standing) -> list[int]:
    """Uniform assignments but FP32 that were scored on all search samples."""
    uniform = [row for row in now.measures.baselines if now.measures.complete[row] and np.isfinite(now.table.loss[row])]
    return [row for row in uniform if now.table.role[row] != REFERENCE.role]


def _loss_text(loss: float, now: Standing) -> str:
    return format_metric(loss, now.study.metric["unit"], now.study.metric["ratio"], 2)
