"""The sampler `rl`: rewards and values by hand, what it may propose, and that it remembers nothing but the study."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import IntDistribution

from search.forecast.history import Historian
from search.graph.grouping import Group
from search.sampler.goals import MixGoal
from search.sampler.guided import Guidance
from search.sampler.q_learning import RATE, SWEEPS, QLearningSampler, Walk, kinds_of, learn
from search.space.layout import make_layout
from search.values import Score
from tests.support.assignments import THREE
from tests.support.known_problem import Problem, Search, make_problem

FP32, FP16, INT8 = THREE


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(groups=4)


def sampler_of(problem: Problem, seed: int = 0, **more: Any) -> QLearningSampler:
    priors = problem.priors()
    return QLearningSampler(Guidance(problem.layout, **{"priors": lambda: priors, **more}), seed)


def study_of(problem: Problem, *mixes: tuple[list[int], float, float]) -> optuna.Study:
    """A study in memory with finished trials: codes, milliseconds, loss."""
    study = optuna.create_study(directions=["minimize", "minimize"])
    names = {v.id: IntDistribution(0, len(v.precisions) - 1) for v in problem.layout.space.variables}
    for codes, ms, loss in mixes:
        params = dict(zip(names, codes, strict=True))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=names, values=[ms, loss]))
    return study


UNIFORM = ([0] * 4, 10.0, 0.0), ([1] * 4, 7.0, 0.001), ([2] * 4, 5.0, 0.1)


def history_of(problem: Problem, study: optuna.Study) -> Any:
    return Historian(problem.layout).history(study.get_trials())


def proposals(sampler: QLearningSampler, study: optuna.Study, count: int = 1) -> list[list[int]]:
    """The next proposals, each told with made-up values, so that the next one learns from it."""
    study.sampler, found = sampler, []
    for _ in range(count):
        trial = study.ask()
        codes = [trial.suggest_int(v.id, 0, len(v.precisions) - 1) for v in sampler.layout.space.variables]
        study.tell(trial, (10.0 - sum(codes), 0.01 * sum(codes)))
        found.append(codes)
    return found


# -- rewards -----------------------------------------------------------------------------------------------------------


def test_the_reward_of_a_trial_is_its_score_against_fp32(problem: Problem) -> None:
    """0.6 · −0.1 − 0.4 · (5 / 10 − 1) = 0.14, and so on."""
    history = history_of(problem, study_of(problem, *UNIFORM, ([2, 2, 2, 0], 6.0, 0.02)))
    assert sampler_of(problem).rewards(history) == pytest.approx([0.0, -0.0006 + 0.12, 0.14, -0.012 + 0.16])
    weighed = sampler_of(problem, score=Score(10, 1)).rewards(history)
    assert weighed == pytest.approx([0.0, -0.01 + 0.3, -1 + 0.5, -0.2 + 0.4])


def test_a_loss_without_a_natural_unit_counts_by_the_worst_uniform_assignment(problem: Problem) -> None:
    """INT8 loses most of the uniform ones, 0.1 dB say: that counts 1, and a mix with 0.02 counts 0.2."""
    history = history_of(problem, study_of(problem, *UNIFORM, ([2, 2, 2, 0], 6.0, 0.02)))
    found = sampler_of(problem, ratio=False).rewards(history)
    assert found == pytest.approx([0.0, -0.006 + 0.12, -0.6 + 0.2, -0.12 + 0.16])


def test_there_is_no_reward_before_fp32_was_measured(problem: Problem) -> None:
    study = study_of(problem, UNIFORM[2])
    assert sampler_of(problem).rewards(history_of(problem, study)) is None
    assert len(proposals(sampler_of(problem), study)) == 1, "it proposes all the same, by chance"


# -- values ------------------------------------------------------------------------------------------------------------


def walk(decisions: int) -> Walk:
    """Decisions of one kind about FP32, which takes 4 ms, and INT8, which takes 1."""
    return Walk(
        kinds=np.zeros(decisions, dtype=np.int64),
        places=(np.array([0, 1]),) * decisions,
        times_ms=(np.array([4.0, 1.0]),) * decisions,
        barred=(np.array([False, False]),) * decisions,
        precisions=2,
    )


def test_values_of_one_decision_go_to_the_mean_reward_of_each_action() -> None:
    """Within 4 ms both precisions keep the budget. FP32 earned 0 and 0.2, INT8 0.4; all began at their mean, 0.2."""
    table = learn(walk(1), np.array([[0], [0], [1]]), np.full(3, 4.0), np.array([0.0, 0.2, 0.4]))
    left = (1 - RATE) ** SWEEPS  # of the way to go
    no_precision_before, both_fit = 2, 2
    assert table[0, no_precision_before, both_fit] == pytest.approx([0.1 + left * 0.1, 0.4 - left * 0.2])
    others = np.delete(table.reshape(-1, 2), no_precision_before * 3 + both_fit, axis=0)
    assert others == pytest.approx(np.full(others.shape, 0.2)), "states that no mix came to have the mean reward"


def test_a_value_leads_on_to_the_best_of_the_next_state() -> None:
    """After INT8 the second layer was tried in both: INT8 is worth what the better of the two earned."""
    codes, rewards = np.array([[1, 0], [1, 1], [0, 0]]), np.array([0.1, 0.5, -0.3])
    table = learn(walk(2), codes, np.full(3, 8.0), rewards)
    first = table[0, 2, 2]
    assert first[1] == pytest.approx(0.5, abs=0.01)
    # After FP32 only FP32 was tried, and came out below the mean of all rewards, which untried INT8 still has.
    assert first[0] == pytest.approx(0.1, abs=0.01)
    assert table[0, 1, 2] == pytest.approx([0.1, 0.5], abs=0.01)


def test_the_budget_left_says_in_what_the_rest_could_run() -> None:
    """Two layers: in FP32 they take 8 ms, in INT8 2 ms."""
    assert walk(2).left(0, np.array([8.0, 7.0, 2.0, 1.0])).tolist() == [2, 1, 1, 0]
    assert walk(2).allowed_codes(0, 8.0).tolist() == [True, True]
    assert walk(2).allowed_codes(0, 4.0).tolist() == [False, True], "FP32 would leave nothing for the second"
    assert walk(2).allowed_codes(0, 1.0).tolist() == [False, True], "the fastest, where nothing keeps the budget"


# -- proposals ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_learns_to_earn_more_than_chance() -> None:
    """Mean score of the mixes that it proposes late, against that of random ones."""
    earned = {method: _late_scores(method) for method in ("rl", "random")}
    assert earned["rl"] > earned["random"] + 0.02


def _late_scores(method: str) -> float:
    problem = make_problem(groups=10)
    groups = [group(name, "Conv" if i % 2 else "Gemm") for i, name in enumerate(problem.layout.groups)]
    found = []
    for seed in range(3):
        done = Search(problem, method, seed, latency_std=0.0, loss_std=0.0, groups=groups).run(60)
        ms, loss = np.array(done.measurements).T
        found.append(Score().of(ms, loss, ms[0], 1.0)[40:].mean())
    return float(np.mean(found))


def test_proposals_are_the_same_for_a_seed_and_differ_for_another(problem: Problem) -> None:
    first, again, other = (proposals(sampler_of(problem, seed), study_of(problem, *UNIFORM), 8) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_a_study_that_is_resumed_goes_on_as_if_it_had_not_stopped(problem: Problem) -> None:
    whole = proposals(sampler_of(problem), study_of(problem, *UNIFORM), 8)
    study = study_of(problem, *UNIFORM)
    assert [*proposals(sampler_of(problem), study, 3), *proposals(sampler_of(problem), study, 5)] == whole


def test_trials_that_others_told_count(problem: Problem) -> None:
    """They are learnt from, and not proposed again."""
    others = [([a, b, 1, 2], 4.0, 0.0) for a in range(3) for b in range(3)]
    told = study_of(problem, *UNIFORM, *others)
    sampler = sampler_of(problem)
    rewards = sampler.rewards(history_of(problem, told))
    assert rewards is not None
    assert len(rewards) == 3 + 9
    found = proposals(sampler, told, 10)
    assert found != proposals(sampler_of(problem), study_of(problem, *UNIFORM), 10)
    assert not [codes for codes in found if codes in [mix for mix, _, _ in others]]


def test_what_cannot_be_built_is_not_proposed(problem: Problem) -> None:
    refused = {("g001", INT8), ("g002", FP16)}
    found = proposals(sampler_of(problem, unbuildable=lambda: refused), study_of(problem, *UNIFORM), 20)
    assert {codes[1] for codes in found} <= {0, 1}
    assert {codes[2] for codes in found} <= {0, 2}


@pytest.mark.parametrize("budget_ms", [5.5, 7.5])
def test_a_latency_budget_bounds_what_is_proposed(problem: Problem, budget_ms: float) -> None:
    """By the estimates that the uniform assignments give, of which FP32's is scaled to its measured 10 ms."""
    sampler = sampler_of(problem, aim=lambda: MixGoal(budget_ms))
    nodes = problem.priors().latency.nodes
    found = np.array(proposals(sampler, study_of(problem, *UNIFORM), 15))
    taken = nodes[np.arange(4), found].sum(axis=1) / nodes[:, 0].sum() * 10.0
    assert taken.max() <= budget_ms + 1e-6
    assert len(np.unique(found, axis=0)) > 3


