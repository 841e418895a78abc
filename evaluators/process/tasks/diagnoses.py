"""Diagnoses of engines and of the model."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator, beside_others, every_core, open_file, quickest
from evaluators.cores import usable_processors
from evaluators.diagnose.compare import EngineComparison
from evaluators.diagnose.compare_run import compare_engine, refusals
from evaluators.diagnose.group_error import SensitivityPass
from evaluators.diagnose.local_noise import Network
from evaluators.diagnose.sensitivity import sensitivity
from evaluators.diagnose.wrapper.fault import WrapperComparison
from evaluators.diagnose.wrapper.wrapper_run import compare_wrapper
from evaluators.engine_files import KnownGroup, read_engine_built_here, with_profile, write_layers
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import Placement
from evaluators.measure import accuracy
from evaluators.measure.flips import count_flips
from evaluators.measure.output_noise import OutputNoise
from evaluators.measure.scoring import NonFiniteError
from evaluators.process.results import EmulatedScore, FloatComparison
from evaluators.process.tasks.float_baseline import FloatBaseline
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.graph.shapes import read_input_values
from search.space.choices import make_space
from search.values import REFERENCE, Assignment, Precision, Ranges


class Diagnoses:
    """Implements `DiagnosisRequests`."""

    def __init__(self, opened: OpenModel, data: OpenData, baseline: FloatBaseline) -> None:
        self._opened = opened
        self._data = data
        self._baseline = baseline

    def compare(self, engine: Path, assignment: Assignment, groups: bool, samples: int) -> EngineComparison:
        opened, data = self._opened, self._data
        indices = data.final_indices[:samples]
        count = len(indices)
        labels = data.final_data.labels(indices) if data.final_data.has_labels else None
        return compare_engine(
            opened.backend,
            opened.builder,
            opened.model,
            opened.ranges,
            engine,
            assignment,
            lambda: data.final_batches(count),
            count_flips=partial(count_flips, labels=labels, indices=indices) if data.scores_classes else None,
            groups=groups,
            done=lambda done: opened.tell_progress(done, count),
        )

    def compare_wrapper(self, engine: Path, outputs: Path, samples: int, threshold_db: float) -> WrapperComparison:
        opened, data = self._opened, self._data
        reference = OnnxRuntimeBackend("cpu", threads=usable_processors())
        with (
            refusals(f"comparing the outputs in {outputs}"),
            closing(opened.builder.load(engine)) as session,
            closing(reference.plain_session(opened.model.graph)) as exact,
        ):
            return compare_wrapper(
                outputs,
                session,
                exact,
                data.final_batches_at,
                samples=len(data.final_data),
                most=samples,
                threshold_db=threshold_db,
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

    def score_emulated(self, assignment: Assignment, allowed_drop: float | None = None) -> EmulatedScore:
        opened, data, reference = self._opened, self._data, self._baseline.reference("search")
        graph = spelled_out(lower(opened.model, assignment, opened.ranges, opened.backend.placement))
        with self._emulator(None) as emulator, closing(data.scored_batches("search")) as batches:
            try:
                return EmulatedScore(
                    accuracy.evaluate(
                        emulator.open(graph),
                        data.metric,
                        batches,
                        reference,
                        allowed_drop=allowed_drop,
                        clusters=data.score_orders["search"].clusters,
                    )
                )
            except NonFiniteError as error:
                return EmulatedScore(None, str(error))

    def _emulator(self, placement: Placement | None) -> AbstractContextManager[Emulator]:
        opened = self._opened
        if placement is None:
            return quickest(opened.backend, opened.job.device, opened.model.graph)
        return beside_others(placement)

    def _lower_pairs(self, ranges: Ranges) -> list[tuple[str, Precision]]:
        choices = make_space(self._opened.model, self._opened.backend.capability(), ranges).choices
        return [
            (g, c.precision) for g, some in choices.items() for c in some if c.offered and c.precision is not REFERENCE
        ]

    def compare_float(self, file: Path, samples: int) -> FloatComparison:
        opened, data = self._opened, self._data
        path = Path(opened.job.model)
        fixed = read_input_values(onnx.load(str(path), load_external_data=False), opened.job.input_values, path)
        if opened.user_model.origin:  # the file is no float model: what was made of it when it was loaded is
            path, fixed = opened.folder / "given.onnx", {}
            opened.user_model.save(path)
        with every_core() as cores:
            user, written = (open_file(path, cores) for path in (path, file))
            noise, equal, floats = OutputNoise(by_channel=False), True, False
            for batch in data.final_batches(samples):
                reference, outputs = user.run({**batch.inputs, **fixed}), written.run(batch.inputs)
                noise.add(outputs, reference, np.ones(batch.count))
                equal &= all(np.array_equal(outputs[name], array) for name, array in reference.items())
                floats = any(array.dtype.kind == "f" for array in reference.values())
        error = noise.error if math.isfinite(noise.error) else None
        return FloatComparison(equal, error, floats, min(samples, len(data.final_indices)))

    def write_layers(self, engine: Path, folder: Path, reasons: Mapping[str, str], count: int) -> bool:
        opened = self._opened
        with (
            tempfile.TemporaryDirectory(dir=opened.folder) as scratch,
            refusals(f"reading the layers of {engine.name}"),
        ):
            layers_path = Path(scratch) / "layers"
            if not opened.builder.write_layers(engine, layers_path):
                return False
            with opened.alone():
                times = opened.builder.profile(engine, self._data.first_batch(), count)
            engine_file = read_engine_built_here(layers_path, f"engine of {opened.target.backend}")
        groups = {g.id: KnownGroup(g.anchors, reasons.get(g.id, "")) for g in opened.model.groups}
        write_layers(folder, with_profile(engine_file, times, groups), count)
        return True

    def read_types(self, engine: Path) -> Mapping[str, str]:
        model = self._opened.model
        with refusals("reading an engine's types"), closing(self._opened.builder.load(engine)) as session:
            return {spec.name: spec.dtype for spec in (*model.inputs, *model.outputs)} | dict(session.types)
