"""Show that digits.onnx needs a mix: top-1 and latency of FP32, all INT8 and some mixes, with ONNX Runtime alone.

    python examples/digits/measure.py                   # half a minute

Every candidate is made by ONNX Runtime's own quantizer (QDQ, unsigned activations, signed weights per channel, MinMax)
and timed with one thread in turns with FP32. The interval is that of the paired difference of top-1 to FP32; scenes
of one original count as one cluster.
Needs onnx and onnxruntime.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

HERE = Path(__file__).resolve().parent
CALIBRATION = 41  # the scenes of so many originals, about 256, calibrate; all others are scored
BATCH = 16
# Modules that stay in FP32 in the mixes shown: what writes and what reads an uneven stream, with the Adds on it.
EARLY = ["features.0/project", "features.1/expand"]
LATE = [
    "features.9/project", "features.10/expand", "features.10/project", "features.10/Add",
    "features.11/expand", "features.11/project", "features.11/Add", "head",
]  # fmt: skip
FLOAT_PARTS = {"early stream": EARLY, "late stream": LATE, "both streams": EARLY + LATE}


class Batches(CalibrationDataReader):
    def __init__(self, pixels: np.ndarray):
        self.batches = iter(np.array_split(pixels, len(pixels) // 32))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self.batches, None)
        return None if batch is None else {"image": batch}


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def quantize(source: Path, target: Path, pixels: np.ndarray, float_nodes: list[str]) -> ort.InferenceSession:
    quantize_static(
        source, target, Batches(pixels), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, nodes_to_exclude=float_nodes,
    )  # fmt: skip
    return session(target)


def right(candidate: ort.InferenceSession, pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(n,) bool: which samples the candidate gets right."""
    parts = [candidate.run(None, {"image": part})[0].argmax(1) for part in np.array_split(pixels, len(pixels) // 250)]
    return np.concatenate(parts) == labels


def latencies_ms(candidates: dict[str, ort.InferenceSession], pixels: np.ndarray, rounds: int) -> dict[str, np.ndarray]:
    """(rounds,) milliseconds of processor time, which other programs do not stretch, per candidate for one batch.

    Each candidate has its turn once a round, so that drift meets all alike.
    """
    feed = {"image": pixels[:BATCH]}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            candidate.run(None, feed)  # warms the caches again after the other candidates
            start = time.thread_time()
            candidate.run(None, feed)
            samples[name].append((time.thread_time() - start) * 1e3)
    return {name: np.array(values) for name, values in samples.items()}


def loss_with_interval(candidate: np.ndarray, baseline: np.ndarray, clusters: np.ndarray) -> tuple[float, float]:
    """Loss of top-1 against the baseline on the same samples, and half the width of its 95 % interval of clusters."""
    difference = baseline.astype(float) - candidate.astype(float)
    codes = np.unique(clusters, return_inverse=True)[1]
    sums = np.bincount(codes, weights=difference - difference.mean())
    count = len(sums)
    spread = np.sqrt(count / (count - 1) * np.square(sums).sum()) / len(difference)
    return float(difference.mean()), float(1.96 * spread)


def nodes_under(model: onnx.ModelProto, prefixes: Iterable[str]) -> list[str]:
    """Names of all nodes that stand at or below one of the module names."""
    return [node.name for node in model.graph.node if any(f"{node.name}/".startswith(f"/{p}/") for p in prefixes)]


def layer_modules(model: onnx.ModelProto) -> list[str]:
    """The module of every weighted node, in graph order: `features.3/expand`, ..., `classifier`."""
    names = [node.name for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    return [name.removesuffix("/Conv").removesuffix("/conv").removesuffix("/Gemm").lstrip("/") for name in names]


def mixes(model: onnx.ModelProto, each: bool) -> dict[str, list[str]]:
    """Name of each candidate -> the nodes that stay in FP32."""
    chosen: dict[str, list[str]] = {"all INT8": []}
    for name, modules in FLOAT_PARTS.items():
        chosen[f"INT8, FP32: {name}"] = nodes_under(model, modules)
    if each:
        layers = layer_modules(model)
        everything = [node.name for node in model.graph.node]
        for layer in layers:
            inside = nodes_under(model, [layer])
            chosen[f"FP32, INT8: {layer}"] = [name for name in everything if name not in inside]
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=HERE, help="where digits.onnx and digits.npz are")
    parser.add_argument("--rounds", type=int, default=300, help="timed runs of every candidate")
    parser.add_argument("--each", action="store_true", help="also every layer alone in INT8 (four minutes)")
    args = parser.parse_args()
    logging.disable(logging.WARNING)  # the quantizer advises a preprocessing that this model does not need

    path = args.folder / "digits.onnx"
    with np.load(args.folder / "digits.npz", allow_pickle=False) as data:
        pixels, labels, clusters = data["image"], data["labels"], data["clusters"]
    calibrates = clusters < CALIBRATION
    candidates = {"FP32": session(path)}
    with tempfile.TemporaryDirectory() as work:
        for name, float_nodes in mixes(onnx.load(path), args.each).items():
            candidates[name] = quantize(path, Path(work) / "mix.onnx", pixels[calibrates], float_nodes)

    pixels, labels, clusters = (array[~calibrates] for array in (pixels, labels, clusters))
    scores = {name: right(candidate, pixels, labels) for name, candidate in candidates.items()}
    times = latencies_ms(candidates, pixels, args.rounds)
    print(f"{len(labels)} samples in {len(np.unique(clusters))} clusters")
    print(f"latency of a batch of {BATCH}, one thread, mean processor time of {args.rounds}")
    for name in candidates:
        loss, half = loss_with_interval(scores[name], scores["FP32"], clusters)
        latency = times[name].mean()
        ratio = times["FP32"].mean() / latency
        print(f"{name:45}  top-1 {scores[name].mean():7.2%}  loss {loss * 100:6.2f} +- {half * 100:.2f} points  "
              f"{latency:6.2f} ms  {ratio:.2f}x")  # fmt: skip


if __name__ == "__main__":
    main()
