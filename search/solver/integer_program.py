"""Pairwise costs as integer programs for HiGHS, for problems with a limit or graphs too wide for elimination.

There is one binary column for each code of a decision, and one continuous column for each entry of a table. The rows
and columns of a table add up to the columns of the codes, so its entries are whole if the codes are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.errors import SolverError
from search.space.layout import Codes
from search.space.structure import Structure, Terms

# HiGHS's tolerances are absolute, 1e-7 and more: with the largest cost at this they are far below what matters.
LARGEST = 1e3


@dataclass(frozen=True)
class Found:
    """The result of HiGHS.

    Attributes:
        codes: allowed codes; None if none were found in time.
        bound: a lower bound of the cost of all allowed codes, including the base.
        timed_out: whether it stopped at the time limit, in which case `bound` may be far below.
    """

    codes: Codes | None
    bound: float
    timed_out: bool


@dataclass
class _Rows:
    """The constraints collected so far: low ≤ Σ values · columns ≤ high."""

    rows: list[NDArray[np.int64]] = field(default_factory=list)
    columns: list[NDArray[np.int64]] = field(default_factory=list)
    values: list[NDArray[np.float64]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, columns: NDArray[np.int64], values: Any, low: float, high: float) -> None:
        """Add a row for each of (n, entries) columns, with the same values and bounds."""
        number = len(self.low) + np.arange(len(columns))
        self.rows.append(np.repeat(number, columns.shape[1]))
        self.columns.append(columns.ravel())
        self.values.append(np.broadcast_to(np.asarray(values, dtype=np.float64), columns.shape).ravel())
        self.low += [low] * len(columns)
        self.high += [high] * len(columns)

    def constraint(self, width: int) -> Any:
        from scipy.optimize import LinearConstraint
        from scipy.sparse import csr_array

        entries = np.concatenate(self.values), (np.concatenate(self.rows), np.concatenate(self.columns))
        return LinearConstraint(csr_array(entries, shape=(len(self.low), width)), self.low, self.high)


def solve(
    structure: Structure,
    terms: Terms,
    base: float = 0.0,
    limited: tuple[Terms, float] | None = None,
    forbidden: Sequence[Codes] = (),
    gap: float = 0.0,
    time_limit_s: float = 60.0,
) -> Found | None:
    """Find the codes of least cost.

    Args:
        terms: (length,) float64, +inf where something is forbidden.
        base: the constant part of the cost, which matters only for the gap.
        limited: (length,) terms of a second cost, and its upper limit, without base.
        forbidden: (decisions,) codes to exclude.
        gap: the relative gap; HiGHS stops when the cost is proven to be within it.

    Returns:
        The result; None if it is proven that no codes are allowed.

    Raises:
        SolverError: HiGHS failed.
    """
    deadline = time.monotonic() + time_limit_s
    cuts = list(forbidden)
    while True:
        left_s = max(deadline - time.monotonic(), 0.01)
        found = _solve_program(structure, terms, base, limited, cuts, gap, left_s)
        if found is None or found.codes is None or _is_allowed(structure, terms, limited, found.codes):
            return found
        if any(np.array_equal(found.codes, codes) for codes in cuts):
            raise SolverError(f"solving {len(structure.sizes)} decisions: HiGHS returned codes that are forbidden.")
        cuts.append(found.codes)  # allowed within HiGHS's tolerances only


def add_tolerance(terms: Terms, limit: float) -> float:
    """A limit with a tolerance for rounding."""
    return limit + 1e-9 * (abs(limit) + float(np.abs(terms[np.isfinite(terms)]).max(initial=0)))


def _is_allowed(structure: Structure, terms: Terms, limited: tuple[Terms, float] | None, codes: Codes) -> bool:
    if not np.isfinite(structure.sums(terms, codes[None])[0]):
        return False
    return limited is None or structure.sums(limited[0], codes[None])[0] <= add_tolerance(*limited)


def _solve_program(
    structure: Structure,
    terms: Terms,
    base: float,
    limited: tuple[Terms, float] | None,
    forbidden: Sequence[Codes],
    gap: float,
    time_limit_s: float,
) -> Found | None:
    from scipy.optimize import Bounds, milp

    costs = [terms] if limited is None else [terms, limited[0]]
    denied = np.asarray(np.isinf(costs).any(axis=0))
    costs = [np.where(denied, 0.0, cost) for cost in costs]
    rows, kept = _polytope(structure, costs, denied)
    _forbid(rows, structure, forbidden)
    if limited is not None:
        scale = 1 / _largest(costs[1])
        rows.add(np.arange(structure.length)[None], scale * costs[1], -np.inf, scale * limited[1])
    # The base is a column that is always 1, so that the gap is relative to the whole cost.
    scale = LARGEST / _largest(costs[0])
    width, columns = structure.length + 1, np.append(np.flatnonzero(kept), structure.length)
    constraint = rows.constraint(width)
    constraint.A = constraint.A[:, columns]
    result = milp(
        scale * np.append(costs[0], base)[columns],
        integrality=columns < sum(structure.sizes),
        bounds=Bounds(np.append(np.zeros(width - 1), 1)[columns], np.append(~denied, 1)[columns].astype(float)),
        constraints=constraint,
        options={"time_limit": time_limit_s, "mip_rel_gap": gap},
    )
    if result.status == 2:
        return None
    if result.status not in (0, 1):
        raise SolverError(f"solving {len(structure.sizes)} decisions as an integer program: {result.message}")
    bound = -np.inf if result.mip_dual_bound is None else float(result.mip_dual_bound) / scale
    if result.x is None:
        return Found(None, bound, True)
    whole = np.zeros(width)
    whole[columns] = result.x
    codes = [int(whole[s : s + n].argmax()) for s, n in zip(structure.unary_starts, structure.sizes, strict=True)]
    return Found(np.array(codes, dtype=np.int64), bound, result.status == 1)


def _polytope(structure: Structure, costs: list[Terms], denied: NDArray[np.bool_]) -> tuple[_Rows, NDArray[np.bool_]]:
    """The rows that connect codes and tables, and the columns that are needed.

    Tables that are sums of two unary costs are added to the unary costs, in place.
    """
    rows, kept = _Rows(), np.ones(structure.length, dtype=bool)
    columns = [start + np.arange(size) for start, size in zip(structure.unary_starts, structure.sizes, strict=True)]
    for own in columns:
        rows.add(own[None], 1.0, 1, 1)
    for left, right, tables in _by_shape(structure, columns):
        sums = np.flatnonzero(~denied[tables].any(axis=(1, 2)))
        empty = np.array([_move_to_unary(cost, left[sums], right[sums], tables[sums]) for cost in costs]).all(axis=0)
        kept[tables[sums[empty]]] = False
        others = np.delete(np.arange(len(tables)), sums[empty])
        for own, entries in ((left, tables), (right, tables.swapaxes(1, 2))):
            both = np.concatenate([entries[others], own[others][:, :, None]], axis=2)
            rows.add(both.reshape(-1, both.shape[2]), np.append(np.ones(entries.shape[2]), -1), 0, 0)
    return rows, kept


def _by_shape(structure: Structure, columns: list[NDArray[np.int64]]) -> Iterator[tuple[NDArray[np.int64], ...]]:
    """For tables of equal shape: (n, codes) columns of their first and second decisions, (n, codes, codes) of them."""
    alike: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for (i, j), start in zip(structure.pairs, structure.pair_starts, strict=True):
        alike.setdefault((len(columns[i]), len(columns[j])), []).append((i, j, start))
    for (high, wide), pairs in alike.items():
        starts = np.array([start for *_, start in pairs], dtype=np.int64)
        tables = starts[:, None, None] + np.arange(high * wide).reshape(high, wide)
        yield np.array([columns[i] for i, *_ in pairs]), np.array([columns[j] for _, j, _ in pairs]), tables


def _move_to_unary(
    cost: Terms, left: NDArray[np.int64], right: NDArray[np.int64], tables: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Move the parts of tables that depend on one decision into the unary costs; tells of which nothing is left."""
    entries = cost[tables]
    first, second = entries[:, :, 0], entries[:, 0] - entries[:, :1, 0]
    np.add.at(cost, left, first)
    np.add.at(cost, right, second)
    rest = entries - first[:, :, None] - second[:, None]
    rest[np.abs(rest) <= 1e-12 * np.abs(entries).max(axis=(1, 2), keepdims=True, initial=0)] = 0
    cost[tables] = rest
    return np.asarray(~rest.any(axis=(1, 2)))


def _forbid(rows: _Rows, structure: Structure, forbidden: Sequence[Codes]) -> None:
    for codes in forbidden:
        rows.add((structure.unary_starts + codes)[None], 1.0, -np.inf, len(codes) - 1)


def _largest(terms: Terms) -> float:
    return float(np.abs(terms[np.isfinite(terms)]).max(initial=0)) or 1.0
