"""The first pass: the smallest and largest value of every float tensor, and a check for NaN and infinity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.calibration.graph_sessions import float_tensors, open_chain, open_session, run_chain, run_guarded
from evaluators.calibration.reductions import append_reductions, may_be_nan, must_be_finite
from evaluators.calibration.sample_runs import SampleRuns
from evaluators.data import Batch
from search.errors import DataError
from search.graph.model import values_by_name
from search.values import TensorRange

_FEWEST = 64  # samples that are run in any case
# Of the width of a range by twice the samples: over all tensors, and of nine tenths of them.
_MEAN_GROWTH, _USUAL_GROWTH = 0.05, 0.15


@dataclass(frozen=True)
class Extremes:
    """What the first pass saw.

    Attributes:
        ranges: least and largest value, by tensor; not of those that never had a finite element, or may hold NaN.
        elements: most elements in one run, by tensor.
        infinite: tensors that held Inf, which `ranges` leave out.
        samples: that were run.
    """

    ranges: dict[str, TensorRange]
    elements: dict[str, int]
    infinite: tuple[str, ...]
    samples: int


def observe(run: SampleRuns, *, whole: bool = True) -> Extremes:
    """Run the model over samples once.

    Args:
        whole: run all of them, though fewer may give ranges that are as good: see `_are_stable`.

    Raises:
        DataError: a tensor holds NaN that may not, or one that has to be finite holds Inf: see `may_be_nan` and
            `must_be_finite`.
        ModelError: ONNX Runtime cannot run the model.
    """
    allowed = may_be_nan(run.model)
    tensors = [name for name in float_tensors(run.model, run.threads) if name not in allowed]
    low, high = np.full(len(tensors), np.inf), np.full(len(tensors), -np.inf)
    elements = np.zeros(len(tensors), np.int64)
    widths: NDArray[np.float64] | None = None  # half as many samples ago
    samples = 0
    with ExitStack() as stack:
        watch = _Reductions(run, tensors, stack.enter_context(ExitStack()))
        for number, batch in enumerate(stack.enter_context(closing(run.batches()))):
            least, largest, size = watch.read(batch, number)
            low, high = np.minimum(low, least), np.maximum(high, largest)
            elements = np.maximum(elements, size.astype(np.int64))
            samples += batch.count
            if not whole and samples >= _FEWEST / 2 and (number + 1).bit_count() == 1:
                before, widths = widths, np.maximum(high, 0.0) - np.minimum(low, 0.0)
                if before is not None and _are_stable(before, widths):
                    break
    # A tensor that never had an element, or no finite one, has no range.
    kept = [index for index in range(len(tensors)) if low[index] <= high[index]]
    observed = {tensors[index]: TensorRange(float(low[index]), float(high[index])) for index in kept}
    infinite = tuple(name for name in tensors if name in watch.infinite)
    return Extremes(observed, {tensors[index]: int(elements[index]) for index in kept}, infinite, samples)


def _are_stable(before: NDArray[np.float64], now: NDArray[np.float64]) -> bool:
    """Whether twice the samples made ranges so little wider that more of them are not worth their time.

    Extremes grow for ever, by less with every doubling. A twentieth of the width is a tenth of the noise of rounding.
    On four networks plain INT8 had no larger error with 64 samples than with 500: see docs/recovery.md.

    Args:
        before, now: (tensors,) width of each range with zero, infinite or NaN where there is none.
    """
    known = np.isfinite(before) & np.isfinite(now) & (before > 0)
    if not known.any():
        return True
    growth = now[known] / before[known] - 1
    return bool(growth.mean() <= _MEAN_GROWTH and np.quantile(growth, 0.9) <= _USUAL_GROWTH)


class _Reductions:
    """Reductions of every float tensor, in one session; only scalars leave the runtime.

    The session is made again when a tensor first holds Inf where it may: from then on Inf is left out of its
    reductions. Most models have no such tensor, and need not pay for the look.
    """

    def __init__(self, run: SampleRuns, tensors: Sequence[str], stack: ExitStack) -> None:
        self.infinite: set[str] = set()
        self._run = run
        self._tensors = tensors
        self._held = must_be_finite(run.model)
        self._stack = stack
        self._open()

    def _open(self) -> None:
        self._stack.close()
        graph = self._run.model.graph.clone()
        self._reductions = append_reductions(graph, self._tensors, self.infinite)
        self._session = self._stack.enter_context(open_session(graph, self._run.threads))

    def read(self, batch: Batch, number: int) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(tensors,) least, largest and size; raises DataError for what has to be finite and is not."""
        while True:
            least, largest, total, size = self._reduce(batch)
            ends = ~(np.isfinite(least) & np.isfinite(largest)) & (size > 0)
            new = {name for name, bad in zip(self._tensors, ends, strict=True) if bad} - self._held - self.infinite
            if not new:
                break
            self.infinite |= new
            self._open()
        # ORT's ReduceMin and ReduceMax see NaN only in the first place of a tensor; its ReduceSum carries every NaN.
        masked = np.array([name in self.infinite for name in self._tensors], bool)
        suspects = np.flatnonzero((ends & ~masked) | (np.isnan(total) & (size > 0)))
        self._check([self._tensors[int(index)] for index in suspects], batch, number)
        return least, largest, size

    def _reduce(self, batch: Batch) -> NDArray[np.float64]:
        """(4, tensors) least, largest, sum and size."""
        names = [name for each in self._reductions for name in each.outputs]
        arrays = dict(zip(names, run_guarded(self._session.run, names, batch.inputs), strict=True))
        with np.errstate(invalid="ignore"):
            rows = [
                (
                    arrays[each.least].min(),
                    arrays[each.largest].max(),
                    arrays[each.total].sum(dtype=np.float64),
                    each.elements if each.size is None else arrays[each.size],
                )
                for each in self._reductions
            ]
        columns: NDArray[np.float64] = np.array(rows, np.float64).reshape(len(rows), -1).T
        return columns

    def _check(self, suspects: Sequence[str], batch: Batch, number: int) -> None:
        """Raise DataError for the first suspect, in topological order, that really holds what it may not.

        A sum may also be NaN because it overflowed both ways, so the tensor itself is looked at.
        """
        for name in suspects:
            for _, array in _values_of(self._run, name, batch):
                real = self._run.real(array, batch)
                good = is_finite(real) if name in self._held else ~np.isnan(real)
                if not good.all():
                    raise DataError(_not_finite_message(self._run, name, array, good, batch, number))


