"""Scores and times that the simulations of `bitfront gate` resample: `benchmarks/gate/data/digits.npz`.

Three engines of the shipped example are scored on its 5,000 samples, by top1 and by SQNR against FP32. Three copies of
the FP32 engine are timed in turn in fresh processes, as a gate does it.

usage: python -m benchmarks.gate.record [--processes 24]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.example import BATCH, DATA, load_text
from benchmarks.gate.engines import FP32, HALF, INT8, write_engines
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess

STORED = Path(__file__).parent / "data" / "digits.npz"
ROUNDS = 40
COPIES = ("candidate", "baseline", "copy")


def main(processes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = {label: str(path) for label, path in write_engines(folder).items()}
        job = Job(model="", data=str(DATA), folder=str(folder / "work"), batch=BATCH, options={"threads": 1})
        scored = replace(job, engine_files={"baseline": files[FP32], INT8: files[INT8], HALF: files[HALF]})
        found: dict[str, Any] = {}
        for metric in ("top1", "sqnr"):
            with EvaluatorProcess(replace(scored, metric=metric), folder / "log") as keeper:
                scores = keeper.ask("scoring").engine_files.score(("baseline", INT8, HALF))
            labels = {FP32: "baseline", INT8: INT8, HALF: HALF}
            dtype = np.uint8 if metric == "top1" else np.float32
            found |= {f"{metric}_{label}": scores.scores[key].astype(dtype) for label, key in labels.items()}
            assert scores.clusters is not None
            found["clusters"] = scores.clusters.astype(np.int32)
        times, loads = [], []
        with EvaluatorProcess(replace(job, engine_files=dict.fromkeys(COPIES, files[FP32])), folder / "log") as keeper:
            for number in range(processes):
                keeper.close()
                measured = keeper.ask("timing").engine_files.time(COPIES, ROUNDS)
                times.append([measured[label].raw_ms for label in COPIES])
                loads.append(os.getloadavg()[0])
                print(f"process {number + 1} of {processes}: {times[-1]}, {load_text()}", flush=True)
    np.savez_compressed(STORED, times_ms=np.array(times), load=np.array(loads), **found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=24)
    main(parser.parse_args().processes)
