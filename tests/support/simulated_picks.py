"""Which bound makes picks hold: simulated searches of which the true losses are known.

A world has 38 groups. Each adds noise to the margin of every sample when it runs in INT8, and saves time. A mix flips
the samples whose margin its noise exceeds, so that mixes share flipped samples, as real ones do. A search evaluates
mixes around the allowed loss on one split, and its candidates are scored on another half as large.

There are bounds for the fastest mix that keeps the allowed loss surely, and orders of the line of candidates that are
looked at on the final split. `benchmarks/results/pick_bounds.md` compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.mean_bounds import sample_losses
from search.values import bound_level
from studies.judging.rules.candidates import Aim, Candidates
from studies.judging.rules.picks import line
from studies.judging.rules.verdicts import margins, quantile
from studies.options.limits import Limits

Floats = NDArray[np.float64]
GROUPS, MIXES, FP32 = 38, 60, 0
_SPREAD = 1.0  # of the margins of samples


@dataclass(frozen=True)
class World:
    """One search: columns of its mixes, the first of which is uniform FP32.

    Attributes:
        latency: relative.
        truth: (mixes,) true losses.
        loss, error: estimates on the search split with their standard errors.
        final: (mixes, samples) losses on the final split.
    """

    limit: float
    latency: Floats
    truth: Floats
    loss: Floats
    error: Floats
    final: Floats

    @property
    def candidates(self) -> Candidates:
        nothing, limits = np.zeros(len(self.loss), bool), Limits(max_drop=self.limit)
        margin = margins(self.loss, self.error, self.loss, self.error, limits, higher_is_better=True)
        band = quantile(two_sided=True) * self.error
        eligible = margin >= 0
        return Candidates(
            latency_ms=self.latency,
            loss=self.loss,
            loss_error=self.error,
            loss_band=band,
            margin=margin,
            latency_band=0.01,
            eligible=eligible,
            fails=nothing,
            holds=nothing,
            final_margin=np.full(len(self.loss), np.nan),
            on_front=nothing,
            fp32=FP32,
        )


def world(rng: np.random.Generator, samples: int, limit: float, centre: float) -> World:
    """A search with so many samples; `centre` is the mean margin, so that FP32 is right in Φ(centre) of them."""
    gain = np.exp(rng.normal(0, 0.6, GROUPS))
    gain *= 0.56 / gain.sum()
    noise = np.exp(rng.normal(0, 1.0, GROUPS)) ** 2
    noise *= _variance_of(10 * limit, centre) / noise.sum()
    mixes = _mixes(rng, noise, gain, _variance_of(limit, centre))
    truth = np.array([_loss_of(float(variance), centre) for variance in mixes @ noise])
    count = samples + samples // 2
    margin, fields = rng.normal(centre, _SPREAD, count), rng.normal(0, 1, (GROUPS, count)) * np.sqrt(noise)[:, None]
    losses = (margin > 0).astype(float) - (margin + mixes @ fields > 0)
    return World(limit, 1 - mixes @ gain, truth, *_estimates(losses[:, :samples]), losses[:, samples:])


def _mixes(rng: np.random.Generator, noise: Floats, gain: Floats, allowed: float) -> Floats:
    """(mixes, groups) of 0 and 1: FP32, all INT8, and what an imperfect model takes for the best near the limit."""
    mixes = np.zeros((MIXES, GROUPS))
    mixes[1] = 1
    for mix in mixes[2:]:
        order = np.argsort(noise * np.exp(rng.normal(0, 0.7, GROUPS)) / gain)
        mix[order[np.cumsum(noise[order]) <= allowed * math.exp(rng.normal(0.1, 0.6))]] = 1
    return mixes


def _loss_of(variance: float, centre: float) -> float:
    def right(spread: float) -> float:
        return (1 + math.erf(centre / spread / math.sqrt(2))) / 2

    return right(_SPREAD) - right(math.sqrt(_SPREAD**2 + variance))


def _variance_of(loss: float, centre: float) -> float:
    low, high = 1e-9, 1e4
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _loss_of(middle, centre) < loss else (low, middle)
    return low


def _estimates(losses: Floats) -> tuple[Floats, Floats]:
    """(mixes,) means and standard errors as `evaluators.measure.intervals.paired_interval` has them for ratios."""
    n, mean = losses.shape[1], losses.mean(axis=1)
    variance = (np.square(losses).sum(axis=1) + 1 - (n * mean) ** 2 / (n + 2)) / (n + 2)
    return mean, np.sqrt(variance / (n + 2))


def worlds(count: int, samples: int, limit: float, centre: float, seed: int = 0) -> Iterator[World]:
    rng = np.random.default_rng(seed)
    return (world(rng, samples, limit, centre) for _ in range(count))


# -- bounds ------------------------------------------------------------------------------------------------------------


def _shrunk(mixes: World) -> Floats:
    """Upper bounds of losses that are drawn to a parabola of loss over latency, by empirical Bayes."""
    powers = np.stack([mixes.latency**power for power in range(3)], axis=1)
    between = float(np.var(mixes.loss))
    for _ in range(5):
        weight = 1 / np.sqrt(mixes.error**2 + between)
        curve = powers @ np.linalg.lstsq(powers * weight[:, None], mixes.loss * weight, rcond=None)[0]
        between = max(1e-12, float(np.average((mixes.loss - curve) ** 2 - mixes.error**2, weights=weight**2)))
    share = between / (between + mixes.error**2)
    upper: Floats = curve + share * (mixes.loss - curve) + quantile() * np.sqrt(share) * mixes.error
    return upper


BOUNDS: dict[str, Callable[[World], Floats]] = {
    "the estimate alone": lambda w: w.loss,
    "one-sided 95 %": lambda w: w.loss + quantile() * w.error,
    "Šidák, all mixes": lambda w: w.loss + quantile(len(w.loss)) * w.error,
    "Šidák, those that keep the limit": lambda w: w.candidates.upper,
    "shrunk to a curve": _shrunk,
}


def fastest_surely(mixes: World, bound: Callable[[World], Floats]) -> int | None:
    """The fastest mix whose bound keeps the limit, FP32 aside; None where there is none."""
    rows = np.flatnonzero(bound(mixes) <= mixes.limit)
    rows = rows[rows != FP32]
    return int(rows[np.argmin(mixes.latency[rows])]) if len(rows) else None


# -- lines -------------------------------------------------------------------------------------------------------------


def _fastest_first(mixes: World) -> list[int]:
    """The sure ones by latency, then the others that keep the limit by latency."""
    columns = mixes.candidates
    rows = [int(row) for row in np.argsort(mixes.latency) if columns.eligible[row] and row != FP32]
    return sorted(rows, key=lambda row: not columns.sure[row])[:6]


def _surest_first(mixes: World) -> list[int]:
    """By how sure, in eight steps, then by latency."""
    columns = mixes.candidates
    rows = [int(row) for row in np.argsort(mixes.latency) if columns.eligible[row] and row != FP32]
    return sorted(rows, key=lambda row: -math.floor(8 * min(float(columns.margin[row]) / columns.bound, 1.0)))[:6]


LINES: dict[str, Callable[[World], list[int]]] = {
    "sure ones, then the fastest": _fastest_first,
    "by how sure, in steps": _surest_first,
    "clear ones, then by how sure": lambda w: line(w.candidates, Aim.FASTEST),
}


@dataclass(frozen=True)
class Confirmed:
    """What is made of a line: the row, or None for FP32; whether it holds surely, and in truth; how many were tried."""

    row: int | None
    surely: bool
    true: bool
    tries: int
    covered: bool  # by the bound of its verdict


def confirmed(mixes: World, queue: list[int]) -> Confirmed:
    """The first in line that holds surely on the final split, else the surest of those that hold there."""
    looks = {row: tries for tries, row in enumerate((row for row in queue if row != FP32), 1)}
    units = {row: sample_losses(mixes.final[row], most=1.0) for row in looks}
    holding = [row for row in looks if units[row].mean <= mixes.limit]
    sure = [row for row in holding if units[row].chance_below(mixes.limit) <= bound_level(looks[row])]
    if not holding:
        return Confirmed(None, True, True, len(queue), True)
    row = sure[0] if sure else max(holding, key=lambda each: float(mixes.candidates.margin[each]))
    truth = float(mixes.truth[row])
    return Confirmed(
        row, bool(sure), truth <= mixes.limit, looks[row], truth <= units[row].upper(bound_level(looks[row]))
    )
