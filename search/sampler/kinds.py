"""What a sampler declares before it is made, and the kinds that come with bitfront."""

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
    """A sampler as `--sampler` names it. Another package derives from it and registers the class, see `registry`.

    Attributes:
        name: as messages and help have it.
        guided: whether it is told of the graph, of priors and of what cannot be built, as `Guidance`. Refused pairs are
            then left out of mixes, and workers of one target share its seed, because what they propose differs by what
            is under way or by the number of the trial.
        wants_sensitivities: whether sensitivities are measured for it where it is guided.
        rewarded: whether it uses the weights of `--reward`.
    """

    name: ClassVar[str]
    guided: ClassVar[bool] = False
    wants_sensitivities: ClassVar[bool] = True
    rewarded: ClassVar[bool] = False

    def missing(self) -> str:
        """What has to be installed before it can be made, as a sentence; empty where nothing is missing."""
        return ""

    @abstractmethod
    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        """An Optuna sampler that minimises latency and loss under the constraints that trials carry.

        Args:
            seed: of the study, or of this worker of it.
            finished: trials that the study has already, open and failed ones too. A sampler that draws anew from
                `seed` after every start would propose what was proposed before: draw from `continued_seed`.
            guidance: given where `guided` is set.
        """


def continued_seed(seed: int, finished: int) -> int:
    """The seed of a study that goes on after `finished` trials."""
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

    def missing(self) -> str:
        if importlib.util.find_spec("torch") is not None:
            return ""
        return "it computes with PyTorch, which is not installed: " + install_command("gp")

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return GPSampler(seed=continued_seed(seed, finished))


class Random(SamplerKind):
    name = "random"

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        return RandomSampler(seed=continued_seed(seed, finished))
