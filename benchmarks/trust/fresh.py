"""Fresh samples of one network, which no split of any study had, and what an engine loses on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from benchmarks.trust import samples
from benchmarks.trust.scores import SCORES, Floats, Loss, loss_of, value_of

_ROWS = 50  # that an engine takes at a time
Score = Callable[[Mapping[str, NDArray[Any]], NDArray[Any]], Floats]


class Fresh:
    """Draws the samples when they are first needed, and scores FP32 on them once.

    Args:
        model: the float model, whose score every loss is taken from.
        metric: of the searches.
    """

    def __init__(self, network: str, model: Path, metric: str, samples: int) -> None:
        self.network, self.model, self.metric, self.samples = network, model, metric, samples

    @cached_property
    def arrays(self) -> Mapping[str, NDArray[Any]]:
        return samples.draw(self.network, "fresh", self.samples)

    @cached_property
    def float_scores(self) -> Floats:
        return scores_of(self.model, self.arrays, self.metric)

    @property
    def float_value(self) -> float:
        return value_of(self.metric, self.float_scores)

    def loss(self, engine: Path) -> Loss:
        """What an ONNX file loses against the float model."""
        return loss_of(self.metric, self.float_scores, scores_of(engine, self.arrays, self.metric))


def scores_of(model: Path, arrays: Mapping[str, NDArray[Any]], metric: str) -> Floats:
    """(n, …) what the metric is made of, for every sample."""
    return score_outputs(model, arrays, SCORES[metric])


def score_outputs(model: Path, arrays: Mapping[str, NDArray[Any]], score: Score) -> Floats:
    """(n, …) what `score` makes of the outputs of every sample; ONNX Runtime as it comes, on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names, fixed = [each.name for each in session.get_outputs()], session.get_inputs()[0].shape[0]
    rows = fixed if isinstance(fixed, int) else _ROWS
    scores = []
    for start in range(0, len(arrays["labels"]), rows):
        part = {name: array[start : start + rows] for name, array in arrays.items()}
        labels = part.pop("labels")
        padded = {name: np.concatenate([array, array[:1].repeat(rows - len(array), 0)]) for name, array in part.items()}
        outputs = session.run(None, padded)
        scores.append(score(dict(zip(names, (each[: len(labels)] for each in outputs), strict=True)), labels))
    return np.concatenate(scores)
