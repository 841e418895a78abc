"""Other people's models: each is loaded, listed, lowered in every precision and run beside the file as it is given.

A model is tried in a process of its own, as a command of a user is. What it computes in FP32 has to be what the file
computes, within rounding; every lowered graph has to pass the ONNX checker.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.page import table, write_tables
from bitfront.verbs.engine_files import layers_of
from evaluators.backends.fake.backend import FakeBackend
from evaluators.backends.fake.options import FakeOptions
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator, open_file
from evaluators.calibration.activations import collect
from evaluators.data.opening import open_data
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import Placement
from search.errors import BitfrontError, EvaluatorError
from search.graph.model import Model
from search.graph.onnx_file import read_input_shapes
from search.graph.sizes import moved_batches
from search.space.choices import make_space
from search.values import Assignment, Precision, Ranges
from studies.options.config import SearchConfig
from studies.options.quantities import ShapeSpec
from studies.show.layer_table import layer_rows, left_out_rows

Feeds = dict[str, NDArray[Any]]
TRIED = ((2, 16), (1, 16), (2, 320), (2, 1024), (1, 1024), (1, 576))  # batch, and every other size that is dynamic
SAMPLES = 4
MIXES = 3
ROUNDING = 1e-4  # of the largest magnitude of an output
FLOAT, CODES = Precision.FP32, Precision.INT8
LIMIT_S = 900


def main() -> None:
    """Try every file of a folder, or one and print what came as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path, help="a folder of ONNX files, or one")
    parser.add_argument("--write", action="store_true", help="write results/zoo.md")
    arguments = parser.parse_args()
    if arguments.models.is_file():
        print(json.dumps(try_model(arguments.models)))
        return
    rows = []
    for path in sorted(arguments.models.rglob("*.onnx")):
        rows.append(_row(path, _in_process(path)))
        print(" | ".join(rows[-1]), flush=True)
    if arguments.write:
        refused = sum("refused" in row[-1] for row in rows)
        text = f"{len(rows)} files, {refused} refused.\n\n{table(HEAD, rows)}"
        write_tables("zoo", "Other people's models", "python -m benchmarks.trust.zoo FOLDER --write", text)


HEAD = ("model", "export", "groups", "left as they are", "load, s of processor", "MiB", "INT8, dB", "outcome")


