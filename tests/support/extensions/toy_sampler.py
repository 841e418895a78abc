"""A sampler of another package, as small as one can be."""

from __future__ import annotations

from optuna.samplers import BaseSampler, RandomSampler

from search.sampler.guided import Guidance
from search.sampler.kinds import SamplerKind, continued_seed


class ToySampler(SamplerKind):
    """Draws at random, as Optuna does."""

    name = "toy"

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        print("the toy sampler is made")
        return RandomSampler(seed=continued_seed(seed, finished))
