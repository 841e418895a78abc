"""Ranges of the model's tensors, from calibration data or a calibration cache."""

from __future__ import annotations

from collections.abc import Mapping

from evaluators.backends.registry import choose_backend, kind_named
from evaluators.calibration import activations
from evaluators.calibration import cache as calibration_cache
from evaluators.calibration.graph_sessions import float_tensors
from evaluators.cores import usable_processors
from evaluators.process.results import Calibrated
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.values import Ranges, digest_of


class Calibrations:
    """Implements `CalibrationRequests`."""

    def __init__(self, opened: OpenModel, data: OpenData) -> None:
        self._opened = opened
        self._data = data

    def find_key(self, method: str, cache: Mapping[str, float] | None = None) -> str:
        given = digest_of(dict(cache)) if cache else None
        data = self._data
        return activations.cache_key(
            self._opened.model.digest, data.calibration_data.digest, data.calibration_indices, method, given
        )

    def calibrate(self, method: str, cache: Mapping[str, float] | None = None) -> Calibrated:
        if not cache:
            ranges = self._collect(method)
            return Calibrated(ranges, activations.notes(ranges))
        tensors = float_tensors(self._opened.model, self._threads())
        calibrated = None if set(tensors) <= cache.keys() else self._collect(method)
        taken = calibration_cache.take(cache, tensors, calibrated)
        return Calibrated(taken.ranges, [*taken.notes(), *activations.notes(taken.ranges)])

    def _collect(self, method: str) -> Ranges:
        return activations.collect(
            self._opened.model,
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