def try_model(path: Path) -> dict[str, Any]:
    """What came of one file: figures, and `refused`, the sentence, where bitfront does not take it."""
    sizes, feeds, exact = _run_as_given(path)
    values = {name: feeds[name].flat[0] for name, each in read_input_shapes(path).items() if _is_fixed(each, sizes)}
    shapes = tuple(ShapeSpec(name, each, each, each) for name, each in sizes.items() if name not in values)
    fixed = tuple(f"{name}={value:g}" for name, value in values.items())
    start = time.process_time()
    try:
        layers = layers_of(SearchConfig(str(path), "", shapes=shapes, input_values=fixed))
    except BitfrontError as error:
        return {"refused": str(error)}
    loaded = time.process_time() - start
    model = layers.model
    moved = moved_batches(node.name for node in model.graph.graph)
    feeds, exact = (
        {name: np.moveaxis(array, 1, 0) if name in moved else array for name, array in each.items()}
        for each in (feeds, exact)
    )  # states of recurrent models have their batch second in the file
    figures = {"groups": len(layer_rows(layers)), "left": len(left_out_rows(layers)), "load_s": loaded}
    try:
        figures |= _lowered(model, feeds, exact)
    except BitfrontError as error:
        return {**figures, "refused": str(error)}
    return {**figures, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def _lowered(model: Model, feeds: Feeds, exact: Feeds) -> dict[str, Any]:
    feeds = {spec.name: feeds[spec.name] for spec in model.inputs}
    ranges, processor = _ranges(model, feeds), OnnxRuntimeBackend("cpu", threads=1)
    emulator = Emulator(processor, processor.placement)
    figures: dict[str, Any] = {}
    tries = list(_tries(model, ranges, processor))
    for placement, assignment in tries:
        graph = lower(model, assignment, ranges, placement)
        onnx.checker.check_model(ir.to_proto(graph), full_check=True)
        used = set(assignment.values())
        if placement == processor.placement:
            outputs = emulator.open(graph).run(feeds)
            if used == {FLOAT}:
                figures["worst"] = max((_error(exact[name], array) for name, array in outputs.items()), default=0.0)
            elif CODES in used and "sqnr_db" not in figures:
                figures["sqnr_db"] = min((_sqnr_db(exact[name], array) for name, array in outputs.items()), default=0.0)
    return {**figures, "lowered": len(tries)}


def _tries(model: Model, ranges: Ranges, processor: OnnxRuntimeBackend) -> Iterator[tuple[Placement, Assignment]]:
    """Each format in every group that may have it, then mixes of all: on the processor and for strong typing."""
    random = np.random.default_rng(0)
    formats = tuple(each.label for each in Precision if each is not FLOAT and each is not Precision.INT8_DYNAMIC)
    for backend in (processor, FakeBackend(options=FakeOptions(precisions=formats))):
        space = make_space(model, backend.capability(), ranges)
        for precision in space.precisions:
            yield backend.placement, space.uniform(precision)
        may = {name: [each.precision for each in some if each.offered] for name, some in space.choices.items()}
        for _ in range(MIXES):
            yield backend.placement, Assignment({name: some[random.integers(len(some))] for name, some in may.items()})


def _is_fixed(dims: Sequence[int | str], sizes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether an input is a number, or a state of one batch beside inputs of several: `--input-value` gives it."""
    batch = next(iter(sizes.values()))[0]
    return not dims or (
        len(sizes) > 1 and all(isinstance(each, int) and each > 0 for each in dims) and dims[0] != batch
    )


def _run_as_given(path: Path) -> tuple[dict[str, tuple[int, ...]], Feeds, Feeds]:
    """The sizes of a file's inputs at which ONNX Runtime runs it, with one batch of inputs, and what it computes.

    Raises:
        EvaluatorError: there are none among those that are tried.
    """
    dims, session = read_input_shapes(path), open_file(path, 1)
    for place, (batch, length) in enumerate(TRIED):
        sizes = {
            name: tuple(
                size if isinstance(size, int) and size > 0 else length if axis else batch
                for axis, size in enumerate(each)
            )
            for name, each in dims.items()
        }
        feeds = _made_up(path, sizes)
        feeds |= {name: np.zeros_like(feeds[name]) for name, each in dims.items() if each and _is_fixed(each, sizes)}
        try:
            return sizes, feeds, session.run(feeds)
        except EvaluatorError:
            if place == len(TRIED) - 1:
                raise
    raise AssertionError


def _made_up(path: Path, sizes: Mapping[str, tuple[int, ...]]) -> Feeds:
    """One batch: noise, zeros and ones for what is an index, a mask or a token, and a sample rate for a number."""
    random = np.random.default_rng(0)
    types = {
        value.name: value.type.tensor_type.elem_type for value in onnx.load(path, load_external_data=False).graph.input
    }
    feeds = {}
    for name, each in sizes.items():
        dtype = onnx.helper.tensor_dtype_to_np_dtype(types[name])
        noise = random.standard_normal(each) if dtype.kind == "f" else random.integers(0, 2, each)
        feeds[name] = np.asarray(noise if each else 16_000).astype(dtype)
    return feeds


def _ranges(model: Model, feeds: Feeds) -> Ranges:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        rows = max(SAMPLES // model.batch, 1)
        arrays: dict[str, Any] = {name: np.concatenate([array] * rows) for name, array in feeds.items()}
        np.savez(path, **arrays)
        data = open_data(str(path), model.inputs)
        return collect(model, data, np.arange(len(data)), "minmax", whole=True)


def _error(exact: NDArray[Any], output: NDArray[Any]) -> float:
    """The largest difference as a share of the largest magnitude; infinite where shapes differ."""
    if exact.shape != output.shape:
        return float("inf")
    if not exact.size:
        return 0.0
    one, other = exact.astype(np.float64), output.astype(np.float64)
    finite = np.isfinite(one)
    if not np.array_equal(finite, np.isfinite(other)):
        return float("inf")
    scale = float(np.abs(one[finite]).max(initial=0.0)) or 1.0
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0)) / scale


def _sqnr_db(exact: NDArray[Any], output: NDArray[Any]) -> float:
    if exact.shape != output.shape:
        return 0.0
    noise = float(np.square(exact.astype(np.float64) - output).mean())
    return 10 * float(np.log10((float(np.square(exact.astype(np.float64)).mean()) or 1e-30) / (noise or 1e-30)))


def _in_process(path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.trust.zoo", str(path)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"no end within {LIMIT_S} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _row(path: Path, figures: Mapping[str, Any]) -> list[str]:
    name, _, export = path.stem.partition("@")
    cells = [
        f"{figures[key]:{form}}" if key in figures else ""
        for key, form in (("groups", "d"), ("left", "d"), ("load_s", ".0f"), ("mib", ".0f"), ("sqnr_db", ".0f"))
    ]
    return [name, export, *cells, _outcome(figures)]


def _outcome(figures: Mapping[str, Any]) -> str:
    if "failed" in figures:
        return f"**failed**: {figures['failed']}"
    if "refused" in figures:
        return f"refused: {figures['refused']}".replace("\n", " ")
    if figures["worst"] > ROUNDING:
        return f"**FP32 differs by {figures['worst']:.1e}**"
    return f"{figures['lowered']} graphs, FP32 differs by {figures['worst']:.0e}"


if __name__ == "__main__":
    main()
