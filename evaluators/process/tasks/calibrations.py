"""Ranges of the model's tensors, from calibration data or a calibration cache, and recovery under them."""

from __future__ import annotations

from collections.abc import Mapping

from evaluators.backends.onnxruntime.emulation import quickest
from evaluators.backends.registry import choose_backend, kind_named
from evaluators.calibration import activations
from evaluators.calibration import cache as calibration_cache
from evaluators.calibration.graph_sessions import float_tensors
from evaluators.cores import usable_processors
from evaluators.process.results import Calibrated, Recovered
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from evaluators.recovery.recover import CalibrationSamples, Subject, recover
from evaluators.recovery.registry import steps_of
from search.values import Ranges, digest_of


class Calibrations:
    """Implements `CalibrationRequests`."""

    def __init__(self, opened: OpenModel, data: OpenData) -> None:
        self._opened = opened
        self._data = data

    def find_key(self, method: str, cache: Mapping[str, float] | None = None, steps: str = "none") -> str:
        given = digest_of(dict(cache)) if cache else None
        opened, data = self._opened, self._data
        plain = activations.cache_key(
            opened.given.digest, data.calibration_data.digest, data.calibration_indices, method, given
        )
        tried = [[step.name, step.version] for step in steps_of(steps)]
        if not tried:
            return plain
        target = [opened.backend.placement.to_json(), opened.backend.capability().to_json()]
        return digest_of([plain, steps, tried, target, data.metric.name, data.final_data.digest])

    def calibrate(self, method: str, cache: Mapping[str, float] | None = None) -> Calibrated:
        if not cache:
            ranges = self._collect(method)
            return Calibrated(ranges, activations.notes(ranges))
        tensors = float_tensors(self._opened.given, self._threads())
        calibrated = None if set(tensors) <= cache.keys() else self._collect(method)
        taken = calibration_cache.take(cache, tensors, calibrated)
        return Calibrated(taken.ranges, [*taken.notes(), *activations.notes(taken.ranges)])

    def recover(self, ranges: Ranges, method: str, steps: str, seconds: float) -> Recovered:
        opened, data = self._opened, self._data
        subject = Subject(
            opened.given,
            opened.backend.capability(),
            opened.backend.placement,
            data.metric,
            CalibrationSamples(data.calibration_data, data.calibration_indices),
            data.final_samples,
            method,
        )
        with quickest(opened.backend, opened.job.device, opened.given.graph) as emulator:
            found, record = recover(
                subject,
                emulator,
                steps,
                steps_of(steps),
                ranges,
                seconds=seconds,
                done=opened.tell_progress,
                alive=opened.tell_alive,
            )
        return Recovered(found, record)

    def _collect(self, method: str) -> Ranges:
        return activations.collect(
            self._opened.given,
            self._data.calibration_data,
            self._data.calibration_indices,
            method,
            threads=self._threads(),
            progress=self._opened.tell_progress,
        )

    def _threads(self) -> int:
        """Calibration runs on the processor; where candidates do too, on as many threads as they, else on its share."""
        job = self._opened.job
        if kind_named(choose_backend(job.backend)).runs_on_gpu(job.device):
            return usable_processors()
        return int(job.options.get("threads", 1))
