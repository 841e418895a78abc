"""Judging whether a candidate loses more than allowed, from the scores of both engines on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.intervals import paired_interval
from studies.gate.check import Check, Verdict, detectable_excess, one_sided_point
from studies.gate.paired_shares import detectable_drop, drop_bounds, drop_p_value, is_above

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

_ROUNDS = 30  # in which a drop and the variance that it brings agree
LEAST_UNITS = 20  # samples, clusters or batches, below which Student's t is not to be trusted with scores of any form


@dataclass(frozen=True)
class PairedScores:
    """Scores of two engines on the same samples, in the same order.

    Attributes:
        candidate, baseline: (n,) float64, one per sample; per batch for a metric that gathers over many samples.
        ratio: whether scores are shares of one.
        higher_is_better: the direction of goodness.
        clusters: (n,) codes, the same for scores that belong together; None if they are independent.
        counts: (n,) samples of each batch, for a metric that gathers; None for one that scores samples.
        whole_drop: of such a metric, its drop over all samples, which is no mean over batches.
    """

    candidate: Floats
    baseline: Floats
    ratio: bool
    higher_is_better: bool
    clusters: Codes | None = None
    counts: Codes | None = None
    whole_drop: float | None = None

    @property
    def drops(self) -> Floats:
        """(n,) how much worse the candidate is, each."""
        better, worse = (self.baseline, self.candidate) if self.higher_is_better else (self.candidate, self.baseline)
        return np.asarray(better - worse, dtype=np.float64)

    @property
    def is_binary(self) -> bool:
        """Whether every score is 0 or 1, of samples that are independent.

        A metric that does not say that its scores are shares of one has to show it on so many as others need.
        """
        if self.clusters is not None or self.counts is not None:
            return False
        if not self.ratio and len(self.candidate) < LEAST_UNITS:
            return False
        return bool(np.isin(self.candidate, (0.0, 1.0)).all() and np.isin(self.baseline, (0.0, 1.0)).all())


def judge_loss(
    scores: PairedScores, limit: float, level: float, show: Callable[[float], str] = "{:.4g}".format
) -> Check:
    """Hold the drop of a candidate to a limit.

    Shares of independent samples are judged by exact tests, see `paired_shares`; everything else by Student's t on the
    paired differences of samples, clusters or batches.

    Args:
        limit: the most drop that is allowed, in the unit of the metric.
        level: of each bound.
        show: a drop as text, with its unit.
    """
    return _judge_shares(scores, limit, level, show) if scores.is_binary else _judge_means(scores, limit, level, show)


def fail_loss(limit: float, level: float, reason: str) -> Check:
    """The check of a candidate whose outputs cannot be scored."""
    return Check("loss", Verdict.FAILS, limit, None, None, None, level, None, "none", "none", reason)


def _judge_shares(scores: PairedScores, limit: float, level: float, show: Callable[[float], str]) -> Check:
    drops, samples = scores.drops, len(scores.drops)
    lost, won = int((drops > 0).sum()), int((drops < 0).sum())
    low, high = drop_bounds(lost, won, samples, level)
    if is_above(lost, won, samples, limit, level):
        verdict = Verdict.FAILS
    elif is_above(won, lost, samples, -limit, level):
        verdict = Verdict.HOLDS
    else:
        verdict = Verdict.NOT_JUDGED
    smallest = detectable_drop(won, samples, limit, level)
    return Check(
        "loss",
        verdict,
        limit,
        (lost - won) / samples,
        low,
        high,
        level,
        smallest,
        "exact test of paired shares (McNemar's where the limit is 0)",
        f"{samples} samples",
        _reason(verdict, (low, high), limit, smallest, show),
        {"lost_samples": lost, "won_samples": won, "mcnemar_p": drop_p_value(lost, won, samples, 0.0, level)},
    )


def _judge_means(scores: PairedScores, limit: float, level: float, show: Callable[[float], str]) -> Check:
    drops, units, kind = _unfold(scores)
    estimate = float(np.mean(drops)) if scores.whole_drop is None else scores.whole_drop
    count = len(drops) if units is None else len(np.unique(units))
    told = f"{count} {kind}"
    if count < LEAST_UNITS:
        reason = f"{told} are too few for a verdict: at least {LEAST_UNITS} are needed; give more data"
        return Check(
            "loss", Verdict.NOT_JUDGED, limit, estimate, None, None, level, None, "paired t test", told, reason
        )
    # Scores of samples may all be equal though engines differ; values of whole batches are none of 0 and 1.
    ratio = scores.ratio and scores.counts is None
    half, error = _half_width(drops, units, ratio, level, count)
    low, high = estimate - half, estimate + half
    verdict = judge_bounds(low, high, limit)
    smallest = _detectable(drops, error, limit, count, level, ratio) if error > 0 else None
    reason = _reason(verdict, (low, high), limit, smallest, show)
    return Check(
        "loss", verdict, limit, estimate, low, high, level, smallest, f"paired t test over {kind}", told, reason
    )


def judge_bounds(low: float, high: float, limit: float) -> Verdict:
    """What two bounds say of a limit."""
    if low > limit:
        return Verdict.FAILS
    return Verdict.HOLDS if high <= limit else Verdict.NOT_JUDGED


def _unfold(scores: PairedScores) -> tuple[Floats, Codes | None, str]:
    """Drops, which of them belong together, and what these units are.

    A batch is a cluster of as many equal samples: its weight is its size, as in the mean over samples.
    """
    if scores.counts is None:
        return scores.drops, scores.clusters, "samples" if scores.clusters is None else "clusters"
    codes = np.arange(len(scores.drops)) if scores.clusters is None else scores.clusters
    kind = "batches" if scores.clusters is None else "blocks of batches"
    return np.repeat(scores.drops, scores.counts), np.repeat(codes, scores.counts), kind


def _half_width(drops: Floats, units: Codes | None, ratio: bool, level: float, count: int) -> tuple[float, float]:
    """Half the width of the interval whose ends are bounds of this level, and the standard error of the mean."""
    from scipy.special import ndtri

    point = one_sided_point(level, count - 1)
    # With clusters `paired_interval` turns the normal point into Student's itself.
    z = point if units is None else float(ndtri(1 - level))
    low, high = paired_interval(drops, ratio=ratio, z=z, clusters=units)
    half = (high - low) / 2
    return half, half / point if math.isfinite(half) else math.inf


def _detectable(drops: Floats, error: float, limit: float, count: int, level: float, ratio: bool) -> float:
    """The smallest drop that is found to exceed a limit in nine of ten cases.

    A share that drops further changes more samples, by which its variance grows in proportion.
    """
    if not ratio:
        return limit + detectable_excess(error, count - 1, level)
    changing = float(np.mean(np.square(drops))) + 1 / len(drops)
    drop = limit
    for _ in range(_ROUNDS):
        drop = limit + detectable_excess(error * math.sqrt((changing + drop) / changing), count - 1, level)
    return drop


def _reason(
    verdict: Verdict, bounds: tuple[float, float], limit: float, smallest: float | None, show: Callable[[float], str]
) -> str:
    low, high = (show(bound + 0.0) for bound in bounds)  # no minus before a zero
    if verdict is Verdict.FAILS and bounds[0] <= limit:
        return f"the drop is above the {show(limit)} that are allowed"
    if verdict is Verdict.FAILS:
        return f"the drop is at least {low}, more than the {show(limit)} that are allowed"
    if verdict is Verdict.HOLDS and bounds[1] < 0:
        return f"the candidate is better by at least {show(-bounds[1])}, and a drop of {show(limit)} is allowed"
    if verdict is Verdict.HOLDS and limit == bounds[1] == 0:
        return f"the candidate is better, and a drop of {show(limit)} is allowed"
    if verdict is Verdict.HOLDS:
        return f"the drop is at most {high}, within the {show(limit)} that are allowed"
    told = "" if smallest is None else f"; a drop of {show(smallest)} would be found in nine of ten cases"
    return (
        f"the drop lies between {low} and {high}, and {show(limit)} are allowed; more samples would give a narrower "
        f"interval{told}"
    )
