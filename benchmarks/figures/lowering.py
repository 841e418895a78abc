"""All INT8 as we lower it, against the float model and against onnxruntime.quantization with the very same ranges.

Both start from the clean model, with unsigned activations, signed weights per channel, and minmax ranges of the same
samples. Latency: one pinned thread, blocks in turns, mean processor time, the median over freshly opened sessions.

usage: python -m benchmarks.figures.lowering [--samples 4000] [--rounds 15] [--opened 6] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from benchmarks.example import BATCH, DATA, MODEL, load_text, paired, pinned
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.session import OnnxRuntimeSession
from evaluators.calibration.activations import collect
from evaluators.data import Dataset, batches, open_data, split
from evaluators.measure import latency
from search.graph.model import Model, load
from search.space.choices import make_space
from search.values import Precision, Ranges

OURS, THEIRS, FLOAT = "ours", "quantize_static", "float"


def main(samples: int = 4000, rounds: int = 15, opened: int = 6, keep: Path | None = None) -> dict[str, float]:
    """`speed`: their latency ÷ ours; `accuracy`: our top-1 less theirs, with `accuracy_half`, half the width of its
    95 % interval; `sqnr_db`, `sqnr_db_theirs` against the float model; `loss`, `loss_half` of ours to the float model.
    """
    backend = OnnxRuntimeBackend(threads=1)
    model = load(MODEL, batch=BATCH)
    dataset = open_data(str(DATA), model.inputs)
    parts = split(dataset.digest, len(dataset))
    ranges = collect(model, dataset, parts.calibration, "minmax", threads=2)
    scored = np.concatenate([parts.search, parts.final])[:samples]
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        paths = {name: folder / f"{name}.onnx" for name in (FLOAT, OURS, THEIRS)}
        write_ours(backend, model, ranges, paths)
        write_theirs(dataset, ranges, parts.calibration, paths)
        for name, path in paths.items():
            print(f"{name:16}", optimized_ops(backend, path))
        with pinned():
            logits = {name: outputs(backend, path, dataset, scored) for name, path in paths.items()}
            times = timed(backend, paths, dataset, scored, rounds, opened)
    return told(logits, times, dataset, scored)


def write_ours(backend: OnnxRuntimeBackend, model: Model, ranges: Ranges, paths: dict[str, Path]) -> None:
    ir.save(model.graph, paths[FLOAT])
    space = make_space(model, backend.capability(), ranges)
    ir.save(backend.builder(model, ranges).lower(space.uniform(Precision.INT8)), paths[OURS])


def write_theirs(dataset: Dataset, ranges: Ranges, calibration: NDArray[np.int64], paths: dict[str, Path]) -> None:
    """ONNX Runtime's quantizer calibrates on a few samples, whose ranges are then all overridden by ours."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    weights = {tensor.name for tensor in onnx.load(paths[FLOAT]).graph.initializer}
    same = {name: [{"rmin": np.float32(r.low), "rmax": np.float32(r.high)}] for name, r in ranges.tensors.items()}
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            paths[FLOAT],
            paths[THEIRS],
            _Reader(dataset, calibration),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"TensorQuantOverrides": {n: r for n, r in same.items() if n not in weights}},
        )
    logging.disable(logging.NOTSET)


class _Reader:
    def __init__(self, dataset: Dataset, indices: NDArray[np.int64]) -> None:
        self._feeds: Iterator[Any] = iter([batch.inputs for batch in batches(dataset, indices[: 2 * BATCH], BATCH)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def optimized_ops(backend: OnnxRuntimeBackend, path: Path) -> dict[str, int]:
    """How many nodes of each kind ONNX Runtime runs in the end."""
    out = path.with_suffix(".optimized.onnx")
    options = backend.device.session_options()
    options.optimized_model_filepath = str(out)
    backend.device.ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(Counter(node.op_type for node in onnx.load(out).graph.node).most_common())


def outputs(
    backend: OnnxRuntimeBackend, path: Path, dataset: Dataset, indices: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(samples, classes) of one model."""
    session = OnnxRuntimeSession(backend.device, path, backend.device.session_options())
    rows = [next(iter(session.run(batch.inputs).values()))[: batch.count] for batch in batches(dataset, indices, BATCH)]
    session.close()
    return np.concatenate(rows).astype(np.float64)


def timed(
    backend: OnnxRuntimeBackend,
    paths: dict[str, Path],
    dataset: Dataset,
    indices: NDArray[np.int64],
    rounds: int,
    opened: int,
) -> dict[str, NDArray[np.float64]]:
    """Milliseconds of each model: (opened,) means. Who runs after whom matters, so the order alternates."""
    inputs = next(batches(dataset, indices, BATCH)).inputs
    found: dict[str, list[float]] = {name: [] for name in paths}
    for number in range(opened):
        order = list(paths)[:: -1 if number % 2 else 1]
        sessions = {
            name: OnnxRuntimeSession(backend.device, paths[name], backend.device.session_options()) for name in order
        }
        for session in sessions.values():
            session.bind(inputs)
        for name, samples in latency.interleaved(sessions, rounds).items():
            found[name].append(latency.statistic_of(samples, "mean"))
        for session in sessions.values():
            session.close()
    return {name: np.array(values) for name, values in found.items()}


def told(
    logits: dict[str, NDArray[np.float64]],
    times: dict[str, NDArray[np.float64]],
    dataset: Dataset,
    scored: NDArray[np.int64],
) -> dict[str, float]:
    labels = dataset.batch(scored)[1]
    right = {name: values.argmax(axis=1) == labels for name, values in logits.items()}
    print(f"{len(scored)} samples, batch {BATCH}, one thread; {load_text()}")
    for name in logits:
        loss, half = paired(right[FLOAT], right[name])
        ms, ratio = np.median(times[name]), np.median(times[FLOAT] / times[name])
        print(
            f"{name:16} top-1 {right[name].mean():7.2%}  loss {100 * loss:6.2f} ± {100 * half:.2f} points  "
            f"SQNR {sqnr_db(logits[FLOAT], logits[name]):6.2f} dB  {ms:6.3f} ms  {ratio:5.2f}x"
        )
    loss, loss_half = paired(right[FLOAT], right[OURS])
    gain, half = paired(right[OURS], right[THEIRS])
    ratios = times[THEIRS] / times[OURS]
    print(f"float ÷ ours: {' '.join(f'{ratio:.3f}' for ratio in times[FLOAT] / times[OURS])}", end="; ")
    print(f"theirs ÷ ours: {' '.join(f'{ratio:.3f}' for ratio in ratios)}", end="; ")
    print(f"top-1 of ours less theirs {100 * gain:+.2f} ± {100 * half:.2f} points")
    return {
        "speed": float(np.median(ratios)),
        "speedup": float(np.median(times[FLOAT] / times[OURS])),
        "accuracy": gain,
        "accuracy_half": half,
        "loss": loss,
        "loss_half": loss_half,
        "sqnr_db": sqnr_db(logits[FLOAT], logits[OURS]),
        "sqnr_db_theirs": sqnr_db(logits[FLOAT], logits[THEIRS]),
    }


def sqnr_db(reference: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    noise = float(np.square(reference - other).mean())
    return float("inf") if noise == 0 else float(10 * np.log10(np.square(reference).mean() / noise))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--opened", type=int, default=6, help="how often the sessions are opened anew")
    parser.add_argument("--keep", type=Path, help="folder for the models, to look at")
    arguments = parser.parse_args()
    main(arguments.samples, arguments.rounds, arguments.opened, arguments.keep)