def test_layers_of_one_type_and_size_are_one_kind(problem: Problem) -> None:
    groups = [group("g000", "Conv"), group("g001", "Conv"), group("g002", "Gemm"), group("g003", "Conv", 64)]
    assert kinds_of(problem.layout, groups).tolist() == [0, 0, 1, 2]
    assert kinds_of(problem.layout, ()).tolist() == [0, 0, 0, 0]


def group(name: str, op: str, channels: int = 8) -> Group:
    shape = (1, channels, 8, 8)
    return Group(name, name, op, (name,), (name,), ("w",), ("x",), (), ("y",), "y", shape, (channels, 8, 3, 3), "")


def test_a_block_is_one_decision_of_the_kind_of_its_largest_group(problem: Problem) -> None:
    space = problem.layout.space
    one = replace(space.variables[0], id="b000", groups=("g000", "g001"))
    assert one.precisions == THREE
    layout = make_layout(problem.layout.groups, [], replace(space, variables=(one, *space.variables[2:])))
    groups = [group("g000", "Gemm"), group("g001", "Conv", 64), group("g002", "Conv", 64), group("g003", "Gemm")]
    assert kinds_of(layout, groups).tolist() == [0, 0, 1]


@pytest.fixture(autouse=True)
def _no_experimental_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield
