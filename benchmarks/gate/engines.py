"""The shipped example in FP32, in all INT8 and with the first half of its groups in INT8, as engine files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.example import BATCH, MODEL, evaluator
from bitfront.verbs.analyses import layers
from search.values import Precision
from studies.options.config import SearchConfig

FP32, INT8, HALF = "fp32", "int8", "half"


def write_engines(folder: Path) -> dict[str, Path]:
    """Build the three engines in a folder; label → file."""
    files = {label: folder / f"{label}.onnx" for label in (FP32, INT8, HALF)}
    with evaluator(folder) as keeper:
        space = layers(SearchConfig(str(MODEL), "", batch=BATCH)).space
        fp32, int8 = space.uniform(Precision.FP32), space.uniform(Precision.INT8)
        first = list(int8)[: len(int8) // 2]
        half = fp32.replace({group: int8[group] for group in first})
        for label, assignment in ((FP32, fp32), (INT8, int8), (HALF, half)):
            keeper.build(assignment, files[label])
    return files
