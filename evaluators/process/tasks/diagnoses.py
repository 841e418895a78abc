"""A closer look at engines and at the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

from evaluators.backends.onnxruntime.emulation import Emulator, beside_others, quickest
from evaluators.diagnose.compare import EngineComparison
from evaluators.diagnose.compare_run import compare_engine, refusals
from evaluators.diagnose.group_error import SensitivityPass
from evaluators.diagnose.local_noise import Network
from evaluators.diagnose.sensitivity import sensitivity
from evaluators.lowering.placement import Placement
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.space.choices import make_space
from search.values import Assignment, Precision, Ranges


class Diagnoses:
    """Implements `DiagnosisRequests`."""

    def __init__(self, opened: OpenModel, data: OpenData) -> None:
        self._opened = opened
        self._data = data

    def compare(self, engine: Path, assignment: Assignment, groups: bool, samples: int) -> EngineComparison:
        opened, data = self._opened, self._data
        count = len(data.final_indices[:samples])
        return compare_engine(
            opened.backend,
            opened.builder,
            opened.model,
            opened.ranges,
            engine,
            assignment,
            lambda: data.final_batches(count),
            groups=groups,
            done=lambda done: opened.tell_progress(done, count),
        )

    def measure_sensitivity(
        self,
        seconds: float,
        pairs: Sequence[tuple[str, Precision]] | None = None,
        placement: Mapping[str, Any] | None = None,
    ) -> SensitivityPass:
        opened, data = self._opened, self._data
        chosen = None if placement is None else Placement.from_json(placement)
        network = Network(opened.model, opened.ranges, chosen or opened.backend.placement)
        with self._emulator(chosen) as emulator:
            return sensitivity(
                emulator,
                network,
                self._lower_pairs(network.ranges) if pairs is None else pairs,
                data.search_indices,
                data.search_batches,
                seconds=seconds,
                done=opened.tell_progress,
                alive=opened.tell_alive,
            )

    def _emulator(self, placement: Placement | None) -> AbstractContextManager[Emulator]:
        opened = self._opened
        if placement is None:
            return quickest(opened.backend, opened.job.device, opened.model.graph)
        return beside_others(placement)

    def _lower_pairs(self, ranges: Ranges) -> list[tuple[str, Precision]]:
        choices = make_space(self._opened.model, self._opened.backend.capability(), ranges).choices
        return [
            (g, c.precision)
            for g, some in choices.items()
            for c in some
            if c.offered and c.precision is not Precision.FP32
        ]

    def read_types(self, engine: Path) -> Mapping[str, str]:
        model = self._opened.model
        with refusals("reading an engine's types"), closing(self._opened.builder.load(engine)) as session:
            return {spec.name: spec.dtype for spec in (*model.inputs, *model.outputs)} | dict(session.types)
