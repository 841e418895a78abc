"""Whether any mix is expected to be better than what was found, by which a search ends on its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

from search.forecast.acquisition import Forecast, Reference, volume
from search.forecast.forecasts import FORECAST, MEASURED, Predicted, deciding_forecasts
from search.sampler.goals import Known, MixGoal, is_improved
from search.sampler.loss_bounds import SURE, LossBounds
from search.space.layout import Costs
from tests.support.known_problem import Problem, Search, make_problem

BAND, FEWEST = 0.01, 7


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_the_hypervolume_is_the_area_below_the_corner() -> None:
    log_ms, loss = np.array([1.0, 0.0, 0.5, 3.0]), np.array([0.1, 0.4, 0.5, 0.0])
    assert volume(log_ms, loss, Reference(2.0, 0.5)) == pytest.approx(1 * 0.1 + 1 * 0.4)
    assert volume(np.zeros(0), np.zeros(0), Reference(2.0, 0.5)) == 0


# -- candidates --------------------------------------------------------------------------------------------------------


def known(ms: list[float], loss: list[float], std: float) -> Known:
    n = len(ms)
    corner = Reference(float(np.log(1.02 * max(ms))), max(1.05 * max(loss), 2 * std))
    bounds, upper = LossBounds(std**2, 0.0, std**2, std**2), np.array(loss) + SURE * std
    return Known(np.log(ms), np.array(loss), np.zeros(n), np.full(n, std), corner, 2 * std, 0.005, upper, bounds)


def candidate(ms: float, loss: float) -> Forecast:
    return Forecast(np.array([ms]), np.array([0.01]), np.array([loss]), np.array([0.001]))


def test_a_loss_that_cannot_be_told_from_none_is_no_reason_to_go_on() -> None:
    found = known([10.0, 4.0], [0.0, 0.004], std=0.003)
    assert not is_improved(MixGoal(), candidate(6.0, 0.0), found), "slower than INT8, which loses nothing that shows"
    assert is_improved(MixGoal(), candidate(3.8, 0.004), found), "faster than INT8"
    lossy = known([10.0, 4.0], [0.0, 0.1], std=0.003)
    assert is_improved(MixGoal(), candidate(6.0, 0.0), lossy)
    assert not is_improved(MixGoal(), candidate(11.0, 0.0), lossy)


def test_with_limits_only_what_keeps_them_counts() -> None:
    found = known([10.0, 6.0, 4.0], [0.0, 0.02, 0.1], std=0.003)
    outside, inside = candidate(5.0, 0.06), candidate(5.5, 0.02)
    assert is_improved(MixGoal(), outside, found)
    assert not is_improved(MixGoal(max_loss=0.03), outside, found)
    assert is_improved(MixGoal(max_loss=0.03), inside, found)
    assert not is_improved(MixGoal(budget_ms=4.5), outside, found)
    assert is_improved(MixGoal(budget_ms=4.5), candidate(4.4, 0.06), found)


def test_the_pick_counts_by_its_upper_bound_although_the_front_does_not_grow() -> None:
    """The mix of 5.8 ms is on the front, but its loss is known too badly for a pick."""
    found = known([10.0, 6.0, 5.8], [0.0, 0.02, 0.02], std=0.003)
    found = replace(found, upper=np.array([0.006, 0.026, 0.05]))
    assert not is_improved(MixGoal(), candidate(5.9, 0.021), found)
    assert is_improved(MixGoal(max_loss=0.03), candidate(5.9, 0.021), found)
    assert not is_improved(MixGoal(max_loss=0.03), candidate(5.9, 0.029), found), "its bound would miss the limit"
    assert is_improved(MixGoal(max_loss=0.001), candidate(9.0, 0.05), found), "while nothing keeps the limit"


# -- trials ------------------------------------------------------------------------------------------------------------


def trial(ms: float = 1.0, loss: float = 0.0, whole: bool = True, ms_std: float = 0.02, **told: Any) -> FrozenTrial:
    """A trial that was predicted to take 1 ± 0.02 ms and to lose 0 ± 0.01, and took and lost this."""
    forecast = {"promising": False, "how": "gain", "poor": False, **told}
    attributes = {
        FORECAST: Predicted(1.0, ms_std, 0.0, 0.01, **forecast).to_json(),
        MEASURED: [0.0, 0.01, float(whole)],
    }
    return optuna.trial.create_trial(state=TrialState.COMPLETE, values=[ms, loss], user_attrs=attributes)


def deciding(*trials: FrozenTrial, since: int = 0) -> int:
    for number, each in enumerate(trials):
        each.number = number
    return deciding_forecasts(trials, since, BAND)


def unforeseen() -> FrozenTrial:
    return optuna.trial.create_trial(state=TrialState.COMPLETE, values=[1.0, 0.0])


def test_a_search_ends_when_the_last_forecasts_promised_nothing_and_were_right() -> None:
    right = [trial() for _ in range(FEWEST)]
    assert deciding(*right) == FEWEST
    assert not deciding(*right[1:]), "too few"
    assert not deciding(*right, since=1), "some are of an earlier run"
    assert not deciding(*right, trial(promising=True))
    assert deciding(trial(promising=True), *right)
    for how in ("asked", "near"):
        assert deciding(*right, trial(promising=True, how=how)), "it says nothing of the other mixes"
        assert not deciding(*right[1:], trial(how=how))
    assert not deciding(*right[1:], unforeseen()), "what was not predicted is no right forecast"


def test_the_more_trials_there_were_the_more_forecasts_decide() -> None:
    many = [trial(promising=True) for _ in range(40)]
    assert not deciding(*many, *(trial() for _ in range(12)))
    assert deciding(*many, *(trial() for _ in range(13))) == 13


def test_a_fifth_of_the_forecasts_may_miss_as_intervals_of_90_percent_do() -> None:
    right = [trial() for _ in range(FEWEST - 2)]
    assert deciding(*right, trial(ms=1.5), trial(loss=0.5)), "one latency, and one loss"
    assert not deciding(*right, trial(ms=1.5), trial(ms=0.5))
    assert not deciding(*right, trial(loss=0.5), trial(loss=0.5))
    assert deciding(*right, trial(loss=0.5), trial(loss=0.5, whole=False)), "of some samples it is another loss"


def test_a_forecast_that_holds_everything_was_not_right() -> None:
    assert deciding(*(trial(ms=1.04, ms_std=0.5) for _ in range(FEWEST)))
    assert not deciding(*(trial(ms=1.1, ms_std=0.5) for _ in range(FEWEST)))


# -- whole searches ----------------------------------------------------------------------------------------------------


def lossless(problem: Problem) -> Problem:
    return replace(problem, noise=Costs(0.0, 1e-3 * problem.noise.nodes, problem.noise.edges))


def ended_after(search: Search, trials: int) -> int:
    """How many trials a search makes until it ends on its own, or all of them."""
    for number in range(trials):
        if deciding_forecasts(search.study.get_trials(deepcopy=False), 0, BAND):
            return number
        search.run(1)
    return trials


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("aim", [MixGoal(), MixGoal(max_loss=0.02)])
def test_a_search_of_a_network_that_loses_nothing_ends_within_20_trials(aim: MixGoal, seed: int) -> None:
    search = Search(lossless(make_problem(seed=seed)), seed=seed, aim=lambda: aim, latency_band=lambda: BAND)
    assert 3 + FEWEST <= ended_after(search, 24) <= 20
    fastest = min(ms for ms, _ in search.measurements)
    search.run(20)
    assert min(ms for ms, _ in search.measurements) > fastest * (1 - BAND), "nothing that shows was given up"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_search_of_another_network_ends_when_its_front_is_done(seed: int) -> None:
    search = Search(make_problem(seed=seed), seed=seed, latency_band=lambda: BAND)
    assert ended_after(search, 40) > 12
    before = search.share()
    search.run(40 - len(search.measurements))
    assert search.share() < before + 0.01
