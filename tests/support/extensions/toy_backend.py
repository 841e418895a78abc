"""A backend of another package, as small as one can be: onnx's reference evaluator runs the lowered file.

Latencies are those of a made-up machine: a millisecond per group, and `--backend-option hurry-by=N` divides it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from evaluators.backends.kind import SOURCE_FILE, BackendKind, BackendOption, Check, ExportedRun, Machine, Recipe
from evaluators.backends.layers import EngineFile, Layer
from evaluators.engine import Arrays, Audit, Backend, Engine, OpenEngine, RefusedError
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import TENSORRT
from search.graph import onnx_file
from search.graph.model import Model, TensorSpec
from search.values import Assignment, AuditRow, Capability, EngineSummary, LayerTime, Precision, Ranges, Target

NAME = "toy-engine"
PLACEMENT = replace(TENSORRT, name="toy")


class ToyKind(BackendKind):
    """What is known of the backend before it is opened."""

    name = NAME
    engine_file = SOURCE_FILE
    engine_suffixes = (".toy",)
    export_files = MappingProxyType({"toy.txt": "a word about toys"})
    options = (BackendOption("hurry_by", "count", 1, "Divides every latency.", least=1),)

    def open(self, device: str, options: Mapping[str, Any]) -> Backend:
        return ToyBackend(options.get("hurry_by", 1))

    def open_engine(self, backend: Backend, path: Path, batch: int | None) -> OpenEngine:
        session = ToySession(onnx.load(str(path)), 1.0)
        return OpenEngine(session, session.inputs)

    def open_export(
        self, folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None
    ) -> ExportedRun:
        return ToySession(onnx.load(str(folder / self.engine_file)), 1.0).run

    def read_engine(self, path: Path) -> EngineFile:
        nodes = onnx.load(str(path)).graph.node
        return EngineFile(str(path), "a toy's engine", tuple(Layer(n.name, n.op_type, Precision.FP32) for n in nodes))

    def deployment_code(self, target: Target, inputs: Any, folder: str) -> str:
        return f"run_toy({folder!r})"

    def recipe_files(self, recipe: Recipe) -> Mapping[str, str]:
        return {"toy.txt": "toy"}

    def checks(self, machine: Machine) -> Sequence[Check]:
        return [Check("toy", True, "runs wherever onnx does")]


class ToyBackend:
    """On any machine."""

    quick_profile = False
    notes: tuple[str, ...] = ()
    placement = PLACEMENT
    lock_name = f"toy-{os.getpid()}"

    def __init__(self, hurry: int) -> None:
        self._hurry = hurry

    def target(self) -> Target:
        options = {"hurry": str(self._hurry)}
        return Target(NAME, "any machine", {"onnx": onnx.__version__}, options, "median", relative=False)

    def capability(self) -> Capability:
        return Capability({Precision.INT8: frozenset({"Conv", "Gemm", "MatMul"})})

    def knobs(self) -> Mapping[str, str]:
        return {}

    def device_state(self) -> Mapping[str, Any]:
        return {}

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Nothing changes."""

    def check(self) -> None:
        """Nothing can be missing."""

    def float_session(self, model: Model) -> ToySession:
        return ToySession(ir.to_proto(model.graph), 1.0)

    def builder(self, model: Model, ranges: Ranges) -> ToyBuilder:
        return ToyBuilder(model, ranges, self._hurry)


class ToyBuilder:
    """An engine is the lowered ONNX file."""

    opens_engines = True

    def __init__(self, model: Model, ranges: Ranges, hurry: int) -> None:
        self._model = model
        self._ranges = ranges
        self._hurry = hurry

    def lower(self, assignment: Assignment) -> ir.Model:
        return lower(self._model, assignment, self._ranges, PLACEMENT)

    def build(self, lowered: ir.Model, out: Path) -> Engine:
        onnx_file.write(lowered, out)
        return Engine(out, out.stat().st_size)

    def build_file(self, graph: ir.Model, out: Path) -> Engine:
        return self.build(graph, out)

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        rows = [AuditRow(g.id, assignment[g.id], assignment[g.id], "toy kernel") for g in self._model.groups]
        return Audit(tuple(rows), EngineSummary(layers=len(rows), moves=0))

    def load(self, path: Path) -> ToySession:
        try:
            return self._session(onnx.load(str(path)))
        except Exception as error:
            raise RefusedError(f"{path.name} is no engine of backend toy: {error}") from error

    def write_source(self, assignment: Assignment, out: Path) -> None:
        onnx_file.write(self.lower(assignment), out)

    def timing_cache(self) -> None:
        return None

    def write_layers(self, path: Path, out: Path) -> bool:
        return False

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        return tuple(LayerTime(g.name, g.op, g.id, moves=False, ms=1 / self._hurry) for g in self._model.groups)

    def probe(self, assignment: Assignment, engine: Path | None = None) -> ToySession:
        return self._session(ir.to_proto(expose_groups(self.lower(assignment), self._model)))

    def _session(self, file: onnx.ModelProto) -> ToySession:
        quantized = sum(node.op_type == "QuantizeLinear" for node in file.graph.node)
        groups = len(self._model.groups)
        return ToySession(file, (groups - 0.5 * min(quantized, groups)) / self._hurry)


class ToySession:
    """One file, ready to run."""

    memory_bytes: int | None = None
    types: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    def __init__(self, file: onnx.ModelProto, latency_ms: float) -> None:
        self._evaluator = ReferenceEvaluator(file)
        self.inputs = tuple(
            TensorSpec(each.name, "float32", tuple(size.dim_value for size in each.type.tensor_type.shape.dim))
            for each in file.graph.input
        )
        self._latency_ms = latency_ms

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        outputs = self._evaluator.run(None, dict(inputs))
        return dict(zip(self._evaluator.output_names, outputs, strict=True))

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Nothing is measured."""

    def time(self, count: int) -> NDArray[np.float64]:
        return np.full(count, self._latency_ms)

    def around(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open."""
