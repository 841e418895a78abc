"""Candidates of a proposal: exact solutions under the models, draws from the models, and changes of good mixes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from search.forecast import acquisition
from search.solver import blocks
from search.solver.blocks import Tied
from search.solver.elimination import eliminator
from search.solver.hull import HullPoint
from search.solver.limited import within
from search.solver.solve import best_new, front, minima
from search.space.changes import Changes
from search.space.layout import Codes, Costs, Layout, Precisions
from search.space.structure import Structure
from search.values import Assignment, Precision

if TYPE_CHECKING:
    from search.forecast.history import History
    from search.forecast.models import Models


@dataclass(frozen=True)
class _Effort:
    """How many problems are solved exactly.

    Attributes:
        points: points of the front under the models' means.
        draws, weights: draws from the posterior, and weights of the two costs for each draw.
    """

    points: int
    draws: int
    weights: int


# Exact solutions for every proposal, within its time: most from the models' means, some from draws, so that proposals
# differ.
_USUAL = _Effort(points=24, draws=3, weights=6)
# Where the graph is too wide for elimination each of them takes several minimum cuts, 30 ms with 200 groups.
_WIDE = _Effort(points=8, draws=2, weights=2)
_GROWN = 6  # measured points, spread over the front, whose neighbours are looked at; with 60 groups these are 720
_NEIGHBOURS = 1200  # of measured points; where there are more, as many are drawn, because rating them takes time
# Measured points with one region changed, and with two decisions changed; fewer than those with one decision changed.
_FLIPPED, _PAIRED = 600, 300
_GIVING = 8  # predicted points, spread over the front, that are given precision back; each takes several solutions
_KEEPING = 3  # measured points that keep the limits, which are grown and given precision back: the best and its rivals
_GAP = 1e-2  # from the best cost, that a solution within a bound may have: costs are known less exactly than to 1 %
# Effort of the relaxation, of all bounds together, so that a proposal stays below 0.3 s with 200 groups. Four times as
# much did not change picks of made-up worlds.
_LOOKED_AT = 12_000


@dataclass(frozen=True)
class Bounds:
    """Limits to find the best candidates within: least noise within each latency, least latency within each noise.

    Attributes:
        strict: whether candidates must meet them; otherwise they only choose where to look.
    """

    ms: Sequence[float] = ()
    noise: Sequence[float] = ()
    strict: bool = False


class Pool:
    """Collects the candidates of one proposal.

    Args:
        unbuildable: pairs of group and precision that no candidate may have.
        tried: codes that were already tried, a byte per decision.
        fixed: codes by decision that every candidate must have.
        kept: intermediate results of a pool with the same layout, which are used again.
    """

    def __init__(
        self,
        layout: Layout,
        unbuildable: Set[tuple[str, Precision]],
        tried: frozenset[bytes],
        fixed: Mapping[int, int] | None = None,
        kept: dict[str, tuple[Any, list[Tied]]] | None = None,
    ) -> None:
        self.layout = layout
        self._tried = tried
        self.barred = _bar_pairs(layout, unbuildable | _others(layout, fixed or {}))
        self._kept = {} if kept is None else kept

    @cached_property
    def seen(self) -> frozenset[tuple[int, ...]]:
        """The codes that were already tried, as tuples."""
        return frozenset(map(tuple, self._tried))

    def gather(
        self, models: Models, history: History, rng: np.random.Generator, bounds: Bounds, *, drawn: bool
    ) -> tuple[Codes, Precisions]:
        """Collect codes (n, decisions) and precisions (n, groups) of distinct candidates that were not tried yet.

        Args:
            drawn: whether to use posterior draws beside the models' means.
        """
        every, scope = self._scopes(models)
        effort = _effort(every.layout, models)
        points = _front(every.layout, models.latency.mean().plus(self.barred), models.loss.mean(), effort.points)
        candidates = [every.expand(self._stack_codes([point.codes for point in points], every.layout))]
        points = [HullPoint(codes, *point[1:]) for codes, point in zip(candidates[0], points, strict=True)]
        candidates.append(self._within(scope, models.latency.mean(), models.loss.mean(), bounds))
        if drawn:
            candidates.append(self._draw_minima(scope, models, points, rng, effort))
            if bounds.strict:  # draws differ as much as bounds do, and every bound takes as long as all else
                first = Bounds(bounds.ms[:1], bounds.noise[:1])
                candidates.append(self._within(scope, models.latency.draw(rng), models.loss.draw(rng), first))
        ties = self._ties(models)
        candidates += self._whole(ties, models, effort, rng, drawn=drawn)
        grown = self._best_measured(models, history, bounds)
        ends = np.concatenate([self._thin_front(points), candidates[1], grown])
        candidates.append(self._given_back(ends, models))
        candidates.append(self._neighbours(grown, rng))
        candidates.append(self._flip_regions(grown, ties, rng))
        candidates.append(self._change_pairs(grown, rng))
        codes, precisions = self.new(np.concatenate(candidates))
        # Of a small space all that was good may have been tried.
        return (codes, precisions) if len(codes) else self.new(self._next_best(models, points))

    def beside(
        self, models: Models, history: History, rng: np.random.Generator, bounds: Bounds
    ) -> tuple[Codes, Precisions]:
        """Collect only single, paired and region changes of the best measured mixes."""
        return self.around(self._best_measured(models, history, bounds), models, rng)

    def polish(
        self, models: Models, history: History, rng: np.random.Generator, bounds: Bounds, mixes: Precisions
    ) -> tuple[Codes, Precisions]:
        """Collect candidates near the mix that will be exported: changes of measured mixes, and the best within bounds.

        Args:
            mixes: (m, groups) precisions of the measured mixes.
        """
        _, scope = self._scopes(models)
        grown = self._stack_codes([self._codes(precisions) for precisions in mixes])
        first = Bounds(bounds.ms[:1], bounds.noise[:1])
        candidates = [
            self._within(scope, models.latency.mean(), models.loss.mean(), bounds),
            self._within(scope, models.latency.draw(rng), models.loss.draw(rng), first),
        ]
        candidates.append(self._given_back(np.concatenate([*candidates, grown]), models))
        codes, precisions = self.new(np.concatenate([*candidates, self.around(grown, models, rng)[0]]))
        return (codes, precisions) if len(codes) else self.beside(models, history, rng, bounds)

    def around(self, codes: Codes, models: Models, rng: np.random.Generator) -> tuple[Codes, Precisions]:
        """Single, region and paired changes of (n, decisions) candidates, of those that were not tried."""
        changed = [
            self._neighbours(codes, rng),
            self._flip_regions(codes, self._ties(models), rng),
            self._change_pairs(codes, rng),
        ]
        return self.new(np.concatenate(changed))

    def _stack_codes(self, codes: list[NDArray[np.int64]], layout: Layout | None = None) -> Codes:
        return np.array(codes, dtype=np.int64).reshape(len(codes), len((layout or self.layout).members))

    def _scopes(self, models: Models) -> tuple[Tied, Tied]:
        """Units to decide on: blocks are divided where that promises a gain, as far as it can be solved quickly."""
        everything = np.arange(len(self.layout.members))
        if len(everything) <= blocks.LARGE:
            return (blocks.tie_decisions(self.layout, everything, self.barred),) * 2
        [coarse] = self._reuse_ties(
            "blocks", (), lambda: [blocks.tie_decisions(self.layout, blocks.block_owners(self.layout), self.barred)]
        )
        latency, noise = models.latency.mean().plus(self.barred), models.loss.mean()
        points = _front(coarse.layout, latency, noise, _effort(coarse.layout, models).points)
        every, some = blocks.taken_apart(self.layout, coarse, latency, noise, points)
        return blocks.tie_decisions(self.layout, every, self.barred), blocks.tie_decisions(
            self.layout, some, self.barred
        )

    def _ties(self, models: Models) -> list[Tied]:
        """One decision for each region, for every division of the network into regions."""
        divisions = models.latency.regions.divisions
        key = tuple(division.tobytes() for division in divisions)
        return self._reuse_ties("regions", key, lambda: list(self._of_regions(divisions)))

    def _of_regions(self, divisions: Sequence[NDArray[np.int64]]) -> Iterator[Tied]:
        first = np.array([members[0] for members in self.layout.members], dtype=np.int64)
        for owners in (division[first] for division in divisions):
            if len(np.unique(owners)) < len(owners):
                yield blocks.tie_decisions(self.layout, owners, self.barred)

    def _reuse_ties(self, kind: str, key: Any, make: Callable[[], list[Tied]]) -> list[Tied]:
        """The latest ties of a kind, which are made again if the key, or what cannot be built, changed."""
        key = key, self.barred.nodes.tobytes()
        if kind not in self._kept or self._kept[kind][0] != key:
            self._kept[kind] = key, make()
        return self._kept[kind][1]

    def _whole(
        self, ties: list[Tied], models: Models, effort: _Effort, rng: np.random.Generator, *, drawn: bool
    ) -> list[Codes]:
        """The best mixes with one precision per region, under the models' means and under draws."""
        candidates = []
        for tied in ties:
            latency, noise = models.latency.mean().plus(self.barred), models.loss.mean()
            points = _front(tied.layout, latency, noise, effort.points // 2)
            candidates.append(tied.expand(self._stack_codes([point.codes for point in points], tied.layout)))
            if drawn:
                few = _Effort(effort.points, 1, effort.weights)
                candidates.append(self._draw_minima(tied, models, points, rng, few))
        return candidates

    def _flip_regions(self, grown: Codes, ties: list[Tied], rng: np.random.Generator) -> Codes:
        """Measured points with one region changed as a whole."""
        moves = [
            (decisions, row)
            for tied in ties
            for decisions, table in zip(tied.decisions, tied.tables, strict=True)
            if len(decisions) > 1
            for row in table
        ]
        most = max(1, _FLIPPED // max(1, len(grown)))
        chosen = rng.permutation(len(moves))[:most] if len(moves) > most else range(len(moves))
        changes = np.repeat(grown, len(chosen), axis=0).reshape(len(grown), len(chosen), len(self.layout.members))
        for place, number in enumerate(chosen):
            decisions, row = moves[number]
            changes[:, place, decisions] = row
        return np.asarray(changes.reshape(-1, len(self.layout.members)))

    def _change_pairs(self, grown: Codes, rng: np.random.Generator) -> Codes:
        """Measured points with two decisions changed, drawn at random."""
        sizes = self.layout.entries.sizes
        if not len(grown) or len(sizes) < 2:
            return self._stack_codes([])
        changes = grown[rng.integers(len(grown), size=_PAIRED)].copy()
        for _ in range(2):
            decisions = rng.integers(len(sizes), size=_PAIRED)
            changes[np.arange(_PAIRED), decisions] = (rng.random(_PAIRED) * sizes[decisions]).astype(np.int64)
        return np.asarray(changes)

    def _within(self, scope: Tied, latency: Costs, noise: Costs, bounds: Bounds) -> Codes:
        """The best within each bound, which weighted sums may miss."""
        layout = scope.layout
        ms, errors = layout.pairwise(latency.plus(self.barred)), layout.pairwise(noise.plus(self.barred))
        problems = [(errors, ms, limit) for limit in bounds.ms] + [(ms, errors, limit) for limit in bounds.noise]
        looked_at = _LOOKED_AT // max(1, len(problems))
        solutions = [within(objective, limited, limit, _GAP, looked_at) for objective, limited, limit in problems]
        return scope.expand(self._stack_codes([each.codes for each in solutions if each is not None], layout))

    def _draw_minima(
        self, scope: Tied, models: Models, points: list[HullPoint], rng: np.random.Generator, effort: _Effort
    ) -> Codes:
        """The best under draws from the posterior, for weights at which the front has its corners."""
        weights = _weights(points, effort.weights)
        if not len(weights):
            return self._stack_codes([])
        pairs = [
            (scope.layout.pairwise(models.latency.draw(rng).plus(self.barred)), scope.layout.pairwise(draw))
            for draw in (models.loss.draw(rng) for _ in range(effort.draws))
        ]
        structure = Structure.of(*pairs[0])
        terms = [
            weight * structure.terms(latency) + structure.terms(noise) for latency, noise in pairs for weight in weights
        ]
        return scope.expand(minima(structure, np.array(terms))[0])

    def _thin_front(self, points: list[HullPoint]) -> Codes:
        """Some of the predicted points, evenly over the front."""
        places = np.unique(np.linspace(0, len(points) - 1, min(_GIVING, len(points))).round().astype(int))
        return self._stack_codes([points[place].codes for place in places])

    def _given_back(self, ends: Codes, models: Models) -> Codes:
        """Good mixes, with every higher precision that is predicted to take no time.

        Weighted sums of the objectives find only the corners of a front. Between them, raising the precision of one
        decision after the other comes near the best.
        """
        changes = Changes(self.layout, models.latency.mean().plus(self.barred), models.loss.mean())
        slack = 0.5 * models.latency.noise_std
        ends = np.unique(ends, axis=0)  # one that was measured before a pair was found unbuildable stays as it is
        return self._stack_codes([changes.given_back(codes, slack) for codes in ends[self._can_be_built(ends)]])

    def _neighbours(self, grown: Codes, rng: np.random.Generator) -> Codes:
        """Single changes of measured points, or some of them where there are many."""
        places = [(i, k) for i, effects in enumerate(self.layout.effects) for k in range(len(effects))]
        if len(places) * len(grown) > _NEIGHBOURS:
            chosen = rng.permutation(len(places))[: max(1, _NEIGHBOURS // max(1, len(grown)))]
            places = [places[i] for i in chosen]
        neighbours = np.repeat(grown, len(places), axis=0).reshape(len(grown), len(places), -1)
        decisions, codes = np.array(places, dtype=np.int64).reshape(-1, 2).T
        neighbours[:, np.arange(len(places)), decisions] = codes
        return neighbours.reshape(-1, len(self.layout.members))

    def _next_best(self, models: Models, points: list[HullPoint]) -> Codes:
        """For all weights of the objectives, the best that was not tried yet."""
        latency, noise = models.latency.mean().plus(self.barred), models.loss.mean()
        weights = _weights(points, _effort(self.layout, models).weights) if len(points) > 1 else np.ones(1)
        mixes = [best_new(self.layout.pairwise(noise.plus(latency, weight)), self.seen) for weight in weights]
        return self._stack_codes([codes for codes in mixes if codes is not None])

    def _best_measured(self, models: Models, history: History, bounds: Bounds) -> Codes:
        """The best measured mixes of the whole front, and of those that keep the limits."""
        rows = dict.fromkeys([*self._rows_within_limits(models, history, bounds), *self._best(models, history)])
        return self._stack_codes([self._codes(history.precisions[row]) for row in rows])

    def _rows_within_limits(self, models: Models, history: History, bounds: Bounds) -> NDArray[np.int64]:
        """The best few rows that keep the limits; none without limits."""
        kept, order = np.zeros(len(history), dtype=bool), history.loss
        if bounds.strict and len(bounds.ms):
            kept = history.whole & (history.ms <= bounds.ms[0])
        elif bounds.strict and len(bounds.noise):
            noise = self.layout.values(models.loss.mean(), history.precisions)
            kept, order = noise <= bounds.noise[0], history.ms
        rows = np.flatnonzero(kept)
        return np.asarray(rows[np.argsort(order[rows], kind="stable")][:_KEEPING])

    def _best(self, models: Models, history: History) -> NDArray[np.int64]:
        """A few rows of the measured front, with losses moved towards their forecasts, as the least are often luck."""
        loss = models.expected_loss(history.precisions)
        kept = acquisition.front(np.log(history.ms), np.maximum(history.loss, loss - 2 * history.loss_std))
        return np.asarray(kept[np.unique(np.linspace(0, len(kept) - 1, _GROWN).round().astype(int))])

    def _codes(self, precisions: Precisions) -> NDArray[np.int64]:
        named = {g: self.layout.palette[p] for g, p in zip(self.layout.groups, precisions, strict=True)}
        return self.layout.codes_of(Assignment(named))

    def new(self, codes: Codes) -> tuple[Codes, Precisions]:
        """The distinct ones that were not tried and can be built, and their precisions."""
        rows = np.ascontiguousarray(codes, dtype=np.uint8)
        fresh = {
            row: place for place in range(len(rows) - 1, -1, -1) if (row := rows[place].tobytes()) not in self._tried
        }
        codes = codes[np.sort(np.fromiter(fresh.values(), dtype=np.int64, count=len(fresh)))]
        codes = codes[self._can_be_built(codes)]
        return codes, self.layout.precisions(codes)

    def _can_be_built(self, codes: Codes) -> NDArray[np.bool_]:
        """(n,) whether (n, decisions) codes can be built."""
        return np.isfinite(self.layout.values(self.barred, self.layout.precisions(codes)))


def _effort(layout: Layout, models: Models) -> _Effort:
    """The effort that can be solved quickly."""
    structure = Structure.of(layout.pairwise(models.latency.mean()))
    return _USUAL if eliminator(structure).fits else _WIDE


def _front(layout: Layout, latency: Costs, noise: Costs, most: int) -> list[HullPoint]:
    """The supported front of two costs."""
    return front(layout.pairwise(latency), layout.pairwise(noise), most)


def _weights(points: list[HullPoint], most: int) -> NDArray[np.float64]:
    """Weights of the first cost, relative to the second, at which neighbouring corners are equally good."""
    first, second = (np.array([getattr(point, name) for point in points]) for name in ("first", "second"))
    slopes = np.diff(-second) / np.maximum(np.diff(first), 1e-300)
    slopes = np.sort(slopes[slopes > 0])
    return slopes[np.unique(np.linspace(0, len(slopes) - 1, most).round().astype(int))] if len(slopes) else slopes


def _others(layout: Layout, fixed: Mapping[int, int]) -> set[tuple[str, Precision]]:
    """Pairs of group and precision that the fixed codes exclude."""
    return {
        (layout.groups[group], layout.palette[other])
        for decision, code in fixed.items()
        for row in layout.effects[decision]
        for group, other, wanted in zip(layout.members[decision], row, layout.effects[decision][code], strict=True)
        if other != wanted
    }


def _bar_pairs(layout: Layout, unbuildable: Set[tuple[str, Precision]]) -> Costs:
    """Costs with +inf at forbidden pairs of group and precision."""
    size = len(layout.palette)
    nodes = np.zeros((len(layout.groups), size))
    for group, precision in unbuildable:
        nodes[layout.groups.index(group), layout.places[precision]] = np.inf
    return Costs(0.0, nodes, np.zeros((len(layout.edges), size, size)))
