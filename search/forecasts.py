"""What was predicted of a trial before it was measured, and how good such predictions have been."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from search.quality import Quality, quality

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

    from search.acquisition import Forecast

FORECAST = "bitfront:forecast"
"""User attribute of a trial that the guided sampler proposed: `Predicted` as JSON."""
MEASURED = "bitfront:measured"
"""User attribute of a finished trial: [spread, standard deviation of the loss, whether it saw every sample]."""
RECENT = 25
"""Finished trials that forecasts are judged by."""


@dataclass(frozen=True)
class Predicted:
    """One trial's forecast.

    Attributes:
        how: `gain` where it was expected to gain most, `explore` where least was known of it.
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


def forecast_quality(trials: Sequence[FrozenTrial]) -> Quality | None:
    """How well the latencies of the last finished trials had been predicted; None before there are any."""
    from optuna.trial import TrialState

    known = [t for t in trials if t.state is TrialState.COMPLETE and FORECAST in t.user_attrs][-RECENT:]
    if not known:
        return None
    told = [t.user_attrs[FORECAST] for t in known]
    ms, std = (np.array([each[name] for each in told], dtype=float) for name in ("ms", "ms_std"))
    return quality(ms, std, np.array([t.values[0] for t in known], dtype=float))
