"""The class that an engine gives each sample, and how the classes differ from those of FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.engine import Arrays, Runner
from evaluators.metrics.array_passes import largest_class
from evaluators.metrics.classification import scored_output
from search.values import FlippedSamples, Flips

_FIRST = 10  # indices that are named


def count_flips(
    exact: NDArray[np.int64], other: NDArray[np.int64], labels: NDArray[Any] | None, indices: NDArray[np.int64]
) -> Flips:
    """Compare the classes that FP32 and an engine give.

    Args:
        exact, other: (samples,) classes.
        labels: (samples,) integers; None, or any other form, where the data do not say which class is right.
        indices: (samples,) of the samples in the data.
    """
    differs = exact != other
    if labels is None or labels.shape != exact.shape or labels.dtype.kind not in "iu":
        none = FlippedSamples(0, [])
        return Flips(len(exact), None, none, none, _list_samples(differs, indices))
    right, now_right = exact == labels, other == labels
    return Flips(
        len(exact),
        int(right.sum()),
        lost=_list_samples(right & differs, indices),
        gained=_list_samples(now_right & differs, indices),
        moved=_list_samples(differs & ~right & ~now_right, indices),
    )


def _list_samples(those: NDArray[np.bool_], indices: NDArray[np.int64]) -> FlippedSamples:
    sorted_indices = np.sort(indices[those])
    return FlippedSamples(len(sorted_indices), sorted_indices[:_FIRST].tolist())


class ClassRecorder:
    """Runs an engine, and remembers which class each row of the scored output belongs to."""

    def __init__(self, session: Runner) -> None:
        self._session = session
        self._classes: list[NDArray[np.int64] | None] = []

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Run a batch as `Runner.run` does, and keep its classes."""
        outputs = self._session.run(inputs)
        self._classes.append(find_classes(outputs, len(next(iter(inputs.values())))))
        return outputs

    def classes(self, counts: Sequence[int]) -> NDArray[np.int64] | None:
        """(samples,) classes of all rows so far; None if the outputs are no classes.

        Args:
            counts: real rows of each run.
        """
        parts = [part[:count] for part, count in zip(self._classes, counts, strict=True) if part is not None]
        return np.concatenate(parts) if parts and len(parts) == len(counts) else None


def find_classes(outputs: Mapping[str, NDArray[Any]], rows: int) -> NDArray[np.int64] | None:
    """(rows,) the largest class of the output that metrics over classes score; None if it is not (rows, classes)."""
    _, scores = scored_output(outputs)
    if scores.ndim != 2 or len(scores) != rows or scores.shape[1] < 2 or scores.dtype.kind != "f":
        return None
    return np.asarray(largest_class(scores), dtype=np.int64)
