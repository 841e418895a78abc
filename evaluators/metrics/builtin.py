"""What "accurate" means: built-in metrics, and the user's own by `package.module:attribute`.

A metric either scores every sample on its own (`per_sample`: intervals from paired differences, early stop) or
gathers over many (`accumulating`: an object with `update` and `compute`, no early stop).
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.array_passes import comparable, largest_class, row_blocks
from search.errors import BitfrontError, ConfigError, DataError, MetricError

Outputs = Mapping[str, NDArray[Any]]
Labels = NDArray[Any] | None
Scores = NDArray[np.float64]
_Product = Callable[[Scores, Scores], tuple[Scores, Scores]]
SQNR_CAP_DB = 100.0
IGNORED_LABEL = 255


class Accumulator(Protocol):
    """What an accumulating metric makes: fed batch by batch, read once."""

    def update(self, outputs: dict[str, NDArray[Any]], labels: Labels) -> object:
        """Take in one batch of real rows."""

    def compute(self) -> float:
        """The metric over everything taken in."""


@dataclass(frozen=True)
class Metric:
    """One measure of accuracy.

    Attributes:
        name: built-in name or `package.module:attribute`.
        unit: of a score: `share`, `dB` or nothing.
        higher_is_better: the direction of goodness.
        ratio: a score is a share of one, so that a drop of 1 % means 0.01; elsewhere percentages mean nothing.
        needs_labels: the data must have labels.
        needs_reference: uniform FP32's outputs on the same samples are compared with.
        kind: `per_sample` or `accumulating`.
        score: per_sample: `(outputs, labels, reference) -> (n,)`; unchecked, call `scores` instead.
        make: accumulating: makes an empty accumulator; unchecked, call `accumulator` instead.
        reads: which outputs a built-in reads: one, which is the first float output, or all float outputs.
        fit: built-in that reads labels: raises DataError where labels, (n, …), are not what it reads beside outputs of
            that form, of however many samples.
    """

    name: str
    unit: str
    higher_is_better: bool
    ratio: bool
    needs_labels: bool
    needs_reference: bool
    kind: Literal["per_sample", "accumulating"]
    score: Callable[[Outputs, Labels, Outputs | None], Any] | None = None
    make: Callable[[], Accumulator] | None = None
    reads: Literal["one", "floats"] = "one"
    fit: Callable[[Outputs, NDArray[Any]], object] | None = None

    @property
    def is_own(self) -> bool:
        """Whether it is the user's: what it reads, and what it raises at, nobody knows but itself."""
        return self.name not in BUILT_IN

    def outputs_read(self, kinds: Mapping[str, str]) -> list[str]:
        """Names of the outputs that this metric reads; of the user's own metric all, as nobody knows better.

        Args:
            kinds: numpy's kind of every output's dtype by name, `f` for floats, in the model's order.
        """
        if self.is_own:
            return list(kinds)
        floats = [name for name, kind in kinds.items() if kind == "f"]
        return floats if self.reads == "floats" else (floats or list(kinds))[:1]

    def scores(
        self, outputs: Outputs, labels: Labels, reference: Outputs | None = None, *, count: int, first: int = 0
    ) -> Scores:
        """Score the samples of one batch.

        Args:
            outputs: arrays whose first axis is the samples, by output name, in the model's order.
            labels: labels of the same samples; None where the data have none.
            reference: FP32's outputs on them, where `needs_reference`.
            count: how many samples there are.
            first: number of the first sample, for messages.

        Returns:
            (count,) float64, all finite.

        Raises:
            MetricError: the metric raised, or gave another shape, or NaN or infinity; names the sample.
            DataError: outputs or labels are not what a built-in metric reads.
        """
        if self.score is None:
            raise TypeError(f"metric {self.name} is accumulating: it has no per-sample scores")
        where = f"on samples {first} to {first + count - 1}"
        self._check_rows(outputs, count)
        return self._checked(self._call(where, self.score, dict(outputs), labels, reference), count, first)

    def accumulator(self) -> Gathering:
        """An empty accumulator whose errors name this metric; raises MetricError when it cannot be made."""
        if self.make is None:
            raise TypeError(f"metric {self.name} is per sample: it has no accumulator")
        return Gathering(self, self._call("when it was made", self.make))

    def loss(self, reference: Any, score: Any) -> Any:
        """How much worse `score` is than `reference`, in the metric's unit; arrays go element by element."""
        return reference - score if self.higher_is_better else score - reference

    def _check_rows(self, outputs: Outputs, count: int) -> None:
        """Refuse what a built-in would read in other rows than the samples'."""
        if self.is_own:
            return
        for name in self.outputs_read({name: array.dtype.kind for name, array in outputs.items()}):
            shape = outputs[name].shape
            if shape[:1] != (count,):
                raise DataError(
                    f"metric {self.name} reads one row per sample, but output {name!r} has shape {shape} for {count} "
                    "samples; export the model with the samples first, choose a metric that does not read this output, "
                    "or write a metric of your own"
                )

    def _call(self, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call code that may be the user's; what it raises becomes a MetricError, our own errors pass."""
        try:
            return function(*arguments)
        except BitfrontError:
            raise
        except Exception as error:
            raise MetricError(
                f"metric {self.name} raised {type(error).__name__} {where}: {error}. Correct the metric."
            ) from error

    def _checked(self, raw: Any, rows: int, first: int) -> Scores:
        try:
            scores = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise MetricError(
                f"metric {self.name} must give ({rows},) numbers, one per sample, got {type(raw).__name__}: {error}"
            ) from error
        if scores.shape != (rows,):
            raise MetricError(
                f"metric {self.name} must give one score per sample, shape ({rows},), got shape {scores.shape} "
                f"on samples {first} to {first + rows - 1}"
            )
        bad = np.flatnonzero(~np.isfinite(scores))
        if bad.size:
            raise MetricError(
                f"metric {self.name} gave {scores[bad[0]]} on sample {first + bad[0]} "
                f"({bad.size} of {rows} samples of this batch); a score must be a finite number"
            )
        return scores


class Gathering:
    """An accumulator whose errors name the metric and the samples."""

    def __init__(self, metric: Metric, inner: Accumulator) -> None:
        self._metric = metric
        self._inner = inner

    def update(self, outputs: Outputs, labels: Labels, *, count: int, first: int = 0) -> None:
        """Take in one batch of `count` samples; raises as `Metric.scores` does."""
        where = f"in update, on samples {first} to {first + count - 1}"
        self._metric._check_rows(outputs, count)
        self._metric._call(where, self._inner.update, dict(outputs), labels)

    def merge(self, other: Gathering) -> None:
        """Take in all that another accumulator of the same built-in metric has taken in."""
        if not isinstance(self._inner, MeanIoU) or not isinstance(other._inner, MeanIoU):
            raise TypeError(f"accumulators of metric {self._metric.name} cannot be merged: feed each every batch")
        self._inner.merge(other._inner)

    def compute(self) -> float:
        """The metric over everything taken in, finite; raises MetricError otherwise."""
        raw = self._metric._call("in compute", self._inner.compute)
        try:
            value = float(raw)
        except (TypeError, ValueError):
            raise MetricError(
                f"metric {self._metric.name}: compute() must give one number, got {type(raw).__name__} {raw!r}"
            ) from None
        if not np.isfinite(value):
            raise MetricError(f"metric {self._metric.name}: compute() gave {value}; it must be a finite number")
        return value


def get_metric(name: str) -> Metric:
    """Find a metric by built-in name or `package.module:attribute` (the current folder is searched too).

    The attribute is a function `(outputs: dict[str, ndarray], labels) -> (n,) float`, or a class with
    `update(outputs, labels)` and `compute() -> float`. Either may carry the attributes `unit` (default ""),
    `higher_is_better` (True), `ratio` (False) and `needs_labels` (True: a metric that forgets to say so fails
    before the first trial for want of labels, not in the middle of a search).

    Raises:
        ConfigError: no such metric, module or attribute, or the attribute is not a metric.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        close = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise ConfigError(
            f"metric {name!r} is unknown.{hint} "
            f"There are {', '.join(BUILT_IN)}; a metric of your own is given as package.module:attribute."
        )
    return _own_metric(name, _imported(name, module, attribute))


def _imported(name: str, module: str, attribute: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the user's module may raise anything while it is imported
        raise ConfigError(
            f"metric {name!r}: module {module} cannot be imported from {folder} or the Python path: "
            f"{type(error).__name__}: {error}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"metric {name!r}: module {module} has no {attribute}")
        found = getattr(found, part)
    return found


def _own_metric(name: str, found: Any) -> Metric:
    if not callable(found):
        raise ConfigError(f"metric {name!r} must be a function or a class, got {type(found).__name__}")
    gathers = isinstance(found, type)
    missing = [method for method in ("update", "compute") if gathers and not callable(getattr(found, method, None))]
    if missing:
        raise ConfigError(
            f"metric {name!r} is a class and must have update(outputs, labels) and compute(); "
            f"it lacks {' and '.join(missing)}"
        )

    def score(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Any:
        return found(outputs, labels)

    return Metric(
        name=name,
        unit=_declared(name, found, "unit", ""),
        higher_is_better=_declared(name, found, "higher_is_better", True),
        ratio=_declared(name, found, "ratio", False),
        needs_labels=_declared(name, found, "needs_labels", True),
        needs_reference=False,
        kind="accumulating" if gathers else "per_sample",
        score=None if gathers else score,
        make=found if gathers else None,
    )


def _declared(name: str, found: Any, attribute: str, default: Any) -> Any:
    value = getattr(found, attribute, default)
    if not isinstance(value, type(default)):
        raise ConfigError(f"metric {name!r}: {attribute} must be {type(default).__name__}, got {value!r}")
    return value


def _scored_output(outputs: Outputs) -> tuple[str, NDArray[Any]]:
    """The one output that metrics over classes read: the first float output, or the first where none is float."""
    floats = (item for item in outputs.items() if item[1].dtype.kind == "f")
    return next(floats, next(iter(outputs.items())))


def _class_scores(outputs: Outputs, metric: str) -> NDArray[Any]:
    """The first float output, which must be (n, classes) with two classes or more."""
    name, scores = _scored_output(outputs)
    if scores.ndim != 2:
        raise DataError(
            f"metric {metric} reads class scores from the first float output and needs shape (n, classes), "
            f"but {name!r} has shape {scores.shape}; choose another --metric, say sqnr, or one of your own"
        )
    _check_classes(metric, name, scores.shape)
    return scores


def _check_classes(metric: str, name: str, shape: tuple[int, ...]) -> None:
    """The largest of one class is always the same, so that any output would pass for right."""
    if shape[1] < 2:
        raise DataError(
            f"metric {metric} compares classes and needs two or more, but output {name!r} has shape {shape}: with "
            f"{shape[1]} class every output would count as right. Use --metric sqnr or mse, which compare values with "
            "FP32's, or a metric of your own that reads the labels"
        )


def _class_labels(labels: Labels, rows: int, classes: int, metric: str) -> NDArray[np.int64]:
    """Labels as (rows,) int64 within the classes."""
    if labels is None:
        raise DataError(f"metric {metric} needs labels, but the data have none; use agreement, or add labels")
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise DataError(
            f"metric {metric} needs one integer label per sample, shape ({rows},), "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    outside = labels[(labels < 0) | (labels >= classes)]
    if outside.size:
        raise DataError(f"metric {metric}: label {outside[0]} is not one of the model's {classes} classes")
    return labels.astype(np.int64)


def _top(outputs: Outputs, labels: Labels, k: int) -> Scores:
    """1 where the label is among the k best classes; ties go to the lower class, as argmax has it.

    Without that rule a broken candidate that scores all classes alike would count as right everywhere.
    """
    metric = f"top{k}"
    scores = _class_scores(outputs, metric)
    rows, classes = scores.shape
    if classes < k:
        raise DataError(f"metric {metric} needs at least {k} classes, the model has {classes}; use top1")
    wanted = _class_labels(labels, rows, classes, metric)[:, None]
    if k == 1:
        return np.asarray(largest_class(scores) == wanted[:, 0], dtype=np.float64)
    right = np.empty(rows)
    for part in row_blocks(scores):
        right[part] = _count_ahead(comparable(scores[part]), wanted[part]) < k
    return right


def _count_ahead(scores: NDArray[Any], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) how many classes come before the wanted one, (n, 1), by (n, classes) scores."""
    own = np.take_along_axis(scores, wanted, axis=1)
    lower = np.arange(scores.shape[1]) < wanted
    ahead: NDArray[np.int64] = np.count_nonzero((scores > own) | ((scores == own) & lower), axis=1)
    return ahead


def _top1(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    return _top(outputs, labels, 1)


def _top5(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    return _top(outputs, labels, 5)


def _fit_classes(metric: str) -> Callable[[Outputs, NDArray[Any]], object]:
    def fit(outputs: Outputs, labels: NDArray[Any]) -> object:
        return _class_labels(labels, len(labels), _class_scores(outputs, metric).shape[1], metric)

    return fit


def _agreement(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    mine = largest_class(_class_scores(outputs, "agreement"))
    theirs = largest_class(_class_scores(_given(reference), "agreement"))
    return np.asarray(mine == theirs, dtype=np.float64)


def _given(reference: Outputs | None) -> Outputs:
    if reference is None:
        raise TypeError("this metric compares with FP32's outputs: pass them as reference")
    return reference


def _float_pairs(outputs: Outputs, reference: Outputs | None) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Float outputs of candidate and FP32 as (n, values) each."""
    theirs = _given(reference)
    names = [name for name, array in theirs.items() if array.dtype.kind == "f"]
    if not names:
        raise DataError("this metric compares float outputs, but the model has none; give a --metric of your own")
    return [(_flat(outputs[name]), _flat(theirs[name])) for name in names]


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(len(array), -1)


def _dots(pairs: Sequence[tuple[NDArray[Any], NDArray[Any]]], *products: _Product) -> list[Scores]:
    """(n,) sums of products, per sample over all outputs as if they were one long vector; in float64, block by block.

    Args:
        products: each makes two factors, (n, values), of a block of the candidate's values and one of FP32's.
    """
    sums = [np.zeros(len(pairs[0][0])) for _ in products]
    for mine, theirs in pairs:
        for part in row_blocks(mine):
            a, b = mine[part].astype(np.float64), theirs[part].astype(np.float64)
            for found, product in zip(sums, products, strict=True):
                found[part] += np.einsum("ij,ij->i", *product(a, b))
    return sums


def _noise(a: Scores, b: Scores) -> tuple[Scores, Scores]:
    difference = a - b
    return difference, difference


def _signal(a: Scores, b: Scores) -> tuple[Scores, Scores]:
    return b, b


def _cosine(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    """Cosine of the angle between all float outputs and FP32's; two zero vectors are alike (1), one is not (0)."""
    pairs = _float_pairs(outputs, reference)
    mine, theirs, both = _dots(pairs, lambda a, b: (a, a), _signal, lambda a, b: (a, b))
    lengths = np.sqrt(mine) * np.sqrt(theirs)
    alike: Scores = np.asarray((mine == 0) & (theirs == 0), dtype=np.float64)
    np.divide(both, lengths, out=alike, where=lengths > 0)
    return alike


def _sqnr(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    """Signal-to-noise ratio against FP32 in dB, held to ±100 dB so that FP32 against itself is a number."""
    signal, noise = _dots(_float_pairs(outputs, reference), _signal, _noise)
    bound = 10.0 ** (SQNR_CAP_DB / 10)
    ratio = np.divide(signal, noise, out=np.full_like(noise, bound), where=noise > 0)
    decibels: Scores = 10.0 * np.log10(np.clip(ratio, 1 / bound, bound))
    return decibels


def _mse(outputs: Outputs, labels: Labels, reference: Outputs | None) -> Scores:
    """Mean square of the difference from FP32 over all float outputs."""
    pairs = _float_pairs(outputs, reference)
    values = sum(a.shape[1] for a, _ in pairs)
    return np.asarray(_dots(pairs, _noise)[0] / values, dtype=np.float64)


class MeanIoU:
    """Mean over classes of intersection ÷ union of predicted and labelled pixels.

    The first float output is (n, C, H, W) scores of two classes or more, labels are (n, H, W) integers. Classes absent
    from both prediction and labels are left out. Label 255 marks pixels that count for nothing (the custom of PASCAL
    VOC and Cityscapes) where the model has no such class.
    """

    def __init__(self) -> None:
        self._counts: NDArray[np.int64] | None = None  # (C, C): label by prediction

    def update(self, outputs: Outputs, labels: Labels) -> None:
        """Add one batch; raises DataError where shapes or labels do not fit."""
        name, scores = _scored_output(outputs)
        if scores.ndim != 4:
            raise DataError(
                f"metric miou reads class maps from the first float output and needs shape (n, C, H, W), "
                f"but {name!r} has shape {scores.shape}; choose another --metric"
            )
        _check_classes("miou", name, scores.shape)
        counts = _count_cells(_class_maps(labels, scores.shape), scores)
        self._counts = counts if self._counts is None else self._counts + counts

    def merge(self, other: MeanIoU) -> None:
        """Take in all that another one has taken in."""
        if other._counts is not None:
            self._counts = other._counts if self._counts is None else self._counts + other._counts

    def compute(self) -> float:
        """The mean over classes seen; raises DataError when no pixel counted."""
        counts = np.zeros((1, 1)) if self._counts is None else self._counts
        both = np.diag(counts)
        union = counts.sum(axis=0) + counts.sum(axis=1) - both
        if not union.any():
            raise DataError("metric miou saw no labelled pixel: all labels are 255, or there were no samples")
        return float(np.mean(both[union > 0] / union[union > 0]))


def _count_cells(wanted: NDArray[Any], scores: NDArray[Any]) -> NDArray[np.int64]:
    """(C, C) positions by label and by the class of the largest score; those labelled as no class are left out."""
    classes = scores.shape[1]
    cell = np.min_scalar_type((classes + 1) * classes)
    counts = np.zeros((classes + 1) * classes, np.int64)
    for part in row_blocks(wanted):
        cells = wanted[part].astype(cell)
        np.minimum(cells, cell.type(classes), out=cells)  # all that are no class become one row, the last
        cells *= cell.type(classes)
        cells += largest_class(scores[part])
        counts += np.bincount(cells.ravel(), minlength=len(counts))
    return counts.reshape(classes + 1, classes)[:classes]


def _class_maps(labels: Labels, shape: tuple[int, ...]) -> NDArray[Any]:
    """Labels, (n, H, W) integers, each a class or 255."""
    rows, classes, height, width = shape
    if labels is None:
        raise DataError("metric miou needs labels, but the data have none")
    if labels.shape != (rows, height, width) or labels.dtype.kind not in "iu":
        raise DataError(
            f"metric miou needs integer labels of shape {(rows, height, width)}, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        outside = labels[((labels < 0) | (labels >= classes)) & (labels != IGNORED_LABEL)]
        if outside.size:
            raise DataError(f"metric miou: label {outside[0]} is neither one of {classes} classes nor 255 (ignored)")
    return labels


def _fit_class_maps(outputs: Outputs, labels: NDArray[Any]) -> object:
    return _class_maps(labels, (len(labels), *_scored_output(outputs)[1].shape[1:]))


def _built_in() -> dict[str, Metric]:
    def share(name: str, score: Callable[..., Scores], labels: bool, reference: bool) -> Metric:
        fit = _fit_classes(name) if labels else None
        return Metric(name, "share", True, True, labels, reference, "per_sample", score=score, fit=fit)

    def distance(name: str, unit: str, better: bool, score: Callable[..., Scores]) -> Metric:
        return Metric(name, unit, better, False, False, True, "per_sample", score=score, reads="floats")

    metrics = [
        share("top1", _top1, labels=True, reference=False),
        share("top5", _top5, labels=True, reference=False),
        share("agreement", _agreement, labels=False, reference=True),
        distance("cosine", "", True, _cosine),
        distance("sqnr", "dB", True, _sqnr),
        distance("mse", "", False, _mse),
        Metric("miou", "share", True, True, True, False, "accumulating", make=MeanIoU, fit=_fit_class_maps),
    ]
    return {metric.name: metric for metric in metrics}


BUILT_IN: Mapping[str, Metric] = _built_in()
