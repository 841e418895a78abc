"""Forecasts of trials that were made before the trials were measured, and how accurate they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from search.forecast.quality import NINETY, Quality, is_poor, quality

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from search.forecast.acquisition import Forecast

FORECAST = "bitfront:forecast"
"""User attribute of a trial that the guided sampler proposed: `Predicted` as JSON."""
MEASURED = "bitfront:measured"
"""User attribute of a finished trial: [spread, standard deviation of the loss, whether it saw every sample]."""
_Z95 = 1.96  # standard deviations either side that hold 95 % of a Gaussian
RECENT = 25
"""Finished trials, the last ones, that forecasts are judged by: models of the first trials are gone."""

# The forecasts that decide whether a search goes on: a quarter of the trials, but no fewer than these, whose latencies
# are mostly as close as this. In made-up worlds five alone gave up 2.6 points of a noisy front, and 6 % of a latency.
_FEWEST, _QUARTER, _FIFTH, _CLOSE = 7, 4, 5, 0.05


@dataclass(frozen=True)
class Predicted:
    """The forecast of one trial.

    Attributes:
        how: how it was chosen: `gain` for the largest expected gain, `near` for the largest among changes of measured
            mixes, `tpe` if Optuna's TPE proposed it, `random` if there was no better candidate.
        ms, ms_std: the expected latency in milliseconds and the standard deviation of its measurement.
        loss, loss_std: the same for the loss, in the metric's unit.
        poor: whether the models predicted poorly at that time.
        promising: whether any candidate was expected to be better than what was found, by more than can be measured;
            also where that is not known, as for what was not chosen by its gain.
    """

    ms: float
    ms_std: float
    loss: float
    loss_std: float
    how: str
    poor: bool
    promising: bool = True

    @classmethod
    def of(cls, forecast: Forecast, place: int, how: str, poor: bool, promising: bool = True) -> Predicted:
        ms, ms_std, loss, loss_std = (
            float(part[place]) for part in (forecast.ms, forecast.ms_std, forecast.loss, forecast.loss_std)
        )
        return cls(ms, ms_std, loss, loss_std, how, bool(poor), bool(promising))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Predicted:
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ForecastAccuracy:
    """How accurate the forecasts of the last finished trials were; None if there were none.

    Attributes:
        band: the relative difference up to which two latencies count as equal.
        loss_band: the same for losses, relative to the same scale as their errors.
    """

    latency: Quality | None
    loss: Quality | None
    band: float = 0.0
    loss_band: float = 0.0

    @property
    def poor_latency(self) -> bool:
        return is_poor(self.latency, self.band)

    @property
    def poor_loss(self) -> bool:
        return is_poor(self.loss, self.loss_band)

    @property
    def poor(self) -> bool:
        """Whether a search should not rely on such forecasts."""
        return self.poor_latency or self.poor_loss


def deciding_forecasts(trials: Sequence[FrozenTrial], since: int, band: float) -> int:
    """How many of the last forecasts, which were right, expected no better mix; 0 while a search is worth going on.

    They are those of the last quarter of the trials that were chosen by their gain, at least seven. A fifth of them may
    have missed the latency, and a fifth the loss, as intervals of 90 % do.

    Args:
        since: the number of the first trial that counts.
        band: the relative difference up to which two latencies count as equal.
    """
    from optuna.trial import TrialState

    done = [t for t in trials if t.state is TrialState.COMPLETE]
    forecasts = [
        (t, Predicted.from_json(t.user_attrs[FORECAST])) for t in done if t.number >= since and FORECAST in t.user_attrs
    ]
    count = max(_FEWEST, len(done) // _QUARTER)
    last = [(t, each) for t, each in forecasts if each.how == "gain"][-count:]
    if len(last) < count or any(each.promising for _, each in last):
        return 0
    missed = np.array([_is_missed(t, each, band) for t, each in last])
    error = np.median([abs(t.values[0] / each.ms - 1) for t, each in last])
    right = (missed.sum(axis=0) <= count // _FIFTH).all() and error <= max(_CLOSE, band)
    return count if right else 0


def _is_missed(trial: FrozenTrial, forecast: Predicted, band: float) -> tuple[bool, bool]:
    """Whether latency and loss lie outside of their 90 % intervals by more than can be measured.

    A loss of some of the samples is another quantity than the one predicted, so it proves nothing wrong.
    """
    ms, loss = trial.values
    _, error, whole = trial.user_attrs.get(MEASURED, (0.0, 0.0, 1.0))
    wrong_ms = abs(ms - forecast.ms) > max(NINETY * forecast.ms_std, band * forecast.ms)
    return wrong_ms, bool(whole) and abs(loss - forecast.loss) > max(NINETY * forecast.loss_std, _Z95 * error)


def forecast_quality(
    trials: Sequence[FrozenTrial], worst_loss: float | None = None, band: float = 0.0
) -> ForecastAccuracy:
    """Judge the forecasts of latency and loss of the last finished trials.

    Args:
        worst_loss: the scale of errors of the loss; None to relate each error to its own measurement.
        band: the relative difference up to which two latencies count as equal.
    """
    from optuna.trial import TrialState

    known = [t for t in trials if t.state is TrialState.COMPLETE and FORECAST in t.user_attrs]
    # A loss of some of the samples is another quantity than the one predicted.
    whole = [t for t in known if t.user_attrs.get(MEASURED, (0.0, 0.0, 1.0))[2] > 0]
    whole, known = whole[-RECENT:], known[-RECENT:]
    std = [float(t.user_attrs.get(MEASURED, (0.0, 0.0))[1]) for t in whole]
    loss_band = _Z95 * float(np.median(std)) / worst_loss if std and worst_loss else 0.0
    return ForecastAccuracy(_quality(known, "ms", 0), _quality(whole, "loss", 1, worst_loss), band, loss_band)


def _quality(trials: Sequence[FrozenTrial], name: str, place: int, scale: float | None = None) -> Quality | None:
    if not trials:
        return None
    forecasts = [t.user_attrs[FORECAST] for t in trials]
    mean, std = (np.array([each[field] for each in forecasts], dtype=float) for field in (name, f"{name}_std"))
    return quality(mean, std, np.array([t.values[place] for t in trials], dtype=float), scale)
