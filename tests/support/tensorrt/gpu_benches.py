"""What the GPU tests share: one TensorRT builder per network and process, since each costs seconds to start."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from evaluators import data
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.builder import TensorRTBuilder
from evaluators.calibration import activations as calibration
from evaluators.data.opening import open_data
from evaluators.process.job import Job
from evaluators.process.keeper import EvaluatorProcess
from search.graph.model import Model, ShapeRequest, load
from search.space.choices import Space, make_space
from search.values import Assignment, Ranges
from tests.support.networks import NETWORKS, ODD, Net, arithmetic, feeds, images, residual_cnn, save
from tests.support.silu_networks import box_network, gated_network, neck_network, silu_network, squeeze_network

SAMPLES = 32
# TensorRT's builder times fewer kernels there. Where a test is not about what users get by default, it need not wait.
QUICK = {"optimization_level": 1}
BREAKING = "BITFRONT_TEST_BREAKING"  # names the file that makes `breaks_memory` break it


@dataclass(frozen=True)
class Bench:
    """A network with ranges, a builder, one batch of inputs and what the float model makes of it."""

    model: Model
    ranges: Ranges
    space: Space
    builder: TensorRTBuilder
    inputs: dict[str, NDArray[Any]]
    reference: dict[str, NDArray[Any]]

    def mix(self, seed: int) -> Assignment:
        generator = np.random.default_rng(seed)
        return self.space.assignment({v.id: int(generator.integers(len(v.precisions))) for v in self.space.variables})


@functools.cache
def backend() -> TensorRTBackend:
    return TensorRTBackend()


def wide_network() -> onnx.ModelProto:
    """Pointwise convolutions large enough for sparse kernels to pay, two of every four weights zero."""
    n, c = Net(21), 512
    x = "image"
    for i in range(2):
        x = n.op("Relu", [n.conv(x, f"wide.{i}", c, c, 1)], f"wide.{i}/relu")
    for tensor in n.weights:
        if tensor.name.endswith(".w"):
            array = onnx.numpy_helper.to_array(tensor).copy().reshape(c, -1, 4)
            array[:, :, 2:] = 0
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.reshape(c, c, 1, 1), tensor.name))
    n.head(x, c)
    return n.model([16, c, 32, 32], "logits", [16, 10])


def normalized_network() -> onnx.ModelProto:
    """InstanceNormalization, which version 8.6.0 runs by a plugin of its own."""
    n, c = Net(22), 16
    parts = [n.const("norm.g", np.ones(c, np.float32)), n.const("norm.b", np.zeros(c, np.float32))]
    x = n.op("InstanceNormalization", [n.conv("image", "first", 3, c), *parts], "norm")
    x = n.op("Relu", [n.conv(n.op("Relu", [x], "norm/relu"), "second", c, c)], "second/relu")
    n.head(x, c)
    return n.model([4, 3, 16, 16], "logits", [4, 10])


MADE = {
    "silu": functools.partial(silu_network, residual=False),
    "silu_residual": functools.partial(silu_network, residual=True),
    "boxes": box_network,
    "neck": neck_network,
    "squeeze": squeeze_network,
    "gated": gated_network,
    "wide": wide_network,
    "normalized": normalized_network,
    "arithmetic": arithmetic,
    "dynamic": functools.partial(residual_cnn, batch="n"),
}
# A batch of 1 to 8, measured at 4.
DYNAMIC = {"image": ShapeRequest(*((n, 3, 16, 16) for n in (1, 4, 8)))}


@functools.cache
def bench(name: str, **knobs: Any) -> Bench:
    """One of `NETWORKS`, `ODD` or `MADE`, with a builder whose knobs differ as given."""
    folder = Path(tempfile.mkdtemp())
    network = {**NETWORKS, **ODD, **MADE}[name]()
    model = load(save(network, folder / "net.onnx"), shapes=DYNAMIC if name == "dynamic" else None)
    np.savez(folder / "data.npz", allow_pickle=False, **_samples(model))
    dataset = open_data(str(folder / "data.npz"), model.inputs)
    ranges = calibration.collect(model, dataset, np.arange(SAMPLES), "minmax")
    inputs = next(data.batches(dataset, np.arange(SAMPLES), model.batch)).inputs
    here = backend()
    session = OnnxRuntimeBackend("cpu").float_session(model)
    reference = session.run(inputs)
    session.close()
    builder = TensorRTBuilder(here.trt, model, ranges, replace(here.builder_knobs, **knobs))
    space = make_space(model, here.capability(), ranges)
    return Bench(model, ranges, space, builder, inputs, reference)


def _samples(model: Model) -> dict[str, NDArray[Any]]:
    if [spec.name for spec in model.inputs] == ["image"]:
        return {"image": images(SAMPLES, shape=model.inputs[0].shape[1:])}
    some = [feeds(model, seed) for seed in range(SAMPLES // model.batch)]
    return {name: np.concatenate([each[name] for each in some]) for name in some[0]}


def calibrated(folder: Path, metric: str = "sqnr") -> tuple[EvaluatorProcess, Space]:
    """An evaluator process with the residual network, calibrated, and the space to draw from. The caller closes it."""
    bed = bench("residual")
    path = save(NETWORKS["residual"](), folder / "net.onnx")
    np.savez(folder / "data.npz", image=images(SAMPLES), labels=np.zeros(SAMPLES, np.int64))
    (folder / "ranges.json").write_text(json.dumps(bed.ranges.to_json()))
    job = Job(
        str(path),
        str(folder / "data.npz"),
        str(folder / "work"),
        backend="tensorrt",
        device="cuda",
        metric=metric,
        ranges=str(folder / "ranges.json"),
        options={"optimization_level": 0},  # nothing here is about speed, and it builds sooner
    )
    return EvaluatorProcess(job, folder / "log"), bed.space


def sqnr(reference: NDArray[Any], output: NDArray[Any]) -> float:
    """Signal to quantization noise, dB."""
    wanted = reference.astype(np.float64)
    noise = np.mean((wanted - output.astype(np.float64)) ** 2)
    return float(10 * np.log10(np.mean(wanted**2) / max(noise, 1e-30)))


# -- what users' metrics do to an evaluator process: named on the command line, so they run inside it ------------------


def _sessions() -> list[Any]:
    import gc

    from evaluators.backends.tensorrt.session import TensorRTSession

    return [each for each in gc.get_objects() if isinstance(each, TensorRTSession) and each._stream is not None]


def breaks_memory(outputs: dict[str, NDArray[Any]], labels: Any) -> NDArray[np.float64]:
    """Scores, and while the file is there points the next inference of every engine at memory that is not there."""
    for session in _sessions() if Path(os.environ[BREAKING]).exists() else ():
        session._context.set_tensor_address(session._inputs[0], 0x7F0000000000)
        session._graph = None
    return np.ones(len(next(iter(outputs.values()))))


def hogs_memory(outputs: dict[str, NDArray[Any]], labels: Any) -> NDArray[np.float64]:
    """Scores, and takes all the memory that the device has left."""
    from evaluators.backends.tensorrt.device import check_cuda, cudart

    cuda = cudart()
    size = check_cuda(cuda.cudaMemGetInfo())[0]
    while size > 1 << 20:
        if int(cuda.cudaMalloc(size)[0]) != 0:
            size //= 2
    return np.ones(len(next(iter(outputs.values()))))
