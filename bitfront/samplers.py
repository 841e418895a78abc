"""Samplers that are given as Python objects. The study stores only that there was one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from optuna.samplers import BaseSampler

from search.errors import ConfigError
from search.sampler.kinds import SamplerKind

if TYPE_CHECKING:
    from search.sampler.guided import Guidance


class Given(SamplerKind):
    """The kind of sampler that a study's configuration names for an Optuna sampler given as an object."""

    name = "given"
    lent: ClassVar[BaseSampler | None] = None

    def missing(self) -> str:
        if self.lent is not None:
            return ""
        return (
            "the study was searched with a sampler object that was given in Python, which is not stored. Continue it "
            "there: bitfront.resume(name, sampler=...)"
        )

    def make(self, seed: int, finished: int, guidance: Guidance | None) -> BaseSampler:
        assert self.lent is not None
        return self.lent


def is_object(sampler: object) -> bool:
    """Whether this is a sampler which a study does not store, so that it has to be given again."""
    return isinstance(sampler, BaseSampler)


@contextmanager
def lent(sampler: object) -> Iterator[str | None]:
    """Give the name of a sampler for a configuration. The name of an object is valid within this block.

    Args:
        sampler: a name, a `SamplerKind`, any Optuna sampler, or None.

    Raises:
        ConfigError: it is something else.
    """
    if sampler is None or isinstance(sampler, str):
        yield sampler
    elif isinstance(sampler, type) and issubclass(sampler, SamplerKind):
        yield f"{sampler.__module__}:{sampler.__qualname__}"
    elif isinstance(sampler, BaseSampler):
        before, Given.lent = Given.lent, sampler
        try:
            yield f"{Given.__module__}:{Given.__qualname__}"
        finally:
            Given.lent = before
    else:
        raise ConfigError(f"sampler: expected a name or an Optuna sampler, got {type(sampler).__name__}.")
