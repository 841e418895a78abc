"""Every constant of the sampler halved or doubled at random, all at once, and what each does to the share.

In every draw each constant is halved or doubled by the toss of a coin. The effect of one constant is the mean share of
the draws with it doubled less that of the draws with it halved, so every run tells of every constant.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers import bench, optuna_methods
from benchmarks.samplers.bench import Bench
from benchmarks.samplers.constants.listing import Constant, constants
from benchmarks.samplers.worlds import catalogue
from search.space.layout import Codes

Floats = NDArray[np.float64]

FIXED: Mapping[str, str] = {
    "search/sampler/guided.py _Z95": "mathematics",
    "search/sampler/q_learning.py": "another sampler",
    "search/sampler/cold_start.py": "only before the uniform assignments are measured",
    "search/forecast/forecasts.py _Z95": "mathematics",
    "search/forecast/quality.py NINETY": "mathematics",
    "search/forecast/latency_model.py _RANGE_OF_THREE": "mathematics",
    "search/forecast/history.py _NANOSECOND_MS": "rounding",
    "search/forecast/loss_maps.py _DECIBELS": "mathematics",
    "search/forecast/loss_maps.py _MOST_DECIBELS": "no metric that is measured loses so much",
    "search/forecast/loss_model.py _LEAST_NOISE": "rounding",
    "search/forecast/loss_model.py _UNMEASURED_STD": "rounding",
    "search/forecast/transfer.py": "only where another target was searched before",
    "search/solver": "exactness, memory or time of a solver",
}
"""Constants that are not varied, or the files or folders that they are in → why."""


def varied() -> list[Constant]:
    return [c for c in constants() if why_fixed(c) is None]


def why_fixed(constant: Constant) -> str | None:
    """Why a constant is not varied; None if it is."""
    return next((why for key, why in FIXED.items() if constant.key.startswith(key)), None)


def signs(draw: int, count: int) -> NDArray[np.int64]:
    """(count,) -1 for halved and 1 for doubled; draw 0 leaves all constants as they are."""
    if draw == 0:
        return np.zeros(count, np.int64)
    return 2 * np.random.default_rng([7, draw]).integers(0, 2, count) - 1


def scaled(value: Any, factor: float) -> Any:
    """A constant times a factor. Shares are at most 1, counts at least 1; of a ratio just above 1 the excess counts."""
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: scaled(getattr(value, f.name), factor) for f in fields(value)})
    if isinstance(value, tuple):
        return tuple(scaled(each, factor) for each in value)
    if isinstance(value, int):
        return max(1, round(value * factor))
    if 1 < value < 1.1:
        return 1 + (value - 1) * factor
    return min(1.0, value * factor) if value <= 1 else value * factor


@contextmanager
def constants_scaled(signs: Sequence[int]) -> Iterator[None]:
    """The constants of `varied` times 2 to the power of the sign, in every module that has them."""
    before = [
        (module, name, value, sign) for c, sign in zip(varied(), signs, strict=True) for module, name, value in _held(c)
    ]
    try:
        for module, name, value, sign in before:
            setattr(module, name, scaled(value, 2.0**sign))
        yield
    finally:
        for module, name, value, _ in before:
            setattr(module, name, value)


def _held(constant: Constant) -> Iterator[tuple[ModuleType, str, Any]]:
    """Every module, name and value: its own module, and those that import a public constant."""
    others = [module for name, module in sorted(sys.modules.items()) if name.startswith("search.")]
    for name, value in zip(constant.names, constant.values, strict=True):
        yield constant.module, name, value
        for module in others if not name.startswith("_") else ():
            if module is not constant.module and getattr(module, name, None) is value:
                yield module, name, value


def search(world: str, seed: int, draw: int, trials: int) -> Codes:
    """(trials, decisions) that the guided sampler tries in a world."""
    problem = catalogue.make(world)
    run = Bench(problem, seed, trials)
    with constants_scaled(signs(draw, len(varied())).tolist()):
        bench.run(optuna_methods.guided, run)
    return run.codes()


def effects(draws: Sequence[int], shares: Floats, count: int) -> tuple[Floats, Floats]:
    """(count,) share with each constant doubled less that with it halved, and the standard error of that.

    Args:
        draws: of n draws the numbers, none 0.
        shares: (n,) mean share of each over worlds.
        count: how many constants were varied.
    """
    table = np.array([signs(draw, count) for draw in draws])
    means = [[shares[column == sign] for sign in (-1, 1)] for column in table.T]
    found = np.array([high.mean() - low.mean() for low, high in means])
    errors = np.array([np.sqrt(sum(part.var(ddof=1) / len(part) for part in both)) for both in means])
    return found, errors
