"""What was predicted of a trial before it was measured, and how good such predictions have been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from search.forecast.quality import Quality, is_poor, quality

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from search.forecast.acquisition import Forecast

FORECAST = "bitfront:forecast"
"""User attribute of a trial that the guided sampler proposed: `Predicted` as JSON."""
MEASURED = "bitfront:measured"
"""User attribute of a finished trial: [spread, standard deviation of the loss, whether it saw every sample]."""
_Z95 = 1.96
RECENT = 25
"""Finished trials that forecasts are judged by."""


@dataclass(frozen=True)
class Predicted:
    """One trial's forecast.

    Attributes:
        how: `gain` where it was expected to gain most, `near` the same of changes of measured mixes alone, `tpe` where
            Optuna's TPE proposed it, `random` where nothing better was left.
        ms, ms_std: expected latency in milliseconds, and the standard deviation of what would be measured.
        loss, loss_std: the same in the metric's unit.
        poor: whether the models were found poor at that time.
    """

    ms: float
    ms_std: float
    loss: float
    loss_std: float
    how: str
    poor: bool

    @classmethod
    def of(cls, forecast: Forecast, place: int, how: str, poor: bool) -> Predicted:
        ms, ms_std, loss, loss_std = (
            float(part[place]) for part in (forecast.ms, forecast.ms_std, forecast.loss, forecast.loss_std)
        )
        return cls(ms, ms_std, loss, loss_std, how, bool(poor))

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Predicted:
        return cls(**fields)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Judged:
    """How well the last finished trials had been predicted; None where none had.

    Attributes:
        band: relative difference at which two latencies count as a tie.
        loss_band: the same of losses, relative to what their errors are.
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


def forecast_quality(
    trials: Sequence[FrozenTrial], repaired: Set[int] = frozenset(), worst_loss: float | None = None, band: float = 0.0
) -> Judged:
    """How well latencies and losses of the last finished trials had been predicted.

    Args:
        repaired: numbers of trials that do not count: what was built is not what was predicted.
        worst_loss: what errors of the loss are relative to; None for each measurement itself.
        band: relative difference at which two latencies count as a tie.
    """
    from optuna.trial import TrialState

    done = [t for t in trials if t.state is TrialState.COMPLETE and FORECAST in t.user_attrs]
    known = [t for t in done if t.number not in repaired]
    # A loss of some of the samples is another quantity than the one predicted.
    whole = [t for t in known if t.user_attrs.get(MEASURED, (0.0, 0.0, 1.0))[2] > 0]
    whole, known = whole[-RECENT:], known[-RECENT:]
    std = [float(t.user_attrs.get(MEASURED, (0.0, 0.0))[1]) for t in whole]
    loss_band = _Z95 * float(np.median(std)) / worst_loss if std and worst_loss else 0.0
    return Judged(_quality(known, "ms", 0), _quality(whole, "loss", 1, worst_loss), band, loss_band)


def _quality(trials: Sequence[FrozenTrial], name: str, place: int, scale: float | None = None) -> Quality | None:
    if not trials:
        return None
    told = [t.user_attrs[FORECAST] for t in trials]
    mean, std = (np.array([each[field] for each in told], dtype=float) for field in (name, f"{name}_std"))
    return quality(mean, std, np.array([t.values[place] for t in trials], dtype=float), scale)
