"""The goal of a search, and the gain that a candidate is expected to bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from search.forecast import acquisition
from search.forecast.acquisition import Forecast, Reference
from search.sampler.loss_bounds import LossBounds

_NOTHING = 0.01  # of the smallest difference that can be measured; where no mix is expected to gain more, none does
_DRAWS = 64  # of latency and loss, to average the gain over; all candidates have the same draws
# Of the hypervolume of the front, below which candidates do not count as an improvement of it. In made-up worlds 0.0001
# and 0.0003 end the same searches, and with none a front that is done is improved for ever in its last digits.
_SLIGHT = 1e-4
_NEAREST = 6  # measured mixes beside which late proposals look; with fewer a lucky measurement would decide

Floats = NDArray[np.float64]


class Goal(Enum):
    """What a proposal is to improve."""

    FRONT = auto()  # all of it, within the limits
    LIMITS = auto()  # the best mix that keeps them
    KNEE = auto()  # of the front, within a latency budget if there is one


@dataclass(frozen=True)
class MixGoal:
    """Limits that a recommended mix must keep; None for no limit.

    Attributes:
        budget_ms: the largest allowed latency.
        max_loss: the largest allowed loss.
        knee: whether the knee within the limits is recommended, as for metrics that compare with the outputs of FP32.
    """

    budget_ms: float | None = None
    max_loss: float | None = None
    knee: bool = False

    @property
    def is_limited(self) -> bool:
        return self.budget_ms is not None or self.max_loss is not None

    @property
    def goal(self) -> Goal:
        """The mix that will be recommended; without limits it is the knee."""
        return Goal.LIMITS if self.is_limited and not self.knee else Goal.KNEE


@dataclass(frozen=True)
class Known:
    """Log milliseconds and loss of every trial that counts, (n,) each, and the reference of gains.

    Attributes:
        log_ms_std, loss_std: (n,) standard deviations of their true values.
        resolution: the smallest difference of loss that can be measured.
        log_resolution: the same for log milliseconds.
        upper: (n,) upper bounds of the losses as measured.
        bounds: how far upper bounds are from losses that are not measured yet.
    """

    log_ms: Floats
    loss: Floats
    log_ms_std: Floats
    loss_std: Floats
    corner: Reference
    resolution: float
    log_resolution: float
    upper: Floats
    bounds: LossBounds = field(default_factory=LossBounds)

    def front(self) -> tuple[Floats, Floats]:
        kept = acquisition.front(self.log_ms, self.loss)
        return self.log_ms[kept], self.loss[kept]

    def within(self, aim: MixGoal) -> Reference:
        """The reference point, moved to the limits plus the smallest measurable difference.

        Nothing beyond them is worth a trial. The point is not moved if no measured mix lies within.
        """
        log_ms, loss = self.corner.log_ms, self.corner.loss
        if aim.budget_ms is not None:
            log_ms = min(log_ms, float(np.log(aim.budget_ms)) + self.log_resolution)
        if aim.max_loss is not None:
            loss = min(loss, aim.max_loss + self.resolution)
        reached = bool(np.any((self.log_ms <= log_ms) & (self.loss <= loss)))
        return Reference(log_ms, loss) if reached else self.corner


def worth(aim: MixGoal, forecast: Forecast, known: Known, rng: np.random.Generator) -> Floats | None:
    """(n,) expected gain of each candidate at the limits; None if nothing can be gained there.

    A mix is recommended by the upper bound of its loss. So within a budget, losses count with their bounds. With an
    allowed loss, a mix counts as far as its bound will keep it when measured, and its true loss too.

    Because measurements are noisy, it is uncertain which trials keep a limit. The gain is averaged over draws of that.
    This is the noisy expected improvement of Letham et al., "Constrained Bayesian Optimization with Noisy Experiments",
    Bayesian Analysis 14 (2019), with draws only for the limited quantity. If no trial keeps the limit in any draw, the
    candidate that is most likely to keep it gains most.
    """
    if aim.budget_ms is not None:
        return _gained_loss(aim.budget_ms, forecast, known, rng)
    assert aim.max_loss is not None
    return _gained_speed(aim.max_loss, forecast, known, rng)


def is_improved(aim: MixGoal, forecast: Forecast, known: Known) -> bool:
    """Whether candidates, by their expected values, are better than what was found by more than can be measured.

    They may improve the front within the limits, or the mix that is recommended at the limits. A loss that cannot be
    told from none counts as none.
    """
    none = float(known.bounds.upper(np.zeros(1))[0])
    log_ms, loss = np.log(np.maximum(forecast.ms, 1e-12)), np.maximum(forecast.loss - none, 0)
    known_loss, corner = np.maximum(known.loss - none, 0), known.within(aim)
    before = acquisition.volume(known.log_ms, known_loss, corner)
    after = acquisition.volume(np.concatenate([known.log_ms, log_ms]), np.concatenate([known_loss, loss]), corner)
    if after > before * (1 + _SLIGHT):
        return True
    return aim.goal is Goal.LIMITS and _is_pick_improved(aim, forecast, known)


def _is_pick_improved(aim: MixGoal, forecast: Forecast, known: Known) -> bool:
    """Whether one of the candidates is expected to be the better pick at the limits; also while nothing keeps them."""
    upper, bounds = known.bounds.upper(np.maximum(forecast.loss, 0)), known.bounds
    if aim.budget_ms is not None:
        kept, keeps = known.log_ms <= np.log(aim.budget_ms), forecast.ms <= aim.budget_ms
        before, after, least = bounds.upper(known.loss), upper, known.resolution
    else:
        assert aim.max_loss is not None
        kept, keeps = known.upper <= aim.max_loss, upper <= aim.max_loss
        before, after, least = known.log_ms, np.log(np.maximum(forecast.ms, 1e-12)), known.log_resolution
    if not kept.any():
        return True
    return bool(after[keeps].min(initial=np.inf) < before[kept].min() - _NOTHING * least)


def nearest(aim: MixGoal, known: Known, log_ms: Floats, loss: Floats) -> NDArray[np.int64]:
    """Indices of a few mixes of the front of (n,) log milliseconds and losses: the nearest to the recommended mix.

    That is near the limit, or near the knee.
    """
    kept = acquisition.front(log_ms, loss)
    log_ms, loss = log_ms[kept], loss[kept]
    if aim.goal is Goal.KNEE:
        knee = Knee.of(aim, known)
        away = np.zeros(len(kept)) if knee is None else -knee.below(np.exp(log_ms), loss)
    elif aim.budget_ms is not None:
        away = np.abs(log_ms - np.log(aim.budget_ms))
    else:
        assert aim.max_loss is not None
        away = np.abs(loss - known.bounds.allowed_loss(aim.max_loss))
    return np.asarray(kept[np.argsort(away, kind="stable")[:_NEAREST]])


def _gained_loss(budget_ms: float, forecast: Forecast, known: Known, rng: np.random.Generator) -> Floats | None:
    """(n,) expected reductions of the least upper bound of a loss within the budget."""
    forecast, upper = replace(forecast, loss=known.bounds.upper(forecast.loss)), known.bounds.upper(known.loss)
    kept = _draw_kept(known.log_ms, known.log_ms_std, float(np.log(budget_ms)), rng)
    most = float(known.bounds.upper(np.array([known.corner.loss]))[0])
    bests, shares = _bests(upper, kept, most)

    def gains(best: float | None) -> Floats:
        return acquisition.expected_improvements(forecast, budget_ms, best, most)

    return _average_gains(gains, bests - known.resolution / 8, shares, known.resolution)


def _gained_speed(max_loss: float, forecast: Forecast, known: Known, rng: np.random.Generator) -> Floats | None:
    """(n,) expected reductions of the least log milliseconds within the allowed loss."""
    kept = _draw_kept(known.loss, known.loss_std, max_loss, rng) & (known.upper <= max_loss)
    bests, shares = _bests(known.log_ms, kept, known.corner.log_ms)
    log_kept = known.bounds.log_chances(forecast.loss, forecast.loss_std, max_loss)

    def gains(best: float | None) -> Floats:
        return acquisition.expected_speedups(forecast, log_kept, best, known.corner.log_ms)

    return _average_gains(gains, bests, shares, known.log_resolution)


def _average_gains(
    gains: Callable[[float | None], Floats], bests: Floats, shares: Floats, least: float
) -> Floats | None:
    """(n,) gains over the possible bests; None if they are nothing beside the least difference that can be measured."""
    if not len(bests):
        return gains(None)
    average = np.asarray(shares @ np.array([gains(float(best)) for best in bests]))
    return average if average.max(initial=0.0) > _NOTHING * least else None


def _draw_kept(mean: Floats, std: Floats, limit: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(draws, n) whether each trial keeps a limit."""
    return np.asarray(mean + std * rng.standard_normal((_DRAWS, len(mean))) <= limit)


