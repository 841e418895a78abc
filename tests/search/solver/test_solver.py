"""The solver against enumeration, and on long chains against dynamic programming."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import SolverError
from search.solver import solve as solver
from search.solver.elimination import Eliminator, eliminator
from search.solver.elimination_plan import plan
from search.solver.limited import within
from search.solver.solve import best_new, front, minima, minimize, rank_codes
from search.space.choices import make_space
from search.space.layout import Costs, Pairwise, make_layout
from search.space.structure import Structure
from search.values import Capability, Precision
from tests.support.assignments import THREE
from tests.support.networks import NETWORKS, loaded
from tests.support.wide_costs import all_codes, tangled

EVERYTHING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
PRECISIONS = len(THREE)
TENSORRT = Capability({Precision.FP16: EVERYTHING, Precision.INT8: EVERYTHING}, min_channels=16)

# Sums of small multiples of 1/8 are exact, so that ties are ties in every way of adding up.
EIGHTHS = st.integers(-16, 40).map(lambda k: k / 8)
MAYBE_FORBIDDEN = st.one_of(EIGHTHS, EIGHTHS, EIGHTHS, EIGHTHS, st.just(float("inf")))


@st.composite
def problems(draw, costs=1, entries=EIGHTHS, most=5):
    """Costs over the same few decisions; any graph, in pieces or not."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=most))
    possible = list(itertools.combinations(range(len(sizes)), 2))
    pairs = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    return [drawn_cost(draw, sizes, pairs, entries) for _ in range(costs)]


def drawn_cost(draw, sizes, pairs, entries):
    def table(*shape):
        count = int(np.prod(shape))
        return np.array(draw(st.lists(entries, min_size=count, max_size=count))).reshape(shape)

    unary = tuple(table(size) for size in sizes)
    return Pairwise(draw(EIGHTHS), unary, {(i, j): table(sizes[i], sizes[j]) for i, j in pairs})


def allowed(*costs):
    """Codes that all costs allow, and their values."""
    rows = [(codes, *(cost.value(codes) for cost in costs)) for codes in all_codes(costs[0])]
    return [row for row in rows if np.isfinite(row[1:]).all()]


def taken(rows):
    return [tuple(codes.tolist()) for codes, *_ in rows]


# -- the minimum ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(problems(entries=MAYBE_FORBIDDEN))
def test_the_minimum_is_the_least_of_all(problem):
    (cost,) = problem
    values = [value for _, value in allowed(cost)]
    if values:
        assert cost.value(minimize(cost)) == min(values)
    else:
        with pytest.raises(SolverError, match="every assignment is forbidden"):
            minimize(cost)


@pytest.mark.slow
@given(problems(costs=4))
def test_many_costs_at_once_are_each_solved(problem):
    structure = Structure.of(*problem)
    codes, least = minima(structure, np.stack([structure.terms(cost) for cost in problem]))
    for cost, row, value in zip(problem, codes, least, strict=True):
        assert cost.value(row) == cost.base + value == min(value for _, value in allowed(cost))


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_costs_that_are_no_costs_are_refused(bad):
    with pytest.raises(SolverError, match="NaN or -inf"):
        minimize(Pairwise(0.0, (np.array([bad, 0.0]),), {}))


def test_costs_over_other_decisions_are_refused():
    with pytest.raises(SolverError, match="different decisions"):
        front(Pairwise(0.0, (np.zeros(2),), {}), Pairwise(0.0, (np.zeros(3),), {}))


def test_no_decisions_have_one_answer():
    nothing = Pairwise(1.5, (), {})
    assert minimize(nothing).tolist() == []
    assert [point[1:] for point in front(nothing, nothing)] == [(1.5, 1.5)]
    assert within(nothing, nothing, 2.0).value == 1.5
    assert within(nothing, nothing, 1.0) is None
    assert best_new(nothing, {()}) is None
    assert best_new(nothing, {()}, effort=1) is None


# -- by rank -------------------------------------------------------------------------------------------------------


@given(problems(entries=MAYBE_FORBIDDEN))
def test_ranking_gives_everything_allowed_cheapest_first(problem):
    (cost,) = problem
    found = list(rank_codes(cost))
    assert sorted(taken(found)) == sorted(codes for codes, _ in allowed(cost))
    assert [value for _, value in found] == sorted(cost.value(codes) for codes, _ in found)
    assert [value for _, value in found] == [cost.value(codes) for codes, _ in found]


@given(problems(entries=MAYBE_FORBIDDEN, most=4), st.data())
def test_the_best_new_codes_are_new_and_the_best(problem, data):
    (cost,) = problem
    seen = data.draw(st.sets(st.sampled_from(all_codes(cost))))
    new = [value for codes, value in allowed(cost) if codes not in seen]
    found = best_new(cost, seen)
    assert (found is None) == (not new)
    if found is not None:
        assert tuple(found.tolist()) not in seen
        assert cost.value(found) == min(new)


