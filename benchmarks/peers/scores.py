"""How good outputs are, and what one engine loses against another on the same samples; beside bitfront, not by it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.detections import Detections, judge_detections
from benchmarks.trust.fresh import Score, score_outputs
from benchmarks.trust.scores import Floats, Loss, both_tops, mean_iou, pixels, top1


def read_exactly(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n,) 1 where a line is read exactly, but for blanks: the best class of each place, without repetitions."""
    (output,) = outputs.values()
    best, blank = output.argmax(-1), output.shape[-1] - 1
    changed = np.diff(best, axis=1, prepend=0) != 0
    read = [[code for code in row[own] if 0 < code < blank] for row, own in zip(best, changed, strict=True)]
    return np.array([codes == [c for c in label if c >= 0] for codes, label in zip(read, labels, strict=True)], float)


def same_mask(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n,) intersection over union with the mask of FP32; of one that is empty on both sides 1.

    An output of no negative numbers is a probability, of which detectors of text take 0.3 and more.
    """
    last = list(outputs.values())[-1]
    mask = (last > (0 if last.min() < 0 else 0.3)).reshape(len(last), -1)
    wanted = labels.reshape(len(last), -1).astype(bool)
    union = (mask | wanted).sum(1)
    overlap: Floats = np.where(union, (mask & wanted).sum(1) / np.maximum(union, 1), 1.0)
    return overlap


def same_opinion(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n,) 1 less the mean distance to FP32's scores, as a share of the scale from 1 to 5."""
    return np.asarray(1 - np.abs(next(iter(outputs.values())) - labels).mean(1) / 4)


def same_probability(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n,) 1 less the distance to FP32's probability."""
    return np.asarray(1 - np.abs(next(iter(outputs.values())) - labels).reshape(len(labels)))


def same_direction(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n,) cosine of the angle to FP32's embedding."""
    (output,) = outputs.values()
    cosine: Floats = (output * labels).sum(1) / np.linalg.norm(output, axis=1) / np.linalg.norm(labels, axis=1)
    return cosine


REAL = {
    f"{__name__}:{each.__name__}": each
    for each in (read_exactly, same_mask, same_opinion, same_probability, same_direction)
}
for _each in REAL.values():
    _each.ratio, _each.unit = True, "share"  # type: ignore[attr-defined]
SCORES: Mapping[str, Score] = {
    "top1": top1,
    "benchmarks.trust.scores:both_tops": both_tops,
    "miou": pixels,
    "map": judge_detections,
    **REAL,
}
_NO_MEANS = ("miou", "map")  # of one number for each sample
_DRAWS = 200  # of the bootstrap
_HALF = 1.96


def score(model: Path, arrays: Mapping[str, NDArray[Any]], metric: str) -> Floats:
    """(n, …) what the metric is made of, for every sample, by ONNX Runtime on one thread."""
    return score_outputs(model, arrays, SCORES[metric])


def value_of(metric: str, scores: Floats) -> float:
    """The metric over all samples."""
    return Scored(metric, scores).value()


def loss_of(better: Scored, worse: Scored) -> Loss:
    """How much less `worse` scores than `better` on the same samples, with its 95 % interval.

    By the normal distribution where the metric is a mean, else by a bootstrap over samples, the same draws for both.
    """
    loss = better.value() - worse.value()
    if better.metric not in _NO_MEANS:
        half = _HALF * float((better.scores - worse.scores).std(ddof=1)) / np.sqrt(len(worse.scores))
    else:
        half = _HALF * float(np.std(better.draws - worse.draws, ddof=1))
    return Loss(loss, loss - half, loss + half)


class Scored:
    """The scores of one engine on all samples.

    Args:
        metric: one of `SCORES`.
        scores: (n, …) what the metric is made of.
    """

    def __init__(self, metric: str, scores: Floats) -> None:
        self.metric, self.scores = metric, scores

    @cached_property
    def _detections(self) -> Detections:
        return Detections(self.scores)

    def value(self, weights: NDArray[Any] | None = None) -> float:
        """The metric over all samples, each counted as often as `weights` says."""
        if self.metric == "map":
            return self._detections.average_precision(weights)
        if self.metric == "miou":
            return float(mean_iou(self.scores.sum(0) if weights is None else weights @ self.scores))
        return float(np.average(self.scores, weights=weights))

    @cached_property
    def draws(self) -> Floats:
        """(draws,) the metric of samples drawn again, by weights that depend on how many samples there are alone."""
        rng, count = np.random.default_rng(0), len(self.scores)
        weights = rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS)
        return np.array([self.value(each) for each in weights])
