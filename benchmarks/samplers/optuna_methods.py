"""Methods that are Optuna samplers: every proposal by ask, every answer by tell, on a study in memory."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.samplers import BaseSampler, TPESampler

from benchmarks.samplers.bench import Bench
from benchmarks.samplers.simulator.problem import Measurement
from search.sampler.registry import make_sampler
from search.space.layout import Codes
from search.values import Precision

if TYPE_CHECKING:
    from search.forecast.models import Priors
    from search.sampler.guided import GuidedSampler
    from search.space.layout import Layout

_SAME_IN_A_ROW = 3  # as studies/run/claims/trial_claims.py
_MOST_PROPOSALS = 30  # a trial; a sampler that only repeats itself ends here
_Z95 = 1.96

BeforeTell = Callable[[optuna.Trial, Measurement], None]


def random(bench: Bench) -> None:
    """Random assignments, after the uniform ones."""
    search(bench, make_sampler("random", bench.seed, 0))


def tpe_default(bench: Bench) -> None:
    """Optuna's TPE as it comes: no uniform assignments, every group on its own."""
    search(bench, TPESampler(seed=bench.seed), uniforms=False)


def tpe(bench: Bench) -> None:
    """Multivariate TPE after the uniform assignments: bitfront's `tpe`."""
    search(bench, make_sampler("tpe", bench.seed, 0))


def nsga2(bench: Bench) -> None:
    """NSGA-II after the uniform assignments."""
    search(bench, make_sampler("nsga2", bench.seed, 0))


def gp(bench: Bench) -> None:
    """Optuna's Gaussian process after the uniform assignments; needs PyTorch."""
    search(bench, make_sampler("gp", bench.seed, 0))


def rl(bench: Bench) -> None:
    """Q-learning after the uniform assignments: bitfront's `rl`, which has the latency model's priors."""
    search(bench, make_sampler("rl", bench.seed, 0, guided_sampler(bench).guidance))


def has_gp() -> bool:
    return importlib.util.find_spec("torch") is not None


def search(bench: Bench, sampler: BaseSampler, uniforms: bool = True, before_tell: BeforeTell | None = None) -> None:
    """Ask and tell until the trials are spent, as studies/run/loop.py does.

    A repeated proposal is told what is known and counts no trial; after three in a row a random neighbour is tried.

    Args:
        uniforms: whether the uniform assignments come first.
        before_tell: is called with each trial before the study is told its values.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)
        study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
        rng, names = np.random.default_rng([bench.seed, 2]), [v.id for v in bench.problem.layout.space.variables]
        for codes in bench.problem.baselines.values() if uniforms else ():
            study.enqueue_trial({name: int(code) for name, code in zip(names, codes, strict=True)})
        repeats = 0
        for _ in range(_MOST_PROPOSALS * bench.trials):
            trial = study.ask()
            widths = bench.problem.widths
            codes = np.array([trial.suggest_int(n, 0, w - 1) for n, w in zip(names, widths, strict=True)])
            repeats = repeats + 1 if bench.knows(codes) else 0
            measured = bench.evaluate(codes)
            if before_tell is not None:
                before_tell(trial, measured)
            if bench.budget_ms is not None:
                trial.set_constraint("latency", measured.latency_ms - bench.budget_ms)
            if bench.max_loss is not None:
                trial.set_constraint("loss", measured.loss - bench.max_loss)
            study.tell(trial, (measured.latency_ms, measured.loss))
            if repeats and repeats % _SAME_IN_A_ROW == 0:
                neighbour = _neighbour(codes, widths, rng)
                study.enqueue_trial({name: int(code) for name, code in zip(names, neighbour, strict=True)})


def _neighbour(codes: Codes, widths: tuple[int, ...], rng: np.random.Generator) -> Codes:
    changed = codes.copy()
    some = 1 + int(rng.integers(max(1, len(codes) // 4)))
    for decision in rng.choice(len(codes), some, replace=False):
        changed[decision] = rng.integers(widths[decision])
    return changed


# -- the guided sampler ------------------------------------------------------------------------------------------------


def guided(bench: Bench) -> None:
    """bitfront's default, told what a study tells it: profiles of the uniform engines and sensitivities."""
    _guided(bench, edges=True)


def guided_without_edges(bench: Bench) -> None:
    """The guided sampler on a graph without edges: no model of what a change of precision costs."""
    _guided(bench, edges=False)


def known_priors(bench: Bench, layout: Layout) -> Priors:
    """What profiles and sensitivities say before any mix is measured; the uniform assignments are measured for it."""
    from search.forecast.models import Priors
    from search.forecast.priors import Baseline, latency_prior, noise_prior

    engines = []
    for label, codes in bench.problem.baselines.items():
        profile = bench.problem.profiles.get(Precision.parse(label), ())
        precisions = layout.precisions(codes[None])[0]
        engines.append(Baseline(precisions, bench.evaluate(codes).latency_ms, profile))
    noise = noise_prior(layout, bench.problem.sensitivity(bench.seed))
    return Priors(latency_prior(layout, engines, bench.problem.work), noise)


def guided_sampler(bench: Bench, edges: bool = True) -> GuidedSampler:
    """The sampler as a study makes it; without `edges` on a graph that has none."""
    from search.forecast.priors import noise_prior
    from search.sampler.goals import MixGoal
    from search.sampler.guided import Guidance, GuidedSampler

    problem, layout = bench.problem, bench.problem.layout
    if not edges:
        layout = replace(layout, edges=layout.edges[:0], elements=layout.elements[:0])
    noise = noise_prior(layout, problem.sensitivity(bench.seed))
    priors = cache(lambda: known_priors(bench, layout))
    aim, band = MixGoal(bench.budget_ms, bench.max_loss), problem.tie_band
    return GuidedSampler(
        Guidance(layout, priors, aim=lambda: aim, latency_band=lambda: band, noise=noise, left=lambda: bench.left),
        bench.seed,
    )


def _guided(bench: Bench, edges: bool) -> None:
    from search.forecast.forecasts import FORECAST, MEASURED, deciding_forecasts

    sampler = guided_sampler(bench, edges)

    def store_forecast(trial: optuna.Trial, measured: Measurement) -> None:
        done = trial.study.get_trials(deepcopy=False)
        if bench.ends_after is None and deciding_forecasts(done, 0, bench.problem.tie_band):
            bench.ends_after = len(bench.measurements) - 1  # without this trial, which a study would not have begun
        if (forecast := sampler.predicted.pop(trial.number, None)) is not None:
            trial.set_user_attr(FORECAST, forecast.to_json())
        sd = (measured.loss_high - measured.loss_low) / 2 / _Z95
        trial.set_user_attr(MEASURED, [0.004, sd, True])

    search(bench, sampler, before_tell=store_forecast)
