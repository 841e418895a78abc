"""The last trials of a search, which improve the mix that will be exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from search.forecast.acquisition import Forecast, Reference
from search.sampler import guided
from search.sampler.candidates import Pool
from search.sampler.gains import Gain
from search.sampler.goals import Goal, Knee, Known, MixGoal, nearest, worth
from search.sampler.loss_bounds import SURE, LossBounds
from tests.support.known_problem import Search, make_problem

TRIALS = 24
AIMS = (MixGoal(max_loss=0.02), MixGoal(budget_ms=0.45))


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def goals_of(monkeypatch: pytest.MonkeyPatch, search: Search, trials: int) -> list[Goal]:
    """What the proposals of a search are made to improve, in order."""
    goals: list[Goal] = []

    class Noted(Gain):
        def __init__(self, goal: Goal, *rest: Any) -> None:
            goals.append(goal)
            super().__init__(goal, *rest)

    monkeypatch.setattr(guided, "Gain", Noted)
    search.run(trials)
    return goals


def limited(aim: MixGoal, trials: int = TRIALS, **guidance: Any) -> Search:
    """A search that tells its sampler how many of its trials are left."""
    made: list[Search] = []
    made.append(
        Search(
            make_problem(seed=4), aim=lambda: aim, left=lambda: float(trials - len(made[0].measurements)), **guidance
        )
    )
    return made[0]


@pytest.mark.slow
@pytest.mark.parametrize("aim", AIMS)
def test_late_trials_look_only_at_the_limit_and_change_mixes_that_are_near_it(
    aim: MixGoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = limited(aim)
    seen: list[Any] = []
    polishing = Pool.polish

    def noted(pool: Any, models: Any, history: Any, rng: Any, bounds: Any, mixes: Any) -> Any:
        codes, precisions = polishing(pool, models, history, rng, bounds, mixes)
        seen.append((history, mixes, precisions))
        return codes, precisions

    monkeypatch.setattr(Pool, "polish", noted)
    goals = goals_of(monkeypatch, search, TRIALS)
    late = TRIALS // 3
    assert len(seen) == late
    assert goals[-late:] == [Goal.LIMITS] * late
    assert Goal.FRONT in goals[:-late], "earlier trials look at the whole front now and then"
    for history, mixes, precisions in seen:
        measured = {row.tobytes() for row in history.precisions}
        assert {row.tobytes() for row in mixes} <= measured
        assert not measured & {row.tobytes() for row in precisions}, "nothing is measured again"
        changed = (precisions[:, None] != mixes[None]).sum(axis=2).min(axis=1)
        assert np.mean(changed <= 2) > 0.8, "most are changes of one or two layers"


@pytest.mark.slow
@pytest.mark.parametrize("aim", AIMS)
def test_without_a_known_end_no_trial_is_late(aim: MixGoal, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*rest: Any) -> None:
        raise AssertionError("this trial was taken for a late one")

    monkeypatch.setattr(Pool, "polish", never)
    Search(make_problem(seed=4), aim=lambda: aim).run(TRIALS)


def known(ms: list[float], loss: list[float], std: float = 0.0) -> Known:
    n = len(ms)
    corner = Reference(float(np.log(max(ms))), 1.1 * max(loss))
    bounds, upper = LossBounds(std**2, 0.0, std**2, std**2), np.array(loss) + SURE * std
    return Known(np.log(ms), np.array(loss), np.zeros(n), np.full(n, std / 10), corner, 1e-3, 0.005, upper, bounds)


def test_a_mix_gains_as_far_as_its_upper_bound_will_keep_the_allowed_loss() -> None:
    trials, aim = known([10.0, 8.0, 4.0], [0.0, 0.01, 0.1], std=0.01), MixGoal(max_loss=0.05)
    assert trials.bounds.allowed_loss(0.05) == pytest.approx(0.05 - SURE * 0.01)
    loss = np.array([0.01, 0.05 - SURE * 0.01, 0.06])  # surely, as often as not, never
    ms = np.full(3, 6.0)
    gains = worth(aim, Forecast(ms, 0.001 * ms, loss, np.full(3, 1e-5)), trials, np.random.default_rng(0))
    assert gains / np.log(8 / 6) == pytest.approx([0.98, 0.5, 0.0], abs=0.02)


def test_the_least_bound_within_a_budget_is_what_gains() -> None:
    trials = known([10.0, 4.0], [0.02, 0.06], std=0.01)
    ms = np.full(2, 4.5)
    forecast = Forecast(ms, 1e-6 * ms, np.array([0.03, 0.07]), np.full(2, 1e-6))
    gains = worth(MixGoal(budget_ms=5.0), forecast, trials, np.random.default_rng(0))
    assert gains == pytest.approx([0.03, 0.0], abs=1e-3)


def test_the_chance_to_keep_a_limit_is_that_of_many_measurements() -> None:
    rng, bounds = np.random.default_rng(1), LossBounds(1e-4, 0.0, 1e-4, 1e-4)
    loss, std = np.array([0.02, 0.03, 0.045]), np.array([0.005, 0.01, 0.02])
    true = loss[:, None] + std[:, None] * rng.standard_normal(200_000)
    measured = true + 0.01 * rng.standard_normal((3, 200_000))
    kept = ((measured + SURE * 0.01 <= 0.05) & (true <= 0.05)).mean(axis=1)
    assert np.exp(bounds.log_chances(loss, std, 0.05)) == pytest.approx(kept, abs=0.02)


def test_bounds_of_losses_follow_the_losses_that_were_measured() -> None:
    loss = np.array([0.0, 0.02, 0.08])
    bounds = LossBounds.of(loss, np.sqrt(1e-6 + 1e-3 * loss))
    assert bounds.upper(np.array([0.05]))[0] == pytest.approx(0.05 + SURE * np.sqrt(1e-6 + 5e-5))
    assert bounds.upper(np.array([9.0]))[0] == pytest.approx(9.0 + SURE * np.sqrt(8.1e-5)), "not beyond what was seen"
    assert LossBounds.of(loss[:0], loss[:0]).upper(loss).tolist() == loss.tolist()


def test_the_nearest_mixes_are_those_of_the_front_by_the_limit() -> None:
    ms, loss = np.arange(20.0, 0.0, -1.0), np.arange(20.0) / 100
    trials = known(ms.tolist(), loss.tolist(), std=0.005)
    by_budget = nearest(MixGoal(budget_ms=5.0), trials, np.log(ms), loss)
    assert sorted(ms[by_budget].tolist()) == [3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    by_loss = nearest(MixGoal(max_loss=0.1), trials, np.log(ms), loss)
    assert loss[by_loss[0]] == pytest.approx(0.09), "the nearest to 0.1 less the distance to its bound"


def test_without_limits_the_knee_is_what_gains() -> None:
    trials = known([10.0, 5.0, 2.0], [0.0, 0.02, 0.1])
    assert MixGoal().goal is MixGoal(5.0, knee=True).goal is Goal.KNEE
    knee = Knee.of(MixGoal(), trials)
    assert knee is not None
    assert knee.place == pytest.approx((5.0, 0.02))
    ms = np.array([5.0, 4.0, 9.9])
    gains = knee.worth(Forecast(ms, 1e-6 * ms, np.array([0.02, 0.02, 0.0]), np.full(3, 1e-6)), trials)
    assert gains == pytest.approx([0.0, 1 / 8, 0.0], abs=1e-4)
    within = Knee.of(MixGoal(budget_ms=6.0, knee=True), trials)
    assert within is not None
    assert within.slow_ms == pytest.approx(5.0)
    assert Knee.of(MixGoal(budget_ms=3.0, knee=True), trials) is None
