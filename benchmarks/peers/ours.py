"""All INT8 by bitfront: calibration samples go in, an ONNX file for ONNX Runtime comes out.

    python -m benchmarks.peers.ours none MODEL CALIBRATION.npz OUT.onnx

The word before the model is what `--recover` is given. Every quantization is a process of its own, so that its time
and memory are its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.peers.cases import Case
from benchmarks.peers.quantizers import Run, count_float_ops
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from search.graph import onnx_file
from search.graph.model import load
from search.space.choices import make_space
from search.values import Precision, RecoveryRecord

RECOVERIES = ("none", "auto")
_BATCH = 50
_RECOVERY_S = 600.0  # more than a search would give it: a busy machine must not decide what is tried
_DECODERS = {"map": "yolov8"}


def quantize(recover: str, model: Path, calibration: Path, out: Path, metric: str) -> Run:
    """Quantize in a process of its own; raises RuntimeError with its last lines where it fails."""
    words = [sys.executable, "-m", "benchmarks.peers.ours", recover, model, calibration, out, "--metric", metric]
    done = subprocess.run([str(word) for word in words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"quantizing {model.name} with --recover {recover}:\n{done.stderr[-1500:]}")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def write_int8(job: Job, recover: str, out: Path) -> RecoveryRecord | None:
    """Write the model all INT8, with what recovery kept; what recovery tells of it."""
    record = None
    with EvaluatorProcess(job, Path(job.folder) / "log") as keeper:
        ranges = keeper.ask().calibrations.calibrate("auto").ranges
        if recover != "none":
            recovery = keeper.ask().calibrations.recover(ranges, "auto", recover, _RECOVERY_S)
            ranges, record = recovery.ranges, recovery.record
    backend = OnnxRuntimeBackend(threads=1)
    model = load(Path(job.model), batch=job.batch).scale_constants(ranges.recovery.factors)
    space = make_space(model, backend.capability(), ranges)
    onnx_file.write(backend.builder(model, ranges).lower(space.uniform(Precision.INT8)), out)
    return record


def job_of(model: Path, calibration: Path, metric: str, folder: Path) -> Job:
    """The calibration samples are all data there are: nothing of what is scored later is seen."""
    data = str(calibration)
    return Job(
        model=str(model),
        data=data,
        calibration_data=data,
        final_data=data,
        folder=str(folder),
        batch=Case("", "", metric, file=model).batch or _BATCH,
        metric=metric,
        decode=_DECODERS.get(metric),
    )


def describe_steps(record: RecoveryRecord | None) -> list[dict[str, Any]]:
    """For each recovery step that was tried: whether it was kept, why, and how long it took."""
    steps = () if record is None else record.steps
    return [{key: getattr(step, key) for key in ("name", "kept", "reason", "seconds")} for step in steps]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recover", choices=RECOVERIES)
    for name in ("model", "calibration", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--metric", default="top1")
    arguments = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        job = job_of(arguments.model, arguments.calibration, arguments.metric, Path(folder))
        record = write_int8(job, arguments.recover, arguments.out)
    seconds = time.perf_counter() - start
    arguments.out.with_suffix(".steps.json").write_text(json.dumps(describe_steps(record), indent=1))
    peak = 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    versions = {"bitfront": version("bitfront"), "onnxruntime": version("onnxruntime")}
    run = Run(f"bitfront-{arguments.recover}", seconds, peak, versions, count_float_ops(arguments.out))
    sys.stdout.write(f"{json.dumps(asdict(run))}\n")


if __name__ == "__main__":
    main()
