"""Minimum cuts on wide graphs: exact for two codes, good for more, and never worse than where they started."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from search.errors import SolverError
from search.solver.cuts import Cutter
from search.solver.elimination import eliminator
from search.solver.limited import within
from search.solver.solve import best_new, front, minimize, rank_codes
from search.space.layout import Pairwise
from search.space.structure import Structure
from tests.support.wide_costs import frustrated, tangled

WIDE = 16  # decisions with two codes that all share tables: too wide for elimination


def potts(count: int, codes: int, seed: int) -> Pairwise:
    """Every decision shares a table with every other, in which unequal codes cost a random amount."""
    rng = np.random.default_rng(seed)
    pairs = {pair: rng.uniform(0, 0.4) * (1 - np.eye(codes)) for pair in itertools.combinations(range(count), 2)}
    return Pairwise(1.0, tuple(rng.uniform(0, 1, (count, codes))), pairs)


def values(cost: Pairwise) -> np.ndarray:
    structure = Structure.of(cost)
    every = np.indices(structure.sizes).reshape(len(structure.sizes), -1).T
    return cost.base + structure.sums(structure.terms(cost), every)


def test_these_graphs_are_wide():
    assert not any(eliminator(Structure.of(cost)).fits for cost in (potts(WIDE, 2, 0), tangled(10, 0)[0]))


@pytest.mark.parametrize("seed", range(6))
def test_two_codes_are_solved_exactly(seed):
    cost = potts(WIDE, 2, seed)
    assert cost.value(minimize(cost)) == pytest.approx(values(cost).min())


@pytest.mark.parametrize("seed", range(8))
def test_three_codes_end_near_the_minimum(seed):
    cost = tangled(10, seed)[0]
    every = values(cost)
    reached = cost.value(minimize(cost))
    assert reached <= every.min() + 0.02 * (np.median(every) - every.min())


@pytest.mark.parametrize("seed", range(4))
def test_tables_of_any_kind_never_end_worse_than_one_code_for_all(seed):
    cost = frustrated(12, seed)
    reached = cost.value(minimize(cost))
    assert reached <= min(cost.value([code] * 12) for code in range(3))
    better = [cost.value([*minimize(cost)[:-1], code]) for code in range(3)]
    assert reached <= min(better) + 1e-9


def test_forbidden_codes_are_not_taken():
    cost = potts(11, 3, 0)
    barred = tuple(np.where(np.arange(3) == number % 3, np.inf, own) for number, own in enumerate(cost.unary))
    codes = minimize(Pairwise(cost.base, barred, cost.pairs))
    assert all(code != number % 3 for number, code in enumerate(codes))


def test_nothing_allowed_is_said():
    cost = potts(WIDE, 2, 0)
    barred = (np.full(2, np.inf), *cost.unary[1:])
    with pytest.raises(SolverError, match="every assignment is forbidden"):
        minimize(Pairwise(cost.base, barred, cost.pairs))


def test_decisions_may_have_different_numbers_of_codes():
    rng = np.random.default_rng(3)
    sizes = [1, 2, 3] * 4
    pairs = {
        (i, j): rng.uniform(0, 0.3) * (1 - np.eye(3))[: sizes[i], : sizes[j]]
        for i, j in itertools.combinations(range(12), 2)
    }
    cost = Pairwise(0.0, tuple(rng.uniform(0, 1, size) for size in sizes), pairs)
    structure = Structure.of(cost)
    (codes,), (least,) = Cutter(structure).minimize(structure.terms(cost)[None])
    assert cost.value(codes) == pytest.approx(least)
    assert least == pytest.approx(values(cost).min(), rel=0.02)


def test_forbidden_pairs_are_refused():
    cost = potts(WIDE, 2, 0)
    pairs = {**cost.pairs, (0, 1): np.array([[0.0, np.inf], [np.inf, 0.0]])}
    barred = Pairwise(cost.base, cost.unary, pairs)
    with pytest.raises(SolverError, match="too many of them are connected for pairs of codes to be forbidden"):
        minimize(barred)


def test_the_front_and_the_best_within_a_limit_come_near_the_exact_ones():
    first, second = tangled(10, 0)
    every = np.stack([values(first), values(second)])
    points = front(first, second)
    assert points[0].first <= every[0].min() + 0.02
    assert points[-1].second <= every[1].min() + 0.02
    assert len(points) >= 4
    for point in points:
        below = every[0] <= point.first
        assert point.second <= every[1][below].min() + 0.05 * np.ptp(every[1])
    for quantile in (0.02, 0.05, 0.3):
        limit = float(np.quantile(every[1], quantile))
        found = within(first, second, limit)
        assert found.limited <= limit
        assert found.value <= 1.05 * every[0][every[1] <= limit].min()
        assert found.gap == np.inf, "nothing is proven"


def test_new_codes_are_found_beyond_all_single_changes():
    cost = potts(WIDE, 2, 1)
    seen = {tuple(codes.tolist()) for codes, _ in rank_codes(cost)}
    assert len(seen) == WIDE + 1, "the minimum and one change of each decision"
    new = best_new(cost, seen)
    assert tuple(new.tolist()) not in seen
    assert cost.value(new) <= np.sort(values(cost))[100]


def test_many_costs_give_what_each_gives_alone():
    cost, other = potts(WIDE, 2, 4), potts(WIDE, 2, 5)
    structure = Structure.of(cost, other)
    terms = np.array([structure.terms(cost), structure.terms(other)])
    codes, least = Cutter(structure).minimize(terms)
    assert [cost.value(codes[0]), other.value(codes[1])] == pytest.approx([1 + value for value in least])
    assert least == pytest.approx([values(cost).min() - 1, values(other).min() - 1])
    assert len(Cutter(structure).minimize(terms[:0])[0]) == 0
