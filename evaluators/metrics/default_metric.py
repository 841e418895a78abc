"""The choice of a metric if none is given, from the model's outputs and the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from evaluators.metrics.contract import Metric
from evaluators.metrics.registry import BUILT_IN
from search.graph.model import TensorSpec


@dataclass(frozen=True)
class Choice:
    """A metric, and in words why it is the default; `why` is empty if the labels speak for themselves."""

    metric: Metric
    why: str


def default_metric(outputs: Sequence[TensorSpec], labels: NDArray[Any] | None) -> Choice:
    """Choose top1, agreement or sqnr.

    `top1` needs integer labels, one per sample, and one float output of at least two classes. Without such labels one
    float output of at least two classes is compared by `agreement`. Everything else is compared by `sqnr`, which reads
    all float outputs.

    Args:
        outputs: of the model, with the samples along the first axis.
        labels: of one sample or more, (n, …); None if the data have none.
    """
    floats = [spec for spec in outputs if is_float(spec)]
    classes = len(floats) == 1 and len(floats[0].shape) == 2 and floats[0].shape[1] >= 2
    if classes and labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        return Choice(BUILT_IN["top1"], "")
    unused = "the data have no labels" if labels is None else _misfit(labels, floats)
    if classes:
        found = f"{_told(floats[0])} is read as scores of {floats[0].shape[1]} classes"
        return Choice(BUILT_IN["agreement"], f"{unused}, and the output {found}")
    return Choice(BUILT_IN["sqnr"], f"{unused}, and {_no_classes(floats)}")


def is_float(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("float", "bfloat"))


def _misfit(labels: NDArray[Any], floats: Sequence[TensorSpec]) -> str:
    """Why the labels are not used."""
    if labels.dtype.names:
        names = ", ".join(labels.dtype.names)
        return f"several labels, {names}, are read by a metric of your own (--metric file.py:function)"
    shape = ", ".join(["samples", *map(str, labels.shape[1:])])
    told = f"the labels, {labels.dtype} of shape ({shape}), are not used"
    if labels.dtype.kind in "iu" and labels.ndim == 3 and len(floats) == 1 and len(floats[0].shape) == 4:
        return f"{told} (--metric miou reads labels of pixels)"
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        return f"{told} (top1 reads one integer per sample)"
    return f"{told} (top1 reads one output of two classes or more)"


def _no_classes(floats: Sequence[TensorSpec]) -> str:
    if len(floats) == 1:
        return f"the output {_told(floats[0])} is not of shape (n, classes) with two classes or more"
    if not floats:
        return "the model has no float output"
    return f"the model has {len(floats)} float outputs, {', '.join(_told(spec) for spec in floats)}"


def _told(spec: TensorSpec) -> str:
    return f"{spec.name!r} {spec.shape}"
