"""Ranges of the channels of some tensors, from one pass of the float model that returns only small arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.calibration.graph_sessions import open_session, run_guarded
from evaluators.data import Batch
from search.graph.model import values_by_name

_AXES_AS_INPUT = 18  # the first opset in which these reductions read their axes from an input
_OPS = ("ReduceMin", "ReduceMax", "ReduceSumSquare")


@dataclass(frozen=True)
class ChannelValues:
    """Statistics of one tensor as arrays of its rank: of full size along the axes that are kept, 1 along the others.

    Attributes:
        low, high: (2, …) least and largest value in every other batch, and in the batches between; NaN if one of
            the values, or their sum of squares, is not finite. Both are of all samples where there is one batch alone.
        square: mean square over all samples.
        elements: values of each channel in a half.
    """

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    square: NDArray[np.float64]
    elements: float

    @property
    def magnitude(self) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore"):
            largest: NDArray[np.float32] = np.maximum(np.abs(self.low), np.abs(self.high)).max(axis=0)
        return largest


@dataclass
class _Seen:
    """What has been seen of one tensor so far: a list of two halves each."""

    low: list[NDArray[np.float32]]
    high: list[NDArray[np.float32]]
    square: NDArray[np.float64]
    elements: int = 0

    def add(self, half: int, low: NDArray[np.float32], high: NDArray[np.float32], square: NDArray[np.float32]) -> None:
        with np.errstate(invalid="ignore"):
            self.low[half] = np.minimum(self.low[half], low)
            self.high[half] = np.maximum(self.high[half], high)
        self.square = self.square + square.astype(np.float64)

    def values(self, halves: int) -> ChannelValues:
        """The statistics of the first one or both of the two halves; the first is never empty."""
        parts = [0, halves - 1]
        # Extremes pass over NaN where they are computed; sums do not.
        lost = np.where(np.isfinite(self.square), np.float32(0), np.float32(np.nan))
        low, high = (np.stack([each[part] for part in parts]) + lost for each in (self.low, self.high))
        return ChannelValues(low, high, self.square / self.elements, self.elements / 2)


def observe_channels(
    graph: ir.Model,
    kept: Mapping[str, tuple[int, ...]],
    batches: Iterable[Batch],
    *,
    threads: int = 1,
    alive: Callable[[], None] = lambda: None,
) -> dict[str, ChannelValues]:
    """Least, largest and mean square value of every channel of some tensors over some samples.

    Args:
        graph: the clean float model; not changed.
        kept: the axes along which channels are told apart, by name of a float32 tensor.
        batches: of the samples, at least one; rows that fill a batch up count as the last sample once more.
        alive: called after every run.

    Raises:
        ModelError: ONNX Runtime cannot run the model.
        TargetError: ONNX Runtime is not installed.
    """
    copy = graph.clone()
    elements = _append_reductions(copy, kept)
    edges = np.array(np.inf, np.float32), np.array(-np.inf, np.float32)
    observations = {name: _Seen([edges[0]] * 2, [edges[1]] * 2, np.zeros(())) for name in kept}
    runs = 0
    with open_session(copy, threads) as session:
        names = [output.name for output in session.get_outputs()]
        for batch in batches:
            arrays = dict(zip(names, run_guarded(session.run, names, batch.inputs), strict=True))
            for number, seen in enumerate(observations.values()):
                low, high, square = (arrays[_name(number, op)] for op in _OPS)
                seen.add(runs % 2, low, high, square)
                seen.elements += int(arrays[elements[number]]) // low.size
            runs += 1
            alive()
    return {name: seen.values(min(runs, 2)) for name, seen in observations.items()}


def _append_reductions(graph: ir.Model, kept: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Make the reductions of every tensor the only outputs; returns the names of those that count elements."""
    values = values_by_name(graph)
    as_input = graph.graph.opset_imports.get("", 0) >= _AXES_AS_INPUT
    outputs: list[ir.Value] = []
    for number, (name, axes) in enumerate(kept.items()):
        value, before = values[name], values[name].producer()
        rank = len(value.shape) if value.shape is not None else max(axes) + 1
        others = [axis for axis in range(rank) if axis not in axes]
        nodes = [ir.node("Size", [value], name=_name(number, "Size"))]
        if others:
            nodes += [_reduction(graph, value, _name(number, op), others, as_input) for op in _OPS]
        else:  # without axes a reduction would be one over all of them
            added = _constant(graph, [rank], _name(number, "axis"))
            nodes.append(ir.node("Unsqueeze", [value, added], name=_name(number, "Unsqueeze")))
            lifted = nodes[-1].outputs[0]
            nodes += [_reduction(graph, lifted, _name(number, op), [rank], as_input, keepdims=0) for op in _OPS]
        for node in nodes:
            node.outputs[0].name = node.name
        outputs += [node.outputs[0] for node in nodes if node.op_type != "Unsqueeze"]
        if before is None:
            graph.graph.extend(nodes)
        else:
            graph.graph.insert_after(before, nodes)
    graph.graph.outputs.clear()
    graph.graph.outputs.extend(outputs)
    return [_name(number, "Size") for number in range(len(kept))]


def _reduction(
    graph: ir.Model, value: ir.Value, name: str, axes: list[int], as_input: bool, keepdims: int = 1
) -> ir.Node:
    op = name.rsplit(".", 1)[-1]
    if not as_input:
        return ir.node(op, [value], {"axes": axes, "keepdims": keepdims}, name=name)
    return ir.node(op, [value, _constant(graph, axes, f"{name}/axes")], {"keepdims": keepdims}, name=name)


def _constant(graph: ir.Model, numbers: list[int], name: str) -> ir.Value:
    tensor = ir.tensor(np.array(numbers, np.int64), name=name)
    constant = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), const_value=tensor)
    constant.shape = ir.Shape([len(numbers)])
    graph.graph.register_initializer(constant)
    return constant


def _name(number: int, op: str) -> str:
    return f"bitfront.channels.{number}.{op}"
