"""The float model of an export, with the changes of exact recovery steps, checked against the user's file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from evaluators.process.keeper import EvaluatorProcess
from search.errors import ArtifactError
from search.values import RecoveryRecord

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
    found = keeper.ask("checking the float model").diagnoses.compare_float(path, _SAMPLES)
    error, allowed = math.inf if found.error is None else found.error, _ROUNDING if found.floats else _FLIPPED
    if not found.equal and error > allowed:
        raise ArtifactError(
            f"checking {FLOAT_MODEL}: expected the outputs of the user's model within float rounding, an error of at "
            f"most {allowed:g} on {found.samples} samples, got {error:.3g}. This is a bug: use --recover none."
        )
    steps = [step.name for step in record.kept_steps if step.exact] if record is not None else []
    outputs = "equal" if found.equal else "equal within rounding"
    return {"file": FLOAT_MODEL, "steps": steps, "outputs": outputs, "error": found.error, "samples": found.samples}
