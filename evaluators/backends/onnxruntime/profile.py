"""Times of layers from the trace of ONNX Runtime's profiler. This module does not need ONNX Runtime."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from statistics import median

import onnx

from search.values import LayerTime

MOVES = frozenset(
    "Cast DequantizeLinear DynamicQuantizeLinear MemcpyFromHost MemcpyToHost QuantizeLinear ReorderInput "
    "ReorderOutput".split()
)
_KERNEL = "_kernel_time"


def is_move(node: onnx.NodeProto, written: Collection[str]) -> bool:
    """Whether a node of the optimized graph only changes format or type, or copies.

    Args:
        written: names of the clean model's nodes; a Transpose that is not among them changes a kernel's layout.
    """
    return node.op_type in MOVES or (node.op_type == "Transpose" and node.name not in written)


def layer_times(
    trace: str,
    optimized: onnx.GraphProto,
    owner_of: Callable[[onnx.NodeProto], str | None],
    written: Collection[str],
    skip: int,
    count: int,
) -> tuple[LayerTime, ...]:
    """Median time of every node of the optimized graph, in the graph's order.

    What runs in the bodies of If and Loop is in the time of these.

    Args:
        trace: the JSON that `end_profiling` leaves; microseconds.
        owner_of: group id of a node of the optimized graph.
        written: names of the clean model's nodes.
        skip: inferences at the start that do not count.
        count: inferences after those.

    Raises:
        ValueError: the trace is no ONNX Runtime profile.
    """
    times_by_node = _times(trace)
    names = _names(optimized, times_by_node)
    rows = []
    for node, name in zip(optimized.node, names, strict=True):
        times = times_by_node.get(name, [])
        times = times[len(times) * skip // (skip + count) :]
        if times:
            ms = _typical(times, count)
            rows.append(LayerTime(name, node.op_type, owner_of(node), is_move(node, written), ms))
    return tuple(rows)


def _typical(times: list[float], count: int) -> float:
    """The median over inferences: on a shared processor one interruption is longer than a whole inference."""
    runs = len(times) // count
    if runs * count != len(times):  # branches that not every inference takes
        return sum(times) / count
    return median(sum(times[i * runs : (i + 1) * runs]) for i in range(count))


def _times(trace: str) -> dict[str, list[float]]:
    """Milliseconds of every run of every node, in the order of time; nodes in the order they first ran."""
    events = json.loads(trace)
    if not isinstance(events, list):
        raise ValueError("expected the list of events that ONNX Runtime's profiler writes")
    times_by_node: dict[str, list[float]] = {}
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            times_by_node.setdefault(event["name"].removesuffix(_KERNEL), []).append(event["dur"] / 1000)
    return times_by_node


def _names(optimized: onnx.GraphProto, trace_names: Collection[str]) -> list[str]:
    """What the trace calls each node: by its name, and a nameless one, as optimizers make them, `Mul_121`."""
    named = {node.name for node in optimized.node}
    nameless: dict[str, Iterator[str]] = {}
    for op in {node.op_type for node in optimized.node if not node.name}:
        pattern = re.compile(rf"{re.escape(op)}_\d+")
        nameless[op] = iter([name for name in trace_names if name not in named and pattern.fullmatch(name)])
    return [node.name or next(nameless[node.op_type], "") for node in optimized.node]
