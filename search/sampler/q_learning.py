"""The sampler `rl`: tabular Q-learning, a plain form of reinforcement learning.

An agent visits the decisions in the order of the graph and gives each a precision. A *state* is what it knows at a
decision: the kind of layer (type and sizes), the precision of the decision before, and the time budget that is left. An
*action* is a precision. After the mix has been measured, its score is the reward of the last action; all other actions
have no reward. The table has the expected final reward for every state and action.

The table is learnt again for every proposal from all finished trials, however they were proposed. So a study can be
resumed at any point, and trials of other samplers count as much as those of this one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from search.forecast.history import Historian, History
from search.graph.grouping import Group
from search.sampler.guided import Guidance
from search.sampler.kinds import SamplerKind
from search.space.layout import Codes, Layout, Precisions
from search.values import REFERENCE, Precision
from search.values.score import loss_unit

RATE = 0.5  # how far a value moves to what was learnt, in each sweep; a usual rate of tables with few rows
SWEEPS = 10  # over all trials, from the last decision to the first: after ten, 0.1 % of the first value is left
_LEAST_EXPLORED = 0.05  # share of decisions drawn at random, however many trials there are: else it repeats itself
_TRIES = 10  # proposals until one is new, each with more random decisions than the one before
_ROUNDING = 1e-9  # differences of values that are none
_OCTAVES = 2  # sizes within a factor of 4 are one kind of layer: finer kinds are seen too rarely to learn from

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class QLearning(SamplerKind):
    """The sampler `rl`."""

    name = "rl"
    guided = True
    wants_sensitivities = False
    rewarded = True

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        assert guidance is not None, "the sampler rl needs guidance"
        return QLearningSampler(guidance, seed)


@dataclass(frozen=True)
class Walk:
    """The decisions that the agent visits, with the time of each action and what is allowed.

    Attributes:
        kinds: (decisions,) number of the kind of layer.
        places: for every decision (codes,) the precision of each code, as index into the precisions in use.
        times_ms: for every decision (codes,) estimated time of its layers.
        barred: for every decision (codes,) bool, whether it cannot be built.
        precisions: the number of precisions in use.
    """

    kinds: Ints
    places: tuple[Ints, ...]
    times_ms: tuple[Floats, ...]
    barred: tuple[NDArray[np.bool_], ...]
    precisions: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the table: kinds, precision before (the last index: none), budget left, precisions."""
        return int(self.kinds.max(initial=0)) + 1, self.precisions + 1, self.precisions + 1, self.precisions

    @cached_property
    def rest_ms(self) -> Floats:
        """(decisions + 1, precisions) time of all decisions from one on in a precision, or in the next finer one."""
        times = np.zeros((len(self.kinds) + 1, self.precisions))
        for i, places in enumerate(self.places):
            codes = np.searchsorted(places, np.arange(self.precisions), side="right") - 1
            times[i] = self.times_ms[i][np.maximum(codes, 0)]
        return np.asarray(times[::-1].cumsum(axis=0)[::-1])

    @cached_property
    def least_ms(self) -> Floats:
        """(decisions + 1,) least time of all decisions from one on."""
        least = [float(times[~barred].min()) for times, barred in zip(self.times_ms, self.barred, strict=True)]
        return np.asarray(np.cumsum([0.0, *least[::-1]])[::-1])

    def left(self, decision: int, left_ms: Floats) -> Ints:
        """(n,) budget left at a decision, as the number of precisions in which all further decisions would keep it."""
        fits = self.rest_ms[decision] <= left_ms[:, None] * (1 + _ROUNDING)
        return np.asarray(fits.sum(axis=1), dtype=np.int64)

    def allowed_codes(self, decision: int, left_ms: float) -> NDArray[np.bool_]:
        """(codes,) codes that can be built and leave enough time for the rest; if there are none, the fastest."""
        times = np.where(self.barred[decision], np.inf, self.times_ms[decision])
        enough = times + self.least_ms[decision + 1] <= left_ms * (1 + _ROUNDING) + _ROUNDING
        result = np.asarray(enough & ~self.barred[decision])
        return result if result.any() else np.asarray(times == times.min())

    def total_ms(self, codes: Codes) -> Floats:
        """(n, decisions) codes to (n,) estimated time of all decisions."""
        return np.asarray(np.sum([times[codes[:, i]] for i, times in enumerate(self.times_ms)], axis=0))


