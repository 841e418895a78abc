"""How good outputs are, and what one engine loses against another on the same samples; beside bitfront, not by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.detections import average_precision, judge_detections
from benchmarks.trust.fresh import Score, score_outputs
from benchmarks.trust.scores import Floats, Loss, mean_iou, pixels, top1

SCORES: Mapping[str, Score] = {"top1": top1, "miou": pixels, "map": judge_detections}
_DRAWS = 200  # of the bootstrap
_HALF = 1.96


def score(model: Path, arrays: Mapping[str, NDArray[Any]], metric: str) -> Floats:
    """(n, …) what the metric is made of, for every sample, by ONNX Runtime on one thread."""
    return score_outputs(model, arrays, SCORES[metric])


def value_of(metric: str, scores: Floats, weights: NDArray[Any] | None = None) -> float:
    """The metric over all samples, each counted as often as `weights` says."""
    if metric == "map":
        return average_precision(scores, weights)
    if metric == "miou":
        return float(mean_iou(scores.sum(0) if weights is None else weights @ scores))
    return float(np.average(scores, weights=weights))


def loss_of(metric: str, better: Floats, worse: Floats) -> Loss:
    """How much less `worse` scores than `better` on the same samples, with its 95 % interval.

    By the normal distribution where the metric is a mean, else by a bootstrap over samples, the same draws for both.
    """
    loss = value_of(metric, better) - value_of(metric, worse)
    if metric == "top1":
        half = _HALF * float((better - worse).std(ddof=1)) / np.sqrt(len(worse))
    else:
        half = _HALF * float(np.std(_drawn(metric, better) - _drawn(metric, worse), ddof=1))
    return Loss(loss, loss - half, loss + half)


def _drawn(metric: str, scores: Floats) -> Floats:
    """(draws,) the metric of samples drawn again, by weights that depend on how many samples there are alone."""
    rng, count = np.random.default_rng(0), len(scores)
    return np.array(
        [value_of(metric, scores, rng.multinomial(count, np.full(count, 1 / count))) for _ in range(_DRAWS)]
    )
