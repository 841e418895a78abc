"""What an export's check compares: outputs bit for bit, whatever their type, and latencies with what is doubtful."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from evaluators.engine import Backend
from evaluators.process.evaluator import Evaluator
from evaluators.process.results import LatencyComparison
from search.errors import ArtifactError
from search.values import Precision
from studies.export import checks
from studies.export.checks import MeasuredEngine, check_latency, check_outputs, identical
from tests.support import evaluator_jobs
from tests.support.command_line import ok
from tests.support.networks import Net, images, save

HOT = {"throttled": ["power brake"], "other_processes": 0}
COOL = {"throttled": [], "other_processes": 0}


# -- outputs -----------------------------------------------------------------------------------------------------------


def naming_classifier() -> onnx.ModelProto:
    """Gives logits, and the name of the best class as a string."""
    n = Net(0)
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    logits = n.head(x, 8)
    best = n.op("ArgMax", [logits], "best", axis=1, keepdims=0)
    names = [f"class {number}" for number in range(10)]
    n.op("LabelEncoder", [best], "names", domain="ai.onnx.ml", keys_int64s=list(range(10)), values_strings=names)
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [4, 3, 8, 8])]
    outputs = [
        helper.make_tensor_value_info(logits, TensorProto.FLOAT, [4, 10]),
        helper.make_tensor_value_info("names_out", TensorProto.STRING, [4]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    graph = helper.make_graph(n.nodes, "net", inputs, outputs, n.weights)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model


@pytest.mark.slow
def test_an_engine_that_gives_strings_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(naming_classifier(), tmp_path / "model.onnx")
    labels = np.random.default_rng(0).integers(0, 10, 40)
    np.savez("data.npz", image=images(40, shape=(3, 8, 8)), labels=labels)
    ok("search", "model.onnx", "--data", "data.npz", "--study", "s", "--trials", 1, "--quiet")
    ok("export", "s", "--trial", 0, "--out", "engine")
    manifest = json.loads(Path("engine/manifest.json").read_text(encoding="utf-8"))
    assert manifest["check"] == {"outputs": "equal"}
    assert manifest["latency_check"]["warnings"] == []


def test_other_strings_are_found_out(tmp_path: Path) -> None:
    """The same graph with one class called otherwise, both run by ONNX Runtime."""
    case = evaluator_jobs.case(tmp_path, naming_classifier())
    renamed = onnx.load(tmp_path / "model.onnx")
    (encoder,) = (node for node in renamed.graph.node if node.op_type == "LabelEncoder")
    (values,) = (attribute for attribute in encoder.attribute if attribute.name == "values_strings")
    values.strings[:] = [text.upper() for text in values.strings]
    onnx.save(renamed, tmp_path / "renamed.onnx")
    evaluator = Evaluator(case.job, lambda event, value: None)
    keeper = asking(evaluator)
    check_outputs(keeper, tmp_path / "model.onnx", tmp_path / "model.onnx")
    with pytest.raises(ArtifactError, match="outputs names_out differ from those of the engine"):
        check_outputs(keeper, tmp_path / "model.onnx", tmp_path / "renamed.onnx")


def asking(evaluator: Evaluator) -> Any:
    """A keeper whose evaluator runs in this process."""

    return SimpleNamespace(ask=lambda doing: evaluator, close=lambda: None)


NAN = np.array([0x7FC00000], np.uint32).view(np.float32)
OTHER_NAN = np.array([0xFFC00001], np.uint32).view(np.float32)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), True),
        (NAN, NAN.copy(), True),
        (NAN, OTHER_NAN, False),
        (np.float32([0.0]), np.float32([-0.0]), False),
        (np.float32([1]), np.float64([1]), False),
        (np.float32([[1]]), np.float32([1]), False),
        (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy(), True),
        (np.array(["a", "b"]), np.array(["a", "b"]), True),
        (np.array(["a", "b"]), np.array(["a", "c"]), False),
        (np.array(["a"]), np.array(["ab"]), False),
        (np.array(["a", "b"], object), np.array(["a", "b"], object), True),
        (np.array(["a", "b"], object), np.array(["a", None], object), False),
        (np.float32([]), np.float32([]), True),
        (np.float32([1]), None, False),
    ],
)
def test_arrays_are_the_same_bit_for_bit(one: NDArray[Any], other: NDArray[Any] | None, same: bool) -> None:
    assert identical(one, other) is same
    assert identical(other, one) is same


def minus(folder: Path, name: str, *, sign: float) -> Path:
    """Gives 0.0 or -0.0 in all of its outputs."""
    factor = onnx.numpy_helper.from_array(np.float32([sign * 0.0]), "factor")
    nodes = [helper.make_node("Relu", ["image"], ["positive"]), helper.make_node("Mul", ["positive", "factor"], ["y"])]
    info = helper.make_tensor_value_info
    ends = [info("image", TensorProto.FLOAT, [4, 3, 8, 8])], [info("y", TensorProto.FLOAT, [4, 3, 8, 8])]
    graph = helper.make_graph(nodes, "zeros", *ends, [factor])
    return save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / name)


def test_zeros_of_another_sign_are_found_out(tmp_path: Path) -> None:
    """Of two files that ONNX Runtime runs, whose outputs numpy calls equal."""
    keeper = asking(Evaluator(evaluator_jobs.case(tmp_path, naming_classifier()).job, lambda event, value: None))
    positive, negative = minus(tmp_path, "a.onnx", sign=1), minus(tmp_path, "b.onnx", sign=-1)
    check_outputs(keeper, positive, positive)
    with pytest.raises(ArtifactError, match="outputs y differ"):
        check_outputs(keeper, positive, negative)


# -- latencies ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A latency lock of our own, and quick measurements."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("evaluators.measure.blocks.MAX_WARM_UP_S", 0.01)
    monkeypatch.setattr("evaluators.measure.latency.BLOCK_MS", 0.5)


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    folder = tmp_path_factory.mktemp("checked")
    case = evaluator_jobs.case(folder, naming_classifier())
    evaluator = Evaluator(case.job, lambda event, value: None)
    evaluator.builds.rebuild(case.uniform(Precision.FP32), evaluator.opened.folder / "engine.onnx")
    return evaluator


def states(backend: Backend, monkeypatch: pytest.MonkeyPatch, *values: dict[str, Any]) -> None:
    """The device is in one of these states after the other."""
    coming = iter(values)
    monkeypatch.setattr(backend, "device_state", lambda: next(coming))


def checked(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The check of an engine against itself, which ties at the second try."""
    engine = evaluator.opened.folder / "engine.onnx"
    monkeypatch.setattr(checks, "_ROUNDS", 2)
    compare, factors = evaluator.timings.compare_latency, iter([100, 1])

    def apart_at_first(engine: Path, measured: Path, rounds: int) -> LatencyComparison:
        times = compare(engine, measured, rounds)
        return replace(times, engine_ms=times.measured_ms * next(factors))

    monkeypatch.setattr(evaluator.timings, "compare_latency", apart_at_first)
    return check_latency(asking(evaluator), MeasuredEngine(engine, 1.0, 1.0), engine, 0.5)


@pytest.mark.usefixtures("alone")
def test_a_try_in_which_the_device_was_slowed_down_is_marked(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluators.measure.latency._doubts", lambda *_: iter(()))
    states(evaluator.opened.backend, monkeypatch, COOL, HOT, COOL, {**COOL, "other_processes": 1})
    check = checked(evaluator, monkeypatch)
    assert (check["tries"], check["latency_ratio"]) == (2, 1.0)
    assert check["warnings"] == [
        "try 1: the device was slowed down: power brake",
        "try 2: 1 other process uses the device",
    ]


@pytest.mark.usefixtures("alone")
def test_an_unstable_try_is_marked(evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluators.measure.latency.RATIO_LIMIT", -1.0)
    warnings = checked(evaluator, monkeypatch)["warnings"]
    # Where both ratios are known equally well it is said once, of neither by name.
    for which in ("try 1: (engine: )?", "try 1: (measured: )?", "try 2: (engine: )?", "try 2: (measured: )?"):
        said = rf"{which}the ratio to FP32 is known to ± [\d.]+ % only"
        assert any(re.match(said, warning) for warning in warnings), warnings
