"""The float model of an export, and proof that the engine is the measured one: equal outputs, the same latency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.latency_scale import scale_latencies
from evaluators.process.keeper import EvaluatorProcess
from search.errors import ArtifactError
from search.values import RecoveryRecord

_TRIES = 3
_ROUNDS = 40
_FAR_OFF = 3  # tolerances from what the study measured, after which it is told
_NARROWEST_BAND = 0.01  # of a study that ended before it measured its own


@dataclass(frozen=True)
class MeasuredEngine:
    """What an export is compared with.

    Attributes:
        engine: the file that the study measured.
        latency_ms: what the study says that it takes.
        reference_ms: what the study's FP32 baseline usually takes; None where latencies are not scaled by it.
    """

    engine: Path
    latency_ms: float
    reference_ms: float | None


def check_outputs(keeper: EvaluatorProcess, measured: Path, written: Path) -> None:
    """Load both engines, what was written in a fresh process, and compare their outputs bit for bit.

    Raises:
        ArtifactError: they differ; it names the outputs.
    """
    doing = "comparing the outputs of the exported engine"
    expected = keeper.ask(doing).scores.run_final(measured)
    keeper.close()  # what was written has to run where nothing else was loaded before
    outputs = keeper.ask(doing).scores.run_final(written)
    different = [name for name in {**expected, **outputs} if not identical(expected.get(name), outputs.get(name))]
    if different:
        raise ArtifactError(
            f"checking the exported engine: outputs {', '.join(different)} differ from those of the engine that was "
            "measured. The export was removed; this is a bug or a broken disk."
        )


def identical(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    """Whether two arrays have one type, one shape and the same bits: 0.0 is not -0.0, a NaN is itself."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind in "OSU":
        return bool(np.all(one == other))
    return one.tobytes() == other.tobytes()


def default_tolerance(band: float) -> float:
    """How far an exported engine's latency may be from the measured one's, relative: the tie band, at least 1 %."""
    return max(band, _NARROWEST_BAND)


def check_latency(keeper: EvaluatorProcess, measured: MeasuredEngine, written: Path, allowed: float) -> dict[str, Any]:
    """Time what was written beside what was measured, until they tie, in a few tries.

    Latencies are not what the study measured, not even as ratios to FP32: 0.5 to 1.0 of it on two busy cores, and on an
    H200 of its own, where the tie band was 1 %, those of kept plans timed again later had moved by up to 4 %. But two
    equal engines that run in turn are equally late.

    Args:
        allowed: relative difference within which they tie.

    Returns:
        What the manifest says of it.
    """
    ratios: list[float] = []
    warnings: list[str] = []
    while not ratios or (abs(ratios[-1] - 1) > allowed and len(ratios) < _TRIES):
        if ratios:
            keeper.close()  # a fresh process each: where in memory an engine lies may be bad luck
        times = keeper.ask("timing the exported engine").timings.compare_latency(written, measured.engine, _ROUNDS)
        ratios.append(times.engine_ms / times.measured_ms)
        warnings += [f"try {len(ratios)}: {warning}" for warning in times.warnings]
    baseline_ms = np.nan if times.baseline_ms is None else times.baseline_ms
    return {
        "holds": abs(ratios[-1] - 1) <= allowed,
        "tolerance": allowed,
        "latency_ratio": ratios[-1],
        "latency_ratios": ratios,
        "tries": len(ratios),
        "latency_now_ms": float(scale_latencies(times.engine_ms, baseline_ms, measured.reference_ms)),
        "warnings": warnings,
    }


def moved_text(check: Mapping[str, Any], measured: MeasuredEngine) -> str:
    """That an engine's latency is far from what the study measured; empty if it is not."""
    now_ms, then_ms = check["latency_now_ms"], measured.latency_ms
    if abs(now_ms / then_ms - 1) <= _FAR_OFF * check["tolerance"]:
        return ""
    return (
        f"the engine takes {now_ms:.4g} ms now, the study measured {then_ms:.4g} ms. The device is busy, or its clocks "
        "have changed"
    )


def failure_text(check: Mapping[str, Any]) -> str:
    """What to tell of a latency check that failed; empty if it held."""
    if check["holds"]:
        return ""
    shown = ", ".join(f"{ratio:.3f}" for ratio in check["latency_ratios"])
    return (
        f"checking the latency of the exported engine: expected the latency of the measured engine, run "
        f"in turn with it, within {check['tolerance']:.1%}; in {check['tries']} tries it was {shown} times that. The "
        "outputs are equal, so the export was kept and its manifest says so. Something else may keep the device busy: "
        "export again when the device is idle, or allow more with --latency-tolerance."
    )


FLOAT_MODEL = "model.float.onnx"
_SAMPLES = 64
_ROUNDING = 1e-8  # most noise over power of two float models that differ by rounding alone
_FLIPPED = 1e-3  # most values that may differ of outputs that are no floats, say classes


def write_float_model(folder: Path, keeper: EvaluatorProcess, record: RecoveryRecord | None) -> dict[str, Any]:
    """Write `model.float.onnx` and run it beside the user's file.

    Args:
        record: of the recovery under whose ranges the process works; None if there was none.

    Returns:
        What a manifest says of it.

    Raises:
        ArtifactError: its outputs are not those of the user's file within float rounding.
    """
    path = folder / FLOAT_MODEL
    keeper.ask("writing the float model").builds.write_float_model(path)
    comparison = keeper.ask("checking the float model").diagnoses.compare_float(path, _SAMPLES)
    error = math.inf if comparison.error is None else comparison.error
    allowed = _ROUNDING if comparison.floats else _FLIPPED
    if not comparison.equal and error > allowed:
        raise ArtifactError(
            f"checking {FLOAT_MODEL}: expected the outputs of the user's model within float rounding, an error of at "
            f"most {allowed:g} on {comparison.samples} samples, got {error:.3g}. This is a bug: use --recover none."
        )
    steps = [step.name for step in record.kept_steps if step.exact] if record is not None else []
    outputs = "equal" if comparison.equal else "equal within rounding"
    return {
        "file": FLOAT_MODEL,
        "steps": steps,
        "outputs": outputs,
        "error": comparison.error,
        "samples": comparison.samples,
    }
