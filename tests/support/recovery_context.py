"""Contexts for tests of recovery steps: a network with samples, all of it in INT8 on the processor."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration.activations import collect_clipped
from evaluators.data import Batch
from evaluators.data.arrays import ArrayDataset, Shard
from evaluators.lowering.placement import Placement
from evaluators.measure.output_noise import sample_noise
from evaluators.recovery import RecoveryContext
from search.graph.model import Model
from search.values import Assignment, Precision, Ranges, Recovery, TensorRange
from tests.support.networks import feeds, observed

Arrays = dict[str, NDArray[Any]]


def context_of(
    model: Model,
    *,
    batches: int = 6,
    placement: Placement | None = None,
    spoil: Callable[[int, Arrays], Arrays] = lambda number, inputs: inputs,
    seconds: float = 1000.0,
) -> RecoveryContext:
    """A context whose samples are `feeds` of the model.

    Args:
        batches: to fit to, and as many that decide.
        spoil: changes some batches, by their numbers.
    """
    backend = OnnxRuntimeBackend("cpu", threads=1)
    samples = [Batch(spoil(number, feeds(model, number)), None, model.batch) for number in range(2 * batches)]
    wanted = placement or backend.placement
    return RecoveryContext(
        given=model,
        placement=wanted,
        assignment=Assignment({g.id: Precision.FP32 if g.pinned else Precision.INT8 for g in model.groups}),
        emulator=Emulator(backend, wanted),
        fitting=lambda: samples[:batches],
        held_out=lambda: samples[batches:],
        calibrate_model=lambda scaled, method=None: observed(scaled),
        clip_model=lambda scaled, *wanted: _clip(scaled, samples[:batches], *wanted),
        seconds_left=lambda: seconds,
        alive=lambda: None,
    )


def _clip(
    model: Model, fitting: Sequence[Batch], known: Ranges, methods: Sequence[str], tensors: Container[str]
) -> list[dict[str, TensorRange]]:
    arrays = {name: np.concatenate([batch.inputs[name] for batch in fitting]) for name in fitting[0].inputs}
    dataset = ArrayDataset([Shard("samples", lambda: arrays)], model.inputs)
    return collect_clipped(model, dataset, np.arange(len(dataset)), known, methods, tensors)


def output_error(context: RecoveryContext, ranges: Ranges, numbers: Sequence[int] = range(100, 108)) -> float:
    """Mean relative error of the outputs of all INT8, on batches that no step has seen."""
    exact, rough = context.open_float(Recovery()), context.open_quantized(ranges)
    samples = [feeds(context.given, number) for number in numbers]
    noise = [sample_noise(rough.run(inputs), exact.run(inputs), context.given.batch) for inputs in samples]
    return float(np.mean(noise))


def widen(ranges: Ranges, factor: float) -> Ranges:
    """The ranges with both ends of each multiplied by a factor."""
    wide = {name: TensorRange(r.low * factor, r.high * factor) for name, r in ranges.tensors.items()}
    return replace(ranges, tensors=wide)
