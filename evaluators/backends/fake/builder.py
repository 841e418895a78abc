"""Fake engines: files that name the assignment that they represent."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.fake.costs import BUILD_NOISE, LayerCosts
from evaluators.backends.fake.faults import AUDITS, RUNS, PlantedFault, find_groups
from evaluators.backends.fake.options import CAUTION, VERSION
from evaluators.backends.fake.session import FakeSession, FloatOutputs
from evaluators.backends.onnxruntime.emulation import Emulated, Emulator
from evaluators.engine import Audit, Engine, RefusedError, Session
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import Placement
from search.graph import onnx_file
from search.graph.model import Model
from search.values import REFERENCE, Assignment, AuditRow, EngineSummary, LayerTime, Precision, Ranges, digest_of

OpenGraph = Callable[[ir.Model], Session]


class FakeBuilder:
    """Builds engines of one model.

    Args:
        placement: how `write_source` writes Q/DQ and Cast.
        open_graph: runs a float graph.
        seed: of all that is invented.
        faults: what goes wrong.
        build_time_s: that every build lasts.
        emulator: runs what assignments become, so that only latencies are invented; None to invent the losses too.
    """

    opens_engines = True

    def __init__(
        self,
        model: Model,
        ranges: Ranges,
        placement: Placement,
        open_graph: OpenGraph,
        *,
        seed: int = 0,
        faults: Sequence[PlantedFault] = (),
        build_time_s: float = 0.0,
        emulator: Emulator | None = None,
    ) -> None:
        self.model = model
        self._ranges = ranges
        self._placement = placement
        self._costs = LayerCosts(model, seed)
        self._seed = seed
        self._faults = faults
        self._build_time_s = build_time_s
        self._emulator = emulator
        self._outputs = FloatOutputs(lambda: open_graph(model.graph))
        self._groups = FloatOutputs(lambda: open_graph(expose_groups(model.graph, model)))
        self._builds: Counter[str] = Counter()

    def lower(self, assignment: Assignment) -> Assignment:
        return assignment

    def build(self, lowered: Assignment, out: Path) -> Engine:
        time.sleep(self._build_time_s)
        for fault in self._faults:
            group = fault.find(self.model.groups, lowered)
            if group is not None:
                fault.happen(group)
        self._builds[lowered.digest] += 1
        content = {
            "fake": VERSION,
            "caution": CAUTION,
            "model": self.model.digest,
            "seed": self._seed,
            "build": self._builds[lowered.digest],
            "assignment": {group: precision.label for group, precision in lowered.items()},
        }
        out.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return Engine(out, self._costs.size_bytes(lowered))

    def build_file(self, graph: ir.Model, out: Path) -> Engine:
        raise RefusedError("the fake backend builds assignments alone")

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        disobeying = find_groups(self._faults, AUDITS, self.model.groups, assignment)
        rows = []
        for group in self.model.groups:
            got = REFERENCE if group.id in disobeying else assignment[group.id]
            rows.append(AuditRow(group.id, assignment[group.id], got, f"fake {group.op} in {got.label}"))
        parts = list(self._costs.parts(assignment))
        return Audit(tuple(rows), EngineSummary(len(parts), sum(part.group is None for part in parts)))

    def load(self, path: Path) -> FakeSession:
        assignment, build = self._read(path)
        broken = find_groups(self._faults, RUNS, self.model.groups, assignment)
        seed = int(digest_of([self._seed, assignment.digest, build])[:16], 16)
        slower = BUILD_NOISE * float(np.random.default_rng(seed).standard_normal())
        outputs, error = self._outputs, self._costs.error(assignment)
        if self._emulator is not None:
            outputs, error = FloatOutputs(partial(self._emulate, self._emulator, assignment)), 0.0
        return FakeSession(
            outputs,
            float("nan") if broken else error,
            self._costs.latency_ms(assignment) * (1 + slower),
            self._costs.memory_bytes(assignment),
            seed,
        )

    def _emulate(self, emulator: Emulator, assignment: Assignment) -> Emulated:
        return emulator.open(spelled_out(lower(self.model, assignment, self._ranges, self._placement)))

    def write_source(self, assignment: Assignment, out: Path) -> None:
        onnx_file.write_any_size(lower(self.model, assignment, self._ranges, self._placement), out)

    def timing_cache(self) -> None:
        return None

    def write_layers(self, path: Path, out: Path) -> bool:
        return False  # there is no engine, so it has no layers

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        parts = self._costs.parts(self._read(path)[0])
        return tuple(
            LayerTime(part.name, "group" if part.group else "move", part.group, part.group is None, part.ms)
            for part in parts
        )

    def probe(self, assignment: Assignment, engine: Path | None = None) -> FakeSession:
        """Every group with the error that it adds itself."""
        broken = find_groups(self._faults, RUNS, self.model.groups, assignment)
        errors = {g: float("nan") if g in broken else self._costs.noise(g, p) for g, p in assignment.items()}
        return FakeSession(self._groups, errors, self._costs.latency_ms(assignment), 0, self._seed)

    def _read(self, path: Path) -> tuple[Assignment, int]:
        """The assignment that an engine file stands for, and which build of it it is.

        Raises:
            RefusedError: it is damaged, or of another model, seed or version.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            made_of = [content[key] for key in ("fake", "model", "seed")]
            labels, build = content["assignment"], int(content["build"])
            assignment = Assignment({group: Precision.parse(label) for group, label in labels.items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(f"{path.name} is not an engine of the fake backend, or is damaged: {error}") from error
        if made_of != [VERSION, self.model.digest, self._seed]:
            raise RefusedError(f"{path.name} is a fake engine of another model, seed or version")
        return assignment, build
