"""A graph divided into stages at tensors, so that the part before a cut runs only once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.convenience import extract

from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.engine import Arrays


@dataclass(frozen=True)
class TapStage:
    """The nodes that a tensor needs and no earlier stage has run.

    Attributes:
        tap: the tensor, by name.
        inputs: tensors of earlier stages, and inputs of the graph, that its nodes read.
        outputs: tensors that later stages read, and the tap.
    """

    tap: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def plan_stages(graph: ir.Graph, taps: Sequence[str]) -> list[TapStage]:
    """Divide a graph at tensors.

    Args:
        taps: names of outputs of its nodes; an earlier one may not depend on a later one.
    """
    values = {value.name: value for node in graph for value in node.outputs}
    stage_of: dict[ir.Node, int] = {}
    for number, tap in enumerate(taps):
        for node in _ancestors(values[tap], stage_of):
            stage_of[node] = number
    made: list[dict[str, None]] = [{tap: None} for tap in taps]
    read: list[dict[str, None]] = [{} for _ in taps]
    for node, number in stage_of.items():
        for value in _read_by(node, graph):
            producer = value.producer()
            source = stage_of[producer] if producer is not None else -1
            if source != number:
                read[number][value.name or ""] = None
                if source >= 0:
                    made[source][value.name or ""] = None
    return [TapStage(tap, tuple(read[i]), tuple(made[i])) for i, tap in enumerate(taps)]


def _ancestors(value: ir.Value, known: Mapping[ir.Node, int]) -> Iterable[ir.Node]:
    ancestors: dict[ir.Node, None] = {}
    stack = [value.producer()]
    while stack:
        node = stack.pop()
        if node is None or node in known or node in ancestors:
            continue
        ancestors[node] = None
        stack += [read.producer() for read in _read_by(node, node.graph)]
    return ancestors


def _read_by(node: ir.Node, graph: object) -> Iterator[ir.Value]:
    """What a node and the bodies of an If or Loop read of a graph's tensors, constants left out."""
    inner = [
        inside
        for attribute in node.attributes.values()
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for body in ([attribute.as_graph()] if attribute.type is ir.AttributeType.GRAPH else attribute.as_graphs())
        for inside in body.all_nodes()
    ]
    for reader in (node, *inner):
        for value in reader.inputs:
            if value is None or value.is_initializer():
                continue
            if value.graph is graph or (value.producer() is not None and value.producer().graph is graph):  # type: ignore[union-attr]
                yield value


def live_bytes(stages: Sequence[TapStage], shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Most bytes of float32 that are kept between two stages for one run."""
    last = {name: number for number, stage in enumerate(stages) for name in stage.inputs}
    live: set[str] = set()
    most = 0
    for number, stage in enumerate(stages):
        live.update(stage.outputs)
        most = max(most, sum(4 * math.prod(shapes.get(name, ())) for name in live))
        live = {name for name in live if last.get(name, -1) > number}
    return most


class StagedRuns:
    """Runs a graph stage by stage on several batches; tensors that a later stage reads are kept.

    Args:
        graph: any graph that ONNX Runtime runs; not changed.
        stages: of this graph.
        batches: inputs of the graph.
    """

    def __init__(
        self, emulator: Emulator, graph: ir.Model, stages: Sequence[TapStage], batches: Sequence[Arrays]
    ) -> None:
        self._emulator = emulator
        self._graph = graph
        self._stages = stages
        self._last = {name: number for number, stage in enumerate(stages) for name in stage.inputs}
        self._pools = [dict(inputs) for inputs in batches]

    def run(self, number: int) -> list[Arrays]:
        """Outputs of a stage for each batch, once all earlier stages have been run.

        Raises:
            EvaluatorError: ONNX Runtime cannot run it.
        """
        stage = self._stages[number]
        small = extract(self._graph.graph, list(stage.inputs), list(stage.outputs))
        session = self._emulator.open(ir.Model(small, ir_version=self._graph.ir_version))
        return [session.run({name: pool[name] for name in stage.inputs}) for pool in self._pools]

    def keep(self, number: int, made: Sequence[Arrays]) -> None:
        """Hand the outputs of a stage, as they are or changed, to the later stages."""
        for pool, arrays in zip(self._pools, made, strict=True):
            pool.update(arrays)
            for name in [name for name in pool if self._last.get(name, -1) <= number]:
                del pool[name]

    def keep_batches(self, places: Sequence[int]) -> None:
        """Go on with these batches alone."""
        self._pools = [self._pools[place] for place in places]
