"""The gain that the candidates of one proposal are chosen by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from search.forecast import acquisition
from search.forecast.acquisition import Forecast
from search.sampler.goals import Goal, Knee, Known, MixGoal, is_improved, worth
from search.space.layout import Precisions

if TYPE_CHECKING:
    from search.forecast.models import Models

# Candidates whose uncertainty is computed: the best by quick forecasts, and random ones because those may be wrong.
_SHORT, _LUCKY = 120, 20

Floats = NDArray[np.float64]


class Gain:
    """Expected gains under the models, with equal draws for all candidates of the proposal.

    Args:
        goal: what is to be improved. If none of the candidates promises any gain there, it is the front.
    """

    def __init__(self, goal: Goal, aim: MixGoal, models: Models, known: Known, rng: np.random.Generator) -> None:
        self.goal = goal
        self._aim, self._models, self._known = aim, models, known
        self._knee = Knee.of(aim, known) if goal is Goal.KNEE else None
        self._rng = rng
        self._seeds = 0, 0

    def shortlist(self, precisions: Precisions) -> NDArray[np.int64]:
        """Indices of the candidates that gain most by quick forecasts, and of a few random ones."""
        if len(precisions) <= _SHORT:
            return np.arange(len(precisions))
        forecast = self._models.roughly(precisions)
        score = self._at_goal(forecast)
        score = self._optimistic(forecast) if score is None else score
        best, lucky = np.argsort(-score)[:_SHORT], self._rng.permutation(len(score))[:_LUCKY]
        return np.unique(np.concatenate([best, lucky]))

    def settle(self, precisions: Precisions) -> None:
        """Draw what gains are averaged over; if none of these candidates promises any at the goal, take the front."""
        front, goal = self._rng.integers(2**32, size=2)
        self._seeds = int(front), int(goal)
        if self.goal is not Goal.FRONT and self._at_goal(self._models.predict_latent(precisions)) is None:
            self.goal = Goal.FRONT

    def rate(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to the (n,) expected gain of each."""
        forecast = self._models.predict_latent(precisions)
        if self.goal is Goal.FRONT:
            corner, draws = self._known.within(self._aim), np.random.default_rng(self._seeds[0])
            return acquisition.expected_gains(forecast, *self._known.front(), corner, draws)
        gains = self._at_goal(forecast)
        return np.zeros(len(precisions)) if gains is None else gains

    def promises(self, precisions: Precisions) -> bool:
        """Whether any of (n, groups) precisions is expected to be better than what was found, see `is_improved`."""
        return is_improved(self._aim, self._models.predict_latent(precisions), self._known)

    def _at_goal(self, forecast: Forecast) -> Floats | None:
        """(n,) expected gains at the limits or at the knee; None if there are none."""
        if self.goal is Goal.LIMITS:
            return worth(self._aim, forecast, self._known, np.random.default_rng(self._seeds[1]))
        return None if self._knee is None else self._knee.worth(forecast, self._known)

    def _optimistic(self, forecast: Forecast) -> Floats:
        """(n,) hypervolume that candidates would add to the front if they were a little better than expected."""
        known, budget_ms = self._known, self._aim.budget_ms
        ms = np.maximum(forecast.ms - forecast.ms_std, 1e-12)
        loss = np.maximum(forecast.loss - known.resolution / 2, 0)
        score = acquisition.gains(np.log(ms), loss, *known.front(), known.corner)
        if budget_ms is not None:
            # Of those that keep the budget, the quietest; a front's gain says little so near one end.
            late = np.maximum(np.log(ms / budget_ms), 0)
            score = score / (score.max() or 1.0) + np.exp(-loss / max(float(loss.max()), 1e-12) - 50 * late)
        return score
