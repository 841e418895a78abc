"""The guided sampler: a loop of two small models, an exact solver and real measurements.

Every proposal depends only on Optuna's trials and on the guidance (layout, priors, unbuildable pairs). The sampler
remembers nothing else, so several workers, or a resumed study, behave like one process. Candidates are exact solutions
under the models' means and under draws from their posteriors (Thompson sampling), and changes of the best measured
mixes. The candidate with the largest expected gain is proposed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial
from threadpoolctl import threadpool_limits

from search.errors import SolverError, SurrogateError
from search.forecast import acquisition
from search.forecast.forecasts import ForecastAccuracy, Predicted, forecast_quality
from search.forecast.history import Historian, History
from search.forecast.models import Models, Priors, fit_models
from search.forecast.priors import NoisePrior
from search.forecast.quality import NINETY
from search.graph.grouping import Group
from search.sampler.candidates import Bounds, Pool
from search.sampler.climbing import climb
from search.sampler.cold_start import guesses
from search.sampler.gains import Gain
from search.sampler.goals import Goal, Knee, Known, MixGoal, nearest
from search.sampler.loss_bounds import SURE, LossBounds
from search.solver.blocks import Tied
from search.solver.solve import best_new, minimize
from search.space.layout import Codes, Layout, Precisions
from search.values import Assignment, Precision, Score
from search.values.score import USUAL

# Share of proposals that TPE makes while no uniform assignment was measured; the others have one precision up to some
# decision, and another behind it.
_FALLBACK = 0.5
_NEAR = 0.5  # share of proposals beside measured mixes while forecasts fail; the others let the models learn again
_TPE_TRIES = 4  # draws of TPE until one is new; then another way is taken
_CLIMB_FROM = 6  # finished trials; before, models know too little for several changes at once
# Share of proposals that look at all of the front within the limits, not only at its end there: a search with a limit
# shows a front too, and the end is where models are wrong.
_WIDE = 0.25
# Share of the trials, the last ones, that improve nothing but the mix that will be exported; the models have to learn
# before what is near the limit. Without limits all of the front is wanted: an eighth in place of a sixteenth lowered
# the share after 60 trials of made-up worlds by 0.6 points, and a third by 1.3.
_LATE, _LATE_FREE = 1 / 3, 1 / 16
_FEW, _GAPS = 3, 2  # measured mixes before models are drawn from, and widest gaps of the front that are aimed at
_Z95 = 1.96  # standard deviations either side that hold 95 % of a Gaussian


@dataclass(frozen=True)
class Guidance:
    """What a sampler knows beside Optuna's trials. The functions are called again for every proposal.

    Attributes:
        priors: gives the current priors; None while no uniform assignment has been measured.
        unbuildable: pairs of group and precision that the engine's builder refuses.
        disobeyed: pairs that are built, but run in another precision: no more mixes with them are proposed.
        aim: gives the current limits; some become a limit of the loss only when FP32 has been measured.
        latency_band: the relative difference up to which two latencies count as equal; None until it is measured.
        noise: the noise prior from sensitivities alone; None if they were not measured.
        latencies: gives current latencies in milliseconds by trial number. Later measurements of the baseline may have
            changed the scale of those that Optuna has. For missing trials, Optuna's value is used.
        left: gives how many more trials there will be, the one that is proposed included; None if that is not known.
        groups: the groups of the model in graph order, with types and shapes of the layers; empty if not known.
        score: the weights of the reward, for samplers that learn from one.
        ratio: whether the metric is a share of one.
    """

    layout: Layout
    priors: Callable[[], Priors | None]
    unbuildable: Callable[[], Set[tuple[str, Precision]]] = frozenset
    disobeyed: Callable[[], Set[tuple[str, Precision]]] = frozenset
    aim: Callable[[], MixGoal] = MixGoal
    latency_band: Callable[[], float | None] = lambda: None
    noise: NoisePrior | None = None
    latencies: Callable[[], Mapping[int, float]] = dict
    left: Callable[[], float | None] = lambda: None
    groups: Sequence[Group] = ()
    score: Score = USUAL
    ratio: bool = True


class GuidedSampler(BaseSampler):
    """Proposes mixes of precisions for two objectives, latency in ms and loss, both minimised.

    Args:
        guidance: what the sampler knows beside Optuna's trials.
        seed: the seed of the study. Random numbers depend on it and on the number of the trial, so workers may share
            it.
    """

    def __init__(self, guidance: Guidance, seed: int) -> None:
        self.guidance = guidance
        self.layout = guidance.layout
        self._seed = seed
        self._historian = Historian(guidance.layout)
        self._ties: dict[str, tuple[Any, list[Tied]]] = {}
        self.predicted: dict[int, Predicted] = {}
        """Trial number → what was predicted of it; whoever asked takes it out and stores it."""
        self.failure = ""
        """Why the last forecast that failed did so; then a mix was proposed without it. Empty where none did."""

    # -- Optuna's side ---------------------------------------------------------------------------------------------

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        # Every trial keeps its distributions, so those of one size are the same object.
        sizes = self.layout.entries.sizes.tolist()
        shared = {size: IntDistribution(0, size - 1) for size in set(sizes)}
        return {v.id: shared[size] for v, size in zip(self.layout.space.variables, sizes, strict=True)}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        unbuildable = self.guidance.unbuildable()
        history = self.history(trials)
        avoided = unbuildable | self.guidance.disobeyed()
        poor = self._judge_forecasts(trials, history).poor
        with threadpool_limits(1, "blas"):
            models = self._fit_models(history)
            rng = np.random.default_rng([self._seed % 2**32, trial.number])
            fixed = self._fixed_codes(trial)
            # A pair that was asked for is proposed though it was refused before: building says so again.
            pool = Pool(self.layout, avoided - self._pairs(fixed), history.tried, fixed, self._ties)
            codes, how, promising = None, "tpe", True
            if models is None and rng.random() < _FALLBACK and not fixed:
                codes = self._from_tpe(study, trial, search_space, pool)
            if codes is None and models is not None and len(history):
                near = poor and rng.random() < _NEAR
                with self._going_without():
                    codes, how, promising = self._propose(models, history, pool, rng, near=near)
            if codes is None:
                codes, how = self._guess(pool, rng), "random"
            if models is not None:  # before a baseline was measured there is no forecast
                forecast = models.forecast(self.layout.precisions(codes[None]))
                self.predicted[trial.number] = Predicted.of(forecast, 0, how, poor, promising)
        return {v.id: int(code) for v, code in zip(self.layout.space.variables, codes, strict=True)}

    def _fit_models(self, history: History) -> Models | None:
        """The models; None where there are none yet, or they cannot be fitted."""
        try:
            return self.models(history)
        except (SolverError, SurrogateError) as error:
            self.failure = str(error)
        return None

    @contextmanager
    def _going_without(self) -> Iterator[None]:
        """Let a forecast fail: a proposal can be made without it, if not so good a one."""
        try:
            yield
        except (SolverError, SurrogateError) as error:
            self.failure = str(error)

    def _fixed_codes(self, trial: FrozenTrial) -> dict[int, int]:
        """The codes by decision that a trial was enqueued with; wrong codes were refused before."""
        parameters = trial.system_attrs.get("fixed_params", {})
        return {i: int(parameters[v.id]) for i, v in enumerate(self.layout.space.variables) if v.id in parameters}

    def _pairs(self, fixed: Mapping[int, int]) -> frozenset[tuple[str, Precision]]:
        """Groups with the precisions that codes of some decisions give them."""
        layout = self.layout
        return frozenset(
            (layout.groups[group], layout.palette[row])
            for decision, code in fixed.items()
            for group, row in zip(layout.members[decision], layout.effects[decision][code], strict=True)
        )

    def _from_tpe(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
        pool: Pool,
    ) -> Codes | None:
        """(decisions,) new codes that TPE proposes; None if it has too few trials, or only repeats.

        The TPE sampler is made again for each trial, because it remembers its draws and workers share a seed.
        """
        seed = np.random.SeedSequence([self._seed % 2**32, trial.number]).generate_state(1)[0]
        tpe = TPESampler(multivariate=True, seed=int(seed))
        for _ in range(_TPE_TRIES):
            params = tpe.sample_relative(study, trial, search_space)
            if not params:
                return None
            codes, _ = pool.new(np.array([self._codes(params)]))
            if len(codes):
                return np.asarray(codes[0])
        return None

    def _codes(self, params: Mapping[str, Any]) -> list[int]:
        return [int(params[variable.id]) for variable in self.layout.space.variables]

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        assert isinstance(param_distribution, IntDistribution)
        rng = np.random.default_rng([self._seed % 2**32, trial.number, zlib.crc32(param_name.encode())])
        return int(rng.integers(param_distribution.low, param_distribution.high + 1))

    # -- forecasts -------------------------------------------------------------------------------------------------

    def judge_forecasts(self, trials: Sequence[FrozenTrial]) -> ForecastAccuracy:
        """How accurate the forecasts of the last finished trials were."""
        return self._judge_forecasts(trials, self.history(trials))

    def _judge_forecasts(self, trials: Sequence[FrozenTrial], history: History) -> ForecastAccuracy:
        rows = self._uniform_rows(history)
        # Where all are as good as FP32, what their losses can be told apart by.
        worst = max((max(history.loss[row], _Z95 * history.loss_std[row]) for row in rows), default=0.0)
        band = self.guidance.latency_band() or 0.0
        # Beside losses of nothing at all every error would be many times the measurement, and none of them matters.
        scale = None if not len(rows) else float(worst) or float("inf")
        return forecast_quality(trials, scale, band)

    def forecast_mix(self, trials: Sequence[FrozenTrial], mix: Assignment) -> Predicted | None:
        """The forecast of an enqueued mix; None for uniform assignments, and before any of them was measured."""
        if mix in self.layout.space.baselines.values():
            return None
        history = self.history(trials)
        with threadpool_limits(1, "blas"):
            models = self._fit_models(history)
            if models is None:
                return None
            forecast = models.forecast(self.layout.precisions_of([mix]))
            return Predicted.of(forecast, 0, "asked", self._judge_forecasts(trials, history).poor)

    def least_ms(self, trials: Sequence[FrozenTrial]) -> float | None:
        """The least latency in ms that seems reachable by the forecasts; None before a uniform assignment was measured.

        That is the lower end of the 90 % interval of the mix with the fastest forecast, but at least half of its
        forecast, because the interval is very wide if little is known.

        Raises:
            SolverError: no mix can be built.
        """
        unbuildable = self.guidance.unbuildable()
        with threadpool_limits(1, "blas"):
            models = self.models(self.history(trials))
            if models is None:
                return None
            barred = Pool(self.layout, unbuildable | self.guidance.disobeyed(), frozenset()).barred
            fastest = minimize(self.layout.pairwise(models.latency.mean().plus(barred)))
            forecast = models.predict_latent(self.layout.precisions(fastest[None]))
        expected_ms, std_ms = float(forecast.ms[0]), float(forecast.ms_std[0])
        return max(expected_ms - NINETY * std_ms, expected_ms / 2)

    # -- a proposal ------------------------------------------------------------------------------------------------

    def _propose(
        self, models: Models, history: History, pool: Pool, rng: np.random.Generator, *, near: bool
    ) -> tuple[Codes | None, str, bool]:
        """(decisions,) codes, how they were chosen, and whether anything promises to be better than what was found.

        The codes are None if there are no candidates.

        Args:
            near: whether to consider only changes of measured mixes; these say nothing about other mixes.
        """
        known, late = self._known(models, history), self._is_late(history)
        gain = Gain(self._goal(rng, late=late), self.guidance.aim(), models, known, rng)
        bounds = self._bounds(models, known, gain.goal)
        if late:
            codes, precisions = pool.polish(models, history, rng, bounds, self._nearest(models, history, known))
        elif near:
            codes, precisions = pool.beside(models, history, rng, bounds)
        else:
            drawn = len(history) >= len(self._uniforms()) + _FEW
            codes, precisions = pool.gather(models, history, rng, bounds, drawn=drawn)
        if not len(codes):
            return None, "", True
        kept = gain.shortlist(precisions)
        codes, precisions = codes[kept], precisions[kept]
        gain.settle(precisions)
        gains = gain.rate(precisions)
        if near:
            return np.asarray(codes[int(np.argmax(gains))]), "near", True
        chosen = np.asarray(codes[int(np.argmax(gains))])
        if len(history) >= _CLIMB_FROM:
            chosen = climb(codes, gains, lambda best: pool.around(best, models, rng), gain.shortlist, gain.rate)
        return chosen, "gain", gain.promises(np.concatenate([precisions, self.layout.precisions(chosen[None])]))

    def _is_late(self, history: History) -> bool:
        """Whether this is one of the last trials, which improve the mix that will be exported and nothing else."""
        left, share = self.guidance.left(), _LATE if self.guidance.aim().is_limited else _LATE_FREE
        return left is not None and len(history) >= _CLIMB_FROM and left <= share * (left + len(history.tried))

    def _goal(self, rng: np.random.Generator, *, late: bool) -> Goal:
        aim = self.guidance.aim()
        if late:
            return aim.goal
        return Goal.LIMITS if aim.is_limited and rng.random() >= _WIDE else Goal.FRONT

    def _nearest(self, models: Models, history: History, known: Known) -> Precisions:
        """(n, groups) precisions of the best measured mixes near the one that will be exported."""
        precisions = history.precisions[history.whole]
        log_ms, loss = np.log(history.ms[history.whole]), models.expected_loss(precisions)
        return precisions[nearest(self.guidance.aim(), known, log_ms, loss)]

    def _guess(self, pool: Pool, rng: np.random.Generator) -> Codes:
        """(decisions,) new codes of a plain mix; if all were tried, of any mix; if all of those too, a repeat."""
        codes, _ = pool.new(guesses(self.layout, self.guidance.noise))
        if len(codes):
            return np.asarray(codes[rng.integers(len(codes))])
        rows = np.array([[rng.integers(len(v.precisions)) for v in self.layout.space.variables]], dtype=np.int64)
        codes, _ = pool.new(rows)
        new = codes[0] if len(codes) else best_new(self.layout.pairwise(pool.barred), pool.seen)
        return np.asarray(rows[0] if new is None else new)

    def models(self, history: History) -> Models | None:
        """The fitted models; None if no uniform assignment was measured yet."""
        priors = self.guidance.priors()
        return None if priors is None else fit_models(self.layout, priors, history, self.guidance.latency_band())

    def _bounds(self, models: Models, known: Known, goal: Goal) -> Bounds:
        """The limits and slightly stricter ones, or the knee; else the middles of the widest gaps of the front."""
        aim = self.guidance.aim()
        if goal is Goal.KNEE and (knee := Knee.of(aim, known)) is not None:
            return Bounds(ms=[knee.place[0]], noise=[models.loss.limit_on_noise(knee.place[1])])
        if aim.budget_ms is not None:
            return Bounds(ms=[aim.budget_ms - k * models.latency.noise_std for k in (0, 1, 2)], strict=True)
        if aim.max_loss is not None:
            max_loss = known.bounds.allowed_loss(aim.max_loss)
            losses = [max(max_loss - k * known.resolution / 2, 0.0) for k in (0, 1, 2)]
            return Bounds(noise=[models.loss.limit_on_noise(loss) for loss in losses], strict=True)
        log_ms, loss = known.front()
        widest = np.argsort(np.diff(log_ms) * np.diff(loss))[:_GAPS]
        return Bounds(ms=[float(np.exp((log_ms[i] + log_ms[i + 1]) / 2)) for i in widest])

    def _known(self, models: Models, history: History) -> Known:
        """The measured trials and those that are not finished.

        A measured loss is averaged with its prediction, weighted by their variances, because the least of many noisy
        losses is mostly luck. Unfinished trials count with their predictions, so that workers propose different mixes.
        """
        whole = history.whole
        expected, latent_std = models.loss.predict_latent(history.precisions[whole])
        trust = latent_std**2 / (latent_std**2 + history.loss_std[whole] ** 2 + 1e-18)
        coming = models.predict_latent(history.pending)
        log_ms = np.log(np.concatenate([history.ms[whole], np.maximum(coming.ms, 1e-12)]))
        loss = np.concatenate([trust * history.loss[whole] + (1 - trust) * expected, coming.loss])
        repeat_std, coming_std = models.latency.repeat_std, coming.ms_std / np.maximum(coming.ms, 1e-12)
        log_ms_std = [np.full(int(whole.sum()), repeat_std), coming_std]
        loss_std = [np.sqrt(trust) * history.loss_std[whole], coming.loss_std]
        # A loss that is not to be told from none; what was stopped early knows its own less well.
        typical = float(np.median(history.loss_std[whole] if whole.any() else history.loss_std))
        resolution = max(2 * typical, 1e-6 * float(np.abs(history.loss).max(initial=0.0))) or 1e-9
        rows = self._uniform_rows(history) or list(range(len(history)))
        bounds = LossBounds.of(history.loss[whole], history.loss_std[whole], self.guidance.aim().max_loss)
        upper = history.loss[whole] + SURE * history.loss_std[whole]
        return Known(
            log_ms,
            np.maximum(loss, 0),
            np.concatenate(log_ms_std),
            np.concatenate(loss_std),
            acquisition.reference(history.ms[rows], history.loss[rows], resolution),
            resolution,
            models.latency.tuning.noise,
            np.concatenate([upper, bounds.upper(coming.loss)]),
            bounds,
        )

    def _uniform_rows(self, history: History) -> list[int]:
        uniforms = {row.tobytes() for row in self._uniforms()}
        return [row for row, precisions in enumerate(history.precisions) if precisions.tobytes() in uniforms]

    def _uniforms(self) -> Precisions:
        return self.layout.uniforms

    def history(self, trials: Sequence[FrozenTrial]) -> History:
        """Read trials as arrays. Those that failed or did not run as requested are only remembered as tried."""
        return self._historian.history(trials, self.guidance.latencies())
