"""Other quantizers, as they come from PyPI, on a given model and the same calibration samples as ours.

    python -m benchmarks.peers.quantizers METHOD MODEL.onnx CALIBRATION.npz OUT.onnx

`make test-peers` sets up their environment, `.peers`. The command above is run by the Python there; `quantize` does so
from our own. CALIBRATION.npz has an array for every input of the model and `labels`, samples first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
THREADS = 2
_BATCH = 10  # where the model leaves it open


@dataclass(frozen=True)
class Run:
    """What one quantization took, and by which versions.

    Attributes:
        peak_bytes: most memory that the process held at a time.
        versions: package → version.
        float_ops: weighted ops that were left in float.
    """

    method: str
    seconds: float
    peak_bytes: int
    versions: Mapping[str, str]
    float_ops: int


@dataclass(frozen=True)
class Calibration:
    """Samples in batches, as the model takes them.

    Attributes:
        feeds: input name → (batch, …) each.
        labels: (samples, …) of all feeds together; None where there are none.
    """

    feeds: Sequence[Mapping[str, Any]]
    labels: Any


def quantize(method: str, model: Path, calibration: Path, out: Path, metric: str = "top1") -> Run:
    """Quantize a model in the peers' environment.

    Args:
        method: one of `METHODS`.
        metric: of the network, a key of `SCORES` of `benchmarks.peers.scores`.

    Raises:
        RuntimeError: the other tool gave up; its last lines.
    """
    files = [str(path.absolute()) for path in (model, calibration, out)]
    about = f"quantizing {model.name} by {method}"
    return Run(**run_beside("benchmarks.peers.quantizers", [method, *files, "--metric", metric], about))


def run_beside(module: str, words: Sequence[str], about: str, timeout_s: float | None = None) -> dict[str, Any]:
    """Run a module in the peers' environment; the object that its last line is.

    Args:
        about: what is being done, for messages.

    Raises:
        RuntimeError: the module failed, with its last lines, or took too long.
    """
    python = Path(os.environ.get("BITFRONT_PEERS", PEERS)).absolute() / "bin" / "python"
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as folder:  # the tools leave files where they are started
        try:
            done = subprocess.run(
                [str(python), "-m", module, *words],
                cwd=folder,
                env={**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(THREADS)},
                capture_output=True,
                text=True,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as late:
            raise RuntimeError(f"{about}: it took more than {timeout_s:.0f} s") from late
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RuntimeError(f"{about}: {python} ended with {done.returncode}:\n{tail}")
    output: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return output


# -- what runs in the peers' environment -------------------------------------------------------------------------------


def read_calibration(model: Path, path: Path) -> Calibration:
    """Batches of the size that the model takes; samples that fill no batch are left out."""
    graph = onnx.load(str(model), load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    batch = inputs[0].type.tensor_type.shape.dim[0].dim_value or _BATCH
    with np.load(path, allow_pickle=False) as file:
        arrays = {value.name: file[value.name] for value in inputs}
        count = min(map(len, arrays.values())) // batch * batch
        labels = file["labels"][:count] if "labels" in file else None
    feeds = [{name: array[i : i + batch] for name, array in arrays.items()} for i in range(0, count, batch)]
    return Calibration(feeds, labels)


def _nncf(
    model: Path, samples: Calibration, out: Path, metric: str, *, fast: bool = True, smooth: bool = False
) -> None:
    """NNCF's post-training quantization for processors, activations asymmetric.

    Args:
        fast: bias correction by a shortcut; else layer after layer.
        smooth: SmoothQuant before convolutions and linear layers too, at its usual strengths; else before neither.
    """
    import nncf

    quantized = nncf.quantize(onnx.load(str(model)), nncf.Dataset(samples.feeds), **nncf_options(samples, fast, smooth))
    onnx.save(quantized, str(out))


def nncf_options(samples: Calibration, fast: bool, smooth: bool) -> dict[str, Any]:
    """The arguments of `nncf.quantize` besides the model and the samples."""
    import nncf
    from nncf.quantization.advanced_parameters import AdvancedSmoothQuantParameters

    alphas = AdvancedSmoothQuantParameters(convolution=0.5, matmul=0.95) if smooth else None
    off = AdvancedSmoothQuantParameters(convolution=-1, matmul=-1)
    return {
        # NNCF runs SmoothQuant on models of this type alone, whatever the strengths are.
        "model_type": nncf.ModelType.TRANSFORMER if smooth else None,
        "preset": nncf.QuantizationPreset.MIXED,
        "target_device": nncf.TargetDevice.CPU,
        "subset_size": len(samples.feeds),
        "fast_bias_correction": fast,
        "advanced_parameters": nncf.AdvancedQuantizationParameters(smooth_quant_alphas=alphas or off),
    }


def _onnxruntime(
    model: Path,
    samples: Calibration,
    out: Path,
    metric: str,
    *,
    method: str,
    reduce: bool = False,
    leave: Callable[[onnx.GraphProto], list[str]] = lambda graph: [],
) -> None:
    """ONNX Runtime's static quantization: UINT8 activations, INT8 weights per channel.

    Args:
        reduce: weights of 7 bits, as ONNX Runtime advises for processors without VNNI.
        leave: graph → nodes that stay in float, as people choose them by hand.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder:
        prepared = _prepare(model, Path(folder) / "prepared.onnx")
        quantize_static(
            str(prepared),
            str(out),
            _Reader(samples.feeds),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=reduce,
            nodes_to_exclude=leave(onnx.load(str(prepared)).graph),
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=getattr(CalibrationMethod, method),
        )


