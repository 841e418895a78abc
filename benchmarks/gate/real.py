"""Twenty gates of an engine against itself, for real: none of them may fail.

The engine is the shipped example in all INT8 on the CPU, or with `--export` that of an exported folder, of TensorRT
too. Loss is checked on a random half of the samples, latency in fresh processes. Goes on where it was stopped.
`--table` runs nothing, and judges the stored times once more, also with no slowdown allowed: the worst case for an
alarm.

usage: python -m benchmarks.gate.real [--runs 20] [--processes 6] [--table]
       python -m benchmarks.gate.real --export FOLDER --data DATA.npz --stored gates.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.example import BATCH, DATA
from benchmarks.gate.engines import INT8, write_engines
from bitfront import verbs
from studies.gate.check import divide_level
from studies.gate.latency import ProcessTimes, judge_latency, measure_band
from studies.gate.limits import GateLimits

STORED = RESULTS / "gate_real.json"
LIMITS = {"max_drop": 0.005, "max_slowdown": 0.02}


def main(runs: int, processes: int, stored: Path, export: Path | None, data: Path) -> None:
    """Gate the example's engine, or that of an export, and store what came of it after each run."""
    found: list[dict[str, Any]] = json.loads(stored.read_text()) if stored.exists() else []
    samples = dict(np.load(data))
    count = len(next(iter(samples.values())))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = write_engines(folder)[INT8] if export is None else export
        for seed in range(len(found), runs):
            rows = np.random.default_rng(seed).permutation(count)[: count // 2]
            np.savez(folder / "half.npz", **{key: array[np.sort(rows)] for key, array in samples.items()})
            report = verbs.gate(
                engine,
                engine,
                str(folder / "half.npz"),
                GateLimits(**LIMITS, processes=processes),
                changes={"batch": BATCH} if export is None else {},  # the example's files leave it open
            )
            checks = {check.name: check.to_json() for check in report.checks}
            found.append({"verdict": report.verdict.value, "load": os.getloadavg()[0], "checks": checks})
            stored.write_text(json.dumps(found, indent=1) + "\n")
            told = {name: check["verdict"] for name, check in checks.items()}
            print(f"run {seed + 1} of {runs}: {told}, load {os.getloadavg()[0]:.1f}", flush=True)


def stored_times(check: dict[str, Any]) -> list[ProcessTimes]:
    """Times of the processes of a check, as multiples of the baseline's."""
    pairs = zip(check["ratios"], check["tie_ratios"], strict=True)
    return [ProcessTimes(ratio * math.sqrt(tie), 1.0, tie) for ratio, tie in pairs]


def tell(stored: Path) -> None:
    """Print how often the stored runs fail."""
    found = json.loads(stored.read_text())
    latencies = [stored_times(run["checks"]["latency"]) for run in found]
    for limit in (LIMITS["max_slowdown"], 0.0):
        verdicts = Counter(judge_latency(times, limit, divide_level(2)).verdict.value for times in latencies)
        print(f"latency, {limit:.0%} allowed: {dict(verdicts)}")
    print(f"loss: {dict(Counter(run['checks']['loss']['verdict'] for run in found))}")
    loads = [run["load"] for run in found]
    bands = sorted(measure_band(times) for times in latencies)
    print(f"{len(found)} runs, load average {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores")
    print(f"two copies differ by {bands[0]:.1%} to {bands[-1]:.1%}, in the median by {bands[len(bands) // 2]:.1%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--table", action="store_true", help="run nothing, judge the stored times again")
    parser.add_argument(
        "--export", type=Path, metavar="FOLDER", help="that `bitfront export` wrote, in place of the example"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="inputs by name and labels, as .npz; with --export")
    parser.add_argument("--stored", type=Path, default=STORED, help="where the runs are kept; with --export")
    given = parser.parse_args()
    if given.export is not None and (given.data == DATA or given.stored == STORED):
        parser.error("--export needs --data with samples of its model, and --stored with a file of its own")
    if not given.table:
        main(given.runs, given.processes, given.stored, given.export, given.data)
    tell(given.stored)
