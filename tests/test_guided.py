"""The guided sampler on a problem whose best assignments are known exactly."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from search import acquisition
from search.candidates import Bounds, Pool
from search.changes import Changes
from search.forecasts import FORECAST, MEASURED, forecast_quality
from search.grouping import Edge
from search.guided import Aim, Guidance, GuidedSampler, Priors, relevant
from search.layout import PRECISIONS, Costs, Layout, make_layout
from search.priors import Baseline, latency_prior, noise_prior
from search.samplers import make_sampler
from search.solver import front, within
from search.space import Choice, Space, Variable
from search.values import Assignment, LayerTime, Precision
from searched import ok, write_inputs
from studies.guidance import make_guidance

FP32, FP16, INT8 = Precision
CEILING = 0.12


@dataclass(frozen=True)
class Problem:
    """A chain of groups with skips; latency with a price on every change, loss from noise that adds up."""

    layout: Layout
    latency: Costs
    noise: Costs

    def truth(self, assignment: Assignment) -> tuple[float, float]:
        precisions = self.layout.precisions_of([assignment])
        noise = self.layout.values(self.noise, precisions)[0]
        return float(self.layout.values(self.latency, precisions)[0]), float(CEILING * noise**1.2)

    def priors(self) -> Priors:
        baselines = []
        for assignment in self.layout.space.baselines().values():
            row = self.layout.precisions_of([assignment])[0]
            times = [LayerTime(g, "conv", g, False, 1.2 * self.latency.nodes[i, row[i]]) for i, g in self.named()]
            baselines.append(Baseline(row, self.truth(assignment)[0], tuple(times)))
        return Priors(latency_prior(self.layout, baselines), noise_prior(self.layout, self.noise.nodes))

    def named(self) -> list[tuple[int, str]]:
        return list(enumerate(self.layout.groups))

    def front(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        points = front(self.layout.pairwise(self.latency), self.layout.pairwise(self.noise))
        return np.log([p.first for p in points]), CEILING * np.array([max(p.second, 0.0) for p in points]) ** 1.2


def make_problem(groups: int = 14, seed: int = 0) -> Problem:
    names = [f"g{i:03d}" for i in range(groups)]
    edges = [Edge(a, b, f"{a}{b}", 100_000) for a, b in itertools.pairwise(names)]
    edges += [Edge(names[i], names[i + 2], f"skip{i}", 100_000) for i in range(0, groups - 2, 2)]
    choices = {name: tuple(Choice(p, True) for p in Precision) for name in names}
    space = Space(choices, tuple(Variable(name, (name,), tuple(Precision)) for name in names))
    rng = np.random.default_rng(seed)
    time = rng.lognormal(0, 0.5, groups)
    time /= time.sum()
    nodes = np.stack([time, time * rng.uniform(0.4, 0.6, groups), time * rng.uniform(0.25, 0.45, groups)], axis=1)
    changes = np.where(np.eye(PRECISIONS, dtype=bool), 0.0, 0.012) * rng.lognormal(0, 0.3, (len(edges), 1, 1))
    noise = rng.lognormal(0, 1.5, groups)
    noise /= noise.sum()
    quiet = np.stack([0 * noise, 0.003 * noise, noise], axis=1)
    layout = make_layout(names, edges, space)
    return Problem(layout, Costs(0.02, nodes, changes), Costs(0.0, quiet, 0 * changes))


class Search:
    """Ask, measure with noise, tell; as the runner does it."""

    def __init__(self, problem: Problem, method: str = "guided", seed: int = 0, **guidance: Any) -> None:
        self.problem = problem
        self.space = problem.layout.space
        priors = problem.priors()
        told = Guidance(problem.layout, lambda: priors, **guidance)
        sampler = make_sampler(method, seed, 0, told)
        self.study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        self.rng = np.random.default_rng(seed)
        self.found: list[tuple[float, float]] = []
        for assignment in self.space.baselines().values():
            self.study.enqueue_trial(self.space.codes(assignment))

    def ask(self) -> tuple[optuna.Trial, Assignment]:
        trial = self.study.ask()
        codes = {v.id: trial.suggest_int(v.id, 0, len(v.precisions) - 1) for v in self.space.variables}
        predicted = getattr(self.study.sampler, "predicted", {}).pop(trial.number, None)
        if predicted is not None:
            trial.set_user_attr(FORECAST, predicted.to_json())
        return trial, self.space.assignment(codes)

    def tell(self, trial: optuna.Trial, assignment: Assignment) -> None:
        ms, loss = self.problem.truth(assignment)
        self.found.append((ms, loss))
        trial.set_user_attr(MEASURED, [0.004, 0.002, 1.0])
        noise = self.rng.standard_normal(2)
        self.study.tell(trial, (ms * (1 + 0.004 * noise[0]), loss + 0.002 * noise[1]))

    def run(self, trials: int) -> Search:
        for _ in range(trials):
            self.tell(*self.ask())
        return self

    def share(self) -> float:
        """Hypervolume of what was found, as a share of what all weighings of the truth find."""
        uniforms = np.array(self.found[: len(self.space.baselines())])
        corner = acquisition.reference(uniforms[:, 0], uniforms[:, 1], 0.0)
        ms, loss = np.array(self.found).T
        kept = acquisition.front(np.log(ms), loss)
        return volume(np.log(ms)[kept], loss[kept], corner) / volume(*self.problem.front(), corner)


def volume(log_ms: Any, loss: Any, corner: acquisition.Reference) -> float:
    ends = np.append(log_ms[1:], corner.log_ms)
    return float(np.sum((ends - log_ms) * np.maximum(corner.loss - loss, 0) * (log_ms < corner.log_ms)))


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_the_front_is_found_in_tens_of_trials_where_random_search_finds_little():
    problem = make_problem()
    guided, random = Search(problem).run(25), Search(problem, "random").run(25)
    assert guided.share() > 0.97
    assert random.share() < guided.share() - 0.05


def test_without_prices_of_changes_it_would_not_be():
    """What knowing the graph is worth: the same sampler on a layout without its edges."""
    problem = make_problem()
    blind = replace(problem.layout, edges=problem.layout.edges[:0], elements=problem.layout.elements[:0])
    without = Costs(problem.latency.base, problem.latency.nodes, problem.latency.edges[:0])
    told = Problem(blind, without, Costs(0.0, problem.noise.nodes, problem.noise.edges[:0]))
    search = Search(problem)
    priors = told.priors()
    search.study.sampler = GuidedSampler(Guidance(blind, lambda: priors), 0)
    assert Search(problem).run(12).share() > search.run(12).share()


def test_a_budget_draws_the_search_to_it():
    problem = make_problem(seed=3)
    uniform = {label: problem.truth(a)[0] for label, a in problem.layout.space.baselines().items()}
    budget = float(np.sqrt(uniform["int8"] * uniform["fp16"]))
    noise = problem.layout.pairwise(problem.noise)
    best = within(noise, problem.layout.pairwise(problem.latency), budget)
    assert best is not None
    search = Search(problem, aim=lambda: Aim(budget_ms=budget)).run(20)
    kept = [found for ms, found in search.found if ms <= budget]
    assert min(kept) <= CEILING * best.value**1.2 + 0.004
    near = [ms for ms, _ in search.found[5:] if abs(ms / budget - 1) < 0.05]
    assert len(near) >= 8


def test_an_allowed_loss_draws_the_search_to_speed():
    problem = make_problem(seed=4)
    search = Search(problem, aim=lambda: Aim(max_loss=0.02)).run(20)
    log_ms, loss = problem.front()
    assert min(ms for ms, found in search.found if found <= 0.02) <= 1.03 * np.exp(log_ms[loss <= 0.02].min())


def test_nothing_is_proposed_twice_not_even_while_others_run():
    search = Search(make_problem(6)).run(6)
    asked = [search.ask() for _ in range(6)]
    assignments = [assignment for _, assignment in asked]
    told = [search.space.assignment({k: int(v) for k, v in t.params.items()}) for t in search.study.trials[:6]]
    assert len({a.digest for a in [*assignments, *told]}) == 12


def test_what_cannot_be_built_is_not_proposed():
    problem = make_problem(8)
    pairs = frozenset({("g002", INT8), ("g005", FP16)})
    search = Search(problem, unbuildable=lambda: pairs).run(3)
    for _ in range(12):
        trial, assignment = search.ask()
        assert pairs.isdisjoint(assignment.items())
        search.tell(trial, assignment)


def test_workers_with_one_seed_and_one_history_propose_the_same_trial_the_same_way():
    problem = make_problem(8)
    one, two = Search(problem, seed=5).run(8), Search(problem, seed=5).run(8)
    assert [t.params for t in one.study.trials] == [t.params for t in two.study.trials]
    fresh = GuidedSampler(one.study.sampler.guidance, 5)  # type: ignore[attr-defined]
    one.study.sampler = fresh  # a resumed study has a new sampler, and goes on alike
    assert one.ask()[1] == two.ask()[1]


def test_failed_trials_are_remembered_but_teach_no_costs():
    problem = make_problem(8)
    search = Search(problem).run(5)
    trial, assignment = search.ask()
    search.study.tell(trial, state=TrialState.FAIL)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    history = sampler.history(search.study.trials)
    assert len(history) == 5
    assert tuple(problem.layout.codes_of(assignment).tolist()) in history.seen


def test_forecasts_are_stored_and_hold():
    search = Search(make_problem()).run(25)
    told = [t.user_attrs[FORECAST] for t in search.study.trials if FORECAST in t.user_attrs]
    assert len(told) >= 20
    assert {"ms", "ms_std", "loss", "loss_std", "how", "poor"} == set(told[0])
    found = forecast_quality(search.study.trials)
    assert found is not None
    assert found.coverage > 0.6
    assert found.error < 0.05


def test_poor_forecasts_leave_half_of_the_proposals_to_tpe(monkeypatch):
    monkeypatch.setattr("search.guided.is_poor", lambda quality: True)
    search = Search(make_problem(8)).run(30)
    own = sum(FORECAST in t.user_attrs for t in search.study.trials[3:])
    assert 5 <= own <= 22


def test_many_rows_are_thinned_to_those_that_matter():
    search = Search(make_problem(8)).run(12)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    history = sampler.history(search.study.trials)
    times = 40
    many = replace(
        history,
        precisions=np.repeat(history.precisions, times, axis=0),
        **{name: np.repeat(getattr(history, name), times) for name in ("ms", "loss", "spread", "loss_std", "whole")},
    )
    rows = relevant(many)
    assert len(rows) == 200
    kept = acquisition.front(np.log(many.ms), many.loss)
    assert set(kept) <= set(rows)


def test_changes_are_counted_exactly_and_given_back():
    problem = make_problem(9, seed=2)
    layout, rng = problem.layout, np.random.default_rng(0)
    changes = Changes(layout, problem.latency, problem.noise)
    codes = rng.integers(0, 3, len(layout.members))
    precisions = layout.precisions(codes[None])[0]
    delta = changes.by_group(problem.latency, precisions)
    for group in range(len(layout.groups)):
        for precision in range(PRECISIONS):
            other = precisions.copy()
            other[group] = precision
            values = layout.values(problem.latency, np.stack([other, precisions]))
            assert delta[group, precision] == pytest.approx(values[0] - values[1])
    better = changes.given_back(codes, slack=0.0)
    before, after = layout.precisions(np.stack([codes, better]))
    values = layout.values(problem.latency, np.stack([before, after]))
    assert values[1] <= values[0] + 1e-12
    noises = layout.values(problem.noise, np.stack([before, after]))
    assert noises[1] <= noises[0]


def test_candidates_are_new_and_distinct():
    search = Search(make_problem(10)).run(8)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    history = sampler.history(search.study.trials)
    pool = Pool(sampler.layout, frozenset({("g001", INT8)}), history.seen)
    codes, precisions = pool.gather(
        sampler.models(history), history, np.random.default_rng(0), Bounds(ms=[0.5], noise=[0.2]), drawn=True
    )
    rows = [tuple(row.tolist()) for row in codes]
    assert len(set(rows)) == len(rows) == len(codes) > 20
    assert history.seen.isdisjoint(rows)
    assert not (precisions[:, 1] == int(INT8)).any()


def test_a_small_space_is_tried_to_its_end_with_forecasts():
    search = Search(make_problem(3)).run(26)
    assert sum(FORECAST in t.user_attrs for t in search.study.trials[3:]) > 10
    assert len({t.params["g000"] * 9 + t.params["g001"] * 3 + t.params["g002"] for t in search.study.trials}) == 26


def test_a_bound_on_the_metric_becomes_one_on_the_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    made = []

    def caught(work):
        made.append(make_guidance(work))
        before.append(made[0].aim().max_loss)
        return made[0]

    before: list[float | None] = []
    monkeypatch.setattr("studies.guidance.make_guidance", caught)
    options = ("--study", "s", "--trials", "4", "--accuracy-limit", "70%", "--latency-budget", "5s")
    ok("search", "in/model.onnx", "--data", "in/data.npz", *options)
    assert before == [None]
    assert made[0].aim() == Aim(5000.0, pytest.approx(1.0 - 0.7))  # labels are what the float model says
