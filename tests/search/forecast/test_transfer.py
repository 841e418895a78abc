"""What another target's evaluations are worth: beliefs nearer to the truth, and better first proposals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import optuna
import pytest

from search.forecast.priors import Baseline, LatencyPrior, latency_prior, noise_prior
from search.forecast.transfer import MOST_ROWS, Elsewhere, transfer_prior
from search.sampler.guided import Guidance, GuidedSampler, Priors
from search.space.layout import Costs
from search.values import Precision
from tests.support.known_problem import CEILING, Problem, Search, make_problem

SEEDS = range(6)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def kin(problem: Problem, seed: int, *, unlike: float = 1.0) -> Problem:
    """The same network on a device that is three times as slow, where groups, changes and noise differ a little."""
    rng = np.random.default_rng(1000 + seed)
    gain = 3 * np.array([1.0, 0.9, 1.2])
    latency = problem.latency
    nodes = latency.nodes * gain * rng.lognormal(0, 0.15 * unlike, latency.nodes.shape)
    edges = 3 * latency.edges * rng.lognormal(0, 0.3 * unlike, (len(latency.edges), 1, 1))
    noise = problem.noise.nodes * rng.lognormal(0, 0.05 * unlike, problem.noise.nodes.shape)
    return Problem(problem.layout, Costs(3 * latency.base, nodes, edges), Costs(0.0, noise, problem.noise.edges))


def measured(problem: Problem, seed: int, count: int = 40, *, alike: bool = True) -> Elsewhere:
    """Uniform and random mixes, with the noise of a measurement."""
    rng = np.random.default_rng(seed)
    layout = problem.layout
    uniform = layout.precisions_of(list(layout.space.baselines.values()))
    mixes = rng.integers(0, 3, (count - len(uniform), len(layout.groups)))
    rows = np.concatenate([uniform, mixes]).astype(np.int8)
    ms = layout.values(problem.latency, rows) * (1 + 0.004 * rng.standard_normal(count))
    loss = CEILING * layout.values(problem.noise, rows) ** 1.2 + 0.002 * rng.standard_normal(count)
    spread, std = np.full(count, 0.004), np.full(count, 0.002)
    return Elsewhere(rows, ms, loss, spread, std, latency_prior(layout, baselines(problem)), alike)


def baselines(problem: Problem) -> list[Baseline]:
    """Uniform engines without a profile."""
    uniform = problem.layout.space.baselines.values()
    return [Baseline(problem.layout.precisions_of([a])[0], problem.truth(a)[0]) for a in uniform]


def known(problem: Problem) -> Priors:
    """What a target says of itself before any mix: latencies of its uniform engines."""
    return Priors(latency_prior(problem.layout, baselines(problem)), noise_prior(problem.layout))


def told(problem: Problem, elsewhere: Elsewhere) -> Priors:
    own = known(problem)
    latency = transfer_prior(problem.layout, own.latency, baselines(problem), elsewhere.worth())
    return Priors(latency, own.noise, elsewhere.worth().losses())


def first_proposals(problem: Problem, priors: Priors, seed: int, count: int = 2) -> float:
    """Share of the best front that the uniform mixes and the first proposals reach."""
    search = Search(problem, seed=seed)
    search.study.sampler = GuidedSampler(Guidance(problem.layout, lambda: priors), seed)
    return search.run(len(problem.layout.space.baselines) + count).share()


@pytest.mark.slow
def test_first_proposals_on_a_new_target_are_better_than_without() -> None:
    shares = []
    for seed in range(12):
        there = make_problem(20, seed)
        here = kin(there, seed)
        elsewhere = measured(there, seed)
        shares.append([first_proposals(here, priors, seed) for priors in (known(here), told(here, elsewhere))])
    without, with_it = np.mean(shares, axis=0)
    assert with_it > without
    assert with_it > 0.97


@pytest.mark.slow
def test_a_target_that_is_quite_different_does_no_harm() -> None:
    shares = []
    for seed in SEEDS:
        there = make_problem(20, seed)
        here = kin(there, seed, unlike=4.0)
        elsewhere = measured(there, seed, alike=False)
        shares.append([first_proposals(here, priors, seed, 5) for priors in (known(here), told(here, elsewhere))])
    without, with_it = np.mean(shares, axis=0)
    assert with_it > without - 0.02


def missed(prior: LatencyPrior, problem: Problem) -> tuple[float, float]:
    """Root mean square error of groups' times and of what changes cost, relative to the typical one."""
    nodes = prior.nodes - problem.latency.nodes
    edges = prior.changes() - problem.latency.edges
    return tuple(
        float(np.sqrt((error**2).mean()) / scale.mean())
        for error, scale in ((nodes, problem.latency.nodes), (edges, problem.latency.edges))
    )


def test_beliefs_come_nearer_to_the_truth_and_grow_surer() -> None:
    errors = []
    for seed in SEEDS:
        there = make_problem(20, seed)
        here = kin(there, seed)
        own, heard = known(here).latency, told(here, measured(there, seed)).latency
        errors.append([missed(own, here), missed(heard, here)])
        assert (heard.nodes_std < own.nodes_std).all()
        assert heard.change_std < own.change_std
    (nodes, edges), (nodes_heard, edges_heard) = np.mean(errors, axis=0)
    assert nodes_heard < 0.92 * nodes
    assert edges_heard < 0.98 * edges


def test_a_precision_that_never_ran_there_says_nothing() -> None:
    there = make_problem(12, 0)
    elsewhere = measured(there, 0)
    only = (elsewhere.precisions != there.layout.places[Precision.FP16]).all(axis=1)
    names = ("precisions", "ms", "spread", "loss", "loss_std")
    elsewhere = replace(elsewhere, **{name: getattr(elsewhere, name)[only] for name in names})
    assert 2 <= len(elsewhere.ms) < 8  # and too few rows to say anything of changes
    own = known(there).latency
    heard = transfer_prior(there.layout, own, baselines(there), elsewhere)
    assert heard.nodes[:, Precision.FP16.rank] == pytest.approx(own.nodes[:, Precision.FP16.rank])
    assert heard.nodes_std[:, Precision.FP16.rank] == pytest.approx(own.nodes_std[:, Precision.FP16.rank])
    assert (heard.constant == own.constant).all()
    assert heard.change_std == own.change_std


def test_losses_of_a_target_that_rounds_otherwise_are_believed_less() -> None:
    there = make_problem(12, 0)
    alike, other = (measured(there, 0, alike=alike).losses() for alike in (True, False))
    assert (alike.loss == other.loss).all()
    assert (alike.std <= other.std).all()
    assert alike.std.sum() < 0.5 * other.std.sum()


def test_of_many_rows_the_front_and_the_last_are_kept() -> None:
    there = make_problem(12, 0)
    many = measured(there, 0, 300)
    best = int(np.argmin(many.loss))
    few = many.worth()
    assert len(few.ms) == len(few.precisions) == MOST_ROWS
    assert many.ms[best] in few.ms
    assert set(many.ms[-30:]) <= set(few.ms)
    assert len(measured(there, 0, 30).worth().ms) == 30
