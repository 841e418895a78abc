"""Running an evaluation's engine and the float model on the samples of the user's own outputs, to find faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.diagnose.wrapper.fault import EQUAL_DB, WrapperComparison, WrapperOutput
from evaluators.diagnose.wrapper.find_fault import find_faults
from evaluators.diagnose.wrapper.input_faults import CLEARLY_DB, MOST_BATCHES, find_input_fault
from evaluators.diagnose.wrapper.outputs_file import check_shapes, read_outputs
from evaluators.engine import Session
from search.errors import DataError

Batches = Callable[[NDArray[np.int64]], Iterable[Batch]]


def compare_wrapper(
    path: Path,
    engine: Session,
    exact: Session,
    batches: Batches,
    *,
    samples: int,
    most: int,
    threshold_db: float,
) -> WrapperComparison:
    """Compare a file of outputs with what engine and float model give on the same samples.

    Args:
        path: see `read_outputs`.
        batches: the samples at indices.
        samples: that the data have.
        most: samples to compare, the first rows of the file.
        threshold_db: see `find_faults`.

    Raises:
        DataError: the file cannot be compared, or no output of the model has a row per sample.
    """
    names = _names_by_sample(exact, batches(np.arange(min(samples, most))))
    if not names:
        raise DataError(f"comparing the outputs in {path}: no output of the model has one row of numbers per sample.")
    own = read_outputs(path, names, samples, most)
    evaluation, floats = (_collect(session, names, batches(own.indices)) for session in (engine, exact))
    check_shapes(own.arrays, floats, path)
    outputs = find_faults(own.arrays, evaluation, floats, threshold_db)
    fault = None
    if min(_explained_db(output) for output in outputs) < EQUAL_DB:
        some = [(batch.inputs, batch.count) for batch in islice(batches(own.indices), MOST_BATCHES)]
        fault = find_input_fault(own.arrays, some, (engine.run, exact.run), threshold_db)
        if fault is not None and fault.after_db < min(map(_explained_db, outputs)) + CLEARLY_DB:
            fault = None
    return WrapperComparison(len(own.indices), outputs, fault)


def _explained_db(output: WrapperOutput) -> float:
    """How near an output is, with its fault mended if it has one."""
    return output.level_db if output.fault is None else max(output.level_db, output.fault.whole_db)


def _names_by_sample(session: Session, batches: Iterable[Batch]) -> list[str]:
    """The outputs that have a row of numbers per sample, by the first batch."""
    batch = next(iter(batches))
    size = len(next(iter(batch.inputs.values())))
    outputs = session.run(batch.inputs)
    return [name for name, a in outputs.items() if a.ndim and len(a) == size and a.dtype.kind in "biuf"]


def _collect(session: Session, names: Sequence[str], batches: Iterable[Batch]) -> dict[str, NDArray[Any]]:
    """These outputs on all samples, (samples, …) each."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    for batch in batches:
        outputs = session.run(batch.inputs)
        for name, some in parts.items():
            some.append(outputs[name][: batch.count])
    for name, some in parts.items():
        if len({array.shape[1:] for array in some}) > 1:
            raise DataError(
                f"comparing outputs: expected samples of one shape, but {name!r} has rows of "
                f"{' and '.join(map(str, sorted({array.shape[1:] for array in some})))}. Take a study whose final data "
                "have one length."
            )
    return {name: np.concatenate(some) for name, some in parts.items()}
