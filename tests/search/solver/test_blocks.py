"""Decisions taken together, and taken apart where that promises something."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import optuna
import pytest

from benchmarks.samplers.bench import Bench
from benchmarks.samplers.optuna_methods import guided_sampler
from benchmarks.samplers.worlds import catalogue
from search.graph.grouping import Edge
from search.sampler.candidates import Bounds, Pool
from search.solver import blocks
from search.solver.solve import front
from search.space.choices import Choice, Space, Variable
from search.space.layout import Costs, Layout, make_layout
from search.values import Precision
from tests.support.assignments import THREE

FP32, FP16, INT8 = THREE
PRECISIONS = len(THREE)
NAMES = [f"g{i:03d}" for i in range(6)]


def chain(offered: dict[str, tuple[Precision, ...]] | None = None) -> Layout:
    """Six groups in a row, in blocks of two."""
    may = {name: (offered or {}).get(name, THREE) for name in NAMES}
    choices = {name: tuple(Choice(p, p in may[name]) for p in THREE) for name in NAMES}
    space = Space(choices, tuple(Variable(name, (name,), may[name]) for name in NAMES if len(may[name]) > 1))
    edges = [Edge(NAMES[i], NAMES[i + 1], NAMES[i], 100) for i in range(5)]
    return make_layout(NAMES, edges, space, [f"b{i // 2}" for i in range(6)])


def nothing(layout: Layout) -> Costs:
    groups, edges = len(layout.groups), len(layout.edges)
    return Costs(0.0, np.zeros((groups, PRECISIONS)), np.zeros((edges, PRECISIONS, PRECISIONS)))


def barring(layout: Layout, *pairs: tuple[int, Precision]) -> Costs:
    costs = nothing(layout)
    for group, precision in pairs:
        costs.nodes[group, layout.places[precision]] = np.inf
    return costs


def all_codes(layout: Layout) -> np.ndarray:
    return np.stack(np.meshgrid(*[np.arange(len(e)) for e in layout.effects], indexing="ij"), -1).reshape(
        -1, len(layout.effects)
    )


def test_a_block_shares_one_choice():
    layout = chain()
    assert layout.blocks.tolist() == [0, 0, 1, 1, 2, 2]
    tied = blocks.tie_decisions(layout, blocks.block_owners(layout), nothing(layout))
    codes = all_codes(tied.layout)
    assert len(codes) == 27
    whole = tied.expand(codes)
    assert (whole[:, 0::2] == whole[:, 1::2]).all()
    assert np.array_equal(tied.layout.precisions(codes), layout.precisions(whole))


def test_costs_of_ties_are_those_of_their_decisions():
    layout, rng = chain({"g001": (FP32, INT8), "g004": (FP16,)}), np.random.default_rng(0)
    costs = Costs(0.5, rng.random((6, PRECISIONS)), rng.random((5, PRECISIONS, PRECISIONS)))
    tied = blocks.tie_decisions(layout, blocks.block_owners(layout), nothing(layout))
    codes = all_codes(tied.layout)
    fine = [layout.pairwise(costs).value(row) for row in tied.expand(codes)]
    assert [tied.layout.pairwise(costs).value(row) for row in codes] == pytest.approx(fine)


def test_members_take_the_next_higher_precision_that_they_have_and_that_can_be_built():
    layout = chain({"g001": (FP32, INT8)})
    tied = blocks.tie_decisions(layout, blocks.block_owners(layout), barring(layout, (2, INT8)))
    assert tied.tables[0].tolist() == [[0, 0], [1, 0], [2, 1]]  # FP16: g001 stays in FP32
    assert tied.tables[1].tolist() == [[0, 0], [1, 1], [1, 2]]  # INT8: g002 stays in FP16


def test_blocks_are_joined_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr(blocks, "_BLOCKS", 2)
    assert blocks.block_owners(chain()).tolist() == [0, 0, 0, 0, 1, 1]
    assert blocks.block_owners(replace(chain(), blocks=np.zeros(0, np.int64))).tolist() == [0, 0, 0, 1, 1, 1]


def test_only_what_promises_something_is_taken_apart():
    """One group of the second block errs much more than its neighbour; all else is alike within a block."""
    layout = chain()
    latency, noise = nothing(layout), nothing(layout)
    latency.nodes[:] = [3.0, 2.0, 1.0]
    noise.nodes[:, THREE.index(INT8)] = [1, 1, 9, 1, 2, 2]
    coarse = blocks.tie_decisions(layout, blocks.block_owners(layout), nothing(layout))
    points = front(coarse.layout.pairwise(latency), coarse.layout.pairwise(noise))
    every, few = blocks.taken_apart(layout, coarse, latency, noise, points)
    assert every[2] != every[3]
    assert np.array_equal(every, few)
    _, none = blocks.taken_apart(layout, coarse, latency, noise, points, most=3)
    assert none.tolist() == [0, 0, 1, 1, 2, 2]
    flat = nothing(layout)
    alike, _ = blocks.taken_apart(layout, coarse, flat, flat, points[:1])
    assert alike.tolist() == [0, 0, 1, 1, 2, 2]


def proposals(problem, told: bool, count: int) -> list[np.ndarray]:
    """Codes of the trials after the uniform ones, of a search that measures as it goes."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    nothing = np.full((len(problem.layout.groups), PRECISIONS), np.nan)  # neither profiles nor sensitivities
    run = Bench(problem if told else replace(problem, profiles={}, alone=nothing), 0, 100)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=guided_sampler(run))
    names = [v.id for v in problem.layout.space.variables]
    for codes in problem.baselines.values():
        study.enqueue_trial({name: int(code) for name, code in zip(names, codes, strict=True)})
    found = []
    for _ in range(len(problem.baselines) + count):
        trial = study.ask()
        found.append(np.array([trial.suggest_int(name, 0, PRECISIONS - 1) for name in names]))
        measured = run.evaluate(found[-1])
        study.tell(trial, (measured.latency_ms, measured.loss))
    return found[len(problem.baselines) :]


