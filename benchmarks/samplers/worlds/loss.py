"""What a network loses: every sample has a margin, errors flow downstream, some of them cancel, and they saturate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.worlds.graphs import Graph
from search.space.layout import Precisions

Floats = NDArray[np.float64]
_SAMPLES, _DIRECTIONS = 160, 8
_FP16, _BETWEEN = 0.02, 0.35  # of INT8's error
_AT_ONCE = 4096
_DEEP = 50  # groups from which on each amplifies less, so that deep networks are not chaotic
_BLUR = 0.05  # of a margin: chance that is there without any rounding


@dataclass(frozen=True)
class Loss:
    """The truth about loss.

    Attributes:
        pushes: (groups, precisions, directions) what a group adds to the error that all samples share.
        spreads: (groups, precisions) variance that it adds to each sample's own.
        gains: (groups, precisions) factor by which a group amplifies what came before it.
        ends: (groups,) whether a stage ends there, where the shared error saturates at `room`.
        margins, leanings: (samples,) and (samples, directions): how far FP32 is from a wrong answer, and along what.
    """

    pushes: Floats
    spreads: Floats
    gains: Floats
    ends: NDArray[np.bool_]
    room: float
    margins: Floats
    leanings: Floats

    def __call__(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,) share of right answers that are lost."""
        parts = [self._lost(precisions[start : start + _AT_ONCE]) for start in range(0, len(precisions), _AT_ONCE)]
        return np.concatenate([np.zeros(0), *parts])

    def output_error(self, precisions: Precisions) -> Floats:
        """(n, groups) precisions to (n,) mean square of what the samples' margins move by."""
        shared, own = self._errors(precisions)
        return np.asarray(((shared @ self.leanings.T) ** 2).mean(axis=1) + own)

    def _lost(self, precisions: Precisions) -> Floats:
        from scipy.special import ndtr

        shared, own = self._errors(precisions)
        moved = shared @ self.leanings.T
        wrong = ndtr((moved - self.margins) / np.sqrt(own + _BLUR**2)[:, None]).mean(axis=1)
        return np.asarray(np.maximum(wrong - float(ndtr(-self.margins / _BLUR).mean()), 0.0))

    def _errors(self, precisions: Precisions) -> tuple[Floats, Floats]:
        """(n, directions) error that the samples share, and (n,) variance of their own."""
        shared, own = np.zeros((len(precisions), _DIRECTIONS)), np.zeros(len(precisions))
        for group in range(precisions.shape[1]):
            at = precisions[:, group]
            gain = self.gains[group, at]
            shared = shared * gain[:, None] + self.pushes[group, at]
            own = own * gain**2 + self.spreads[group, at]
            if self.ends[group]:
                shared = self.room * np.tanh(shared / self.room)
                own = own / (1 + own / self.room**2)
        return shared, own


def make(graph: Graph, tangled: float, worst: float, killers: int, rng: np.random.Generator, between: int = 0) -> Loss:
    """The loss of a graph.

    Args:
        tangled: how strongly errors amplify one another and cancel; 1 is much, 0.3 some.
        worst: share of the answers that all INT8 loses.
        killers: groups that err ten times as much as others, and that amplify what came before them.
        between: how many precisions there are between FP16 and INT8.
    """
    groups = len(graph.names)
    size = rng.lognormal(0, 1.1, groups) / groups**0.5
    if graph.alike:  # what errs in one block errs in all
        parts = np.unique([name.rsplit("/", 1)[-1] for name in graph.names], return_inverse=True)[1]
        size = size**0.5 * rng.lognormal(0, 1.0, parts.max() + 1)[parts] / groups**0.25
    loud = rng.permutation(groups)[:killers] if killers else np.zeros(0, int)
    size[loud] = 10 * np.median(size)
    pushes = rng.standard_normal((groups, _DIRECTIONS)) * (0.45 * size)[:, None]
    for first in rng.permutation(groups - 3)[: int(tangled * groups / 3)]:
        second = first + 1 + int(rng.integers(3))
        pushes[second] = -rng.uniform(0.6, 1.0) * pushes[first] + 0.2 * pushes[second]
    rounded = rng.lognormal(np.log(_FP16), 0.5, groups)
    spread = (0.55 * size) ** 2
    amplified = tangled * min(1.0, _DEEP / groups) * rng.gamma(0.5, 0.12, groups)
    amplified[loud] = 0.5
    ends = np.array([graph.blocks[i] != graph.blocks[min(i + 1, groups - 1)] for i in range(groups)])
    margins = np.abs(rng.standard_normal(_SAMPLES)) + 0.1
    leanings = rng.standard_normal((_SAMPLES, _DIRECTIONS)) / _DIRECTIONS**0.5
    levels = np.geomspace(_BETWEEN, 1.0, between + 1)[:-1]
    middle = [rng.lognormal(np.log(level), 0.3, groups) for level in levels]
    errs = np.stack([np.zeros(groups), rounded, *middle, np.ones(groups)], axis=1)  # relative to INT8
    gains = 1 + np.array([0.0, _FP16, *levels, 1.0]) * amplified[:, None]
    pushes_by, spreads = errs[:, :, None] * pushes[:, None], errs**2 * spread[:, None]
    loss = Loss(pushes_by, spreads, gains, ends, 4.0, margins, leanings)
    return _scaled(loss, worst)


def _scaled(loss: Loss, worst: float) -> Loss:
    """A loss with its errors scaled so that all INT8 loses `worst`."""
    lowest = np.full((1, len(loss.pushes)), loss.pushes.shape[1] - 1, dtype=np.int8)

    def of_size(factor: float) -> Loss:
        return Loss(factor * loss.pushes, factor**2 * loss.spreads, loss.gains, loss.ends, loss.room, *_ends(loss))

    low, high = 1e-3, 1e2
    for _ in range(40):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if of_size(middle)(lowest)[0] < worst else (low, middle)
    return of_size(low)


def _ends(loss: Loss) -> tuple[Floats, Floats]:
    return loss.margins, loss.leanings
