"""What an evaluator process opens, and the bounds of one evaluation, as plain values."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """Everything an evaluator process needs to start, as plain values, so that a fresh process can take over.

    Attributes:
        shapes: input name → [MIN, OPT, MAX].
        input_values: `NAME=VALUE` each, of inputs that are constants.
        known_shapes: of tensors that only a run tells, see `BuildRequests.measure_shapes`.
        options: keyword arguments of the backend.
        split_seed: of the division of the data into calibration, search and final.
        metric: name, or None for the default, which follows the model's outputs and the labels.
        shares: whether the first scores of an undeclared metric were found to be shares, see `Metric.as_shares`.
        decode: what gives boxes to a metric that reads boxes; None for its default.
        calibration_select: which calibration samples are used, see `recovery.sample_choice`.
        hand_ranges: `REGEX=LOW:HIGH` each.
        decide: what else has a precision of its own, as `Model.with_decisions` takes it.
        keep: `REGEX=PRECISION` each, of groups that recovery leaves in what the user keeps them in.
        capabilities: what a capabilities file leaves of what the backend offers, as `CapabilityRules.to_json` gives it.
        folder: where the process may keep files (FP32's outputs, candidates); its own, deleted with the study's run.
        max_samples: of each data set; None for all.
        caches: function that gives data → folder with its samples, read once.
        undivided: every split is all of the data: for data that nothing is chosen by.
        ranges: path of the calibrated ranges, once there are any.
        beside: another process measures on the device meanwhile: opening it takes turns with measurements.
        only_builds: the process only builds engines, for another one to measure. It opens neither data nor metric,
            never runs the float model, and answers only the requests `setup.adopt`, `setup.knobs` and `builds`.
        engine_files: label → engine file that the process runs as it is. It opens no model then, and answers only the
            requests `engine_files`.
    """

    model: str
    data: str
    folder: str
    batch: int | None = None
    shapes: Mapping[str, list[list[int]]] = field(default_factory=dict)
    input_values: Sequence[str] = ()
    known_shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    backend: str = "onnxruntime"
    device: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    capabilities: Mapping[str, Any] | None = None
    metric: str | None = None
    shares: bool = False
    decode: str | None = None
    calibration_data: str | None = None
    final_data: str | None = None
    preprocess: str | None = None
    max_samples: int | None = None
    caches: Mapping[str, str] = field(default_factory=dict)
    split_seed: int = 0
    calibration_select: str = "all"
    hand_ranges: Sequence[str] = ()
    undivided: bool = False
    decide: Sequence[str] = ()
    keep: Sequence[str] = ()
    ranges: str | None = None
    beside: bool = False
    only_builds: bool = False
    engine_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StopLimits:
    """What lets an evaluation stop early, because beyond it the candidate is lost anyway.

    Attributes:
        latency_ms: most latency.
        drop: most loss.
        value: worst value of the metric itself.
        reference_ms: what the baseline usually takes on relative targets, by which latencies become milliseconds; None
            before anything was measured.
    """

    latency_ms: float | None = None
    drop: float | None = None
    value: float | None = None
    reference_ms: float | None = None


def discard(out: Path) -> None:
    """Remove the engine at `out`, finished or not, and what its builder may have left beside it."""
    for path in (out, *out.parent.glob(f"{glob.escape(out.name)}.*")):
        path.unlink(missing_ok=True)


@contextmanager
def discard_on_error(out: Path) -> Iterator[None]:
    """Leave nothing at `out` where the context ends with an error."""
    try:
        yield
    except BaseException:
        discard(out)
        raise
