"""What a guard costs a serving process, and what its correction of outputs wins.

Cost: examples/digits in all INT8 is run with and without a guard in turn, on one core, while the guard's thread has
the others. p50 and p99 of each round are ratios to the run without a guard. Import: milliseconds of processor time and
megabytes that `from studies.guard import Guard` adds to a process that has NumPy and ONNX Runtime.
Correction: digits that slowly change their brightness, as frames of a video do, go through all INT8; the error of the
outputs against FP32 is told with and without `compensate=10`. Prints one line of JSON.

With `--exports` the same cost is measured with two exported folders, of TensorRT too, and nothing else is told. On a
GPU the shadow and the requests share the device, so the guarded p99 counts their meetings there.

usage: python -m benchmarks.guard.cost [--rounds 5] [--requests 2000]
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.example import BATCH, DATA, MODEL, evaluator, load_text
from evaluators.process.job import Limits
from search.values import Precision
from studies.guard import Guard, GuardOptions
from studies.guard.engines import Run, open_pair
from studies.options.config import SearchConfig
from studies.verbs.analyses import layers

Arrays = Mapping[str, NDArray[Any]]
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
    """Ratios of each round, guarded over bare, and how far the bare p99 of the rounds are apart."""
    bare = [p99 for _, _, p99 in costs]
    return {
        "p50_ratio": [round(p50, 4) for p50, _, _ in costs],
        "p99_ratio": [round(p99, 4) for _, p99, _ in costs],
        "p99_spread_without": round(max(bare) / min(bare) - 1, 4),
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
    """Ratios of p50 and p99, guarded over bare, of requests in turn; and the bare p99 in milliseconds."""
    bare, guarded = np.empty(requests), np.empty(requests)
    with Guard(fast, safe, GuardOptions(share=0.01, threshold=-1), seed=0) as guard, one_core():
        for i in range(requests):
            inputs = batches[i % len(batches)]
            for run, times in ((fast, bare), (guard.run, guarded)) if i % 2 else ((guard.run, guarded), (fast, bare)):
                begun = time.perf_counter_ns()
                run(inputs)
                times[i] = (time.perf_counter_ns() - begun) / 1e6
    ratios = [float(np.percentile(guarded, share) / np.percentile(bare, share)) for share in (50, 99)]
    return ratios[0], ratios[1], float(np.percentile(bare, 99))


class one_core:  # noqa: N801
    """This thread alone on one core; threads that are there already keep the others."""

    def __enter__(self) -> None:
        self._before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(self._before)})

    def __exit__(self, *_: object) -> None:
        os.sched_setaffinity(0, self._before)


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
            options = GuardOptions(share=0.2, threshold=-1, compensate=compensate, queue=1000)
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
