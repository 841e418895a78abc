"""What a guard costs a serving process, and what its correction of outputs wins.

Cost: examples/digits in all INT8 is run with and without a guard in turn, in blocks of requests, on one core; the
guard's thread has the other cores. Before a block without a guard its thread has nothing left to do. p50 and p99 of
each round are ratios to the requests without a guard. The target is a p50 of at most 1.02 in the median round, and in
every round a p99 no farther above the one without a guard than the p99 of the rounds without a guard are apart. Import:
milliseconds of processor time and megabytes that `from studies.guard import Guard` adds to a process that has NumPy and
ONNX Runtime.
Correction: digits that slowly change their brightness, as frames of a video do, go through all INT8; the error of the
outputs against FP32 is told with and without `compensate=10`. Prints one line of JSON.

With `--exports` the same cost is measured with two exported folders, of TensorRT too, and nothing else is told. On a
GPU the shadow and the requests share the device, so the guarded p99 counts their meetings there.

usage: python -m benchmarks.guard.cost [--rounds 5] [--requests 2000]      # five minutes
       python -m benchmarks.guard.cost --exports FAST SAFE --data DATA.npz --batch 32
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.example import BATCH, DATA, MODEL, evaluator, load_text
from bitfront.verbs.analyses import layers
from evaluators.process.job import Limits
from search.values import Precision
from studies.guard import Guard, GuardOptions
from studies.guard.engines import Run, open_pair
from studies.options.config import SearchConfig

Arrays = Mapping[str, NDArray[Any]]
BLOCK = 50  # requests between two changes of whether there is a guard
MOST_P50 = 1.02
_IMPORT = """
import time, psutil, numpy, onnxruntime
process = psutil.Process()
before, start = process.memory_info().rss, time.process_time()
from studies.guard import Guard
print((time.process_time() - start) * 1e3, (process.memory_info().rss - before) / 2**20)
"""


def main(rounds: int = 5, requests: int = 2000) -> dict[str, Any]:
    """All figures by name; ratios are guarded over bare."""
    with tempfile.TemporaryDirectory() as name:
        int8 = write_int8(Path(name))
        fast, safe = engine(int8), engine(MODEL)
        images = np.load(DATA)[input_name(MODEL)]
        batches = split({input_name(MODEL): images}, BATCH)
        costs = [cost(fast, safe, batches, requests) for _ in range(rounds)]
        wins = compensation(fast, safe, images)
    imports = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True).stdout.split()
    return {
        **told(costs),
        "import_ms": round(float(imports[0]), 1),
        "import_mb": round(float(imports[1]), 1),
        **wins,
        "machine": load_text(),
    }


def of_exports(folders: Sequence[Path], data: Path, batch: int, rounds: int, requests: int) -> dict[str, Any]:
    """The cost with two exported folders; inputs are the arrays of `data` but labels and clusters."""
    fast, safe = open_pair(folders[0], folders[1], None, None)
    with np.load(data) as arrays:
        batches = split({name: arrays[name] for name in arrays if name not in ("labels", "clusters")}, batch)
    for inputs in batches[:20]:
        fast(inputs), safe(inputs)
    return {**told([cost(fast, safe, batches, requests) for _ in range(rounds)]), "machine": load_text()}


def told(costs: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """Ratios of each round, guarded over bare, how far the bare p99 of the rounds are apart, and what was met."""
    p50, p99, bare = (np.array(each) for each in zip(*costs, strict=True))
    spread = float(bare.max() / bare.min() - 1)
    return {
        "p50_ratio": p50.round(4).tolist(),
        "p50_ratio_median": round(float(np.median(p50)), 4),
        "p50_met": bool(np.median(p50) <= MOST_P50),
        "p99_ratio": p99.round(4).tolist(),
        "p99_ms_without": bare.round(4).tolist(),
        "p99_spread_without": round(spread, 4),
        "p99_met": bool((p99 <= 1 + spread).all()),
    }


def split(arrays: Arrays, batch: int) -> list[dict[str, NDArray[Any]]]:
    """Whole batches, in order."""
    samples = len(next(iter(arrays.values())))
    starts = range(0, samples - batch + 1, batch)
    return [{name: array[start : start + batch] for name, array in arrays.items()} for start in starts]


def write_int8(folder: Path) -> Path:
    """The example in all INT8, as bitfront builds it."""
    out = folder / "int8.onnx"
    with evaluator(folder) as keeper:
        looked = layers(SearchConfig(str(MODEL), "", batch=BATCH))
        keeper.evaluate(looked.space.uniform(Precision.INT8), out, Limits())
    return out


def engine(path: Path) -> Run:
    """A model in ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))


