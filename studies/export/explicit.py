"""A mix written out for strongly typed networks of TensorRT: an ONNX file with Q/DQ and Cast.

It is to run a mix that was found with weak typing (TensorRT 8.6 to 10.x) on 10.x and 11.x. It rounds where listings of
weakly typed engines show that they round; `benchmarks/results/twin.md` says how near it comes.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import onnx_ir as ir

from evaluators.backends.kind import SOURCE_FILE
from evaluators.backends.tensorrt.options import NAME, STRONG
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT_TWIN
from search.errors import ConfigError
from search.graph import onnx_file
from search.graph.model import Model
from search.values import Assignment, Ranges, Target
from studies.run.work import Work

EXPLICIT_FILE = "model.strong.onnx"
_SAMPLES = 64


def explicit_graph(model: Model, assignment: Assignment, ranges: Ranges) -> ir.Model:
    """The mix as ONNX with Q/DQ and Cast.

    Args:
        model: the clean model, without the factors of the ranges' recovery.

    Raises:
        ModelError: a tensor that has to be quantized has no range.
    """
    scaled = model.scale_constants(ranges.recovery.factors)
    return lower(scaled, assignment, ranges, TENSORRT_TWIN)


def check_typing(typing: str | None, target: Target | None = None) -> None:
    """Refuse a typing that nothing is written for.

    Args:
        target: of the study; None if it is not known yet, or there is none.

    Raises:
        ConfigError: it is not strong, or the study's engines are not weakly typed ones of TensorRT.
    """
    if typing not in (None, STRONG):
        raise ConfigError(f"--typing {typing}: expected strong, which writes the mix out for strongly typed networks.")
    if typing is None or target is None:
        return
    if target.backend != NAME:
        raise ConfigError(f"--typing {typing}: this study ran on backend {target.backend}, not {NAME}. Leave it out.")
    if target.options.get("typing") == STRONG:
        raise ConfigError(
            f"--typing {typing}: this study is strongly typed, so {SOURCE_FILE} of its exports has the mix already. "
            "Leave it out."
        )


def write_explicit(folder: Path, work: Work, assignment: Assignment) -> dict[str, Any]:
    """Write `EXPLICIT_FILE` into an export, and run it beside the user's file in ONNX Runtime.

    Returns:
        What the manifest says of it.
    """
    path, ranges = folder / EXPLICIT_FILE, work.ledger.ranges().for_mix(assignment)
    onnx_file.write_any_size(explicit_graph(work.problem.model, assignment, ranges), path)
    comparison = work.bench.keeper.ask("checking the explicit model").diagnoses.compare_float(path, _SAMPLES)
    sqnr_db = None if not comparison.error else -10 * math.log10(comparison.error)
    return {"file": EXPLICIT_FILE, "sqnr_db": sqnr_db, "samples": comparison.samples}
