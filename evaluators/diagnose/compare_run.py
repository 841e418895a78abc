"""Running an engine and ONNX Runtime on the CPU, as a whole and with the outputs of all groups exposed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.cores import usable_processors
from evaluators.diagnose.compare import (
    EMULATED,
    ENGINE,
    FLOAT,
    ComparedBatch,
    EngineComparison,
    TensorDifferences,
    differences,
)
from evaluators.engine import Backend, Builder, RefusedError, Runner, Session
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import expose_groups, lower
from evaluators.measure.flips import ClassRecorder
from search.errors import EvaluatorError
from search.graph.model import Model
from search.values import Assignment, Flips, Ranges

Classes = NDArray[np.int64]
Batches = Callable[[], Iterable[ComparedBatch]]


def compare_engine(
    backend: Backend,
    builder: Builder,
    model: Model,
    ranges: Ranges,
    engine: Path,
    assignment: Assignment,
    batches: Batches,
    *,
    count_flips: Callable[[Classes, Classes], Flips] | None,
    groups: bool,
    done: Callable[[int], None],
) -> EngineComparison:
    """Compare an engine with the float model and with its assignment written as Q/DQ and Cast.

    Both references run in ONNX Runtime on the CPU, node by node as they are written.

    Args:
        engine: a file that was built of this assignment.
        batches: gives the same batches every time it is called.
        count_flips: of the classes that the float model and the engine give all samples, (samples,) each; None where
            the largest output is no class.
        groups: compare the outputs of the groups too.
        done: told the samples so far.

    Raises:
        EvaluatorError: the engine cannot be loaded, or an engine refuses to run.
        ModelError: the assignment cannot be written as Q/DQ and Cast.
    """
    lowered = lower(model, assignment, ranges, backend.placement)
    runs = _Runs(batches, done)
    with refusals(f"comparing the engine {engine.name}"):
        names = [output.name for output in model.outputs]
        outputs = runs.compare(lambda: builder.load(engine), model.graph, spelled_out(lowered.clone()), names)
    flips = None if runs.classes is None or count_flips is None else count_flips(*runs.classes)
    if not groups:
        return EngineComparison(outputs, runs.samples, flips=flips)
    with refusals("comparing group by group"):
        exact, emulated = expose_groups(model.graph, model), spelled_out(expose_groups(lowered, model))
        ids = [group.id for group in model.groups]
        exposed = runs.compare(lambda: builder.probe(assignment, engine), exact, emulated, ids)
    return EngineComparison(outputs, runs.samples, exposed, builder.opens_engines, flips)


class _Runs:
    """Runs of an engine and its two references over the same batches.

    Attributes:
        samples: that the last of them saw.
        classes: what the float model and the engine took these for; None if the outputs are no classes.
    """

    def __init__(self, batches: Batches, done: Callable[[int], None]) -> None:
        self.samples = 0
        self.classes: tuple[Classes, Classes] | None = None
        self._batches = batches
        self._done = done
        self._reference = OnnxRuntimeBackend("cpu", threads=usable_processors())

    def compare(
        self, open_engine: Callable[[], Session], exact: ir.Model, emulated: ir.Model, names: list[str]
    ) -> list[TensorDifferences]:
        """Compare outputs of these names, which all three have."""
        with (
            closing(open_engine()) as engine,
            closing(self._reference.plain_session(exact)) as float_session,
            closing(self._reference.plain_session(emulated)) as emulation,
        ):
            recorders = {FLOAT: ClassRecorder(float_session), ENGINE: ClassRecorder(engine)}
            counts: list[int] = []
            sessions: dict[str, Runner] = {**recorders, EMULATED: emulation}
            tensor_differences = differences(sessions, names, _count_rows(self._batches(), counts), self._count)
            exact_classes, classes = (recorder.classes(counts) for recorder in recorders.values())
            self.classes = None if exact_classes is None or classes is None else (exact_classes, classes)
            return tensor_differences

    def _count(self, samples: int) -> None:
        self.samples = samples
        self._done(samples)


def _count_rows(batches: Iterable[ComparedBatch], counts: list[int]) -> Iterator[ComparedBatch]:
    """The batches; `counts` gets the real rows of each."""
    for batch in batches:
        counts.append(batch.count)
        yield batch


@contextmanager
def refusals(doing: str, what: str = "it cannot be loaded or run here") -> Iterator[None]:
    """Make an engine's refusal an error that ends what is under way, and says what that was."""
    try:
        yield
    except RefusedError as error:
        raise EvaluatorError(
            f"{doing}: {what}: {str(error).rstrip('.')}. Engines run with the versions and on the kind of "
            "device that built them; `bitfront doctor` names those that are here."
        ) from error
