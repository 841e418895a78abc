"""One shot, then hill climbing, as a sampler for `bitfront search --sampler`: what a plain search does with priors."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from benchmarks.samplers.one_shot import BEFORE_CLIMBING, sweep_of
from benchmarks.samplers.search_orders import step_from
from benchmarks.samplers.simulator.best_front import undominated
from search.forecast.history import Historian, History
from search.sampler.guided import Guidance
from search.sampler.kinds import SamplerKind
from search.space.layout import Codes, Precisions
from search.values import Assignment


class OneShotThenClimb(SamplerKind):
    """Gets the knowledge that the guided sampler gets."""

    name = "one-shot-then-climb"
    guided = True

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        assert guidance is not None, "a guided sampler needs guidance"
        return OneShotSampler(guidance, seed)


class OneShotSampler(BaseSampler):
    """Proposes the first points of the sweep of the additive model, then changes of measured mixes.

    The sweep is computed once, from the priors after the uniform assignments: profiles of their engines and
    sensitivities. A resumed study computes it again from the same stored measurements.

    Args:
        guidance: its layout and priors are used. Pairs that cannot be built are not: ONNX Runtime refuses none.
        seed: of the study.
    """

    def __init__(self, guidance: Guidance, seed: int) -> None:
        self.guidance = guidance
        self.layout = guidance.layout
        self._seed = seed
        self._historian = Historian(guidance.layout)
        self._sweep: list[Codes] | None = None

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {v.id: IntDistribution(0, len(v.precisions) - 1) for v in self.layout.space.variables}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        history = self._historian.history(trials, latencies=self.guidance.latencies())
        codes = self._propose(history, np.random.default_rng([self._seed % 2**32, trial.number]))
        return {v.id: int(code) for v, code in zip(self.layout.space.variables, codes, strict=True)}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise AssertionError(f"{param_name} is not a decision of the study")

    def _propose(self, history: History, rng: np.random.Generator) -> Codes:
        """(decisions,) the next point of the sweep; after it a step from the measured front.

        While uniform assignments are missing it is random: what is proposed then is overridden.
        """
        widths = [len(v.precisions) for v in self.layout.space.variables]
        if len(history.seen) < len(self.layout.space.baselines()) or not len(history):
            return np.array([rng.integers(width) for width in widths])
        first = self._points()[:BEFORE_CLIMBING]
        waiting = [codes for codes in first if _key(codes) not in history.seen]
        if waiting:
            return waiting[0]
        return step_from(self._front(history), widths, lambda codes: _key(codes) in history.seen, rng)

    def _points(self) -> list[Codes]:
        if self._sweep is None:
            priors = self.guidance.priors()
            assert priors is not None, "uniform assignments were measured"
            self._sweep = sweep_of(self.layout, priors)
        return self._sweep

    def _front(self, history: History) -> Codes:
        """(n, decisions) codes of the measured front."""
        measured = np.flatnonzero(history.whole)
        best = measured[undominated(history.ms[measured], history.loss[measured])]
        return np.array([self._codes(history.precisions[row]) for row in best])

    def _codes(self, precisions: Precisions) -> Codes:
        """(groups,) precisions to (decisions,) codes."""
        named = {group: self.layout.palette[p] for group, p in zip(self.layout.groups, precisions, strict=True)}
        return self.layout.codes_of(Assignment(named))


def _key(codes: Codes) -> tuple[int, ...]:
    return tuple(int(code) for code in codes)