def _weighted(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    constants = {tensor.name for tensor in graph.initializer}
    ops = ("Conv", "ConvTranspose", "Gemm", "MatMul")
    return [node for node in graph.node if node.op_type in ops and constants & set(node.input)]


def _heads(graph: onnx.GraphProto) -> list[str]:
    """Weighted nodes that no other one comes after, and whatever is computed of what they give."""
    last, before = {node.name for node in graph.node}, set[str]()  # tensors that a weighted node is computed of
    weighted = {node.name for node in _weighted(graph)}
    for node in reversed(graph.node):
        if before & set(node.output):
            last.discard(node.name)
        if node.name in weighted or before & set(node.output):
            before.update(node.input)
    return sorted(last)


def _first(graph: onnx.GraphProto) -> list[str]:
    return [node.name for node in _weighted(graph)[:4]]


def _prepare(model: Path, out: Path) -> Path:
    """The model as ONNX Runtime's basic optimizations leave it, of opset 17 where scales per channel do not exist yet.

    `quant_pre_process` does no more, but throws away what it optimized where it does not infer symbolic shapes, and
    that fails on some models.
    """
    from onnxruntime import GraphOptimizationLevel, InferenceSession, SessionOptions

    proto, options = onnx.load(str(model)), SessionOptions()
    if next(each.version for each in proto.opset_import if not each.domain) < 13:
        proto = onnx.version_converter.convert_version(proto, 17)
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(str(out))), str(out))
    return out


def _dynamic(model: Path, samples: Calibration, out: Path, metric: str) -> None:
    """ONNX Runtime's dynamic quantization; its integer convolutions take no signed weights."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder:
        prepared = _prepare(model, Path(folder) / "prepared.onnx")
        convolves = any(node.op_type == "Conv" for node in onnx.load(str(prepared)).graph.node)
        weights = QuantType.QUInt8 if convolves else QuantType.QInt8
        quantize_dynamic(str(prepared), str(out), per_channel=not convolves, weight_type=weights)


def _quark(model: Path, samples: Calibration, out: Path, metric: str, *, recover: bool) -> None:
    """Quark for ONNX: UINT8 activations, INT8 weights per channel.

    Args:
        recover: cross-layer equalization before and bias correction after.
    """
    from quark.onnx import ModelQuantizer, QConfig, QLayerConfig
    from quark.onnx.quantization.config.algorithm import BiasCorrectionConfig, CLEConfig
    from quark.onnx.quantization.config.spec import CalibMethod, Int8Spec, QuantGranularity, UInt8Spec

    weight = Int8Spec(quant_granularity=QuantGranularity.Channel)
    config = QConfig(
        global_config=QLayerConfig(activation=UInt8Spec(calibration_method=CalibMethod.MinMax), weight=weight),
        algo_config=[CLEConfig(), BiasCorrectionConfig()] if recover else [],
    )
    with tempfile.TemporaryDirectory() as folder:
        prepared = _prepare(model, Path(folder) / "prepared.onnx")
        ModelQuantizer(config).quantize_model(str(prepared), str(out), _Reader(samples.feeds))


def _for_tensorrt(model: Path, samples: Calibration, out: Path, metric: str) -> None:
    """ONNX Runtime's static quantization as its documentation has it for TensorRT: symmetric, Q/DQ pairs at weights."""
    from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static

    options = ("ActivationSymmetric", "WeightSymmetric", "AddQDQPairToWeight", "DedicatedQDQPair")
    with tempfile.TemporaryDirectory() as folder:
        quantize_static(
            str(_prepare(model, Path(folder) / "prepared.onnx")),
            str(out),
            _Reader(samples.feeds),
            op_types_to_quantize=["Conv", "Gemm", "MatMul", "Add"],
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options=dict.fromkeys(options, True) | {"QuantizeBias": False},
        )


