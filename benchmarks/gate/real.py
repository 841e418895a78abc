"""Twenty gates of an engine against itself on the CPU, for real: none of them may fail.

Loss is checked on a random half of the example's samples, latency in fresh processes. Goes on where it was stopped.

usage: python -m benchmarks.gate.real [--runs 20] [--processes 6]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS
from benchmarks.example import BATCH, DATA
from benchmarks.gate.engines import INT8, write_engines
from studies import verbs
from studies.gate.limits import GateLimits

STORED = RESULTS / "gate_real.json"
LIMITS = {"max_drop": 0.005, "max_slowdown": 0.02}


def main(runs: int, processes: int) -> None:
    found: list[dict[str, Any]] = json.loads(STORED.read_text()) if STORED.exists() else []
    samples = dict(np.load(DATA))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = write_engines(folder)[INT8]
        for seed in range(len(found), runs):
            rows = np.random.default_rng(seed).permutation(len(samples["labels"]))[: len(samples["labels"]) // 2]
            np.savez(folder / "half.npz", **{key: array[np.sort(rows)] for key, array in samples.items()})
            report = verbs.gate(
                engine,
                engine,
                str(folder / "half.npz"),
                GateLimits(**LIMITS, processes=processes),
                changes={"batch": BATCH},
            )
            checks = {check.name: check.to_json() for check in report.checks}
            found.append({"verdict": report.verdict.value, "load": os.getloadavg()[0], "checks": checks})
            STORED.write_text(json.dumps(found, indent=1) + "\n")
            told = {name: check["verdict"] for name, check in checks.items()}
            print(f"run {seed + 1} of {runs}: {told}, load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--processes", type=int, default=6)
    given = parser.parse_args()
    main(given.runs, given.processes)