def test_when_too_much_was_seen_a_single_change_is_taken():
    cost = Pairwise(0.0, (np.array([0.0, 1.0, 9.0]), np.array([0.0, 2.0, 5.0])), {})
    seen = {(0, 0), (1, 0), (0, 1), (0, 2)}
    assert best_new(cost, seen).tolist() == [1, 1]
    assert best_new(cost, seen, effort=1).tolist() == [2, 0]
    assert best_new(cost, seen | {(2, 0)}, effort=1) is None
    assert best_new(cost, seen | {(2, 0)}, effort=2).tolist() == [1, 1]


# -- the front -----------------------------------------------------------------------------------------------------


def hull(points):
    """Corners of the lower left convex hull, from exact coordinates."""
    found = []
    for point in sorted(set(points)):
        if found and point[1] >= found[-1][1]:
            continue
        while len(found) > 1 and turn(found[-2], found[-1], point) <= 0:
            found.pop()
        found.append(point)
    return found


def turn(a, b, c):
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


@pytest.mark.slow
@given(problems(costs=2, entries=MAYBE_FORBIDDEN))
def test_the_front_is_the_convex_hull_of_all(problem):
    first, second = problem
    points = [row[1:] for row in allowed(first, second)]
    if not points:
        with pytest.raises(SolverError, match="every assignment is forbidden"):
            front(first, second)
        return
    found = front(first, second)
    assert [point[1:] for point in found] == hull(points)
    assert all(point[1:] == (first.value(point.codes), second.value(point.codes)) for point in found)


@pytest.mark.slow
@given(problems(costs=2), st.integers(2, 4))
def test_a_shorter_front_is_a_part_of_it(problem, most):
    corners = [point[1:] for point in front(*problem)]
    found = [point[1:] for point in front(*problem, most=most)]
    assert len(found) <= most
    assert len(found) <= 1 or found[0] == corners[0]
    assert len(found) <= 1 or found[-1] == corners[-1]


# -- within a limit ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(problems(costs=2, entries=MAYBE_FORBIDDEN), EIGHTHS)
def test_within_a_limit_nothing_is_better(problem, limit):
    objective, limited = problem
    rows = [row for row in allowed(objective, limited) if row[2] <= limit]
    found = within(objective, limited, limit, gap=0.0)
    assert (found is None) == (not rows)
    if found is not None:
        assert found.value == objective.value(found.codes) == min(value for _, value, _ in rows)
        assert found.limited == limited.value(found.codes) <= limit
        assert found.gap == pytest.approx(0.0, abs=1e-6)


# -- chains with skips, and graphs that are too wide --------------------------------------------------------------


def residual_chain(count, seed):
    """Latency, with transitions, and noise of a chain in which every other decision also feeds the one after next."""
    rng = np.random.default_rng(seed)
    edges = [(i, i + 1) for i in range(count - 1)] + [(i, i + 2) for i in range(0, count - 2, 2)]
    scale = rng.lognormal(0, 0.7, count)
    unary = tuple(scale[:, None] * [1.0, 0.55, 0.35] * rng.uniform(0.9, 1.1, (count, 3)))
    tables = {edge: rng.lognormal(-1.5, 0.5) * (1 - np.eye(3)) for edge in edges}
    noise = rng.lognormal(0, 1.2, (count, 1)) * [0.0, 1e-5, 1e-3]
    return Pairwise(20.0, unary, tables), Pairwise(0.0, tuple(noise), {})


def least_of_chain(cost):
    """By dynamic programming over the codes of two neighbours: what is behind them depends on nothing before."""
    nothing = np.zeros((3, 3))
    least = cost.unary[0][:, None] + cost.unary[1] + cost.pairs[0, 1]
    for k in range(2, len(cost.unary)):
        reached = least[:, :, None] + cost.pairs[k - 1, k]
        least = (reached + cost.pairs.get((k - 2, k), nothing)[:, None]).min(axis=0) + cost.unary[k]
    return cost.base + least.min()


def test_long_chains_with_skips_are_narrow_and_solved_exactly():
    latency, noise = residual_chain(200, 0)
    batches = eliminator(Structure.of(latency, noise)).batches
    assert max(len(batch.shape) for batch in batches) <= 4
    assert len(batches) < 20, "not one after the other"
    for weight in (0.0, 30.0, 1000.0):
        unary = tuple(one + weight * other for one, other in zip(latency.unary, noise.unary, strict=True))
        cost = Pairwise(latency.base, unary, latency.pairs)
        assert cost.value(minimize(cost)) == pytest.approx(least_of_chain(cost))


