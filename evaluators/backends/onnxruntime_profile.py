"""Per-layer times from the trace that ONNX Runtime's profiler writes; needs no ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable

import onnx

from search.values import LayerTime

MOVES = frozenset({"Cast", "DequantizeLinear", "MemcpyFromHost", "MemcpyToHost", "QuantizeLinear"}) | {
    "ReorderInput",
    "ReorderOutput",
}
_KERNEL = "_kernel_time"


def layer_times(
    trace: str, optimized: onnx.GraphProto, owner_of: Callable[[onnx.NodeProto], str | None], skip: int, count: int
) -> tuple[LayerTime, ...]:
    """Mean time of every node of the optimized graph, in the graph's order.

    Args:
        trace: the JSON that `end_profiling` leaves; microseconds.
        owner_of: group id of a node of the optimized graph.
        skip: inferences at the start that do not count.
        count: inferences after those.

    Raises:
        ValueError: the trace is no ONNX Runtime profile.
    """
    found: dict[str, list[float]] = {}
    for event in json.loads(trace):
        if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
            found.setdefault(event["name"].removesuffix(_KERNEL), []).append(event["dur"] / 1000)
    rows = []
    for node in optimized.node:
        times = found.get(node.name, [])
        # A node inside the body of a loop runs several times an inference; the trace is in the order of time.
        times = times[len(times) * skip // (skip + count) :]
        if times:
            rows.append(LayerTime(node.name, node.op_type, owner_of(node), node.op_type in MOVES, sum(times) / count))
    return tuple(rows)
