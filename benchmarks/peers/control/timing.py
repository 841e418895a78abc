"""Latency of several ONNX files, in turns, by one pinned thread of one process: mean processor time in milliseconds.

    python -m benchmarks.peers.control.timing SAMPLES.npz fp32=model.onnx best=best.onnx [--rounds 30] [--reversed]

`measure` starts such a process several times. Every process opens the files anew, all with the same options of ONNX
Runtime and with the batch fixed, and prints one object: name → milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import ROOT
from benchmarks.example import pinned
from benchmarks.peers.cases import Case
from benchmarks.peers.control.engines import BATCH
from evaluators.backends.onnxruntime.device import OnnxRuntimeDevice
from evaluators.backends.onnxruntime.session import OnnxRuntimeSession
from evaluators.measure import latency

PROCESSES, ROUNDS = 10, 25


def measure(
    files: Mapping[str, Path], samples: Path, processes: int = PROCESSES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Time files by that many processes, every second one in reversed order.

    Returns:
        `ms`: name → (processes,) milliseconds; `load`: (processes,) the load before each of them.
    """
    times: dict[str, list[float]] = {name: [] for name in files}
    loads = []
    for number in range(processes):
        loads.append(round(os.getloadavg()[0], 2))
        words = [str(samples), "--rounds", str(rounds), *(f"{name}={path}" for name, path in files.items())]
        command = [sys.executable, "-m", "benchmarks.peers.control.timing", *words]
        said = subprocess.run(
            [*command, *(["--reversed"] if number % 2 else [])], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name, value in json.loads(said.stdout.splitlines()[-1]).items():
            times[name].append(value)
    return {"ms": times, "load": loads, "rounds": rounds}


def time_files(files: Mapping[str, Path], samples: Path, rounds: int) -> dict[str, float]:
    """Milliseconds of one inference of a batch, by file, in the order of `files`."""
    with np.load(samples, allow_pickle=False) as file:
        fixed = Case("", "", "", file=next(iter(files.values()))).batch or BATCH
        inputs = {name: file[name][:fixed] for name in file if name != "labels"}
    device = OnnxRuntimeDevice("cpu", 1)
    with pinned():
        sessions = {name: _open(device, path, inputs) for name, path in files.items()}
        blocks = latency.time_interleaved(sessions, rounds)
        for session in sessions.values():
            session.close()
    return {name: latency.statistic_of(samples_ms, "mean") for name, samples_ms in blocks.items()}


def _open(device: OnnxRuntimeDevice, path: Path, inputs: Mapping[str, Any]) -> OnnxRuntimeSession:
    options = device.session_options()
    for value in onnx.load(str(path)).graph.input:
        if batch := value.type.tensor_type.shape.dim[0].dim_param:
            options.add_free_dimension_override_by_name(batch, BATCH)
    session = OnnxRuntimeSession(device, path, options)
    session.bind(inputs)
    return session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("samples", type=Path)
    parser.add_argument("files", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--reversed", action="store_true")
    arguments = parser.parse_args()
    pairs = [(name, Path(path)) for name, _, path in (word.partition("=") for word in arguments.files)]
    times = time_files(dict(pairs[::-1] if arguments.reversed else pairs), arguments.samples, arguments.rounds)
    sys.stdout.write(f"{json.dumps(times)}\n")


if __name__ == "__main__":
    main()