def is_finite(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether float32, in which ranges are, holds each value."""
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(array.astype(np.float32, copy=False)))


def _values_of(run: SampleRuns, name: str, batch: Batch) -> Iterator[tuple[str, NDArray[Any]]]:
    if name in batch.inputs:
        yield name, batch.inputs[name]
        return
    with ExitStack() as stack:
        yield from run_chain(open_chain(run.model.graph, [[name]], run.threads, stack), batch)


def _not_finite_message(
    run: SampleRuns, name: str, array: NDArray[Any], finite: NDArray[np.bool_], batch: Batch, number: int
) -> str:
    start = number * run.model.batch
    some = run.indices[start : start + batch.count]
    where = f"a run over {batch.count} samples, {min(some)} to {max(some)}"
    if array.ndim and len(array) == run.model.batch:
        row = int(np.argmin(finite.reshape(batch.count, -1).all(axis=1)))
        where = f"sample {run.indices[start + row]}"
    if np.isnan(run.real(array, batch)).any():
        value, rule = "NaN", "no tensor may hold NaN"
    else:
        value, rule = "Inf", "inputs and outputs of layers, and the model's outputs, have to be finite in float32"
    return (
        f"calibrating: tensor {name!r}, {_origin(run.model.graph, name)}, holds {value}, first in {where}; "
        f"{rule}. It is the first such tensor in the graph: leave the sample out, or repair the op that makes it"
    )


def _origin(graph: ir.Model, name: str) -> str:
    node = values_by_name(graph)[name].producer()
    return "an input of the model" if node is None else f"output of {node.op_type} node {node.name!r}"
