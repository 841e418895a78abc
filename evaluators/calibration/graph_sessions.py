"""Running the float model on the CPU with any tensor as an output. Memory does not grow with the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import RemoveUnusedNodesPass

from evaluators.cores import PATIENT
from evaluators.data import Batch
from evaluators.lent_constants import session_source
from search.errors import ModelError, TargetError
from search.graph.model import Model, TensorSpec, values_by_name
from search.installation import install_command

_MOST_COPIED = 2**20  # bytes of constants: a chain is many sessions
_FLOATS = {
    ir.DataType.FLOAT: "tensor(float)",
    ir.DataType.FLOAT16: "tensor(float16)",
    ir.DataType.BFLOAT16: "tensor(bfloat16)",
    ir.DataType.DOUBLE: "tensor(double)",
}


def float_tensors(model: Model, threads: int = 1) -> list[str]:
    """Names of the tensors that calibration gives ranges of, in topological order.

    Raises:
        ModelError: ONNX Runtime cannot run the model.
        TargetError: ONNX Runtime is not installed.
    """
    values = values_by_name(model.graph)
    unknown = [name for name, value in values.items() if value.type is None]
    types = _runtime_types(model, unknown, threads) if unknown else {}
    return [
        name
        for name, value in values.items()
        if types.get(name) in _FLOATS.values() or (isinstance(value.type, ir.TensorType) and value.dtype in _FLOATS)
    ]


def make_up_inputs(inputs: Sequence[TensorSpec]) -> dict[str, NDArray[Any]]:
    """One batch of noise, and of zeros and ones for inputs that are no floats."""
    random = np.random.default_rng(0)
    return {
        spec.name: (
            random.standard_normal(spec.shape) if spec.dtype.startswith("float") else random.integers(0, 2, spec.shape)
        ).astype(spec.dtype)
        for spec in inputs
    }


def measure_shapes(graph: ir.Model, names: Sequence[str], inputs: Mapping[str, NDArray[Any]]) -> dict[str, list[int]]:
    """The shapes that tensors have in one run of a graph on these inputs.

    Raises:
        ModelError: ONNX Runtime cannot run it.
        TargetError: ONNX Runtime is not installed.
    """
    copy = graph.clone()
    values = values_by_name(copy)
    nodes = [ir.node("Shape", [values[name]], name=f"bitfront.{place}.Shape") for place, name in enumerate(names)]
    copy.graph.extend(nodes)
    copy.graph.outputs.clear()
    for place, node in enumerate(nodes):
        node.outputs[0].name, node.outputs[0].type = f"bitfront.{place}", ir.TensorType(ir.DataType.INT64)
        copy.graph.outputs.append(node.outputs[0])
    RemoveUnusedNodesPass()(copy)
    read = {str(value.name) for value in copy.graph.inputs}
    with open_session(copy, 1) as session:
        shapes = run_guarded(session.run, [], {name: array for name, array in inputs.items() if name in read})
    return {name: shape.tolist() for name, shape in zip(names, shapes, strict=True)}


def _runtime_types(model: Model, names: list[str], threads: int) -> dict[str, str]:
    """Types where shape inference did not know them: ONNX Runtime knows those of its own ops as well."""
    with open_session(_between(model.graph, [], names), threads) as session:
        return {output.name: output.type for output in session.get_outputs()}


def _between(graph: ir.Model, sources: Sequence[str], wanted: Sequence[str]) -> ir.Model:
    """A copy that computes the tensors `wanted`, with the tensors `sources` as inputs, and holds nothing else."""
    copy = graph.clone()
    values = values_by_name(copy)
    copy.graph.outputs.clear()  # one of them may be a source
    for name in sources:
        entry = ir.Value(name=name, type=values[name].type)
        values[name].replace_all_uses_with(entry)
        values[name].name = f"{name}/computed"
        copy.graph.inputs.append(entry)
    copy.graph.outputs.extend(values[name] for name in wanted)
    RemoveUnusedNodesPass()(copy)
    for value in list(copy.graph.inputs):
        if not value.uses() and not value.is_graph_output():
            copy.graph.inputs.remove(value)
    return copy


@dataclass(frozen=True)
class Link:
    """One stretch of the graph: what it takes from before, and gives."""

    session: Any
    inputs: list[str]
    outputs: list[str]


def open_chain(graph: ir.Model, parts: Sequence[Sequence[str]], threads: int, stack: ExitStack) -> list[Link]:
    """Cut the graph behind the last tensor of each part, so that fetching one part at a time computes nothing twice.

    Built from the back: what a stretch takes, an earlier one has to give. Values that cannot be handed over, because
    they are no tensors or nobody knows their type, are computed again.
    """
    values = values_by_name(graph)
    place = {name: index for index, name in enumerate(values)}
    movable = [n for n, v in values.items() if v.producer() and isinstance(v.type, ir.TensorType) and v.dtype]
    chain: list[Link] = []
    needed: set[str] = set()
    for number in reversed(range(len(parts))):
        start = place[parts[number - 1][-1]] if number else -1
        sources = [name for name in movable if place[name] <= start]
        wanted = [*parts[number], *sorted(name for name in needed.difference(parts[number]) if place[name] > start)]
        stretch = _between(graph, sources, wanted)
        session = stack.enter_context(open_session(stretch, threads))
        inputs = [str(value.name) for value in stretch.graph.inputs]
        chain.insert(0, Link(session, inputs, wanted))
        needed = {name for name in needed if place[name] <= start}.union(set(inputs) & set(sources))
    return chain


def run_chain(chain: Sequence[Link], batch: Batch) -> Iterator[tuple[str, NDArray[Any]]]:
    """(name, array) of every output of every link, one array at a time in numpy's memory."""
    from onnxruntime import OrtValue

    pool = {name: OrtValue.ortvalue_from_numpy(array) for name, array in batch.inputs.items()}
    for number, link in enumerate(chain):
        feeds = {name: pool[name] for name in link.inputs}
        later = {name for after in chain[number + 1 :] for name in after.inputs}
        pool = {name: value for name, value in pool.items() if name in later}
        values = list(run_guarded(link.session.run_with_ort_values, link.outputs, feeds))
        feeds.clear()
        for name in link.outputs:
            value = values.pop(0)
            if name in later:
                pool[name] = value
            yield name, value.numpy()


