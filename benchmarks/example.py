"""What the benchmarks share: the example's files, an evaluator process on it, and paired differences."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from evaluators.cores import pin_to_one_cpu
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess

MODEL, DATA = ROOT / "examples/digits/digits.onnx", ROOT / "examples/digits/digits.npz"
BATCH = 16


@contextmanager
def evaluator(folder: Path) -> Iterator[EvaluatorProcess]:
    """An evaluator process on the example, calibrated by minmax."""
    job = Job(model=str(MODEL), data=str(DATA), folder=str(folder / "evaluator"), batch=BATCH, options={"threads": 1})
    with EvaluatorProcess(job, folder / "log") as keeper:
        ranges = folder / "ranges.json"
        ranges.write_text(json.dumps(keeper.ask().calibrations.calibrate("minmax").ranges.to_json()))
        keeper.adopt(ranges=str(ranges))
        yield keeper


@contextmanager
def pinned() -> Iterator[None]:
    """On one processor meanwhile: processes started later must not inherit it."""
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    pin_to_one_cpu()
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def paired(better: NDArray[Any], worse: NDArray[Any]) -> tuple[float, float]:
    """Mean of `better - worse` over the same samples, and half the width of its 95 % interval."""
    difference = np.asarray(better, float) - np.asarray(worse, float)
    return float(difference.mean()), float(1.96 * difference.std(ddof=1) / np.sqrt(len(difference)))


def load_text() -> str:
    """How busy the machine is, for whoever reads the figures."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
