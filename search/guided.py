"""The guided sampler: two small models, an exact solver and real measurements, in a closed loop.

Every proposal is made from what Optuna's trials say and what is handed in (layout, priors, unbuildable pairs); the
sampler remembers nothing else, so several workers, and a study that is resumed, behave like one. Candidates come
from exact solutions under the models' means and under draws from their posteriors (Thompson sampling), and from single
changes of the best that was measured; the one that is expected to gain most is proposed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from threadpoolctl import threadpool_limits

from search import acquisition
from search.acquisition import Forecast
from search.aims import Aim as Aim
from search.aims import Known, worth
from search.candidates import Bounds, Pool
from search.forecasts import MEASURED, Predicted, forecast_quality
from search.layout import Layout, Precisions
from search.priors import LatencyPrior, NoisePrior
from search.surrogate import LatencyModel, LossModel, fit_latency, fit_loss, is_poor
from search.transfer import Losses
from search.values import Precision

_EXPLORED = 0.08  # share of proposals that go where the models know least
_FALLBACK = 0.5  # share of proposals left to TPE while the models are poor
_WIDE = 0.25  # share of proposals that look at the whole front although there are limits
_FEW, _GAPS = 3, 2
_MOST_ROWS, _FIRST, _LAST = 200, 10, 40
_SHORT, _LUCKY = 120, 20  # candidates whose uncertainty is worth computing


@dataclass(frozen=True)
class Priors:
    """What profiles and sensitivities say before any mix was measured; and losses of mixes on another target."""

    latency: LatencyPrior
    noise: NoisePrior
    losses: Losses | None = None


@dataclass(frozen=True)
class Guidance:
    """What the sampler is told beside Optuna's trials; the functions are asked anew for every proposal.

    Attributes:
        priors: from what is known by now.
        unbuildable: pairs of group and precision that the engine's builder refuses.
        aim: some limits become a loss only when FP32 has been measured.
    """

    layout: Layout
    priors: Callable[[], Priors]
    unbuildable: Callable[[], Set[tuple[str, Precision]]] = frozenset
    aim: Callable[[], Aim] = Aim


@dataclass(frozen=True)
class History:
    """Trials as arrays.

    Attributes:
        precisions: (n, groups) int8 of finished trials that obeyed, as built.
        ms, loss: (n,) measured.
        spread, loss_std: (n,) relative spread of the latency, and standard deviation of the loss.
        whole: (n,) bool, whether the loss is of every sample.
        pending: (m, groups) int8 of trials under way.
        seen: codes of every trial there is, and of what it was repaired to.
    """

    precisions: Precisions
    ms: NDArray[np.float64]
    loss: NDArray[np.float64]
    spread: NDArray[np.float64]
    loss_std: NDArray[np.float64]
    whole: NDArray[np.bool_]
    pending: Precisions
    seen: frozenset[tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.ms)


@dataclass(frozen=True)
class Models:
    """Both models, fitted to a history."""

    layout: Layout
    latency: LatencyModel
    loss: LossModel

    def forecast(self, precisions: Precisions) -> Forecast:
        ms, ms_std = self.latency.predict(precisions)
        loss, loss_std = self.loss.predict(precisions)
        return Forecast(ms, ms_std, loss, loss_std)

    def expected_loss(self, precisions: Precisions) -> NDArray[np.float64]:
        """(n,) expected losses alone, which is cheap."""
        return self.loss.shape.loss(self.layout.values(self.loss.mean(), precisions))

    def expected_ms(self, precisions: Precisions) -> NDArray[np.float64]:
        """(n,) expected latencies alone."""
        return self.layout.values(self.latency.mean(), precisions)


class GuidedSampler(BaseSampler):
    """Proposes mixes of precisions for two objectives, latency in ms and loss, both minimised.

    Args:
        guidance: what it is told.
        seed: of the study; every trial draws from this and its own number, so workers may share a seed.
    """

    def __init__(self, guidance: Guidance, seed: int) -> None:
        self.guidance = guidance
        self.layout = guidance.layout
        self._seed = seed
        self._tpe = TPESampler(multivariate=True, seed=seed % 2**32)
        self.predicted: dict[int, Predicted] = {}
        """Trial number → what was predicted of it; whoever asked takes it out and stores it."""
        self._kept: dict[int, tuple[FrozenTrial, tuple[int, ...]]] = {}

    # -- Optuna's side ---------------------------------------------------------------------------------------------

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {v.id: IntDistribution(0, len(v.precisions) - 1) for v in self.layout.space.variables}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if "fixed_params" in trial.system_attrs:
            return {}
        rng = np.random.default_rng([self._seed % 2**32, trial.number])
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        unbuildable = self.guidance.unbuildable()
        history = self.history(trials, unbuildable)
        poor = is_poor(forecast_quality(trials))
        if poor and rng.random() < _FALLBACK:
            codes = self._from_tpe(study, trial, search_space, unbuildable)
            if codes is not None and tuple(codes.tolist()) not in history.seen:
                return self._params(codes)
        with threadpool_limits(1, "blas"):
            return self._params(self._propose(trial.number, history, unbuildable, poor, rng))

    def _from_tpe(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
        unbuildable: Set[tuple[str, Precision]],
    ) -> NDArray[np.int64] | None:
        """(decisions,) codes that TPE proposes, without what cannot be built; None where it has too few trials."""
        params = self._tpe.sample_relative(study, trial, search_space)
        if not params:
            return None
        return np.asarray(self._repaired(np.array([self._codes(params)]), unbuildable)[0])

    def _codes(self, params: Mapping[str, Any]) -> list[int]:
        return [int(params[variable.id]) for variable in self.layout.space.variables]

    def _params(self, codes: NDArray[np.int64]) -> dict[str, Any]:
        return {v.id: int(code) for v, code in zip(self.layout.space.variables, codes, strict=True)}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        assert isinstance(param_distribution, IntDistribution)
        rng = np.random.default_rng([self._seed % 2**32, trial.number, zlib.crc32(param_name.encode())])
        return int(rng.integers(param_distribution.low, param_distribution.high + 1))

    # -- a proposal ------------------------------------------------------------------------------------------------

    def _propose(
        self,
        number: int,
        history: History,
        unbuildable: Set[tuple[str, Precision]],
        poor: bool,
        rng: np.random.Generator,
    ) -> NDArray[np.int64]:
        """(decisions,) codes."""
        if len(history) == 0:
            return self._random(rng)
        models = self.models(history)
        pool = Pool(self.layout, unbuildable, history.seen)
        explore = rng.random() < _EXPLORED
        known = self._known(models, history)
        drawn = len(history) >= len(self._uniforms()) + _FEW
        codes, precisions = pool.gather(models, history, rng, self._bounds(models, known), drawn=drawn)
        if not len(codes):
            return self._random(rng)
        kept = self._shortlist(precisions, models, known, rng)
        codes, precisions = codes[kept], precisions[kept]
        forecast = models.forecast(precisions)
        score = self._doubt(forecast) if explore else self._score(forecast, known, rng)
        best = int(np.argmax(score))
        how = "explore" if explore else "gain"
        self.predicted[number] = Predicted.of(forecast, best, how, poor)
        return np.asarray(codes[best])

    def models(self, history: History) -> Models:
        """Fit both models."""
        priors, rows = self.guidance.priors(), relevant(history)
        precisions = history.precisions[rows]
        latency = fit_latency(self.layout, priors.latency, precisions, history.ms[rows], history.spread[rows])
        there = priors.losses or Losses.none(len(self.layout.groups))
        loss = fit_loss(
            self.layout,
            priors.noise,
            np.concatenate([there.precisions, precisions]),
            np.concatenate([there.loss, history.loss[rows]]),
            np.concatenate([there.std, history.loss_std[rows]]),
        )
        return Models(self.layout, latency, loss)

    def _bounds(self, models: Models, known: Known) -> Bounds:
        """The limits, and a little less for safety; without any, the middles of the widest gaps of the front."""
        aim = self.guidance.aim()
        bounds = Bounds()
        if aim.budget_ms is not None:
            bounds = Bounds(ms=[aim.budget_ms - k * models.latency.noise_std for k in (0, 1, 2)], strict=True)
        elif aim.max_loss is not None:
            losses = [max(aim.max_loss - k * known.resolution / 2, 0.0) for k in (0, 1, 2)]
            bounds = Bounds(noise=[models.loss.limit_on_noise(loss) for loss in losses], strict=True)
        else:
            log_ms, loss = known.front()
            widest = np.argsort(np.diff(log_ms) * np.diff(loss))[:_GAPS]
            bounds = Bounds(ms=[float(np.exp((log_ms[i] + log_ms[i + 1]) / 2)) for i in widest])
        return bounds

    def _shortlist(
        self, precisions: Precisions, models: Models, known: Known, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Places of the candidates that gain most if predictions are a little too bad, and of a few others for luck."""
        if len(precisions) <= _SHORT:
            return np.arange(len(precisions))
        ms = np.maximum(models.expected_ms(precisions) - models.latency.noise_std, 1e-12)
        loss = np.maximum(models.expected_loss(precisions) - known.resolution / 2, 0)
        score = acquisition.gains(np.log(ms), loss, *known.front(), known.corner)
        budget_ms = self.guidance.aim().budget_ms
        if budget_ms is not None:
            # Of those that keep the budget, the quietest; a front's gain says little so near one end.
            late = np.maximum(np.log(ms / budget_ms), 0)
            score = score / (score.max() or 1.0) + np.exp(-loss / max(float(loss.max()), 1e-12) - 50 * late)
        best, lucky = np.argsort(-score)[:_SHORT], rng.permutation(len(score))[:_LUCKY]
        return np.unique(np.concatenate([best, lucky]))

    def _score(self, forecast: Forecast, known: Known, rng: np.random.Generator) -> NDArray[np.float64]:
        """(n,) what each candidate is expected to gain."""
        wide = acquisition.expected_gains(forecast, *known.front(), known.corner, rng)
        aim = self.guidance.aim()
        if not aim.limited or rng.random() < _WIDE:
            return wide
        narrow = worth(aim, forecast, known)
        # Where nothing is left to gain at the limits, the front decides.
        return wide if narrow is None else narrow

    def _known(self, models: Models, history: History) -> Known:
        """What was measured and what is under way.

        A measured loss is weighed against its prediction, by their variances: the best of many noisy losses is mostly
        lucky. What is under way counts as predicted, so that workers do not all propose the same.
        """
        whole = history.whole
        forecast = models.forecast(history.precisions[whole])
        trust = forecast.loss_std**2 / (forecast.loss_std**2 + history.loss_std[whole] ** 2 + 1e-18)
        loss = trust * history.loss[whole] + (1 - trust) * forecast.loss
        log_ms = np.log(history.ms[whole])
        if len(history.pending):
            coming = models.expected_ms(history.pending), models.expected_loss(history.pending)
            log_ms = np.concatenate([log_ms, np.log(np.maximum(coming[0], 1e-12))])
            loss = np.concatenate([loss, coming[1]])
        # A loss that is not to be told from none.
        resolution = max(2 * float(np.median(history.loss_std)), 1e-9)
        uniforms = {row.tobytes() for row in self._uniforms()}
        rows = [i for i, row in enumerate(history.precisions) if row.tobytes() in uniforms] or list(range(len(history)))
        corner = acquisition.reference(history.ms[rows], history.loss[rows], resolution)
        return Known(log_ms, np.maximum(loss, 0), corner, resolution, models.latency.tuning.noise)

    def _uniforms(self) -> Precisions:
        return self.layout.precisions_of(list(self.layout.space.baselines().values()))

    @staticmethod
    def _doubt(forecast: Forecast) -> NDArray[np.float64]:
        """(n,) how little is known of each candidate, both objectives on their own scale."""
        spans = [np.ptp(forecast.ms) or 1.0, np.ptp(forecast.loss) or 1.0]
        return np.asarray(forecast.ms_std / spans[0] + forecast.loss_std / spans[1])

    def _random(self, rng: np.random.Generator) -> NDArray[np.int64]:
        return np.array([rng.integers(len(v.precisions)) for v in self.layout.space.variables], dtype=np.int64)

    # -- what Optuna's trials say ----------------------------------------------------------------------------------

    def history(self, trials: Sequence[FrozenTrial], unbuildable: Set[tuple[str, Precision]] = frozenset()) -> History:
        """Trials as arrays; what failed or did not obey is only remembered as tried."""
        # A trial that was asked for just now may not have all its parameters yet.
        known = [(trial, row) for trial in trials if (row := self._asked(trial)) is not None]
        trials, rows_asked = [trial for trial, _ in known], [row for _, row in known]
        asked = np.array(rows_asked, dtype=np.int64).reshape(len(trials), len(self.layout.space.variables))
        codes = self._repaired(asked, unbuildable)
        answered = list(rows_asked)
        for repaired in np.flatnonzero((codes != asked).any(axis=1)):
            answered[repaired] = tuple(codes[repaired].tolist())
        done: dict[tuple[int, ...], int] = {}
        for place, trial in enumerate(trials):
            if trial.state is TrialState.COMPLETE and _obeyed(trial):
                done.setdefault(answered[place], place)  # what answered several trials counts once
        rows = list(done.values())
        measured = [trials[place].user_attrs.get(MEASURED, (0.01, 0.0, 1.0)) for place in rows]
        spread, loss_std, whole = np.array(measured, dtype=float).reshape(-1, 3).T
        ms, loss = np.array([trials[place].values for place in rows], dtype=float).reshape(-1, 2).T
        open_ = [place for place, trial in enumerate(trials) if trial.state is TrialState.RUNNING]
        built = self.layout.precisions(codes)
        seen = frozenset(answered) | frozenset(rows_asked)
        return History(built[rows], ms, loss, spread, loss_std, whole > 0, built[open_], seen)

    def _asked(self, trial: FrozenTrial) -> tuple[int, ...] | None:
        """The codes that a trial asked for; None where it has not all its parameters.

        Those of a finished trial are kept: it never changes, and there may be thousands.
        """
        kept = self._kept.get(trial.number)
        if kept is not None and kept[0] is trial:
            return kept[1]
        if not all(variable.id in trial.params for variable in self.layout.space.variables):
            return None
        codes = tuple(self._codes(trial.params))
        if trial.state.is_finished():
            self._kept[trial.number] = (trial, codes)
        return codes

    def _repaired(self, codes: NDArray[np.int64], unbuildable: Set[tuple[str, Precision]]) -> NDArray[np.int64]:
        """(n, decisions) codes as the runner repairs what cannot be built; what nothing repairs stays."""
        precisions, space = self.layout.precisions(codes), self.layout.space
        broken = np.zeros(len(codes), dtype=bool)
        for group, precision in unbuildable:
            broken |= precisions[:, self.layout.groups.index(group)] == int(precision)
        codes = codes.copy()
        for row in np.flatnonzero(broken):
            found = space.avoiding(self.layout.assignment(codes[row]), unbuildable)
            if found is not None:
                codes[row] = self.layout.codes_of(found)
        return codes


def relevant(history: History) -> NDArray[np.int64]:
    """Rows that the models are fitted to: all, or of many the first, the last and those nearest the front.

    The cost of a fit grows with the cube of its rows, and what is far from the front says little of what is near it.
    """
    if len(history) <= _MOST_ROWS:
        return np.arange(len(history))
    log_ms = np.log(history.ms)
    kept = acquisition.front(log_ms, history.loss)
    scale = np.ptp(log_ms) or 1.0, np.ptp(history.loss) or 1.0
    best = np.minimum.reduce(
        [
            np.maximum(log_ms - log_ms[i], 0) / scale[0] + np.maximum(history.loss - history.loss[i], 0) / scale[1]
            for i in kept
        ]
    )
    best[kept] = -2.0
    best[:_FIRST] = np.minimum(best[:_FIRST], -1.0)  # the uniform assignments among them
    best[-_LAST:] = np.minimum(best[-_LAST:], -1.0)
    return np.sort(np.argsort(best, kind="stable")[:_MOST_ROWS])


def _obeyed(trial: FrozenTrial) -> bool:
    constraints: Mapping[str, float] = getattr(trial, "constraints", None) or {}
    return constraints.get("obeyed", 0.0) <= 0
