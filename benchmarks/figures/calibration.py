"""Time and memory of our calibration against ONNX Runtime's calibrators, on the same model, data and threads.

Every measurement runs in a process of its own, ours and theirs in turn, and the best of REPEATS counts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT

METHODS = ("minmax", "percentile", "entropy")
REPEATS = {"minmax": 4, "percentile": 2, "entropy": 2}  # the shorter, the more a neighbour's burst would count
BATCH = 32
SAMPLES = {"digits": 512, "convnet": 96}


def main() -> dict[str, float]:
    """Print a table; returns theirs ÷ ours (above 1: ours is better) as `network.method.time` and `….memory`."""
    ratios: dict[str, float] = {}
    heads = ("ours s", "theirs s", "ratio", "ours MB", "theirs MB", "ratio")
    print(f"{'network':8} {'method':10}", *(f"{head:>9}" for head in heads))
    with tempfile.TemporaryDirectory() as folder:
        for network in SAMPLES:
            _child("prepare", network, "", folder)
            for method in METHODS:
                ours, theirs = _compare(network, method, folder)
                ratios[f"{network}.{method}.time"] = theirs[0] / ours[0]
                ratios[f"{network}.{method}.memory"] = theirs[1] / ours[1]
                cells = (ours[0], theirs[0], theirs[0] / ours[0], ours[1], theirs[1], theirs[1] / ours[1])
                print(f"{network:8} {method:10}", *(f"{cell:9.2f}" for cell in cells), flush=True)
    best = ", ".join(f"{method} {count}" for method, count in REPEATS.items())
    print(f"best of ({best}), {os.cpu_count()} threads; MB: peak of the process beyond what it held before")
    return ratios


def _compare(network: str, method: str, folder: str) -> tuple[tuple[float, float], tuple[float, float]]:
    """(seconds, megabytes) of ours and theirs, each the least of REPEATS taken in turn."""
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for _ in range(REPEATS[method]):
        for who, results in runs.items():
            results.append(_child(who, network, method, folder))
    best = [tuple(min(run[key] for run in results) for key in ("seconds", "megabytes")) for results in runs.values()]
    return best[0], best[1]  # type: ignore[return-value]


def _child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.figures.calibration", "--child", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"benchmark process {arguments} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


# In the child -------------------------------------------------------------------------------------------------------


def _prepare(network: str, folder: Path) -> dict[str, float]:
    """Write the clean model, which both calibrate, and the data."""
    import onnx_ir as ir

    from search.graph.model import load

    source = ROOT / "examples/digits/digits.onnx"
    if network != "digits":
        source = folder / "source.onnx"
        _write_convnet(source)
    model = load(source, batch=BATCH)
    if network == "digits":
        with np.load(source.with_suffix(".npz")) as archive:
            arrays = {value.name: archive[value.name][: SAMPLES[network]] for value in model.inputs}
    else:
        arrays = {"x": np.random.default_rng(1).standard_normal((SAMPLES[network], 3, 56, 56)).astype(np.float32)}
    ir.save(model.graph, folder / f"{network}.onnx")
    np.savez(folder / f"{network}.npz", **arrays)
    return {}


def _write_convnet(path: Path, blocks: int = 8, channels: int = 32) -> None:
    """Residual blocks at one size: large activations, small weights."""
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def op(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def conv(x: str, name: str, cin: int, gain: float) -> str:
        weight = rng.standard_normal((channels, cin, 3, 3)) * gain / np.sqrt(cin * 9)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"{name}.w"))
        return op("Conv", [x, f"{name}.w"], name, pads=[1, 1, 1, 1])

    x = op("Relu", [conv("x", "stem", 3, 1.4)], "stem.relu")
    for block in range(blocks):
        y = conv(op("Relu", [conv(x, f"b{block}.1", channels, 1.4)], f"b{block}.r1"), f"b{block}.2", channels, 0.3)
        x = op("Relu", [op("Add", [x, y], f"b{block}.add")], f"b{block}.r2")
    op("GlobalAveragePool", [x], "y")
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [BATCH, 3, 56, 56])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [BATCH, channels, 1, 1])]
    graph = helper.make_graph(nodes, "convnet", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _ours(network: str, method: str, folder: Path) -> dict[str, float]:
    import onnxruntime  # noqa: F401  (imported before the clock starts, as theirs is)

    from evaluators.calibration.activations import collect
    from evaluators.data import open_data
    from search.graph.model import load

    model = load(folder / f"{network}.onnx", batch=BATCH)
    dataset = open_data(str(folder / f"{network}.npz"), model.inputs)
    before, start = _peak_megabytes(), time.perf_counter()
    collect(model, dataset, np.arange(len(dataset)), method, threads=os.cpu_count() or 1)
    return {"seconds": time.perf_counter() - start, "megabytes": _peak_megabytes() - before}


def _theirs(network: str, method: str, folder: Path) -> dict[str, float]:
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    from search.graph.model import load

    # Loaded only so that both processes hold the same before the clock starts.
    held = load(folder / f"{network}.onnx", batch=BATCH)
    with np.load(folder / f"{network}.npz") as archive:
        arrays = dict(archive)
    kind = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}[method]
    before, start = _peak_megabytes(), time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(
            folder / f"{network}.onnx",
            augmented_model_path=str(folder / "augmented.onnx"),
            calibrate_method=CalibrationMethod[kind],
        )
        calibrator.collect_data(_Reader(arrays))
        calibrator.compute_data()
    del held
    return {"seconds": time.perf_counter() - start, "megabytes": _peak_megabytes() - before}


class _Reader:
    def __init__(self, arrays: dict[str, Any]) -> None:
        samples = len(next(iter(arrays.values())))
        cuts = range(0, samples, BATCH)
        self._feeds = iter([{name: array[cut : cut + BATCH] for name, array in arrays.items()} for cut in cuts])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def _peak_megabytes() -> float:
    """Peak resident memory of this program; getrusage's would start at that of the process that started it."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    if (child := parser.parse_args().child) is None:
        main()
    else:
        who, network, method, place = child
        steps = {"ours": _ours, "theirs": _theirs}
        found = _prepare(network, Path(place)) if who == "prepare" else steps[who](network, method, Path(place))
        print(json.dumps(found))