def _bests(values: Floats, kept: NDArray[np.bool_], most: float) -> tuple[Floats, Floats]:
    """The distinct least values over draws with their shares; none if no draw keeps the limit.

    Args:
        most: the value for a draw in which no trial keeps the limit.
    """
    if not kept.any():
        return np.zeros(0), np.zeros(0)
    bests, counts = np.unique(np.where(kept, values, most).min(axis=1), return_counts=True)
    return bests, counts / len(kept)


@dataclass(frozen=True)
class Knee:
    """The knee of the front: the point farthest below the line between the ends, in shares of the front's extent.

    Attributes:
        fast_ms, slow_ms: latencies of the ends.
        least, most: losses of the ends.
        depth: how far below the line the knee is.
        place: milliseconds and loss of the knee.
    """

    fast_ms: float
    slow_ms: float
    least: float
    most: float
    depth: float = 0.0
    place: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, aim: MixGoal, known: Known) -> Knee | None:
        """The knee of the known trials within a budget; None if fewer than two of the front keep it."""
        log_ms, loss = known.front()
        kept = log_ms <= (np.inf if aim.budget_ms is None else np.log(aim.budget_ms))
        ms, loss = np.exp(log_ms[kept]), loss[kept]
        if len(ms) < 2:
            return None
        line = cls(float(ms[0]), float(ms[-1]), float(loss[-1]), float(loss[0]))
        below = line.below(ms, loss)
        deepest = int(np.argmax(below))
        return replace(line, depth=float(below[deepest]), place=(float(ms[deepest]), float(loss[deepest])))

    def below(self, ms: Floats, loss: Floats) -> Floats:
        """(n,) how far mixes are below the line; what is beyond an end counts as the end."""
        across = np.maximum((ms - self.fast_ms) / (self.slow_ms - self.fast_ms), 0)
        return np.asarray(1 - across - np.maximum((loss - self.least) / (self.most - self.least), 0))

    def worth(self, forecast: Forecast, known: Known) -> Floats | None:
        """(n,) how much deeper each candidate is expected to be; None if nothing can be gained."""
        extent = self.most - self.least
        std = np.hypot(forecast.ms_std / (self.slow_ms - self.fast_ms), forecast.loss_std / extent)
        improvement = acquisition.expected_improvement(
            self.below(forecast.ms, forecast.loss) - self.depth, np.maximum(std, 1e-12)
        )
        return improvement if improvement.max(initial=0.0) > _NOTHING * known.resolution / extent else None
