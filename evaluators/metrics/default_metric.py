"""The choice of a metric if none is given, from the model's outputs and the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.contract import Metric
from evaluators.metrics.label_form import are_masks, are_masks_in_another_form, class_number_advice, rows_shape
from evaluators.metrics.registry import BUILT_IN
from search.errors import DataError
from search.graph.model import TensorSpec


@dataclass(frozen=True)
class DefaultChoice:
    """A metric, and in words why it is the default; `why` is empty if the labels speak for themselves.

    Attributes:
        refusal: why nothing may be scored before the user has named a metric or mended the labels, which were meant for
            something that this metric does not do; empty if the metric may be used.
    """

    metric: Metric
    why: str
    refusal: str = ""

    def check(self) -> None:
        """Raise DataError if there is a refusal."""
        if self.refusal:
            raise DataError(f"choosing a metric: {self.refusal}")


def default_metric(outputs: Sequence[TensorSpec], labels: NDArray[Any] | None) -> DefaultChoice:
    """Choose top1, miou, agreement or sqnr.

    `top1` needs integer labels, one per sample, and one float output of at least two classes. `miou` needs integer
    labels, one per position of the one float output, (n, classes, height, width). Without labels per sample one
    float output of at least two classes is compared by `agreement`, unless the labels look like its classes in another
    form. Several labels are refused, as no built-in metric reads them. Everything else is compared by `sqnr`, which
    reads all float outputs.

    Args:
        outputs: of the model, with the samples along the first axis.
        labels: of one sample or more, (n, …); None if the data have none.
    """
    floats = [spec for spec in outputs if is_float(spec)]
    classes = len(floats) == 1 and len(floats[0].shape) == 2 and floats[0].shape[1] >= 2
    if classes and labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        return DefaultChoice(BUILT_IN["top1"], "")
    maps = len(floats) == 1 and len(floats[0].shape) == 4 and floats[0].shape[1] >= 2
    if maps and labels is not None and are_masks(labels, floats[0].shape):
        return DefaultChoice(
            BUILT_IN["miou"], f"{_form(labels)} give each position of the output {_spec_text(floats[0])} a class"
        )
    unused = "the data have no labels" if labels is None else _misfit(labels, floats)
    if classes:
        reading = f"{_spec_text(floats[0])} is read as scores of {floats[0].shape[1]} classes"
        refusal = _refuse_several(labels) or _refuse_classes(labels, floats[0])
        return DefaultChoice(BUILT_IN["agreement"], f"{unused}, and the output {reading}", refusal)
    refusal = _refuse_several(labels) or (_refuse_masks(labels, floats[0]) if maps else "")
    return DefaultChoice(BUILT_IN["sqnr"], f"{unused}, and {_no_classes(floats)}", refusal)


def _refuse_several(labels: NDArray[Any] | None) -> str:
    """Why several labels need a metric that is named; empty if there are not several."""
    if labels is None or not labels.dtype.names:
        return ""
    return (
        f"the data have several labels, {', '.join(labels.dtype.names)}, which only a metric of your own reads. Give "
        "it with --metric file.py:function; or give --metric agreement or sqnr, which compare outputs with those of "
        "FP32 and read no labels."
    )


def _refuse_classes(labels: NDArray[Any] | None, output: TensorSpec) -> str:
    """Why labels that mean the classes of an output, (n, classes), are no class numbers; empty if they mean others."""
    classes = output.shape[1]
    if labels is None or not (
        labels.shape[1:] in ((classes,), (1,)) or _are_whole(labels, classes) or _are_words(labels, classes)
    ):
        return ""
    return (
        f"the output {output.name!r} has {classes} classes; expected labels that are class numbers, integers of shape "
        f"(n,), got {labels.dtype} of shape {rows_shape(labels.shape)}. {class_number_advice(labels)} If these labels "
        "are no classes, name a metric with --metric."
    )


def _refuse_masks(labels: NDArray[Any] | None, output: TensorSpec) -> str:
    """Why labels that mean the classes of positions are no class numbers; empty if they mean something else."""
    if labels is None or not are_masks_in_another_form(labels, output.shape):
        return ""
    classes, height, width = output.shape[1:]
    return (
        f"the output {output.name!r} has {classes} classes at every position; expected labels that are class numbers, "
        f"integers of shape (n, {height}, {width}), which --metric miou reads, got {labels.dtype} of shape "
        f"{rows_shape(labels.shape)}. {class_number_advice(labels, 3, classes)} If these labels are no classes, name a "
        "metric with --metric."
    )


def _are_whole(labels: NDArray[Any], classes: int) -> bool:
    """Whether labels are class numbers in another type than integers."""
    if labels.ndim != 1 or labels.dtype.kind not in "fb":
        return False
    return bool(np.all((labels == np.floor(labels)) & (labels >= 0) & (labels <= classes)))


def _are_words(labels: NDArray[Any], classes: int) -> bool:
    """Whether labels are names of classes."""
    return labels.ndim == 1 and labels.dtype.kind in "US" and len(np.unique(labels)) <= classes


def is_float(spec: TensorSpec) -> bool:
    return spec.dtype.startswith(("float", "bfloat"))


def _misfit(labels: NDArray[Any], floats: Sequence[TensorSpec]) -> str:
    """Why the labels are not used."""
    if labels.dtype.names:
        names = ", ".join(labels.dtype.names)
        return f"several labels, {names}, are read by a metric of your own (--metric file.py:function)"
    statement = f"{_form(labels)} are not used"
    if labels.dtype.kind in "iu" and labels.ndim == 3 and len(floats) == 1 and len(floats[0].shape) == 4:
        return f"{statement} (--metric miou reads one integer per position of an output of two classes or more)"
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        return f"{statement} (top1 reads one integer per sample)"
    return f"{statement} (top1 reads one output of two classes or more)"


def _form(labels: NDArray[Any]) -> str:
    shape = ", ".join(["samples", *map(str, labels.shape[1:])])
    return f"the labels, {labels.dtype} of shape ({shape}),"


def _no_classes(floats: Sequence[TensorSpec]) -> str:
    if len(floats) == 1:
        return f"the output {_spec_text(floats[0])} is not of shape (n, classes) with two classes or more"
    if not floats:
        return "the model has no float output"
    return f"the model has {len(floats)} float outputs, {', '.join(_spec_text(spec) for spec in floats)}"


def _spec_text(spec: TensorSpec) -> str:
    return f"{spec.name!r} {spec.shape}"
