"""What scoring an evaluation takes beside the engine: passes that stay in the cache, in threads, against NumPy's own.

Three loads: `miou` over 600 samples of 7×192×192, `top1` over 20,000 samples of 1000 classes, `sqnr` over 200 samples
of 7×192×192. The engine costs nothing here, so that nothing hides behind it: what is left is all scoring. The plain way
is one pass of NumPy over a whole batch after another, with every batch counted twice and FP32's outputs
read from an archive, as bitfront once did.

usage: python -m benchmarks.figures.scoring [--repeats 3]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.example import load_text
from evaluators.data import Batch
from evaluators.measure.accuracy import evaluate, reference
from evaluators.metrics.registry import BUILT_IN

Array = NDArray[Any]


@dataclass
class Load:
    """One batch of outputs, FP32's and a candidate's, that comes again and again, and its labels."""

    metric: str
    samples: int
    shape: tuple[int, ...]
    batch: int
    labels: Array | None
    plain: Callable[[Array, Array | None, Path], object]
    fp32: Array = field(init=False)
    mine: Array = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        self.fp32 = random.standard_normal((self.batch, *self.shape), dtype=np.float32)
        self.mine = self.fp32 + 0.1 * random.standard_normal(self.fp32.shape, dtype=np.float32)

    def batches(self) -> Iterator[Batch]:
        inputs = {"x": np.zeros((self.batch, 1), np.float32)}
        return (Batch(inputs, self.labels, self.batch) for _ in range(self.samples // self.batch))


class Given:
    """A session whose outputs are there already."""

    memory_bytes = None
    types: Mapping[str, str] = {}
    notes = ()

    def __init__(self, outputs: Array) -> None:
        self.outputs = outputs

    def run(self, inputs: object) -> dict[str, Array]:
        return {"y": self.outputs}


def main(repeats: int = 3) -> dict[str, float]:
    """`METRIC.s`: seconds of scoring, the least of some repeats; `METRIC.ratio`: of the plain way to that."""
    measures: dict[str, float] = {}
    for load in loads():
        pairs = [(seconds(load), plain_seconds(load)) for _ in range(repeats)]
        mine, plain = (min(times) for times in zip(*pairs, strict=True))
        measures |= {f"{load.metric}.s": mine, f"{load.metric}.ratio": plain / mine}
        print(f"{load.metric:6} {mine:.2f} s, plain {plain:.2f} s: {plain / mine:.1f}x; {load_text()}", flush=True)
    return measures


def loads() -> list[Load]:
    random = np.random.default_rng(1)
    maps, classes = random.integers(0, 7, (16, 192, 192)), random.integers(0, 1000, 100)
    return [
        Load("miou", 608, (7, 192, 192), 16, maps, plain_miou),
        Load("top1", 20_000, (1000,), 100, classes, plain_top1),
        Load("sqnr", 208, (7, 192, 192), 16, None, plain_sqnr),
    ]


def seconds(load: Load) -> float:
    """What an evaluation's scoring takes: finite or not, the metric, and whether outputs resemble FP32's."""
    metric = BUILT_IN[load.metric]
    with tempfile.TemporaryDirectory() as folder:
        fp32 = reference(Given(load.fp32), metric, load.batches(), Path(folder))
        return evaluate(Given(load.mine), metric, load.batches(), fp32).score_s


def plain_seconds(load: Load) -> float:
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "fp32.npz"
        np.savez(stored, y=load.fp32)
        start = time.perf_counter()
        for batch in load.batches():
            assert np.isfinite(load.mine).sum() == load.mine.size
            load.plain(load.mine, batch.labels, stored)
        return time.perf_counter() - start


def plain_miou(mine: Array, labels: Array | None, stored: Path) -> None:
    assert labels is not None
    for _ in ("over all", "of this batch"):
        wanted, predicted = labels.astype(np.int64), mine.argmax(axis=1)
        counted = wanted < 7
        np.bincount(wanted[counted] * 7 + predicted[counted], minlength=49)


def plain_top1(mine: Array, labels: Array | None, stored: Path) -> Array:
    assert labels is not None
    wanted = labels.astype(np.int64)[:, None]
    own = np.take_along_axis(mine, wanted, axis=1)
    ahead = (mine > own) | ((mine == own) & (np.arange(mine.shape[1]) < wanted))
    return np.asarray(ahead.sum(axis=1) < 1, dtype=np.float64)


def plain_sqnr(mine: Array, labels: Array | None, stored: Path) -> Array:
    with np.load(stored) as archive:
        a, b = (array.reshape(len(array), -1).astype(np.float64) for array in (mine, archive["y"]))
    return np.asarray(np.log10(np.einsum("ij,ij->i", b, b) / np.einsum("ij,ij->i", a - b, a - b)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    main(parser.parse_args().repeats)
