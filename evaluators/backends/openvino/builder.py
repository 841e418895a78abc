"""The builder for OpenVINO. Its engine is the lowered ONNX file, compiled once to read what it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.layers import EngineFile
from evaluators.backends.openvino.audit import RuntimeNode, audit_rows, is_move, layer_times, read_layers, written_names
from evaluators.backends.openvino.device import NAME, OpenVinoDevice
from evaluators.backends.openvino.session import OpenVinoSession, open_graph
from evaluators.engine import Audit, Engine
from evaluators.lowering.constants import Edits, array_of
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import Placement
from search.graph import onnx_file, packed_file
from search.graph.grouping import WEIGHTED
from search.graph.model import Model
from search.values import Assignment, EngineSummary, LayerTime, Ranges

_PASSES = {"DequantizeLinear", "QuantizeLinear", "Relu", "Reshape", "Transpose"}
_PROFILE_WARM_UP, _PROFILE_PARTS = 3, 3


class OpenVinoBuilder:
    """Lowers assignments of one model and compiles them; the engine is the lowered ONNX file."""

    opens_engines = True

    def __init__(self, device: OpenVinoDevice, placement: Placement, model: Model, ranges: Ranges) -> None:
        self.device = device
        self.placement = placement
        self.model = model
        self.ranges = ranges
        self._written = written_names(model)
        self._fresh: tuple[Path, OpenVinoSession] | None = None

    def lower(self, assignment: Assignment) -> ir.Model:
        lowered = lower(self.model, assignment, self.ranges, self.placement)
        _part_from_codes(lowered.graph)
        _part_orientations(lowered.graph)
        return lowered

    def build(self, lowered: ir.Model, out: Path) -> Engine:
        packed_file.write(lowered, out)
        self._fresh = (out, OpenVinoSession(self.device, out, counts_memory=True))
        return Engine(out, out.stat().st_size)

    def build_file(self, graph: ir.Model, out: Path) -> Engine:
        return self.build(graph, out)

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        session = self.load(engine.path)
        self._fresh = (engine.path, session)
        nodes = session.nodes()
        moves = sum(is_move(node, self._written) for node in nodes)
        return Audit(audit_rows(nodes, self.model, assignment), EngineSummary(len(nodes), moves))

    def load(self, path: Path) -> OpenVinoSession:
        fresh, self._fresh = self._fresh, None
        if fresh is not None and fresh[0] == path:
            return fresh[1]
        return OpenVinoSession(self.device, path, counts_memory=True)

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        """OpenVINO tells means since an engine was compiled: of several engines the median is not an interruption's."""
        parts = [self._profile_part(path, inputs, -(-count // _PROFILE_PARTS)) for _ in range(_PROFILE_PARTS)]
        nodes = parts[0][0]  # another engine's have other names, where OpenVINO numbers them
        times = [median(of_one) for of_one in zip(*(times for _, times in parts), strict=True)]
        return layer_times(nodes, times, self.model)

    def _profile_part(
        self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int
    ) -> tuple[list[RuntimeNode], list[float]]:
        """What runs, and its mean milliseconds over `count` inferences."""
        session = OpenVinoSession(self.device, path, PERF_COUNT=True)
        for _ in range(_PROFILE_WARM_UP):
            session.run(inputs)
        first = session.times_ms()
        for _ in range(count):
            session.run(inputs)
        runs, every, nodes = _PROFILE_WARM_UP + count, session.times_ms(), session.nodes()
        session.close()
        sums = [every[node.name] * runs - first[node.name] * _PROFILE_WARM_UP for node in nodes]
        return nodes, [max(0.0, ms) / count for ms in sums]  # of means that are rounded to microseconds

    def write_layers(self, path: Path, out: Path) -> bool:
        session = OpenVinoSession(self.device, path)
        layers = read_layers(session.nodes(), self._written)
        session.close()
        out.write_text(json.dumps(EngineFile(str(path), NAME, layers).to_json()), encoding="utf-8")
        return True

    def write_source(self, assignment: Assignment, out: Path) -> None:
        onnx_file.write_any_size(self.lower(assignment), out)

    def timing_cache(self) -> None:
        return None

    def probe(self, assignment: Assignment, engine: Path | None = None) -> OpenVinoSession:
        lowered = self.lower(assignment) if engine is None else packed_file.load_graph(engine)
        return open_graph(self.device, expose_groups(lowered, self.model))


def _part_from_codes(graph: ir.Graph) -> None:
    """Put a Max, which changes nothing, where OpenVINO 2026.4.1 is wrong or ends if a Dequantize moves on from there.

    That is before an AveragePool that counts its padding, and before a Pad that leads to one: codes are padded with 0,
    which is no zero. Before a Pad with another number than 0, and behind a Concat of rows that a product reads.
    """
    if not any(node.op_type == "DequantizeLinear" for node in graph):
        return
    edits = Edits(graph)
    for node in list(graph):
        if (node.op_type == "AveragePool" and _counts_padding(node)) or (
            node.op_type == "Pad" and (_fills(node) or _leads_to_average(node))
        ):
            _insert_max(edits, node.inputs[0], node)
        elif node.op_type == "Concat" and _joins_rows(node):
            _insert_max(edits, node.outputs[0])


def _insert_max(edits: Edits, value: ir.Value | None, reader: ir.Node | None = None) -> None:
    """Let a node, or all nodes that read a float, read it behind a Max with the least number of its type."""
    if value is None or value.dtype is None or not value.dtype.is_floating_point():
        return
    number_type, limits = value.dtype.numpy(), cast(Any, ml_dtypes.finfo)
    least = edits.constants.add(f"{value.name}/least", np.asarray(limits(number_type).min, number_type))
    uses = [use for use in value.uses() if reader is None or use.node is reader]
    apart = ir.Node("", "Max", [value, least], num_outputs=1, name=f"{value.name}/apart")
    made = edits.insert(apart, value, value.dtype)
    for use in uses:
        use.node.replace_input_with(use.idx, made)


def _leads_to_average(pad: ir.Node) -> bool:
    return any(reader.op_type == "AveragePool" for reader in pad.outputs[0].consumers())


def _fills(pad: ir.Node) -> bool:
    """Whether it pads with a number other than 0."""
    value = pad.inputs[2] if len(pad.inputs) > 2 else None
    number = None if value is None else value.const_value
    return (
        pad.attributes.get_string("mode", "constant") == "constant"
        and number is not None
        and bool(number.numpy().any())
    )


def _joins_rows(concat: ir.Node) -> bool:
    """Whether a product reads, in codes, what was joined along another axis than the last one."""
    shape = concat.outputs[0].shape
    if shape is None or concat.attributes.get_int("axis", 0) % len(shape) == len(shape) - 1:
        return False
    reached, values = False, [concat.outputs[0]]
    while values:
        for reader in values.pop().consumers():
            reached = reached or reader.op_type in ("Gemm", "MatMul")
            values += reader.outputs if reader.op_type in _PASSES else ()
    return reached


def _counts_padding(pool: ir.Node) -> bool:
    pads, automatic = pool.attributes.get("pads"), pool.attributes.get_string("auto_pad", "NOTSET")
    is_padded = any(() if pads is None else pads.as_ints()) or automatic not in ("NOTSET", "VALID")
    return bool(pool.attributes.get_int("count_include_pad", 0)) and is_padded


def _part_orientations(graph: ir.Graph) -> None:
    """Give layers that read a weight in different ways one each: OpenVINO 2026.4.1 takes what it made of it for one of
    them for the other, where a square weight is read by a MatMul and by a Gemm that transposes it, for one."""
    edits = Edits(graph)
    for name, weight in list(graph.initializers.items()):
        layers = [use for use in weight.uses() if use.node.op_type in WEIGHTED and use.idx == 1]
        ways: dict[tuple[str, int], ir.Value] = {}
        for layer, place in layers:
            way = layer.op_type, layer.attributes.get_int("transB", 0)
            if way not in ways:
                ways[way] = edits.constants.add(f"{name}/{len(ways)}", array_of(weight)) if ways else weight
            layer.replace_input_with(place, ways[way])
