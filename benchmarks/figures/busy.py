"""Is a latency the same on a busy machine? FP32 ÷ INT8 beside 8 and 20 busy processes, and without them.

A run is what a search does for one evaluation: a fresh session of all INT8, measured in turn with FP32 by processor
time on one pinned thread. Runs without load and with it take turns, so that what other guests of the host do meets all
of them alike. The load shares two cores with the measurement, and every process of it ends by itself.

usage: python -m benchmarks.figures.busy [--runs 20]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.example import BATCH, load_text, pinned
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.session import open_session
from evaluators.calibration.activations import collect
from evaluators.data.opening import open_data
from evaluators.measure.latency import measure
from search.graph.model import load
from search.space.choices import make_space
from search.values import Latency, Precision

NETWORKS = {
    "exposures": ROOT / "examples/exposures/exposures.onnx",
    "residual": ROOT / "benchmarks/peers/data/residual.onnx",
    "encoder": ROOT / "benchmarks/peers/data/encoder.onnx",
    "mobile": ROOT / "benchmarks/peers/data/mobile.onnx",
}
LOADS = (0, 8, 20)
WITHIN = 0.05
CORES = 2
_SAMPLES = 64
_LONGEST_S = 3600
# It ends with this process, however that ends.
_BUSY = """
import os, sys, time
end, keeper = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
while time.monotonic() < end and os.getppid() == keeper:
    pass
"""


def main(runs: int = 20) -> dict[str, float]:
    """`NETWORK.LOAD`: share of runs whose ratio is within 5 % of the median without load; `NETWORK.ratio`: that median;
    `NETWORK.LOAD.range`: largest less smallest ratio over it; `doubtful.LOAD`: share of runs that stay doubtful.
    """
    print(f"{load_text()}; {runs} runs each")
    with tempfile.TemporaryDirectory() as folder, two_cores():
        engines = {name: write_engines(name, Path(folder)) for name in NETWORKS}
        with busy_processes(max(LOADS)) as load_with, pinned():
            found: dict[tuple[str, int], list[Latency]] = {(name, n): [] for name in NETWORKS for n in LOADS}
            for _ in range(runs):
                for count in LOADS:
                    with load_with(count):
                        for name, pair in engines.items():
                            found[name, count].append(measure_pair(pair))
    return told(found)


def write_engines(name: str, folder: Path) -> dict[str, Any]:
    """Files of all FP32 and all INT8, with ranges of random samples, and inputs to run them on."""
    backend = OnnxRuntimeBackend(threads=1)
    model = load(NETWORKS[name], batch=BATCH)
    random = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        spec.name: random.random((_SAMPLES, *spec.shape[1:])).astype(spec.dtype) for spec in model.inputs
    }
    np.savez(folder / f"{name}.npz", **arrays)
    dataset = open_data(str(folder / f"{name}.npz"), model.inputs)
    ranges = collect(model, dataset, np.arange(_SAMPLES), "minmax", threads=1)
    space = make_space(model, backend.capability(), ranges)
    found: dict[str, Any] = {"inputs": {key: array[:BATCH] for key, array in arrays.items()}, "backend": backend}
    for precision in (Precision.FP32, Precision.INT8):
        found[precision.label] = folder / f"{name}.{precision.label}.onnx"
        ir.save(backend.builder(model, ranges).lower(space.uniform(precision)), found[precision.label])
    return found


def measure_pair(engines: Mapping[str, Any]) -> Latency:
    """All INT8, with all FP32 as its baseline."""
    device, target = engines["backend"].device, engines["backend"].target()
    with ExitStack() as stack:
        sessions = []
        for label in ("int8", "fp32"):
            session = open_session(device, engines[label], device.session_options())
            sessions.append(stack.enter_context(closing(session)))
            session.bind(engines["inputs"])
            session.run(engines["inputs"])
        return measure(sessions[0], baseline=sessions[1], statistic=target.statistic, clock=target.clock, tries=2)


@contextmanager
def two_cores() -> Iterator[None]:
    """On two of the allowed cores, so that a load means the same on every machine."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:CORES])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_processes(most: int) -> Iterator[Any]:
    """Busy processes that stand still; what is given lets some of them run for the time of a context."""
    words = [sys.executable, "-c", _BUSY, str(_LONGEST_S), str(os.getpid())]
    processes = [subprocess.Popen(words) for _ in range(most)]

    @contextmanager
    def load_with(count: int) -> Iterator[None]:
        for process in processes[:count]:
            process.send_signal(signal.SIGCONT)
        try:
            yield
        finally:
            for process in processes[:count]:
                process.send_signal(signal.SIGSTOP)

    try:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        yield load_with
    finally:
        for process in processes:
            process.kill()
            process.wait()


def told(found: Mapping[tuple[str, int], list[Latency]]) -> dict[str, float]:
    result: dict[str, float] = {}
    print("network    load FP32 ÷ INT8  lowest highest within 5 % doubtful")
    for (name, count), latencies in found.items():
        ratios = ratios_of(latencies)
        quiet = float(np.median(ratios_of(found[name, 0])))
        within = np.abs(ratios / quiet - 1) <= WITHIN
        doubtful = sum(bool(each.warnings) for each in latencies)
        result |= {f"{name}.{count}": float(within.mean()), f"{name}.{count}.range": float(np.ptp(ratios) / quiet)}
        result[f"{name}.ratio"] = quiet
        result[f"doubtful.{count}"] = result.get(f"doubtful.{count}", 0.0) + doubtful / len(latencies) / len(NETWORKS)
        print(
            f"{name:10} {count:4} {np.median(ratios):11.3f} {ratios.min():7.3f} {ratios.max():7.3f} "
            f"{within.sum():4} of {len(ratios):2} {doubtful:8}  wall ÷ processor time {stretch_of(latencies):.1f}"
        )
    return result


def ratios_of(latencies: list[Latency]) -> NDArray[np.float64]:
    return np.array([(each.baseline_ms or np.nan) / each.raw_ms for each in latencies])


def stretch_of(latencies: list[Latency]) -> float:
    return float(np.median([(each.wall_ms or np.nan) / each.raw_ms for each in latencies]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    main(parser.parse_args().runs)
