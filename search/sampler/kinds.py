"""`SamplerKind`, which describes a sampler before it is made, and the kinds that come with bitfront."""

from __future__ import annotations

import importlib.util
import warnings
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from search.installation import install_command

if TYPE_CHECKING:
    from search.sampler.guided import Guidance


class SamplerKind(ABC):
    """A sampler for `--sampler`. Other packages derive from this class and register theirs, see `registry`.

    Attributes:
        name: its name in messages and help.
        guided: whether it receives `Guidance`: the graph, priors and what cannot be built. Then refused pairs are left
            out of mixes, and the workers of a target share its seed, because their proposals differ by the unfinished
            trials or by the number of the trial.
        wants_sensitivities: whether sensitivities are measured for it, if it is guided.
        rewarded: whether it uses the weights of `--reward`.
    """

    name: ClassVar[str]
    guided: ClassVar[bool] = False
    wants_sensitivities: ClassVar[bool] = True
    rewarded: ClassVar[bool] = False

    def explain_missing(self) -> str:
        """A sentence about what has to be installed before it can be made; empty if nothing is missing."""
        return ""

    @abstractmethod
    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        """Make an Optuna sampler that minimises latency and loss under the constraints of the trials.

        Args:
            seed: the seed of the study, or of this worker.
            finished: the number of trials that the study has, including open and failed ones. Use `continued_seed`,
                because a sampler that starts with `seed` again would repeat its first proposals.
            guidance: given if `guided` is set.
        """


def continued_seed(seed: int, finished: int) -> int:
    """The seed of a study that continues after `finished` trials."""
    return (seed + finished) % 2**32


class Guided(SamplerKind):
    name = "guided"
    guided = True

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        from search.sampler.guided import GuidedSampler

        assert guidance is not None, "the guided sampler needs guidance"
        return GuidedSampler(guidance, seed)


class TPE(SamplerKind):
    """Univariate TPE is no better than random here; multivariate, after the uniform assignments, is."""

    name = "tpe"

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return TPESampler(multivariate=True, seed=continued_seed(seed, finished))


class NSGA2(SamplerKind):
    name = "nsga2"

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        return NSGAIISampler(seed=continued_seed(seed, finished))


class GP(SamplerKind):
    name = "gp"

    def explain_missing(self) -> str:
        if importlib.util.find_spec("torch") is not None:
            return ""
        return "it computes with PyTorch, which is not installed: " + install_command("gp")

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return GPSampler(seed=continued_seed(seed, finished))


class Handed(SamplerKind):
    """A sampler that is an object of this process. A study stores only that there was one."""

    name = "handed"

    def __init__(self, sampler: BaseSampler | None = None) -> None:
        self._sampler = sampler

    def explain_missing(self) -> str:
        if self._sampler is not None:
            return ""
        return (
            "the study was searched with a sampler object that was given in Python, which is not stored. Continue it "
            "there: bitfront.resume(name, sampler=...)"
        )

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        assert self._sampler is not None
        return self._sampler


class Random(SamplerKind):
    name = "random"

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        return RandomSampler(seed=continued_seed(seed, finished))
