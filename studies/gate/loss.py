"""Judging whether a candidate loses more than allowed, from the scores of both engines on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.mean_bounds import LossUnits, batch_losses, reverse_units, sample_losses
from studies.gate.check import GateCheck, GateVerdict, detectable_excess, one_sided_point

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

_TEST = "Gaffke's bounds of the mean (McNemar's exact test where the limit is 0 and samples are right or wrong)"
_ROUNDS = 30  # in which a drop and the variance that it brings agree
LEAST_UNITS = 20  # samples, clusters or batches, below which scores show neither their form nor how far they may vary


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
) -> GateCheck:
    """Hold the drop of a candidate to a limit, by the bounds of `evaluators.measure.mean_bounds`.

    Args:
        limit: the most drop that is allowed, in the unit of the metric.
        level: the confidence of each bound.
        show: a drop as text, with its unit.
    """
    units, kind = _units(scores)
    least = units.least if units.least == 1 else max(units.least, LEAST_UNITS)
    units_text = f"{units.units} {kind}"
    if units.units < least:
        reason = f"{units_text} are too few for a verdict: at least {least} are needed; give more data"
        return GateCheck(
            "loss", GateVerdict.NOT_JUDGED, limit, units.mean, None, None, level, None, _TEST, units_text, reason
        )
    low, high = 0.0 - reverse_units(units).upper(level), units.upper(level)
    verdict = judge_bounds(low, high, limit)
    details: dict[str, float] = {}
    if scores.is_binary:
        lost, won = int((scores.drops > 0).sum()), int((scores.drops < 0).sum())
        smallest = detectable_drop(won, units.units, limit, level)
        details = {"lost_samples": lost, "won_samples": won, "mcnemar_p": above_p_value(units, 0.0)}
    else:
        smallest = _detectable(scores, units, low, limit, level)
    reason = _reason(verdict, (low, high), limit, smallest, show)
    return GateCheck("loss", verdict, limit, units.mean, low, high, level, smallest, _TEST, units_text, reason, details)


def fail_loss(limit: float, level: float, reason: str) -> GateCheck:
    """The check of a candidate whose outputs cannot be scored."""
    return GateCheck("loss", GateVerdict.FAILS, limit, None, None, None, level, None, "none", "none", reason)


def judge_bounds(low: float, high: float, limit: float) -> GateVerdict:
    """What two bounds say of a limit."""
    if low > limit:
        return GateVerdict.FAILS
    return GateVerdict.HOLDS if high <= limit else GateVerdict.NOT_JUDGED


def _units(scores: PairedScores) -> tuple[LossUnits, str]:
    """What is independent of one another, and what it is called."""
    most = 1.0 if scores.ratio or scores.is_binary else None
    if scores.counts is None:
        kind = "samples" if scores.clusters is None else "clusters"
        return sample_losses(scores.drops, most, scores.clusters), kind
    counts, drops = np.asarray(scores.counts, dtype=np.float64), scores.drops
    whole = float(np.average(drops, weights=counts)) if scores.whole_drop is None else scores.whole_drop
    kind = "batches" if scores.clusters is None else "blocks of batches"
    return batch_losses(drops, counts, whole, most, scores.clusters), kind


def _detectable(scores: PairedScores, units: LossUnits, low: float, limit: float, level: float) -> float | None:
    """The smallest drop that is found to exceed a limit in nine of ten cases; None where units do not differ.

    A share that drops further changes more samples, each of which adds to the variance of the mean; what the bound
    allows for samples that were not drawn does not grow.
    """
    freedom = units.units - 1
    error = (units.mean - low) / one_sided_point(level, freedom)
    if not error > 0:
        return None
    if not scores.ratio or scores.counts is not None:
        return limit + detectable_excess(error, freedom, level)
    drop = limit
    for _ in range(_ROUNDS):
        drop = limit + detectable_excess(math.sqrt(error**2 + drop / units.units), freedom, level)
    return drop


def _reason(
    verdict: GateVerdict,
    bounds: tuple[float, float],
    limit: float,
    smallest: float | None,
    show: Callable[[float], str],
) -> str:
    low, high = (show(bound + 0.0) for bound in bounds)  # no minus before a zero
    if verdict is GateVerdict.FAILS:
        return f"the drop is at least {low}, more than the {show(limit)} that are allowed"
    if verdict is GateVerdict.HOLDS and bounds[1] < 0:
        return f"the candidate is better by at least {show(-bounds[1])}, and a drop of {show(limit)} is allowed"
    if verdict is GateVerdict.HOLDS:
        return f"the drop is at most {high}, within the {show(limit)} that are allowed"
    power = "" if smallest is None else f"; a drop of {show(smallest)} would be found in nine of ten cases"
    return (
        f"the drop lies between {low} and {high}, and {show(limit)} are allowed; more samples would give a narrower "
        f"interval{power}"
    )


_HALVINGS = 18
_POWER_Z = 1.4757910281791706  # a drop is called detectable where even its 7 % quantile would be found


def count_units(lost: int, won: int, samples: int) -> LossUnits:
    """The units of samples that are right or wrong.

    Args:
        lost: those that are right with the baseline and wrong with the candidate; `won` the other way round.
    """
    counts = np.array([lost, won, samples - lost - won], dtype=np.float64)
    return LossUnits(np.array([1.0, -1.0, 0.0]), np.ones(3), counts, 1.0)


def above_p_value(units: LossUnits, limit: float) -> float:
    """The p-value of the hypothesis that the true drop is at most `limit`; McNemar's exact test where that is 0."""
    return reverse_units(units).chance_below(-limit)


def detectable_drop(won: int, samples: int, limit: float, level: float) -> float | None:
    """The smallest true drop that is found to exceed `limit` in nine of ten such samples; None if none is.

    Args:
        won: samples that the candidate won. As many, by a bound that holds in nine of ten cases, are taken to change
            either way without any loss of accuracy.
    """
    background = count_units(won, 0, samples).upper(0.1)

    def is_found(drop: float) -> bool:
        changing = min(1.0, 2 * background + drop)
        spread = math.sqrt(samples * max(changing - drop**2, 0.0))
        difference = math.floor(samples * drop - _POWER_Z * spread)
        changed = max(min(samples, math.ceil(samples * changing)), abs(difference))
        seen_lost = (changed + difference) // 2
        return above_p_value(count_units(seen_lost, seen_lost - difference, samples), limit) <= level

    low, high = max(limit, 0.0), 1 - background
    if high <= low or not is_found(high):
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
