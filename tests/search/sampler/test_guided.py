"""The guided sampler on a problem whose best assignments are known exactly."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from search.errors import SolverError, SurrogateError
from search.forecast import acquisition
from search.forecast.forecasts import FORECAST, MEASURED, forecast_quality
from search.forecast.history import relevant
from search.graph.grouping import Edge
from search.sampler.candidates import Bounds, Pool
from search.sampler.goals import Known
from search.sampler.guided import Guidance, GuidedSampler, MixGoal
from search.solver.limited import within
from search.space.changes import Changes
from search.space.choices import Choice, Space, Variable
from search.space.layout import Costs, make_layout
from search.values import Assignment, Precision
from studies.run.guidance.guidance import make_guidance
from studies.store.reading import repeats
from tests.support.assignments import THREE
from tests.support.command_line import ok, write_inputs
from tests.support.known_problem import CEILING, Problem, Search, make_problem

FP32, FP16, INT8 = THREE
PRECISIONS = len(THREE)


@pytest.fixture(autouse=True)
def _quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.mark.slow
def test_the_front_is_found_in_tens_of_trials_where_random_search_finds_little():
    problem = make_problem()
    guided, random = Search(problem).run(25), Search(problem, "random").run(25)
    assert guided.share() > 0.97
    assert random.share() < guided.share() - 0.05


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_budget_draws_the_search_to_it():
    problem = make_problem(seed=3)
    uniform = {label: problem.truth(a)[0] for label, a in problem.layout.space.baselines.items()}
    budget = float(np.sqrt(uniform["int8"] * uniform["fp16"]))
    noise = problem.layout.pairwise(problem.noise)
    best = within(noise, problem.layout.pairwise(problem.latency), budget)
    assert best is not None
    search = Search(problem, aim=lambda: MixGoal(budget_ms=budget)).run(20)
    kept = [loss for ms, loss in search.measurements if ms <= budget]
    assert min(kept) <= CEILING * best.value**1.2 + 0.004
    near = [ms for ms, _ in search.measurements[5:] if abs(ms / budget - 1) < 0.05]
    assert len(near) >= 6


@pytest.mark.slow
def test_an_allowed_loss_draws_the_search_to_speed():
    problem = make_problem(seed=4)
    search = Search(problem, aim=lambda: MixGoal(max_loss=0.02)).run(20)
    log_ms, loss = problem.front()
    assert min(ms for ms, each in search.measurements if each <= 0.02) <= 1.03 * np.exp(log_ms[loss <= 0.02].min())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 11, 12])
@pytest.mark.parametrize("aim", [MixGoal(budget_ms=0.8, max_loss=0.01), MixGoal(max_loss=0.01)], ids=["both", "loss"])
def test_limits_that_are_met_go_on_to_hold(aim, seed):
    """Without, 4 to 10 of the 27 kept them: once they were met, the whole front was looked at."""
    search = Search(make_problem(seed=seed), seed=seed - 10, aim=lambda: aim).run(30)
    kept = [loss <= 0.01 and ms <= (aim.budget_ms or math.inf) for ms, loss in search.measurements[3:]]
    assert sum(kept) >= 14


def test_the_corner_is_drawn_in_to_limits_that_something_keeps_and_to_no_others():
    ms, loss = np.array([1.0, 2.0, 4.0]), np.array([0.3, 0.1, 0.0])
    corner = acquisition.Reference(float(np.log(4.1)), 0.32)
    known = Known(np.log(ms), loss, 0 * ms, 0 * loss, corner, 0.02, 0.01, loss)
    assert known.within(MixGoal()) == corner
    assert known.within(MixGoal(budget_ms=2.5)) == acquisition.Reference(float(np.log(2.5)) + 0.01, 0.32)
    assert known.within(MixGoal(max_loss=0.05)) == acquisition.Reference(corner.log_ms, 0.05 + 0.02)
    assert known.within(MixGoal(budget_ms=9.0, max_loss=0.5)) == corner, "it is never moved out"
    assert known.within(MixGoal(budget_ms=0.5)) == corner
    assert known.within(MixGoal(budget_ms=2.5, max_loss=0.01)) == corner, "no trial keeps both"


def test_what_is_missing_of_an_enqueued_mix_is_proposed_to_go_with_the_rest():
    problem = make_problem()
    search = Search(problem).run(8)
    asked = {"g003": 0, "g004": 0, "g008": 2}
    for _ in range(3):
        search.study.enqueue_trial(asked)
    for _ in range(3):
        trial, assignment = search.ask()
        assert {name: trial.params[name] for name in asked} == asked
        predicted = search.study.trials[trial.number].user_attrs[FORECAST]
        assert predicted["ms"] == pytest.approx(problem.truth(assignment)[0], rel=0.2)
        changes = sum(a != b for a, b in itertools.pairwise(assignment.values()))
        assert changes <= 7  # at random about nine, and each costs time
        search.tell(trial, assignment)


def test_a_block_that_is_enqueued_bars_what_only_its_other_codes_give():
    """A group that has one precision by either code is not barred."""
    names = ("a", "b", "c")
    choices = {name: tuple(Choice(p, name != "b" or p is not INT8) for p in THREE) for name in names}
    space = Space(choices, (Variable("x", ("a", "b"), THREE), Variable("c", ("c",), THREE)))
    layout = make_layout(list(names), [], space)
    pool = Pool(layout, frozenset(), frozenset(), {0: 2})
    codes, _ = pool.new(np.array([[x, c] for x in range(3) for c in range(3)]))
    assert codes.tolist() == [[2, 0], [2, 1], [2, 2]]


def test_mixes_that_were_enqueued_whole_have_a_forecast_but_uniform_ones_are_not():
    problem = make_problem()
    search = Search(problem)
    sampler = search.study.sampler
    mix = problem.layout.assignment([i % 3 for i in range(14)])
    search.run(6)
    assert sampler.forecast_mix(search.study.trials, problem.layout.space.uniform(FP16)) is None
    found = sampler.forecast_mix(search.study.trials, mix)
    assert found.how == "asked"
    assert found.ms == pytest.approx(problem.truth(mix)[0], rel=0.2)


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


@pytest.mark.parametrize("error", [SolverError("nothing is allowed"), SurrogateError("not a number")])
def test_mixes_are_proposed_though_forecasts_fail(error, monkeypatch):
    """New ones, all that can be built; the reason is there to be told."""

    def failed(*args, **options):
        raise error

    search = Search(make_problem()).run(5)
    monkeypatch.setattr(GuidedSampler, "_propose" if isinstance(error, SolverError) else "models", failed)
    search.run(4)
    asked = [tuple(trial.params.values()) for trial in search.study.get_trials()]
    assert len(set(asked)) == len(asked) == 9
    assert search.study.sampler.failure == str(error)


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


@pytest.mark.slow
def test_forecasts_are_stored_and_hold():
    search = Search(make_problem()).run(25)
    told = [t.user_attrs[FORECAST] for t in search.study.trials if FORECAST in t.user_attrs]
    assert len(told) >= 20
    assert {"ms", "ms_std", "loss", "loss_std", "how", "poor", "promising"} == set(told[0])
    found = forecast_quality(search.study.trials)
    assert found.latency is not None
    assert found.latency.coverage > 0.6
    assert found.latency.error < 0.05


@pytest.mark.slow
def test_poor_forecasts_keep_half_of_the_proposals_beside_measured_mixes_and_are_stored_all_the_same(monkeypatch):
    monkeypatch.setattr("search.forecast.forecasts.is_poor", lambda quality, band: True)
    search = Search(make_problem(8)).run(30)
    hows = [t.user_attrs[FORECAST]["how"] for t in search.study.trials[3:]]
    assert 5 <= hows.count("near") <= 22
    assert set(hows) >= {"near", "gain"}
    assert len({tuple(t.params.values()) for t in search.study.trials}) == 30


@pytest.mark.slow
def test_a_study_that_is_resumed_while_forecasts_are_poor_goes_on_as_it_would_have(monkeypatch):
    monkeypatch.setattr("search.forecast.forecasts.is_poor", lambda quality, band: True)
    monkeypatch.setattr("search.sampler.guided._NEAR", 1.0)
    problem = make_problem(8)
    one, two = Search(problem, seed=5).run(16), Search(problem, seed=5).run(14)
    two.study.sampler = GuidedSampler(two.study.sampler.guidance, 5)  # type: ignore[attr-defined]
    two.run(2)
    assert [t.params for t in one.study.trials] == [t.params for t in two.study.trials]
    assert {t.user_attrs[FORECAST]["how"] for t in one.study.trials[12:]} == {"near"}


@pytest.mark.slow
def test_a_noisy_target_makes_forecasts_as_unsure_as_its_tie_band_and_not_poor():
    """As on a shared processor: measurements of one assignment differ by a tenth, and their tie band says so."""
    search = Search(make_problem(), latency_std=0.12, latency_band=lambda: 0.2).run(25)
    told = [t.user_attrs[FORECAST] for t in search.study.trials[3:]]
    assert all(each["ms_std"] >= 0.2 / 1.7 * each["ms"] for each in told)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    found = sampler.judge_forecasts(search.study.trials)
    assert found.latency is not None
    assert found.latency.coverage >= 0.75
    assert found.band == 0.2
    assert not found.poor_latency


@pytest.mark.slow
def test_a_poor_loss_model_falls_back_too(monkeypatch):
    problem = make_problem(8)
    monkeypatch.setattr("search.forecast.forecasts.is_poor", lambda quality, band: band != 0.0)  # that of the loss
    search = Search(problem).run(24)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    found = sampler.judge_forecasts(search.study.trials)
    assert (found.poor_latency, found.poor_loss, found.poor) == (False, True, True)
    assert "near" in {t.user_attrs[FORECAST]["how"] for t in search.study.trials[3:]}


@pytest.mark.slow
def test_noise_of_measuring_is_stored_with_a_forecast_and_is_nothing_to_gain():
    search = Search(make_problem(), loss_std=0.02).run(20)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    history = sampler.history(search.study.trials)
    models = sampler.models(history)
    assert models is not None
    told, latent = models.forecast(history.precisions), models.predict_latent(history.precisions)
    assert (told.loss_std >= 0.02).all()
    assert np.median(latent.loss_std) < 0.6 * np.median(told.loss_std)
    assert (latent.ms_std < told.ms_std).all()
    assert search.study.trials[-1].user_attrs[FORECAST]["loss_std"] >= 0.02


def proposed(search, count):
    """Codes of so many trials that are asked for and fail."""
    found = []
    for _ in range(count):
        trial, assignment = search.ask()
        found.append(tuple(int(p) for p in search.problem.layout.precisions_of([assignment])[0]))
        search.study.tell(trial, state=TrialState.FAIL)
    return found


def test_while_nothing_is_finished_plain_mixes_are_proposed_once_and_only_buildable_ones():
    problem = make_problem()
    search = Search(problem, priors=lambda: None, noise=problem.priors().noise)
    mixes = proposed(search, 20)[3:]
    assert len(set(mixes)) == 17
    assert all(len(set(mix)) == 2 for mix in mixes)  # two precisions each, split by place or by sensitivity
    splits = [sum(a != b for a, b in itertools.pairwise(mix)) == 1 for mix in mixes]
    assert any(splits)
    assert not all(splits)
    assert FORECAST not in search.study.trials[-1].user_attrs  # from nothing, nothing is predicted


def test_a_small_space_without_any_success_is_tried_to_its_end():
    search = Search(make_problem(2), priors=lambda: None, unbuildable=lambda: {("g000", INT8)})
    mixes = proposed(search, 6)[3:]  # six of nine can be built, three of them as the uniform ones were
    assert len(set(mixes)) == 3
    assert all(mix[0] != THREE.index(INT8) for mix in mixes)
    assert proposed(search, 1)[0][0] != THREE.index(INT8)  # all were tried: a repeat, which the runner answers


def test_a_search_whose_baselines_all_failed_goes_on():
    problem = make_problem(8)
    search = Search(problem, priors=lambda: None)
    proposed(search, 3)
    search.run(14)
    assert len({tuple(t.params.values()) for t in search.study.trials}) == 17


def test_half_of_the_proposals_are_those_of_tpe_where_all_baselines_failed(monkeypatch):
    """TPE proposes nothing before ten mixes were measured. With a measured uniform assignment it is never asked."""
    asked: list[bool] = []
    original = GuidedSampler._from_tpe

    def counted(self: GuidedSampler, *arguments: Any) -> Any:
        codes = original(self, *arguments)
        asked.append(codes is not None)
        return codes

    monkeypatch.setattr(GuidedSampler, "_from_tpe", counted)
    problem = make_problem(8)
    blind = Search(problem, priors=lambda: None)
    proposed(blind, 3)
    blind.run(10)
    assert not any(asked)
    asked.clear()
    blind.run(40)
    assert 10 <= len(asked) <= 30
    assert sum(asked) >= 0.8 * len(asked)
    asked.clear()
    Search(problem).run(20)
    assert not asked


def test_measured_mixes_that_keep_a_budget_are_given_precision_back():
    problem = make_problem(seed=2)
    search = Search(problem, "random").run(16)
    sampler = GuidedSampler(Guidance(problem.layout, problem.priors, latency_band=lambda: 0.1), 0)
    history = sampler.history(search.study.trials)
    models = sampler.models(history)
    assert models is not None
    pool = Pool(sampler.layout, frozenset(), history.tried)
    changes = Changes(sampler.layout, models.latency.mean().plus(pool.barred), models.loss.mean())
    changed = 0
    for budget in np.sort(history.ms)[4:12]:
        kept = np.flatnonzero(history.ms <= budget)
        best = history.precisions[kept[np.argmin(history.loss[kept])]].astype(np.int64)
        given = changes.given_back(best, 0.5 * models.latency.noise_std)
        changed += int((given != best).sum() > 1)  # single changes are candidates anyway
        bounds = Bounds(ms=[float(budget)], strict=True)
        codes, _ = pool.gather(models, history, np.random.default_rng(0), bounds, drawn=False)
        assert tuple(given.tolist()) in {tuple(row.tolist()) for row in codes} | history.seen
    assert changed


def test_what_waits_to_be_asked_for_is_known_too():
    search = Search(make_problem(8)).run(6)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    mix = sampler.layout.space.uniform(INT8).replace({sampler.layout.groups[3]: Precision.FP32})
    codes = sampler.layout.space.codes(mix)
    search.study.enqueue_trial(codes)
    history = sampler.history(search.study.trials)
    assert tuple(codes[variable.id] for variable in sampler.layout.space.variables) in history.seen
    assert len(history) == 6


def test_of_what_answered_several_trials_the_latest_word_counts() -> None:
    """It may have been stopped early, and scored to the end since."""
    search = Search(make_problem(8)).run(6)
    sampler = search.study.sampler
    assert isinstance(sampler, GuidedSampler)
    told = next(trial for trial in search.study.trials if trial.state is TrialState.COMPLETE)
    attributes = {**told.user_attrs, MEASURED: [0.01, 0.002, 1.0]}
    search.study.add_trial(
        create_trial(params=told.params, distributions=told.distributions, values=[9.0, 0.5], user_attrs=attributes)
    )
    history = sampler.history(search.study.trials)
    assert len(history) == 6
    row = list(history.ms).index(9.0)
    assert (history.loss[row], history.loss_std[row], history.whole[row]) == (0.5, 0.002, True)


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
    pool = Pool(sampler.layout, frozenset({("g001", INT8)}), history.tried)
    codes, precisions = pool.gather(
        sampler.models(history), history, np.random.default_rng(0), Bounds(ms=[0.5], noise=[0.2]), drawn=True
    )
    rows = [tuple(row.tolist()) for row in codes]
    assert len(set(rows)) == len(rows) == len(codes) > 20
    assert history.seen.isdisjoint(rows)
    assert not (precisions[:, 1] == THREE.index(INT8)).any()


class Signed(Search):
    """A metric that quantization improves in some groups, with effects that do not add up, measured precisely."""

    def tell(self, trial: optuna.Trial, assignment: Assignment) -> None:
        groups, precisions = len(self.space.choices), self.problem.layout.precisions_of([assignment])[0]
        worst = (np.random.default_rng(groups).standard_normal(groups) - 0.5) * 0.3
        effects = np.stack([0 * worst, 0.1 * worst, worst], axis=1)[np.arange(groups), precisions]
        together = 0.3 * np.random.default_rng(int(assignment.digest[:8], 16)).standard_normal()
        loss = float(effects.sum()) + together if (precisions > 0).any() else 0.0
        self.measurements.append((self.problem.truth(assignment)[0], loss))
        trial.set_user_attr(MEASURED, [0.004, 0.0002, 1.0])
        self.study.tell(trial, (self.measurements[-1][0], loss))


@pytest.mark.slow
@pytest.mark.parametrize("groups", [6, 8])
def test_gains_that_no_map_of_noise_explains_leave_numbers(groups):
    search = Signed(make_problem(groups), latency_band=lambda: 0.01).run(30)
    forecasts = [trial.user_attrs[FORECAST] for trial in search.study.trials if FORECAST in trial.user_attrs]
    assert len(forecasts) > 20
    assert all(np.isfinite(value) for each in forecasts for value in each.values() if isinstance(value, float))


def test_a_graph_too_wide_for_elimination_is_searched_too():
    """As dense blocks make it, in which every layer reads all before it."""
    names = [f"g{i:03d}" for i in range(30)]
    edges = [Edge(a, b, f"{a}{b}", 100_000) for a, b in itertools.combinations(names, 2)]
    narrow = make_problem(len(names))
    layout = make_layout(names, edges, narrow.layout.space)
    changes = np.where(np.eye(PRECISIONS, dtype=bool), 0.0, 0.001)[None] * np.ones((len(edges), 1, 1))
    latency = replace(narrow.latency, edges=changes)
    wide = Problem(layout, latency, replace(narrow.noise, edges=0 * changes))
    search = Search(wide, latency_band=lambda: 0.01).run(8)
    assert len(set(search.measurements)) == 8
    assert FORECAST in search.study.trials[7].user_attrs


class Decibels(Search):
    """The same noise told in dB, as SQNR is: 100 dB for FP32, and so much less where there is noise."""

    def __init__(self, problem: Problem, **guidance: Any) -> None:
        priors = replace(problem.priors(), decibels=True)
        super().__init__(problem, priors=lambda: priors, latency_band=lambda: 0.01, **guidance)

    def tell(self, trial: optuna.Trial, assignment: Assignment) -> None:
        ms, noise = self.problem.truth(assignment)[0], self.noise_of(assignment)
        loss = 100 + 10 * np.log10(noise) if noise > 1e-10 else 0.0
        self.measurements.append((ms, loss))
        trial.set_user_attr(MEASURED, [0.004, 0.05 if loss else 0.0, 1.0])
        self.study.tell(trial, (ms * float(np.exp(0.004 * self.rng.standard_normal())), loss))

    def noise_of(self, assignment: Assignment) -> float:
        layout = self.problem.layout
        return 0.03 * float(layout.values(self.problem.noise, layout.precisions_of([assignment]))[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_limit_in_decibels_is_met_by_the_fastest_that_there_is(seed):
    problem, most = make_problem(seed=seed), 80.0
    least_noise = 10 ** ((most - 100) / 10) / 0.03
    best = within(problem.layout.pairwise(problem.latency), problem.layout.pairwise(problem.noise), least_noise)
    search = Decibels(problem, aim=lambda: MixGoal(max_loss=most)).run(40)
    assert min(ms for ms, loss in search.measurements if loss <= most) <= 1.005 * best.value


@pytest.mark.slow
def test_a_small_space_is_tried_to_its_end_with_forecasts():
    search = Search(make_problem(3)).run(26)
    assert sum(FORECAST in t.user_attrs for t in search.study.trials[3:]) > 10
    assert len({t.params["g000"] * 9 + t.params["g001"] * 3 + t.params["g002"] for t in search.study.trials}) == 26


@pytest.mark.slow
def test_a_bound_on_the_metric_becomes_one_on_the_loss(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    made = []

    def caught(work):
        made.append(make_guidance(work))
        before.append(made[0].aim().max_loss)
        assert made[0].priors() is None
        assert made[0].latency_band() == repeats.PROVISIONAL_BAND
        return made[0]

    before: list[float | None] = []
    monkeypatch.setattr("studies.run.guidance.guidance.make_guidance", caught)
    options = ("--study", "s", "--trials", "4", "--accuracy-limit", "70%", "--latency-budget", "5s")
    ok("search", "in/model.onnx", "--data", "in/data.npz", *options)
    assert before == [None]
    assert 0 < made[0].latency_band() < repeats.PROVISIONAL_BAND, "measured by now"
    assert made[0].noise is None, "measured later"
    assert made[0].priors().noise.log_std < 1, "as measured"
    assert not made[0].priors().decibels
    assert made[0].aim() == MixGoal(5000.0, pytest.approx(1.0 - 0.7))  # labels are what the float model says


def test_a_refused_pair_that_is_enqueued_is_proposed_again() -> None:
    """Building it says again that it is refused; the other decisions are chosen as usual."""
    search = Search(make_problem(6), unbuildable=lambda: frozenset({("g000", Precision.INT8)})).run(5)
    search.study.enqueue_trial({"g000": 2})
    _, assignment = search.ask()
    assert assignment["g000"] is Precision.INT8


def test_a_loss_beyond_all_decibels_breaks_no_later_proposal() -> None:
    problem = make_problem(8)
    priors = replace(problem.priors(), decibels=True)
    for loss in (4000.0, 1e50):
        search = Search(problem, priors=lambda: priors).run(5)
        codes = {f"g{number:03d}": 1 + (number == 3) for number in range(8)}
        sizes = dict.fromkeys(codes, IntDistribution(0, 2))
        search.study.add_trial(create_trial(params=codes, distributions=sizes, values=[0.5, loss]))
        assert len(search.ask()[1]) == 8