def learn(walk: Walk, codes: Codes, budgets_ms: Floats, rewards: Floats) -> Floats:
    """Learn the table of values from measured mixes.

    Every sweep updates all mixes at once, from the last decision to the first. A value moves by `RATE` towards the mean
    target of its mixes: the reward after the last decision, otherwise the largest value of the next state. An action
    that no mix took has the mean of all rewards.

    Args:
        codes: (n, decisions) codes of the mixes, n at least 1.
        budgets_ms: (n,) the time that each had for its decisions.
        rewards: (n,) score of each.

    Returns:
        float64 of `walk.shape`.
    """
    table = np.full(walk.shape, float(rewards.mean()))
    steps, left_ms = [], budgets_ms.astype(np.float64)
    before = np.full(len(codes), walk.precisions)
    for i, (places, times) in enumerate(zip(walk.places, walk.times_ms, strict=True)):
        taken = places[codes[:, i]]
        steps.append((before, walk.left(i, left_ms), taken))
        before, left_ms = taken, left_ms - times[codes[:, i]]
    for _ in range(SWEEPS):
        target = rewards
        for i in reversed(range(len(steps))):
            values, (was, left, taken) = table[walk.kinds[i]], steps[i]
            _move(values, np.ravel_multi_index((was, left, taken), values.shape), target)
            target = values[was, left][:, np.unique(walk.places[i])].max(axis=1)
    return table


def _move(values: Floats, cells: Ints, target: Floats) -> None:
    """Move each value that mixes passed through towards the mean of their targets; `values` is changed in place."""
    flat = values.reshape(-1)
    counts = np.bincount(cells, minlength=flat.size)
    sums = np.bincount(cells, target, minlength=flat.size)
    seen = counts > 0
    flat[seen] += RATE * (sums[seen] / counts[seen] - flat[seen])


class QLearningSampler(BaseSampler):
    """Proposes mixes by the table that is learnt from the study's trials.

    The agent has the latency budget of the study. Without one it gets a random budget for every trial, between the
    fastest mix and uniform FP32, so that its proposals spread along the front. A measured mix is then learnt with the
    budget that it just keeps.

    Args:
        guidance: what the sampler knows; `priors`, `groups`, `score`, `ratio`, `unbuildable` and `aim` are used.
        seed: the seed of the study. Random numbers depend on it and on the number of the trial, so workers may share
            it.
    """

    def __init__(self, guidance: Guidance, seed: int) -> None:
        self.guidance = guidance
        self.layout = guidance.layout
        self._seed = seed
        self._historian = Historian(guidance.layout)
        self._kinds = kinds_of(guidance.layout, guidance.groups)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {v.id: IntDistribution(0, len(v.precisions) - 1) for v in self.layout.space.variables}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        unbuildable = self.guidance.unbuildable()
        history = self._historian.history(trials, self.guidance.latencies())
        rng = np.random.default_rng([self._seed % 2**32, trial.number])
        codes = self._propose(history, unbuildable, rng)
        return {v.id: int(code) for v, code in zip(self.layout.space.variables, codes, strict=True)}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise AssertionError(f"{param_name} is not a decision of the study")

    def rewards(self, history: History) -> Floats | None:
        """(n,) score of every measured mix; None if uniform FP32 was not measured yet."""
        baselines = self.layout.space.baselines
        uniforms = self.layout.precisions_of(list(baselines.values()))
        rows = [_row_of(history, row) for row in uniforms]
        fp32 = rows[list(baselines).index(REFERENCE.label)]
        if fp32 is None:
            return None
        unit = loss_unit(self.guidance.ratio, [float(history.loss[row]) for row in rows if row is not None])
        return self.guidance.score.of(history.ms, history.loss, float(history.ms[fp32]), unit)

    def _propose(self, history: History, unbuildable: Set[tuple[str, Precision]], rng: np.random.Generator) -> Codes:
        """(decisions,) codes of a proposal; random if there is nothing to learn from yet."""
        rewards, priors = self.rewards(history), self.guidance.priors()
        if rewards is None or priors is None:
            nothing = np.zeros((len(self.layout.groups), len(self.layout.palette)))
            walk = self.walk(nothing, unbuildable)
            return self._new(walk, np.zeros(walk.shape), np.inf, 1.0, history, rng)
        nodes = np.maximum(priors.latency.nodes, 0.0)
        walk, known = self.walk(nodes, unbuildable), self._codes(history.precisions)
        budget = self._budget_ms(nodes, history)
        budgets = walk.total_ms(known) if budget is None else np.full(len(known), budget)
        table = learn(walk, known, budgets, rewards)
        if budget is None:
            budget = float(rng.uniform(walk.least_ms[0], max(walk.least_ms[0], walk.rest_ms[0, 0])))
        explored = max(_LEAST_EXPLORED, 1 / math.sqrt(len(known)))
        return self._new(walk, table, budget, explored, history, rng)

    def _new(
        self, walk: Walk, table: Floats, budget_ms: float, explored: float, history: History, rng: np.random.Generator
    ) -> Codes:
        """A mix by the table, in which more and more decisions are random until it was not tried before."""
        for attempt in range(1, _TRIES + 1):
            share = explored + (1 - explored) * (attempt - 1) / (_TRIES - 1)
            codes = _episode(walk, table, budget_ms, share, rng)
            if bytes(codes.tolist()) not in history.tried:
                break
        return codes

    def walk(self, nodes_ms: Floats, unbuildable: Set[tuple[str, Precision]]) -> Walk:
        """The decisions, from (groups, precisions) estimated times and the pairs that cannot be built."""
        layout = self.layout
        barred = np.zeros(nodes_ms.shape)
        for group, precision in unbuildable:
            if group in layout.groups and precision in layout.places:
                barred[layout.groups.index(group), layout.places[precision]] = 1.0
        return Walk(
            kinds=self._kinds,
            places=tuple(np.array([layout.places[p] for p in v.precisions]) for v in layout.space.variables),
            times_ms=tuple(layout.entries.by_code(nodes_ms)),
            barred=tuple(_without_all(codes > 0) for codes in layout.entries.by_code(barred)),
            precisions=len(layout.palette),
        )

    def _codes(self, precisions: Precisions) -> Codes:
        """(n, groups) precisions to (n, decisions) codes; a block has the coarsest precision of its groups."""
        columns = [
            np.searchsorted([self.layout.places[p] for p in v.precisions], precisions[:, members].max(axis=1))
            for v, members in zip(self.layout.space.variables, self.layout.members, strict=True)
        ]
        most = np.array([len(v.precisions) - 1 for v in self.layout.space.variables])
        return np.asarray(np.minimum(np.stack(columns, axis=1), most), dtype=np.int64)

    def _budget_ms(self, nodes_ms: Floats, history: History) -> float | None:
        """The latency budget, as time that the decisions may take by the estimates; None without a budget."""
        budget_ms = self.guidance.aim().budget_ms
        if budget_ms is None:
            return None
        undecided = np.flatnonzero(self.layout.fixed >= 0)
        fp32 = _row_of(history, self.layout.precisions_of([self.layout.space.uniform(REFERENCE)])[0])
        assert fp32 is not None
        estimated_ms = float(nodes_ms[np.arange(len(nodes_ms)), history.precisions[fp32]].sum())
        apart_ms = float(nodes_ms[undecided, self.layout.fixed[undecided]].sum())
        return budget_ms / float(history.ms[fp32]) * estimated_ms - apart_ms


