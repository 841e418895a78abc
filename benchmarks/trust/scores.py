"""How good outputs are, sample by sample, and what that makes of all of them: beside bitfront, not by it. NumPy alone.

`both_tops` is also the metric that the search of the network with two heads is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DRAWS = 1000  # of the bootstrap
_HALF = 1.96


def both_tops(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n,) of both heads, the share that is right: 0, 0.5 or 1; labels (n, 2)."""
    right = [head.argmax(1) == labels[:, place] for place, head in enumerate(outputs.values())]
    share: Floats = np.mean(right, axis=0)
    return share


both_tops.ratio = True  # type: ignore[attr-defined]
both_tops.unit = "share"  # type: ignore[attr-defined]


def top1(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n,) 1 where the best class is the label."""
    return (next(iter(outputs.values())).argmax(1) == labels).astype(float)


def pixels(outputs: Mapping[str, NDArray[Any]], labels: NDArray[Any]) -> Floats:
    """(n, classes²) pixels of each image by class wanted and class found: what `miou` is made of."""
    logits = next(iter(outputs.values()))
    count, classes = logits.shape[:2]
    cells = labels.reshape(count, -1) * classes + logits.argmax(1).reshape(count, -1)
    cells += np.arange(count)[:, None] * classes**2
    return np.bincount(cells.reshape(-1), minlength=count * classes**2).reshape(count, -1).astype(float)


SCORES = {"top1": top1, "benchmarks.trust.scores:both_tops": both_tops, "miou": pixels}


def value_of(metric: str, scores: Floats) -> float:
    """The metric over all samples, from what `SCORES` gives of each."""
    return float(mean_iou(scores.sum(0)) if metric == "miou" else scores.mean())


@dataclass(frozen=True)
class Loss:
    """How much less the candidate scores than FP32 on the same samples, with its 95 % interval."""

    loss: float
    low: float
    high: float


def loss_of(metric: str, float_scores: Floats, scores: Floats) -> Loss:
    """The paired loss; its interval by the normal distribution, for `miou` by a bootstrap over images."""
    loss = value_of(metric, float_scores) - value_of(metric, scores)
    if metric != "miou":
        half = _HALF * float((float_scores - scores).std(ddof=1)) / np.sqrt(len(scores))
        return Loss(loss, loss - half, loss + half)
    rng, count = np.random.default_rng(0), len(scores)
    weights = rng.multinomial(count, np.full(count, 1 / count), size=_DRAWS).astype(float)
    drawn = mean_iou(weights @ float_scores) - mean_iou(weights @ scores)
    half = _HALF * float(drawn.std(ddof=1))
    return Loss(loss, loss - half, loss + half)


def mean_iou(counts: Floats) -> Any:
    """Mean over classes of intersection over union; (…, classes²) counts of pixels, every class being there."""
    classes = int(np.sqrt(counts.shape[-1]))
    table = counts.reshape(*counts.shape[:-1], classes, classes)
    both = np.diagonal(table, axis1=-2, axis2=-1)
    return (both / (table.sum(-1) + table.sum(-2) - both)).mean(-1)
