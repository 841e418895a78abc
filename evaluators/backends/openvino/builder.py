"""The builder for OpenVINO. Its engine is the lowered ONNX file, compiled once to read what it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.layers import EngineFile
from evaluators.backends.openvino.audit import RuntimeNode, audit_rows, is_move, layer_times, read_layers, written_names
from evaluators.backends.openvino.device import NAME, OpenVinoDevice
from evaluators.backends.openvino.session import OpenVinoSession, open_graph
from evaluators.engine import Audit, Engine
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import Placement
from search.graph import onnx_file, packed_file
from search.graph.model import Model
from search.values import Assignment, EngineSummary, LayerTime, Ranges

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
        return lower(self.model, assignment, self.ranges, self.placement)

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