@pytest.mark.slow
def test_a_long_chain_keeps_its_limit_to_the_stated_gap():
    latency, noise = residual_chain(200, 1)
    points = front(latency, noise)
    assert len(points) > 50
    limit = (points[0].second + points[-1].second) / 4
    found = within(latency, noise, limit, gap=1e-3)
    assert found.limited == pytest.approx(noise.value(found.codes))
    assert found.limited <= limit
    assert found.gap <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_gap_that_is_left_is_told_as_it_is(seed, swapped):
    objective, limited = residual_chain(9, seed)[:: -1 if swapped else 1]
    corners = front(objective, limited)
    limit = (corners[0].second + 3 * corners[-1].second) / 4
    codes, structure = np.array(all_codes(objective)), Structure.of(objective, limited)
    values, reached = (cost.base + structure.sums(structure.terms(cost), codes) for cost in (objective, limited))
    least = values[reached <= limit].min()
    found = within(objective, limited, limit, gap=0.0, looked_at=0)
    assert found.limited <= limit
    assert found.value * (1 - found.gap) <= least * (1 + 1e-9)
    assert least <= found.value * (1 + 1e-9)
    assert within(objective, limited, limit, gap=0.0).value == pytest.approx(least)


def test_a_wide_graph_is_no_work_for_elimination():
    first, second = tangled(10, 0)
    structure = Structure.of(first, second)
    assert not eliminator(structure).fits
    with pytest.raises(SolverError, match="too wide"):
        eliminator(structure).minimize(structure.terms(first)[None])


def test_a_bound_on_tables_decides_what_is_wide():
    latency, _ = residual_chain(9, 0)
    structure = Structure.of(latency)
    assert not Eliminator(structure, most_entries=9).fits
    assert Eliminator(structure, most_entries=27).fits


@pytest.mark.parametrize("seed", range(6))
def test_decisions_that_are_eliminated_together_are_no_neighbours(seed):
    rng = np.random.default_rng(seed)
    pairs = {(i, int(j)) for i in range(49) for j in rng.integers(i + 1, min(i + 9, 50), 2)}
    structure = Structure(tuple(rng.integers(1, 4, 50).tolist()), tuple(sorted(pairs)))
    batches = plan(structure, 3**9)
    done = [set(batch.decisions.tolist()) for batch in batches]
    assert sorted(i for some in done for i in some) == list(range(50)), "every decision once"
    for number, batch in enumerate(batches):
        later = set().union(*done[number + 1 :])
        assert set(batch.scopes.ravel().tolist()) <= later
        assert not any({i, j} <= done[number] for i, j in pairs)
        for decision, scope in zip(batch.decisions, batch.scopes, strict=True):
            assert batch.shape == tuple(structure.sizes[i] for i in (decision, *scope))


def test_more_costs_than_fit_at_once_are_solved_in_parts(monkeypatch):
    latency, noise = residual_chain(20, 0)
    structure = Structure.of(latency, noise)
    terms = structure.terms(latency) + np.logspace(0, 4, 11)[:, None] * structure.terms(noise)
    expected = minima(structure, terms)
    monkeypatch.setattr("search.solver.elimination.MOST_KEPT", 3 * Eliminator(structure)._entries)
    parts = Eliminator(structure).minimize(terms)
    assert np.array_equal(parts[0], expected[0])
    assert np.array_equal(parts[1], expected[1])


# -- real graphs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularity", ["group", "block"])
@pytest.mark.parametrize("name", NETWORKS)
def test_real_networks_are_narrow_and_solved_exactly(name, granularity):
    model = loaded(name)
    space = make_space(model, TENSORRT, None, (), granularity)
    layout = make_layout([group.id for group in model.groups], model.edges, space)
    rng = np.random.default_rng(0)
    for _ in range(3):
        edges = rng.uniform(0, 1, (len(layout.edges), PRECISIONS, PRECISIONS))
        costs = Costs(rng.uniform(), rng.uniform(0, 1, (len(layout.groups), PRECISIONS)), edges)
        cost = layout.pairwise(costs)
        structure = Structure.of(cost)
        assert eliminator(structure).fits
        codes = minimize(cost)
        assert layout.values(costs, layout.precisions(codes[None]))[0] == pytest.approx(cost.value(codes))
        if space.size <= 3**8:
            assert cost.value(codes) == pytest.approx(min(cost.value(row) for row in all_codes(cost)))
        first, second = itertools.islice(solver.rank_codes(cost), 2)
        assert cost.value(first[0]) <= cost.value(second[0]) == pytest.approx(second[1])