def input_name(path: Path) -> str:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return str(session.get_inputs()[0].name)


def cost(fast: Run, safe: Run, batches: Sequence[Arrays], requests: int) -> tuple[float, float, float]:
    """Ratios of p50 and p99, guarded over bare, of blocks of requests in turn; and the bare p99 in milliseconds."""
    bare: list[float] = []
    guarded: list[float] = []
    with guarded_on_other_cores(fast, safe) as guard:
        for block in range(-(-requests // BLOCK)):
            turns = ((fast, bare), (guard.run, guarded))
            for run, times in turns if block % 2 else turns[::-1]:
                times += time_requests(run, batches, block * BLOCK)
                guard.drain()
    ratios = [float(np.percentile(guarded, share) / np.percentile(bare, share)) for share in (50, 99)]
    return ratios[0], ratios[1], float(np.percentile(bare, 99))


def time_requests(run: Run, batches: Sequence[Arrays], first: int) -> list[float]:
    """Milliseconds of each request of a block."""
    times = []
    for i in range(first, first + BLOCK):
        inputs = batches[i % len(batches)]
        begun = time.perf_counter_ns()
        run(inputs)
        times.append((time.perf_counter_ns() - begun) / 1e6)
    return times


@contextmanager
def guarded_on_other_cores(fast: Run, safe: Run) -> Iterator[Guard]:
    """A guard whose thread may not run on the core that this thread has for itself meanwhile."""
    cores = os.sched_getaffinity(0)
    own = {min(cores)}
    if cores == own:
        sys.exit("the cost of a guard with a core of its own: expected two processor cores, got one")
    try:
        os.sched_setaffinity(0, cores - own)  # a thread inherits the cores of the one that starts it
        with Guard(fast, safe, GuardOptions(share=0.01, threshold=0), seed=0) as guard:
            os.sched_setaffinity(0, own)
            yield guard
    finally:
        os.sched_setaffinity(0, cores)


def compensation(fast: Run, safe: Run, images: NDArray[Any], frames: int = 400) -> dict[str, float]:
    """Mean square error of outputs against the safe engine's on a video-like stream and on unrelated samples."""
    name, found = input_name(MODEL), {}
    brightness = 1 + 0.3 * np.sin(np.arange(frames) / 40)[:, np.newaxis, np.newaxis, np.newaxis, np.newaxis]
    still = np.repeat(images[np.newaxis, :BATCH], frames, axis=0)
    streams = {
        "video": (still * brightness).astype(np.float32),
        "unrelated": np.stack(
            [images[np.random.default_rng(i).integers(0, len(images), BATCH)] for i in range(frames)]
        ),
    }
    for kind, stream in streams.items():
        for compensate in (0, 10):
            options = GuardOptions(share=0.2, threshold=0, compensate=compensate, queue=1000)
            with Guard(fast, safe, options, seed=0) as guard:
                errors = []
                for frame in stream:
                    errors.append(squared_error(guard.run({name: frame}), safe({name: frame})))
                    guard.drain()
            found[f"{kind}_error_{'with' if compensate else 'without'}"] = float(np.mean(errors))
    return found


def squared_error(outputs: Arrays, wanted: Arrays) -> float:
    return float(np.mean([np.mean((outputs[name] - wanted[name]) ** 2) for name in wanted]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=2000, help="of each round, with and without a guard each")
    parser.add_argument("--exports", type=Path, nargs=2, metavar=("FAST", "SAFE"), help="folders of bitfront export")
    parser.add_argument("--data", type=Path, help="inputs by name, as .npz; with --exports")
    parser.add_argument("--batch", type=int, default=BATCH, help="with --exports")
    given = parser.parse_args()
    if given.exports:
        print(json.dumps(of_exports(given.exports, given.data, given.batch, given.rounds, given.requests)))
    else:
        print(json.dumps(main(given.rounds, given.requests)))
