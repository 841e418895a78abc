"""Dynamic beside static INT8 on ONNX Runtime's CPU: speed and error of an encoder, and the error of its products on
inputs that are larger than those which calibrated the static ranges.

usage: python -m benchmarks.figures.dynamic_int8 [--write]

Weights and inputs are random. Latencies are processor time of one thread, of all engines in turns.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.page import table, write_tables
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.session import OnnxRuntimeSession
from search.graph.model import Model, load
from search.space.choices import make_space
from search.values import Precision
from studies.environment import collect
from tests.support.networks import Net, feeds, finish, observed, save

Array = NDArray[np.float32]
NAMES = {Precision.FP32: "FP32", Precision.INT8: "INT8", Precision.INT8_DYNAMIC: "INT8-DYNAMIC"}
HEAD = ["", "latency, ms", "× FP32", "error", "error of products", "inputs × 3", "one token × 20"]
SIZES = ((128, 384, 6), (512, 768, 2), (1, 384, 6))  # tokens, width, layers
TURNS, FRESH = 25, 100  # of timing; the seed of inputs that did not calibrate
NOTE = """\
An error is the root mean square by which outputs differ, relative to that of FP32's. The first is of the encoder: \
LayerNorm, attention of one head, LayerNorm, GELU between two products. The others are of two products with a GELU \
between that read the inputs as they are: usual ones, all of them three times as large as those that calibrated the \
ranges, and one token twenty times as large."""


def main(write: bool) -> None:
    """Print the tables, and write them if wanted."""
    parts = [f"## {layers} layers, d = {d}, M = {m}\n\n{table(HEAD, _rows(m, d, layers))}" for m, d, layers in SIZES]
    found = collect()
    machine = f"{found['cpu']['model']}, {', '.join(found['cpu']['flags'])}"
    parts += [NOTE, f"{machine}; ONNX Runtime {found['packages']['onnxruntime']}; one thread."]
    text = "\n\n".join(parts)
    print(text)
    if write:
        write_tables("dynamic_int8", "Dynamic INT8", "python -m benchmarks.figures.dynamic_int8 --write", text)


def _rows(tokens: int, width: int, layers: int) -> list[list[str]]:
    with _engines(_encoder(tokens, width, layers)) as (model, encoders), _engines(_products(tokens, width)) as pair:
        usual = feeds(model, FRESH)["x"]
        ms = _times_ms({name: partial(run, usual) for name, run in encoders.items()})
        larger, outlier = 3 * usual, usual.copy()
        outlier[:, tokens // 2] *= 20
        cases = [(encoders, usual), *((pair[1], x) for x in (usual, larger, outlier))]
        return [
            [name, f"{ms[name]:.3g}", f"{ms['FP32'] / ms[name]:.2f}", *(_error(runs, name, x) for runs, x in cases)]
            for name in encoders
        ]


@contextmanager
def _engines(proto: onnx.ModelProto) -> Iterator[tuple[Model, dict[str, Callable[[Array], Array]]]]:
    """The model, and for each uniform assignment a function from its input to its output."""
    backend = OnnxRuntimeBackend(threads=1)
    with tempfile.TemporaryDirectory() as folder:
        model = load(save(proto, Path(folder) / "model.onnx"))
        ranges = observed(model, batches=8)
        builder, space = backend.builder(model, ranges), make_space(model, backend.capability(), ranges)
        runs = {}
        for precision, name in NAMES.items():
            out, asked = Path(folder) / f"{name}.onnx", space.uniform(precision)
            audit = builder.audit(builder.build(builder.lower(asked), out), asked)
            assert all(row.got is row.asked for row in audit.rows if row.got is not None)
            runs[name] = _runner(builder.load(out))
        yield model, runs


def _runner(session: OnnxRuntimeSession) -> Callable[[Array], Array]:
    return lambda x: np.asarray(session.run({"x": x})["y"], np.float32)


def _times_ms(runs: dict[str, Callable[[], Array]]) -> dict[str, float]:
    """The median of each over the turns."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(TURNS + 3):
        for name, run in runs.items():
            start = time.thread_time()
            for _ in range(3):
                run()
            if turn >= 3:
                taken[name].append((time.thread_time() - start) / 3)
    return {name: 1e3 * float(np.median(seconds)) for name, seconds in taken.items()}


def _error(runs: dict[str, Callable[[Array], Array]], name: str, x: Array) -> str:
    exact = runs["FP32"](x).astype(np.float64)
    return f"{float(np.sqrt(np.square(runs[name](x) - exact).mean() / np.square(exact).mean())):.3f}"


def _encoder(tokens: int, width: int, layers: int) -> onnx.ModelProto:
    n, x = Net(7, opset=20), "x"
    ones, zeros = n.const("ones", np.ones(width, np.float32)), n.const("zeros", np.zeros(width, np.float32))
    for i in range(layers):
        y = n.op("LayerNormalization", [x, ones, zeros], f"{i}/norm")
        q, k, v = (n.linear(y, f"{i}/{part}", width, width) for part in "qkv")
        scores = n.op("MatMul", [q, n.op("Transpose", [k], f"{i}/turned", perm=[0, 2, 1])], f"{i}/scores")
        scaled = n.op("Mul", [scores, n.const(f"{i}/scale", np.float32(width**-0.5))], f"{i}/scaled")
        mixed = n.op("MatMul", [n.op("Softmax", [scaled], f"{i}/shares"), v], f"{i}/mixed")
        x = n.op("Add", [x, n.linear(mixed, f"{i}/proj", width, width)], f"{i}/add")
        inner = n.op("LayerNormalization", [x, ones, zeros], f"{i}/norm2")
        x = n.op("Add", [x, _feed_forward(n, inner, f"{i}/mlp", width)], f"{i}/add2")
    return _finish(n, tokens, width)


def _products(tokens: int, width: int) -> onnx.ModelProto:
    n = Net(7, opset=20)
    _feed_forward(n, "x", "mlp", width)
    return _finish(n, tokens, width)


def _feed_forward(n: Net, x: str, name: str, width: int) -> str:
    inner = n.op("Gelu", [n.linear(x, f"{name}/up", width, 4 * width)], f"{name}/gelu")
    return n.linear(inner, f"{name}/down", 4 * width, width)


def _finish(n: Net, tokens: int, width: int) -> onnx.ModelProto:
    n.nodes[-1].output[0] = "y"
    return finish(n, {"x": [1, tokens, width]}, {"y": [1, tokens, width]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/dynamic_int8.md")
    main(parser.parse_args().write)