def _modelopt(model: Path, samples: Calibration, out: Path, metric: str) -> None:
    """ModelOpt's Q/DQ for TensorRT as it comes, scales and floats in FP32; it opens the model batch by batch."""
    from modelopt.onnx.quantization import quantize

    arrays = {name: np.concatenate([feed[name] for feed in samples.feeds]) for name in samples.feeds[0]}
    how = {"quantize_mode": "int8", "calibration_method": "entropy", "calibration_eps": ["cpu"]}
    quantize(str(model), calibration_data=arrays, output_path=str(out), high_precision_dtype="fp32", **how)


class _Reader:
    """Hands out one feed after the other, as the calibrators of ONNX Runtime and Quark ask for them."""

    def __init__(self, feeds: Sequence[Mapping[str, Any]]) -> None:
        self._feeds = feeds
        self.rewind()

    def rewind(self) -> None:
        self._left: Iterator[Mapping[str, Any]] = iter(self._feeds)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._left, None)

    def __len__(self) -> int:
        return len(self._feeds)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Only the feeds of a range, from now on."""
        self._left = iter(self._feeds[start_index:end_index])


Method = Callable[[Path, Calibration, Path, str], None]
METHODS: dict[str, Method] = {
    "nncf-fast": _nncf,
    "nncf-sequential": partial(_nncf, fast=False),
    "nncf-smooth": partial(_nncf, smooth=True),
    "onnxruntime-minmax": partial(_onnxruntime, method="MinMax"),
    "onnxruntime-entropy": partial(_onnxruntime, method="Entropy"),
    "onnxruntime-percentile": partial(_onnxruntime, method="Percentile"),
    "onnxruntime-reduced": partial(_onnxruntime, method="MinMax", reduce=True),
    "onnxruntime-heads": partial(_onnxruntime, method="MinMax", leave=_heads),
    "onnxruntime-first": partial(_onnxruntime, method="MinMax", leave=_first),
    "onnxruntime-dynamic": _dynamic,
    "quark": partial(_quark, recover=False),
    "quark-recover": partial(_quark, recover=True),
}
FOR_TENSORRT: dict[str, Method] = {"onnxruntime-tensorrt": _for_tensorrt, "modelopt": _modelopt}
PACKAGES = {
    "modelopt": ("nvidia-modelopt", "onnxruntime"),
    "nncf": ("nncf",),
    "onnxruntime": ("onnxruntime",),
    "quark": ("amd-quark", "onnxruntime"),
}


def count_float_ops(path: Path) -> int:
    """Convolutions and matrix products whose weight is constant, and not read back from INT8."""
    graph = onnx.load(str(path)).graph
    made = {output: node.op_type for node in graph.node for output in node.output}
    weighted = [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul")]
    constants = {tensor.name for tensor in graph.initializer}
    return sum(node.input[1] in constants or made.get(node.input[1]) == "Constant" for node in weighted)


def main() -> None:
    parser = argparse.ArgumentParser(description="Quantize an ONNX model by another tool.")
    parser.add_argument("method", choices=[*METHODS, *FOR_TENSORRT])
    for name in ("model", "calibration", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--metric", default="top1")
    arguments = parser.parse_args()
    samples = read_calibration(arguments.model, arguments.calibration)
    start = time.perf_counter()
    (METHODS | FOR_TENSORRT)[arguments.method](arguments.model, samples, arguments.out, arguments.metric)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    versions = {package: version(package) for package in PACKAGES[arguments.method.partition("-")[0]]}
    run = Run(arguments.method, seconds, peak, versions, count_float_ops(arguments.out))
    sys.stdout.write(f"\n{json.dumps(asdict(run))}\n")


if __name__ == "__main__":
    main()
