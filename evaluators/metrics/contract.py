"""The interface of a metric, a score of every sample or an accumulator over many, with checks of its results.

A `per_sample` metric scores every sample on its own, which allows intervals from paired differences and early stopping.
An `accumulating` metric is computed over many samples, by an object with `update` and `compute`, without early
stopping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.own.error_text import own_error_text
from search.errors import BitfrontError, DataError, DeclarationError, MetricError

Outputs = Mapping[str, NDArray[Any]]
Labels = NDArray[Any] | None
Scores = NDArray[np.float64]
_ROUNDING = 1e-6  # that a share reckoned in float32 may lie beyond 0 and 1
_BEGIN_AGAIN = "and begin the study again with --replace: to one that is there it would be another metric"


class Accumulator(Protocol):
    """The state of an accumulating metric: it takes one batch after the other, and is read once."""

    def update(self, outputs: dict[str, NDArray[Any]], labels: Labels) -> object:
        """Add one batch of samples."""

    def compute(self) -> float:
        """The metric over all added samples."""


@dataclass(frozen=True)
class MetricMeaning:
    """What the scores of a metric are.

    Attributes:
        name: the name of a built-in metric, or `package.module:attribute`.
        unit: the unit of a score: `share`, `dB` or nothing.
        higher_is_better: whether a higher score is better.
        ratio: whether a score is a share of one, so that a drop of 1 % is 0.01; for other metrics it is of FP32's
            value.
        kind: `per_sample` or `accumulating`.
        undeclared: whether it is a function of the user's that declares neither `unit` nor `ratio`: if its first scores
            are 0 or 1 alone, they are taken as shares, see `Metric.as_shares`.
    """

    name: str
    unit: str
    higher_is_better: bool
    ratio: bool
    kind: str
    undeclared: bool = field(default=False, kw_only=True)

    def meaning(self) -> dict[str, Any]:
        """These facts by name."""
        return {each.name: getattr(self, each.name) for each in fields(MetricMeaning)}


@dataclass(frozen=True)
class MetricFacts(MetricMeaning):
    """What a process has to know of a metric that it does not have; `needs_labels` is as of `Metric`."""

    needs_labels: bool


@dataclass(frozen=True)
class Metric(MetricFacts):
    """One measure of accuracy.

    Attributes:
        needs_labels: whether the data must have labels.
        needs_reference: whether it compares with the outputs of uniform FP32 on the same samples.
        score: of a per_sample metric, `(outputs, labels, reference) -> (n,)` without checks; call `scores` instead.
        make: of an accumulating metric, makes an empty accumulator without checks; call `accumulator` instead.
        reads: which outputs a built-in reads: one, which is the first float output, all float outputs, or, where a
            function of the user's picks what it needs, all.
        fit: built-in that reads labels: raises DataError where labels, (n, …), are not what it reads beside outputs of
            that form, of however many samples.
        has_content: built-in: whether labels, (n, …), hold anything to score; a split in which none does is refused.
        compares_classes: built-in: whether it reads which of the classes of a sample has the largest score.
        is_own: whether it is the user's, so that it is not known what it reads or raises.
        threads: built-in: how many threads score batches beside one another; more than two of many short NumPy calls
            only wait for the interpreter's lock.
    """

    needs_reference: bool
    score: Callable[[Outputs, Labels, Outputs | None], Any] | None = None
    make: Callable[[], Accumulator] | None = None
    reads: Literal["one", "floats", "all"] = "one"
    fit: Callable[[Outputs, NDArray[Any]], object] | None = None
    has_content: Callable[[NDArray[Any]], bool] | None = None
    compares_classes: bool = False
    is_own: bool = False
    threads: int = 4

    def scores_classes(self, labels: Labels) -> bool:
        """Whether the largest score of a sample is its class: a metric of the user's without a unit may read it.

        Args:
            labels: of one sample or more, (n, …); None if the data have none.
        """
        numbered = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
        return self.compares_classes or (self.is_own and not self.unit and numbered)

    def as_shares(self) -> Metric:
        """A copy for scores that were 0 or 1 as far as they were seen, so that their mean is a share."""
        return replace(self, ratio=True)

    def outputs_read(self, kinds: Mapping[str, str]) -> list[str]:
        """Names of the outputs that this metric reads; where code of the user's reads them all, as nobody knows better.

        Args:
            kinds: numpy's kind of every output's dtype by name, `f` for floats, in the model's order.
        """
        if self._reads_all:
            return list(kinds)
        floats = [name for name, kind in kinds.items() if kind == "f"]
        return floats if self.reads == "floats" else (floats or list(kinds))[:1]

    def scores(
        self, outputs: Outputs, labels: Labels, reference: Outputs | None = None, *, count: int, first: int = 0
    ) -> Scores:
        """Score the samples of one batch.

        Args:
            outputs: arrays whose first axis is the samples, by output name, in the model's order.
            labels: labels of the same samples; None if the data have none.
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
        scores = self._check_scores(self._call(where, self.score, dict(outputs), labels, reference), count, first)
        return self._check_shares(scores, first)

    def accumulator(self) -> Gathering:
        """An empty accumulator whose errors name this metric; raises MetricError when it cannot be made."""
        if self.make is None:
            raise TypeError(f"metric {self.name} is per sample: it has no accumulator")
        return Gathering(self, self._call("when it was made", self.make))

    def loss(self, reference: Any, score: Any) -> Any:
        """How much worse `score` is than `reference`, in the metric's unit, for numbers or arrays."""
        return reference - score if self.higher_is_better else score - reference

    @property
    def _reads_all(self) -> bool:
        """Whether code of the user's decides which outputs are read."""
        return self.is_own or self.reads == "all"

    def _check_rows(self, outputs: Outputs, count: int) -> None:
        """Refuse what a built-in would read in other rows than the samples'."""
        if self._reads_all:
            return
        for name in self.outputs_read({name: array.dtype.kind for name, array in outputs.items()}):
            shape = outputs[name].shape
            if shape[:1] != (count,):
                raise DataError(
                    f"metric {self.name} reads one row per sample, but output {name!r} has shape {shape} for {count} "
                    "samples; export the model with the samples first, choose a metric that does not read this output, "
                    "or write a metric of your own"
                )

    def _check_shares(self, scores: Scores, first: int) -> Scores:
        """Refuse scores that cannot be shares, where they are said to be, or the first ones were taken as such: the
        bounds of a loss rest on it."""
        outside = np.flatnonzero((scores < -_ROUNDING) | (scores > 1 + _ROUNDING))
        if len(outside) and self.ratio:
            said = (
                "declares neither unit nor ratio. Its first scores were all 0 or 1 and were taken as shares of one"
                if self.undeclared
                else "declares `ratio = True`, so its scores are shares from 0 to 1"
            )
            raise DeclarationError(
                f"metric {self.name} {said}, but sample {first + outside[0]} has {scores[outside[0]]:g}. Declare "
                "`unit` on the function, for example 'px', or `ratio = False` for plain numbers, "
                f"{_BEGIN_AGAIN}."
            )
        return scores

    def _call(self, where: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call code that may be the user's. Its errors become a MetricError; errors of bitfront are passed on."""
        try:
            return function(*arguments)
        except BitfrontError:
            raise
        except Exception as error:
            advice = own_error_text(error, arguments) if self.is_own else "Correct the metric."
            raise MetricError(f"metric {self.name} raised {type(error).__name__} {where}: {error}. {advice}") from error

    def _check_scores(self, raw: Any, rows: int, first: int) -> Scores:
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
        """Add one batch of `count` samples; raises the same errors as `Metric.scores`."""
        where = f"in update, on samples {first} to {first + count - 1}"
        self._metric._check_rows(outputs, count)
        self._metric._call(where, self._inner.update, dict(outputs), labels)

    def add(self, outputs: Outputs, labels: Labels, *, count: int, first: int = 0) -> float:
        """Add one batch as `update` does, and give the metric over that batch alone.

        One that says that it is `mergeable` gets the accumulator of the batch, where others get the batch once more.
        """
        alone = self._metric.accumulator()
        alone.update(outputs, labels, count=count, first=first)
        if getattr(self._inner, "mergeable", False):
            self.merge(alone)
        else:
            self.update(outputs, labels, count=count, first=first)
        return alone.compute()

    def merge(self, other: Gathering) -> None:
        """Add all samples of another accumulator of the same metric, which has `merge`; raises MetricError."""
        self._metric._call("in merge", getattr(self._inner, "merge"), other._inner)  # noqa: B009 - it need not have it

    def compute(self) -> float:
        """The metric over all added samples; raises MetricError if it is not finite."""
        raw = self._metric._call("in compute", self._inner.compute)
        try:
            value = float(raw)
        except (TypeError, ValueError):
            raise MetricError(
                f"metric {self._metric.name}: compute() must give one number, got {type(raw).__name__} {raw!r}"
            ) from None
        if not np.isfinite(value):
            raise MetricError(f"metric {self._metric.name}: compute() gave {value}; it must be a finite number")
        if self._metric.ratio and not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise DeclarationError(
                f"metric {self._metric.name} declares `ratio = True`, so it is a share from 0 to 1, but compute() gave "
                f"{value:g}. Declare `unit`, for example 'px', or `ratio = False` for plain numbers, {_BEGIN_AGAIN}."
            )
        return value


def given_reference(reference: Outputs | None) -> Outputs:
    """FP32's outputs, which a metric asked for by `needs_reference`."""
    if reference is None:
        raise TypeError("this metric compares with FP32's outputs: pass them as reference")
    return reference
