"""Samplers by name. Every proposal of a study goes through an Optuna sampler."""

from __future__ import annotations

import importlib.util
import warnings
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from search.errors import ConfigError

if TYPE_CHECKING:
    from search.sampler.guided import Guidance

NAMES = ("guided", "tpe", "nsga2", "gp", "random")


def check_sampler(name: str) -> None:
    """Raise ConfigError when there is no such sampler, or what it computes with is not installed."""
    if name not in NAMES:
        raise ConfigError(f"--sampler {name}: there is no such sampler; known are {', '.join(NAMES)}.")
    if name == "gp" and importlib.util.find_spec("torch") is None:
        raise ConfigError("--sampler gp: it computes with PyTorch, which is not installed: pip install 'bitfront[gp]'.")


def make_sampler(name: str, seed: int, finished: int, guidance: Guidance | None = None) -> BaseSampler:
    """A sampler for minimising latency and loss under the constraints that trials carry.

    Args:
        seed: of the study. A resumed study continues from `seed + finished`, for the same seed again would propose
            what was proposed before.
        finished: trials that the study has already.
        guidance: what `guided` is told.

    Raises:
        ConfigError: no such sampler, or not installed.
    """
    check_sampler(name)
    if name == "guided":
        from search.sampler.guided import GuidedSampler

        assert guidance is not None, "the guided sampler needs guidance"
        return GuidedSampler(guidance, seed)
    start = (seed + finished) % 2**32
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if name == "tpe":
            # Univariate TPE is no better than random here; multivariate, after the uniform assignments, is.
            return TPESampler(multivariate=True, seed=start)
        if name == "nsga2":
            return NSGAIISampler(seed=start)
        if name == "gp":
            return GPSampler(seed=start)
        return RandomSampler(seed=start)
