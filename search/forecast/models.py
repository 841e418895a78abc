"""The latency model and the loss model of a search, fitted to its history.

They predict latency and loss of an assignment before it is built, with their uncertainty. Latency is a base, plus a
cost per group, plus a cost per edge where the precision changes. Loss is a monotone map of noise, and noise is a sum
over groups. Both have costs that a solver can minimise exactly (`mean`, `draw`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search.forecast.acquisition import Forecast
from search.forecast.history import History, relevant
from search.forecast.latency_model import LatencyModel, fit_latency, repeat_std
from search.forecast.loss_model import LossModel, fit_loss
from search.forecast.priors import LatencyPrior, NoisePrior
from search.forecast.transfer import Losses
from search.space.layout import Layout, Precisions


@dataclass(frozen=True)
class Priors:
    """Knowledge before any mix is measured: from profiles, sensitivities, and losses of mixes on another target.

    Attributes:
        decibels: whether losses are in dB.
    """

    latency: LatencyPrior
    noise: NoisePrior
    losses: Losses | None = None
    decibels: bool = False


@dataclass(frozen=True)
class Models:
    """The latency model and the loss model, fitted to a history."""

    layout: Layout
    latency: LatencyModel
    loss: LossModel

    def forecast(self, precisions: Precisions) -> Forecast:
        """Predict measurements."""
        ms, ms_std = self.latency.predict(precisions)
        loss, loss_std = self.loss.predict(precisions)
        return Forecast(ms, ms_std, loss, loss_std)

    def predict_latent(self, precisions: Precisions) -> Forecast:
        """Predict true values, without the noise of a measurement."""
        ms, ms_std = self.latency.predict_latent(precisions)
        loss, loss_std = self.loss.predict_latent(precisions)
        return Forecast(ms, ms_std, loss, loss_std)

    def roughly(self, precisions: Precisions) -> Forecast:
        """Predict the means alone, all with the standard deviations of a typical measurement, which is fast."""
        ms, loss = self.expected_ms(precisions), self.expected_loss(precisions)
        stds = self.latency.noise_std, self.loss.observation_std
        return Forecast(ms, np.full(len(ms), stds[0]), loss, np.full(len(loss), stds[1]))

    def expected_loss(self, precisions: Precisions) -> NDArray[np.float64]:
        """Predict only the (n,) expected losses, which is fast."""
        return self.loss.predict_mean(precisions)

    def expected_ms(self, precisions: Precisions) -> NDArray[np.float64]:
        """Predict only the (n,) expected latencies in milliseconds."""
        return self.latency.predict_mean(precisions)


def fit_models(layout: Layout, priors: Priors, history: History, band: float | None) -> Models:
    """Fit both models to a history.

    Args:
        band: the relative difference up to which two latencies count as equal; None while it is not known.
    """
    rows = relevant(history)
    precisions, spread = history.precisions[rows], history.spread[rows]
    repeat = repeat_std(band, spread)
    latency = fit_latency(layout, priors.latency, precisions, history.ms[rows], spread, repeat)
    there = priors.losses or Losses.none(len(layout.groups))
    loss = fit_loss(
        layout,
        priors.noise,
        np.concatenate([there.precisions, precisions]),
        np.concatenate([there.loss, history.loss[rows]]),
        np.concatenate([there.std, history.loss_std[rows]]),
        np.concatenate([np.ones(len(there.loss), dtype=bool), history.whole[rows]]),
        priors.decibels,
    )
    return Models(layout, latency, loss)
