"""Samplers by name. Every proposal of a study goes through an Optuna sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.errors import ConfigError
from search.extensions import Extensible
from search.sampler.kinds import SamplerKind
from search.sampler.shipped import GROUP, SHIPPED

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from search.sampler.guided import Guidance

SAMPLERS: Extensible[SamplerKind] = Extensible(
    option="--sampler",
    base=SamplerKind,  # type: ignore[type-abstract]
    shipped=SHIPPED,
    group=GROUP,
    error=ConfigError,
)


def sampler_named(name: str) -> SamplerKind:
    """Find the sampler of a name: one of `SAMPLERS.names()`, or `package.module:Class`.

    Raises:
        ConfigError: there is no such sampler, the name is not that of a sampler, or a package that it needs is missing.
        DataError: the module of the sampler cannot be imported.
    """
    kind = SAMPLERS.make(name)
    if missing := kind.explain_missing():
        raise ConfigError(f"--sampler {name}: {missing}.")
    return kind


def make_sampler(name: str, seed: int, finished: int, guidance: Guidance | None = None) -> BaseSampler:
    """Make a sampler by its name, see `SamplerKind.make`.

    Raises:
        ConfigError, DataError: as for `sampler_named`.
    """
    return sampler_named(name).make(seed, finished, guidance)