def run_guarded(run: Callable[..., Any], outputs: Sequence[str], feeds: Mapping[str, Any]) -> Any:
    """What a session's `run` gives; ModelError where it cannot run the model on these inputs."""
    try:
        return run(list(outputs), feeds)
    except Exception as error:
        raise ModelError(
            f"calibrating: ONNX Runtime could not run the model on the calibration data ({_last_line(error)}); "
            "check that the model runs there in float32"
        ) from error


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1]


@contextmanager
def open_session(graph: ir.Model, threads: int) -> Iterator[Any]:
    """An open `onnxruntime.InferenceSession` on the processor, which computes the graph as it is written."""
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise TargetError(
            f"calibrating: ONNX Runtime is not installed ({error}). Install it: {install_command('cpu')}; or give "
            "ranges."
        ) from error
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry(*PATIENT)
    _share_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.enable_mem_pattern = False
    # Fused nodes have no inner tensors. The default order runs what gives graph outputs last and keeps every tensor
    # alive until then: 2163 MB instead of 191 MB with 33 convolutions of 32×32×56×56.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    with session_source(ort, graph, options, _MOST_COPIED) as source:
        try:
            session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ModelError(
                f"calibrating: ONNX Runtime cannot run the model ({_last_line(error)}); ranges can only be collected "
                "from ops that it supports"
            ) from error
        yield session


@cache
def _share_arena() -> None:
    """Register one arena for this module's sessions; other sessions of the process keep their own.

    A chain is many sessions. With an arena each, or with none and the C library's fragmentation, they keep nearly all
    activations between them: 1057 MB instead of 228 MB with 33 convolutions of 32×32×56×56 in 41 links.
    """
    import onnxruntime as ort

    where = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    as_requested = 1
    ort.create_and_register_allocator(where, ort.OrtArenaCfg({"arena_extend_strategy": as_requested}))
