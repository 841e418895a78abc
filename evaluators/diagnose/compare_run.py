"""Run an engine beside ONNX Runtime on the CPU, whole and with every group's output exposed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.cores import usable_processors
from evaluators.diagnose.compare import EMULATED, ENGINE, FLOAT, Batch, differences
from evaluators.engine import Backend, Builder, RefusedError, Session
from evaluators.lowering.half import spelled_out
from evaluators.lowering.lower import expose_groups, lower
from search.errors import EvaluatorError
from search.graph.model import Model
from search.values import Assignment, Ranges

Batches = Callable[[], Iterable[Batch]]


def compare_engine(
    backend: Backend,
    builder: Builder,
    model: Model,
    ranges: Ranges,
    engine: Path,
    assignment: Assignment,
    batches: Batches,
    *,
    groups: bool,
    done: Callable[[int], None],
) -> dict[str, Any]:
    """Compare an engine with the float model and with its assignment written as Q/DQ and Cast.

    Both references run in ONNX Runtime on the CPU, node by node as they are written.

    Args:
        engine: a file that was built of this assignment.
        batches: gives the same batches every time it is called.
        groups: compare the outputs of the groups too.
        done: told the samples so far.

    Returns:
        `outputs` and, where asked for, `groups` by id: see `differences`; `opened`: whether the groups are those of
        the engine file, or of the assignment built anew.

    Raises:
        EvaluatorError: the engine cannot be loaded, or an engine refuses to run.
        ModelError: the assignment cannot be written as Q/DQ and Cast.
    """
    lowered = lower(model, assignment, ranges, backend.placement)
    graphs = {FLOAT: model.graph, EMULATED: spelled_out(lowered.clone())}
    reference = OnnxRuntimeBackend("cpu", threads=usable_processors())

    def compared(what: str, open_engine: Callable[[], Session], names: Sequence[str]) -> list[dict[str, Any]]:
        with ExitStack() as stack, refusals(what):
            sessions = {ENGINE: stack.enter_context(closing(open_engine()))}
            for who, graph in graphs.items():
                sessions[who] = stack.enter_context(closing(reference.plain_session(graph)))
            return differences(sessions, names, batches(), done)

    names = [output.name for output in model.outputs]
    found: dict[str, Any] = {
        "outputs": compared(f"comparing the engine {engine.name}", lambda: builder.load(engine), names)
    }
    if groups:
        exposed = {who: expose_groups(graph, model) for who, graph in ((FLOAT, model.graph), (EMULATED, lowered))}
        graphs = {**exposed, EMULATED: spelled_out(exposed[EMULATED])}
        found["opened"] = builder.opens_engines
        found["groups"] = compared(
            "comparing group by group",
            lambda: builder.probe(assignment, engine),
            [group.id for group in model.groups],
        )
    return found


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
