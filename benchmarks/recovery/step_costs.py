"""Processor seconds and peak memory of recovery steps on networks of 100 million parameters, made on the fly.

Every step runs in a process of its own, on plain ranges.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks import ROOT
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration.activations import collect, collect_clipped
from evaluators.cores import usable_processors
from evaluators.data import Batch, Dataset, batches, open_data
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.registry import SHIPPED, STEPS
from search.graph.model import Model, load
from search.values import Assignment, Precision, Recovery

SAMPLES = 64
BATCH = 16
SECONDS = 1e6  # a busy machine must not decide what is done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", default=",".join(SHIPPED), help="names of steps, with commas between them")
    parser.add_argument("--child", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.child[0], Path(arguments.child[1]))))
        return
    print(f"{'network':12} {'parameters':>12} {'step':12} {'CPU s':>9} {'wall s':>9} {'MB':>8}")
    for network, make in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            for step in ("calibration", *arguments.steps.split(",")):
                found = _child(step, folder)
                size = f"{found['parameters'] / 1e6:.0f} M"
                cells = f"{found['processor_s']:9.1f} {found['wall_s']:9.1f} {found['megabytes']:8.0f}"
                print(f"{network:12} {size:>12} {step:12} {cells}", flush=True)
    print(f"{SAMPLES} samples, {os.cpu_count()} threads; MB: peak of the process beyond what it held before")


def _child(step: str, folder: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.recovery.step_costs", "--child", step, folder]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(step: str, folder: Path) -> dict[str, float]:
    """Processor and wall seconds and megabytes of one step, or of plain calibration; parameters of the network."""
    model = load(folder / "model.onnx", batch=BATCH)
    context = _context(model, open_data(str(folder / "data.npz"), model.inputs))
    constants = [value.const_value for value in model.graph.graph.initializers.values()]
    known = {"parameters": float(sum(tensor.size for tensor in constants if tensor is not None))}
    ranges = None if step == "calibration" else context.calibrate(Recovery())
    _forget_peak()
    before, start, used = _status_mb("VmRSS"), time.perf_counter(), time.process_time()
    if ranges is None:
        context.calibrate(Recovery())
    else:
        STEPS.make(step).propose(context, ranges)
    known["wall_s"] = time.perf_counter() - start
    known["processor_s"] = time.process_time() - used
    known["megabytes"] = _status_mb("VmHWM") - before
    return known


def _context(model: Model, dataset: Dataset) -> RecoveryContext:
    threads = usable_processors()
    backend = OnnxRuntimeBackend("cpu", threads=threads)
    indices, start = np.arange(len(dataset)), time.monotonic()

    def read() -> Iterator[Batch]:
        return batches(dataset, indices, model.batch)

    return RecoveryContext(
        given=model,
        placement=backend.placement,
        int8=Assignment({g.id: Precision.FP32 if g.pinned else Precision.INT8 for g in model.groups}),
        emulator=Emulator(backend, backend.placement),
        fitting=read,
        held_out=read,
        calibrate_model=lambda scaled, method=None: collect(
            scaled, dataset, indices, method or "auto", threads=threads
        ),
        clip_model=lambda scaled, *wanted: collect_clipped(scaled, dataset, indices, *wanted, threads=threads),
        seconds_left=lambda: SECONDS - (time.monotonic() - start),
        alive=lambda: None,
    )


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status_mb(name: str) -> float:
    """A size of this process in megabytes, as Linux keeps it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


class _Writer:
    """Layers one after another, with random weights."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def op(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int, spread: NDArray[np.float32] | None = None) -> str:
        """He-initialised; `spread` scales its output channels."""
        name = f"weight{len(self.weights)}"
        array = self.random.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / np.prod(shape[1:])))
        if spread is not None:
            array *= spread.reshape(-1, *(1,) * (len(shape) - 1))
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def spread(self, channels: int) -> NDArray[np.float32]:
        """Ranges of channels as uneven as trained networks' are."""
        return np.exp(self.random.standard_normal(channels)).astype(np.float32)

    def save(self, folder: Path, shape: tuple[int, ...], classes: int) -> None:
        ends = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape]),
            helper.make_tensor_value_info(self.nodes[-1].output[0], TensorProto.FLOAT, ["n", classes]),
        ]
        graph = helper.make_graph(self.nodes, "net", ends[:1], ends[1:], self.weights)
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
        np.savez(folder / "data.npz", x=self.random.standard_normal((SAMPLES, *shape), np.float32))


def write_mlp(folder: Path) -> None:
    """Six fully connected layers of 4096 with ReLU."""
    writer, width = _Writer(), 4096
    x = "x"
    for _ in range(6):
        x = writer.op(
            "Relu", [writer.op("Gemm", [x, writer.weight(width, width, spread=writer.spread(width))], transB=1)]
        )
    writer.op("Gemm", [x, writer.weight(10, width)], transB=1)
    writer.save(folder, (width,), 10)


def write_cnn(folder: Path) -> None:
    """Twenty-one residual blocks of two 3×3 convolutions with 512 channels, on 4×4 pixels."""
    writer, width = _Writer(), 512
    x = writer.op("Conv", ["x", writer.weight(width, 3, 3, 3)], pads=[1] * 4)
    for _ in range(21):
        y = writer.op("Conv", [x, writer.weight(width, width, 3, 3, spread=writer.spread(width))], pads=[1] * 4)
        y = writer.op("Conv", [writer.op("Relu", [y]), writer.weight(width, width, 3, 3)], pads=[1] * 4)
        x = writer.op("Add", [x, y])
    pooled = writer.op("Flatten", [writer.op("GlobalAveragePool", [x])])
    writer.op("Gemm", [pooled, writer.weight(10, width)], transB=1)
    writer.save(folder, (3, 4, 4), 10)


NETWORKS = {"MLP": write_mlp, "CNN": write_cnn}

if __name__ == "__main__":
    main()
