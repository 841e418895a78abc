"""Calibrating the model from data or a calibration cache, and recovery with the ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.emulation import Emulated, quickest
from evaluators.backends.registry import choose_backend, kind_named
from evaluators.calibration import activations
from evaluators.calibration import cache as calibration_cache
from evaluators.calibration.graph_sessions import float_tensors
from evaluators.calibration.observe_samples import choose_independent, observe_samples
from evaluators.calibration.sample_runs import SampleRuns, Steps, runs_of
from evaluators.calibration.sample_statistics import SampleStatistics
from evaluators.cores import worthwhile_threads
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.process.results import Calibrated, Recovered
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from evaluators.recovery.recover import Budget, CalibrationSamples, Subject, correct_mix, recover
from evaluators.recovery.registry import steps_of
from evaluators.recovery.sample_choice import choose_samples
from search.space.choices import make_space
from search.space.range_rules import RangeRule, set_ranges
from search.space.rules import KeepRule, SampleChoice
from search.values import Assignment, Ranges, digest_of

Indices = NDArray[np.int64]
ALL = "all"


class Calibrations:
    """Implements `CalibrationRequests`."""

    def __init__(self, opened: OpenModel, data: OpenData) -> None:
        self._opened = opened
        self._data = data

    def find_key(self, method: str, cache: Mapping[str, float] | None = None, steps: str = "none") -> str:
        cache_digest = digest_of(dict(cache)) if cache else None
        opened, data = self._opened, self._data
        plain = activations.cache_key(
            opened.user_model.digest, data.calibration_data.digest, data.calibration_indices, method, cache_digest
        )
        job = opened.job
        chosen = [job.calibration_select, list(job.hand_ranges)]
        if chosen != [ALL, []]:
            plain = digest_of([plain, *chosen])
        tried = [[step.name, step.version] for step in steps_of(steps)]
        if not tried:
            return plain
        target = [opened.backend.placement.to_json(), opened.backend.capability().to_json()]
        kept = [*sorted(job.keep), *([["decide", *sorted(job.decide)]] if job.decide else [])]
        return digest_of([plain, steps, tried, target, data.metric.name, data.final_data.digest, *kept])

    def calibrate(self, method: str, cache: Mapping[str, float] | None = None) -> Calibrated:
        if not cache:
            ranges = set_ranges(self._opened.user_model.own.fix(self._collect_selected(method)), self._rules())
            return Calibrated(ranges, [*self._chosen_notes(ranges), *activations.notes(ranges)])
        tensors = float_tensors(self._opened.user_model, self._threads())
        calibrated = None if set(tensors) <= cache.keys() else self._collect_selected(method)
        taken = calibration_cache.take(cache, tensors, calibrated)
        ranges = set_ranges(taken.ranges, self._rules())
        return Calibrated(ranges, [taken.note(), *activations.notes(ranges)], taken.mismatches())

    def _rules(self) -> list[RangeRule]:
        return [RangeRule.parse(text) for text in self._opened.job.hand_ranges]

    def _collect_selected(self, method: str) -> Ranges:
        """Ranges from the samples that the job wants, which are looked for among all samples for calibration."""
        choice = SampleChoice.parse(self._opened.job.calibration_select)
        if choice is None:
            return self._collect(method)
        opened, data = self._opened, self._data
        model, indices = opened.user_model, data.calibration_indices
        with quickest(opened.backend, opened.job.device, model.graph) as emulator:

            def open_int8() -> Emulated:
                ranges = self._collect(method)
                int8 = make_space(model, opened.backend.capability(), ranges).coarsest
                return emulator.open(spelled_out(lower(model, int8, ranges, opened.backend.placement)))

            batches = data.calibration_batches(indices)
            chosen = choose_samples(choice, indices, batches, emulator.open(model.graph), open_int8)
        return replace(self._collect(method, chosen), selected=tuple(int(index) for index in chosen))

    def recover(
        self, ranges: Ranges, method: str, steps: str, seconds: float, wall_s: float | None = None
    ) -> Recovered:
        opened = self._opened
        with quickest(opened.backend, opened.job.device, opened.user_model.graph) as emulator:
            new_ranges, record = recover(
                self._subject(ranges, method),
                emulator,
                steps,
                steps_of(steps),
                ranges,
                budget=Budget(seconds, wall_s),
                done=opened.tell_progress,
                alive=opened.tell_alive,
            )
        return Recovered(new_ranges, record)

    def correct_mix(self, assignment: Assignment, method: str, seconds: float) -> Recovered:
        opened = self._opened
        ranges = opened.ranges
        with quickest(opened.backend, opened.job.device, opened.user_model.graph) as emulator:
            mix_ranges, record = correct_mix(
                self._subject(ranges, method),
                emulator,
                assignment,
                ranges,
                budget=Budget(seconds, wall_s=seconds),
                done=opened.tell_progress,
                alive=opened.tell_alive,
            )
        return Recovered(mix_ranges, record)

    def _subject(self, ranges: Ranges, method: str) -> Subject:
        opened, data = self._opened, self._data
        return Subject(
            opened.user_model,
            opened.backend.capability(),
            opened.backend.placement,
            data.metric,
            CalibrationSamples(data.calibration_data, self._indices_of(ranges)),
            data.final_samples,
            method,
            self._rules(),
            [KeepRule.parse(text) for text in self._opened.job.keep],
        )

    def observe_samples(self) -> SampleStatistics:
        opened, dataset, ranges = self._opened, self._data.calibration_data, self._opened.ranges
        chosen = choose_independent(dataset, self._indices_of(ranges), opened.model.batch)
        runs = Steps(opened.tell_progress, runs_of(opened.model, chosen))
        run = SampleRuns(opened.model, dataset, chosen, worthwhile_threads(), runs)
        return observe_samples(run, ranges, clusters=dataset.clusters is not None)

    def _indices_of(self, ranges: Ranges) -> Indices:
        """The samples that ranges were taken from, though calibration may have stopped before the last of them."""
        chosen = ranges.selected and not self._opened.job.undivided
        return np.array(ranges.selected, np.int64) if chosen else self._data.calibration_indices

    def _collect(self, method: str, indices: Indices | None = None) -> Ranges:
        return activations.collect(
            self._opened.user_model,
            self._data.calibration_data,
            self._data.calibration_indices if indices is None else indices,
            method,
            threads=self._threads(),
            whole=indices is not None,
            progress=self._opened.tell_progress,
        )

    def _chosen_notes(self, ranges: Ranges) -> list[str]:
        if ranges.selected:
            return [f"{len(ranges.selected)} samples were chosen, {self._opened.job.calibration_select}"]
        count = len(self._data.calibration_indices)
        if ranges.samples < count:
            return [f"{ranges.samples} of {count} samples were enough: half of them gave nearly the same ranges"]
        return [f"{count} samples were used"]

    def _threads(self) -> int:
        """Calibration runs on the processor; where candidates do too, on as many threads as they, else on its share."""
        job = self._opened.job
        if kind_named(choose_backend(job.backend)).runs_on_gpu(job.device):
            return worthwhile_threads()
        return int(job.options.get("threads", 1))