def kinds_of(layout: Layout, groups: Sequence[Group]) -> Ints:
    """(decisions,) number of the kind of layer of each decision; for a block, that of its largest group.

    Layers are of one kind if their type is the same and their multiply-adds and weights are within a factor of 4.
    Without groups, all layers are of one kind.
    """
    if not groups:
        return np.zeros(len(layout.space.variables), dtype=np.int64)
    known = {group.id: group for group in groups}
    kinds: dict[tuple[str, int, int], int] = {}
    numbers = []
    for variable in layout.space.variables:
        group = max((known[name] for name in variable.groups), key=lambda each: each.multiply_adds)
        work, weights = group.multiply_adds, max(1.0, float(math.prod(group.weight_shape)))
        key = group.op, int(math.log2(work)) // _OCTAVES, int(math.log2(weights)) // _OCTAVES
        numbers.append(kinds.setdefault(key, len(kinds)))
    return np.array(numbers, dtype=np.int64)


def _episode(walk: Walk, table: Floats, budget_ms: float, explored: float, rng: np.random.Generator) -> Codes:
    """(decisions,) codes of one episode: each decision takes the best action by the table, or a random one."""
    codes = np.zeros(len(walk.kinds), dtype=np.int64)
    before, left_ms = walk.precisions, budget_ms
    for i, kind in enumerate(walk.kinds):
        allowed = np.flatnonzero(walk.allowed_codes(i, left_ms))
        values = table[kind, before, int(walk.left(i, np.array([left_ms]))[0]), walk.places[i][allowed]]
        best = allowed if rng.random() < explored else allowed[values >= values.max()]
        codes[i] = rng.choice(best)
        before, left_ms = int(walk.places[i][codes[i]]), left_ms - float(walk.times_ms[i][codes[i]])
    return codes


def _row_of(history: History, precisions: Precisions) -> int | None:
    rows = np.flatnonzero((history.precisions == precisions).all(axis=1))
    return int(rows[-1]) if len(rows) else None


def _without_all(barred: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The barred codes; none if all of them are barred."""
    return np.zeros_like(barred) if barred.all() else barred