def inside(problem, codes: np.ndarray) -> int:
    """Blocks whose groups are not all alike."""
    owner = problem.layout.blocks
    return sum(len(np.unique(codes[owner == block])) > 1 for block in np.unique(owner))


@pytest.mark.slow
def test_large_models_begin_with_whole_blocks_where_nothing_tells_their_groups_apart(monkeypatch):
    monkeypatch.setattr(blocks, "LARGE", 20)
    problem = catalogue.make("tangled_60")
    untold, told = (proposals(problem, knows, 3) for knows in (False, True))
    assert sum(inside(problem, codes) for codes in untold) <= 1  # single changes of what was measured are looked at too
    assert max(inside(problem, codes) for codes in told) >= 2


def test_candidates_of_large_models_avoid_what_cannot_be_built(monkeypatch):
    monkeypatch.setattr(blocks, "LARGE", 20)
    problem = catalogue.make("tangled_60")
    run = Bench(problem, 0, 100)
    sampler = guided_sampler(run)
    trials = []
    for codes in problem.baselines.values():
        measured = run.evaluate(codes)
        trials.append(
            optuna.trial.create_trial(
                params={v.id: int(c) for v, c in zip(problem.layout.space.variables, codes, strict=True)},
                distributions={
                    v.id: optuna.distributions.IntDistribution(0, 2) for v in problem.layout.space.variables
                },
                values=[measured.latency_ms, measured.loss],
            )
        )
    history = sampler.history(trials)
    pair = (problem.layout.groups[5], INT8)
    pool = Pool(problem.layout, frozenset({pair}), history.tried)
    bounds = Bounds(ms=[2.5], noise=[0.3], strict=True)
    codes, precisions = pool.gather(sampler.models(history), history, np.random.default_rng(0), bounds, drawn=True)
    assert len(codes) > 30
    assert (precisions[:, 5] != THREE.index(INT8)).all()
    assert (precisions[:, 4] == THREE.index(INT8)).any()
