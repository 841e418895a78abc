"""The context of recovery steps: the model, its samples, and INT8 as the target would run it."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from evaluators.backends.onnxruntime.emulation import Emulated, Emulator
from evaluators.data import Batch
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import Lowered
from evaluators.lowering.placement import Placement
from search.graph.model import Model
from search.values import Assignment, Precision, Ranges, Recovery, TensorRange

Samples = Callable[[], Iterable[Batch]]
"""Gives the same batches in the same order at every call."""


class Calibrate(Protocol):
    """Calibrates a model on the fitting samples."""

    def __call__(self, model: Model, method: str | None = None) -> Ranges:
        """Ranges without a recovery; by the user's method, or by another one of `calibration.activations.METHODS`."""


class Clip(Protocol):
    """Finds narrower ranges on the fitting samples."""

    def __call__(
        self, model: Model, known: Ranges, methods: Sequence[str], tensors: Container[str]
    ) -> list[dict[str, TensorRange]]:
        """Ranges of some tensors by several methods, as `calibration.activations.collect_clipped` gives them."""


@dataclass(frozen=True)
class RecoveryContext:
    """One model on one target, before any engine is built.

    Attributes:
        given: the user's clean model, nothing recovered.
        placement: how the target writes INT8.
        assignment: what is to be recovered: `precision` for every group that the target offers it for, FP32 for the
            others; or one mix, whose biases are corrected.
        emulator: runs lowered graphs as the target would, for errors.
        fitting: calibration samples that steps fit to.
        held_out: calibration samples that decide what is kept.
        calibrate_model: ranges of a model on the fitting samples.
        clip_model: ranges of some of its tensors by several methods at once.
        seconds_left: of the time that all steps have together.
        alive: to be called now and then in long work.
        precision: of the ops that are to be changed.
    """

    given: Model
    placement: Placement
    assignment: Assignment
    emulator: Emulator
    fitting: Samples
    held_out: Samples
    calibrate_model: Calibrate
    clip_model: Clip
    seconds_left: Callable[[], float]
    alive: Callable[[], None]
    precision: Precision = Precision.INT8

    def model(self, recovery: Recovery) -> Model:
        """The float model with the factors of a recovery."""
        return self.given.scale_constants(recovery.factors)

    def calibrate(self, recovery: Recovery, method: str | None = None) -> Ranges:
        """Calibrate the model with the factors of a recovery; its corrections are handed on as they are."""
        return replace(self.calibrate_model(self.model(recovery), method), recovery=recovery)

    def clip(self, ranges: Ranges, methods: Sequence[str], tensors: Container[str]) -> list[dict[str, TensorRange]]:
        """Ranges of some tensors by each of several methods, in one run; `ranges` are those of `calibrate`."""
        return self.clip_model(self.model(ranges.recovery), ranges, methods, tensors)

    def open_float(self, recovery: Recovery) -> Emulated:
        """The float model with the factors of a recovery, ready to run."""
        return self.emulator.open(self.model(recovery).graph)

    def open_quantized(self, ranges: Ranges) -> Emulated:
        """What is to be recovered, under these ranges and what they recovered, ready to run."""
        return self.emulator.open(spelled_out(self.lower_quantized(ranges).model))

    def lower_quantized(self, ranges: Ranges) -> Lowered:
        """What is to be recovered, lowered, for several ranges one after the other."""
        return Lowered(self.model(ranges.recovery), self.assignment, ranges, self.placement)
