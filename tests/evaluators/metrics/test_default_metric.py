"""The metric follows the model's outputs and the labels; classes need two or more; unread outputs are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import bitfront
from evaluators.metrics.default_metric import default_metric
from evaluators.process.evaluator import Evaluator
from evaluators.process.job import Job
from evaluators.process.results import MetricDescription
from search.errors import DataError
from search.graph.model import TensorSpec
from tests.support.command_line import invoke, ok
from tests.support.networks import Net, finish, images, save

ONE = TensorSpec("y", "float32", (4, 1))
TEN = TensorSpec("y", "float32", (4, 10))
MAPS = TensorSpec("y", "float32", (4, 3, 8, 8))
DEPTHS = TensorSpec("y", "float32", (4, 1, 8, 8))
BESIDE = TensorSpec("z", "float32", (4, 7))
LABEL = TensorSpec("label", "int64", (4,))
HALVES = np.full(1, 0.5, np.float32)
SEVERAL = np.zeros(1, [("price", np.float32), ("demand", np.float32)])
INTEGERS, FLOATS, PIXELS = np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros((1, 8, 8), np.int64)


@pytest.mark.parametrize(
    ("outputs", "labels", "name", "why"),
    [
        ([TEN], INTEGERS, "top1", []),
        ([LABEL, TEN], INTEGERS, "top1", []),
        ([TEN], None, "agreement", ["no labels", "10 classes"]),
        ([LABEL, TEN], None, "agreement", ["no labels"]),
        ([TEN], HALVES, "agreement", ["labels, float32 of shape (samples), are not used", "one integer per sample"]),
        ([ONE], None, "sqnr", ["no labels", "'y' (4, 1)", "two classes or more"]),
        ([ONE], INTEGERS, "sqnr", ["labels, int64 of shape (samples), are not used", "two classes or more"]),
        ([TEN, BESIDE], INTEGERS, "sqnr", ["not used", "2 float outputs, 'y' (4, 10), 'z' (4, 7)"]),
        ([TEN, BESIDE], None, "sqnr", ["no labels", "2 float outputs"]),
        ([MAPS], None, "sqnr", ["'y' (4, 3, 8, 8)"]),
        ([MAPS], PIXELS, "miou", ["labels, int64 of shape (samples, 8, 8), give each position of the output 'y'"]),
        ([MAPS], PIXELS[:, :4], "sqnr", ["--metric miou reads one integer per position"]),
        ([MAPS, BESIDE], PIXELS, "sqnr", ["2 float outputs"]),
        ([DEPTHS], PIXELS, "sqnr", ["--metric miou reads"]),
        ([MAPS], np.full((1, 3, 8, 8), 0.5, np.float32), "sqnr", ["are not used"]),
        ([LABEL], None, "sqnr", ["no float output"]),
    ],
)
def test_the_default_follows_outputs_and_labels(
    outputs: list[TensorSpec], labels: NDArray[Any] | None, name: str, why: list[str]
) -> None:
    chosen = default_metric(outputs, labels)
    assert chosen.metric.name == name
    assert bool(chosen.why) == bool(why)
    for words in why:
        assert words in chosen.why


@pytest.mark.parametrize(
    ("outputs", "labels", "says"),
    [
        ([TEN], np.eye(10)[:3], r"shape \(n,\), got float64 of shape \(n, 10\)\. .*\.argmax\(1\)"),
        ([TEN], np.eye(10, dtype=np.uint8)[:3], r"uint8 of shape \(n, 10\)\. .*\.argmax\(1\)"),
        (
            [TEN],
            np.array(["cat", "dog"] * 30),
            r"got <U3 of shape \(n,\)\. Convert each name to the number of its class",
        ),
        ([TEN], FLOATS, r"got float32 of shape \(n,\)\. Convert them with \.astype\(\"int64\"\)"),
        ([TEN], INTEGERS[:, None], r"got int64 of shape \(n, 1\)\. Remove the second axis with \[:, 0\]"),
        ([TEN], SEVERAL, r"several labels, price, demand, .* Give it with --metric file\.py:function"),
        ([TEN, BESIDE], SEVERAL, "several labels, price, demand, "),
        (
            [MAPS],
            np.eye(3, dtype="u1")[PIXELS],
            r"--metric miou reads, got uint8 of shape \(n, 8, 8, 3\)\. .*argmax\(-1\)",
        ),
        ([MAPS], np.eye(3)[PIXELS].transpose(0, 3, 1, 2), r"float64 of shape \(n, 3, 8, 8\)\. .*\.argmax\(1\)"),
        ([MAPS], PIXELS[..., None], r"Remove the last axis with \[\.\.\., 0\]"),
        ([MAPS], PIXELS[:, None], r"Remove the second axis with \[:, 0\]"),
        ([MAPS], PIXELS.astype(np.float32), r"\.astype\(\"int64\"\)"),
    ],
)
def test_labels_that_a_default_metric_would_silently_ignore_are_refused(
    outputs: list[TensorSpec], labels: NDArray[Any], says: str
) -> None:
    with pytest.raises(DataError, match=says):
        default_metric(outputs, labels).check()


@pytest.mark.parametrize("labels", [None, HALVES, INTEGERS, np.zeros((1, 3)), PIXELS])
def test_other_labels_leave_the_default_metric_usable(labels: NDArray[Any] | None) -> None:
    default_metric([TEN], labels).check()


def regression(outputs: int = 1, *, second: bool = False, reshaped: bool = False) -> onnx.ModelProto:
    """Images to `outputs` numbers each; `second`: beside them the features that they come from.

    reshaped: by a shape that is computed, so that shape inference cannot know it.
    """
    n = Net()
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    x = n.op("Relu", [n.conv(x, "second", 8, 8)], "second/relu")
    features = n.op("Flatten", [n.op("GlobalAveragePool", [x], "pool")], "flatten")
    y = n.gemm(features, "fc", 8, outputs)
    shapes: dict[str, list[int | str]] = {"y": [4, outputs]}
    if reshaped:
        least = n.op("ReduceMin", [n.op("Abs", [y], "abs")], "least", keepdims=0)
        none = n.op("Cast", [n.op("Clip", [least, n.const("0", np.float32(0)), n.const("1", np.float32(0))], "clip")],
                    "to", to=onnx.TensorProto.INT64)  # fmt: skip
        ones = n.op("Add", [none, n.const("ones", np.array([1]))], "one")
        y = n.op("Reshape", [y, n.op("Concat", [n.const("minus", np.array([-1])), ones], "both", axis=0)], "reshape")
        shapes = {"y": ["a", "b"]}
    n.nodes[-1].output[0] = "y"
    if second:
        n.op("Identity", [features], "features")
        n.nodes[-1].output[0] = "features"
        shapes["features"] = [4, 8]
    return finish(n, {"image": [4, 3, 8, 8]}, shapes)


def job(folder: Path, network: onnx.ModelProto, labels: NDArray[Any] | None = None, **changes: Any) -> Job:
    save(network, folder / "model.onnx")
    arrays = {"image": images(60, shape=(3, 8, 8))} | ({} if labels is None else {"labels": labels})
    np.savez(folder / "data.npz", allow_pickle=False, **arrays)
    return Job(str(folder / "model.onnx"), str(folder / "data.npz"), str(folder / "work"), **changes)


def opened(given: Job) -> Evaluator:
    found = Evaluator(given, lambda event, value: None)
    found.setup.try_out()
    return found


def metric_of(evaluator: Evaluator) -> MetricDescription:
    found = evaluator.setup.describe().metric
    assert found is not None
    return found


def test_one_number_per_sample_is_compared_as_a_number(tmp_path: Path) -> None:
    found = metric_of(opened(job(tmp_path, regression())))
    assert (found.name, found.ratio) == ("sqnr", False)
    [note] = found.notes
    assert "the metric is sqnr, because the data have no labels" in note


def test_shapes_that_inference_does_not_know_are_found_by_running(tmp_path: Path) -> None:
    evaluator = opened(job(tmp_path, regression(reshaped=True)))
    assert evaluator.opened.model.outputs[0].shape == (), "or this test shows nothing"
    [note] = metric_of(evaluator).notes
    assert metric_of(evaluator).name == "sqnr"
    assert "'y' (4, 1)" in note


def test_one_hot_labels_are_refused_before_anything_is_scored(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got float32 of shape \(n, 10\)"):
        opened(job(tmp_path, regression(10), labels=np.eye(10, dtype=np.float32)[np.arange(60) % 10]))
    opened(job(tmp_path, regression(10), labels=np.eye(10, dtype=np.float32)[np.arange(60) % 10], metric="agreement"))


def test_outputs_that_a_metric_does_not_read_are_named(tmp_path: Path) -> None:
    given = job(tmp_path, regression(10, second=True), metric="agreement")
    assert metric_of(opened(given)).notes == ["metric agreement reads the output 'y' alone: 'features' is not scored"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def segmentation(folder: Path, **changes: Any) -> Job:
    n = Net()
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    n.conv(x, "classes", 8, 4)
    n.nodes[-1].output[0] = "y"
    network = finish(n, {"image": [4, 3, 8, 8]}, {"y": [4, 4, 8, 8]})
    masks = np.random.default_rng(0).integers(0, 4, (60, 8, 8)).astype(np.uint8)
    return job(folder, network, labels=masks, **changes)


def test_masks_of_an_output_of_classes_are_scored_by_miou(tmp_path: Path) -> None:
    found = metric_of(opened(segmentation(tmp_path)))
    assert (found.name, found.ratio) == ("miou", True)
    [note] = found.notes
    assert note.startswith("the metric is miou, because the labels, uint8 of shape (samples, 8, 8), give each position")


@pytest.mark.slow
def test_a_search_on_masks_takes_a_share_and_says_the_metric(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segmentation(here)
    bitfront.search("model.onnx", "data.npz", max_drop=0.01, trials=1, progress=True)
    assert "the metric is miou, because" in capsys.readouterr().err
    result = invoke("search", "model.onnx", "--data", "data.npz", "--max-drop", "0.01", "--study", "b", "--trials", 1)
    assert "the metric is miou, because" in result.stderr
    with pytest.raises(bitfront.InputError, match=r"a number below 1 may mean a share; use accuracy_limit=\"30dB\""):
        bitfront.search("model.onnx", "data.npz", max_drop=0.01, trials=1, metric="sqnr", study="dB")


@pytest.mark.slow
def test_a_search_says_what_it_compares_and_stores_it(here: Path) -> None:
    job(here, regression())
    result = invoke("search", "model.onnx", "--data", "data.npz", "--trials", 1)
    assert result.exit_code == 0
    assert "the metric is sqnr, because the data have no labels" in result.stderr
    stored = json.loads(ok("front", "model", "--json"))["metric"]
    assert stored["name"] == "sqnr"
    assert "the metric is sqnr" in stored["notes"][0]
    ok("resume", "model", "--trials", 2)
    ok("report", "model", "--out", "report.html")
    assert "The metric is sqnr, because the data have no labels" in (here / "report.html").read_text()


@pytest.mark.slow
def test_a_limit_on_data_without_labels_is_warned_of_with_what_it_means(here: Path) -> None:
    job(here, regression(10))
    arguments = ("search", "model.onnx", "--data", "data.npz", "--trials", 1, "--max-drop", "1%")
    warned = "WARNING: the data have no labels"
    said = invoke(*arguments, "--study", "forgotten").stderr
    assert warned in said
    assert "--max-drop now means that at most 1 % of the samples get another answer than from FP32" in said
    assert warned not in invoke(*arguments, "--study", "meant", "--metric", "agreement").stderr
    job(here, regression(10), labels=np.arange(60) % 10)
    assert warned not in invoke(*arguments, "--study", "labelled").stderr


@pytest.mark.slow
def test_agreement_on_one_number_per_sample_is_refused(here: Path) -> None:
    job(here, regression())
    result = invoke("search", "model.onnx", "--data", "data.npz", "--metric", "agreement")
    assert result.exit_code == 2
    assert "agreement compares classes and needs two or more, but output 'y' has shape (4, 1)" in result.stderr
    assert "--metric sqnr or mse" in result.stderr
    assert not (here / "bitfront.db").exists()


@pytest.mark.slow
def test_a_percentage_for_a_default_that_has_none_says_how_the_metric_was_chosen(here: Path) -> None:
    job(here, regression(), labels=np.zeros(60, np.float32))
    result = invoke("search", "model.onnx", "--data", "data.npz", "--max-drop", "1%")
    assert result.exit_code == 2
    assert "--max-drop 1% for the metric sqnr" in result.stderr
    assert "the labels, float32 of shape (samples), are not used" in result.stderr
