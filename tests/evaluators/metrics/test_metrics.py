"""Built-in metrics against values worked out by hand, and the user's own with all their ways to fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.metrics.distances import SQNR_CAP_DB
from evaluators.metrics.mean_iou import MeanIoU
from evaluators.metrics.registry import BUILT_IN, get_metric
from search.errors import ConfigError, DataError, MetricError

OWN = """
import numpy as np

def share(outputs, labels):
    return np.asarray(outputs["y"].argmax(1) == labels, dtype=bool)

share.unit, share.ratio, share.needs_labels = "share", True, False

def error(outputs, labels):
    return np.abs(outputs["y"][:, 0] - labels)

error.higher_is_better = False

def wrong_shape(outputs, labels):
    return np.zeros((len(labels), 2))

def text(outputs, labels):
    return ["good"] * len(labels)

def raises(outputs, labels):
    raise KeyError("no such output")

def sometimes_nan(outputs, labels):
    scores = np.ones(len(labels))
    scores[2] = np.nan
    return scores

def odd(outputs, labels):
    return np.ones(len(labels))

odd.ratio = "yes"
number = 3

class Total:
    unit = "points"

    def __init__(self):
        self.total = 0.0

    def update(self, outputs, labels):
        if labels[0] < 0:
            raise ValueError("negative label")
        self.total += float(labels.sum())

    def compute(self):
        return self.total

class Empty:
    def update(self, outputs, labels):
        pass

class NoNumber(Total):
    def compute(self):
        return "many"

class NoValue(Total):
    def compute(self):
        return float("nan")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module `own_metrics` in the current folder, which is not on the path."""
    (tmp_path / "own_metrics.py").write_text(OWN)
    (tmp_path / "broken_metrics.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_metrics", None)


SCORES = np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0], [3.0, 1.0, 2.0], [0.0, 0.0, 0.0]], dtype=np.float32)


def score(name: str, array: NDArray[np.float32], labels: object = None, other: object = None) -> list[float]:
    reference = None if other is None else {"y": np.asarray(other, dtype=np.float32)}
    given = None if labels is None else np.asarray(labels)
    return [float(s) for s in BUILT_IN[name].scores({"y": array}, given, reference, count=len(array))]


def test_top1_gives_ties_to_the_lower_class() -> None:
    assert score("top1", SCORES, [1, 0, 2, 0]) == [1, 1, 0, 1]
    assert score("top1", SCORES, [1, 1, 0, 2]) == [1, 0, 1, 0]


def test_top5() -> None:
    scores = np.array([[6, 5, 4, 3, 2, 1], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], dtype=np.float32)
    assert score("top5", scores, [4, 4, 5]) == [1, 1, 0]
    assert score("top5", scores, [5, 0, 0]) == [0, 1, 1]


def test_top5_needs_five_classes() -> None:
    with pytest.raises(DataError, match="top5 needs at least 5 classes, the model has 3"):
        score("top5", SCORES, [0, 0, 0, 0])


def test_agreement() -> None:
    assert score("agreement", SCORES, None, SCORES) == [1, 1, 1, 1]
    assert score("agreement", SCORES, None, SCORES[::-1]) == [0, 1, 1, 0]


def test_cosine_over_all_float_outputs() -> None:
    ours = {"a": np.array([[1.0], [0.0], [0.0]]), "n": np.array([1, 2, 3]), "b": np.array([[0.0], [0.0], [0.0]])}
    theirs = {"a": np.array([[1.0], [0.0], [2.0]]), "n": np.array([9, 9, 9]), "b": np.array([[1.0], [0.0], [0.0]])}
    scores = BUILT_IN["cosine"].scores(ours, None, theirs, count=3)
    assert scores == pytest.approx([1 / np.sqrt(2), 1.0, 0.0])


def test_sqnr_is_capped_so_that_fp32_against_itself_is_finite() -> None:
    assert score("sqnr", SCORES, None, SCORES) == [SQNR_CAP_DB] * 4
    assert score("sqnr", 1.1 * SCORES[:3], None, SCORES[:3]) == pytest.approx([20.0] * 3, abs=1e-4)
    assert score("sqnr", SCORES[:1], None, 0 * SCORES[:1]) == [-SQNR_CAP_DB]


def test_mse_is_better_when_lower() -> None:
    assert score("mse", SCORES + 2, None, SCORES) == pytest.approx([4.0] * 4)
    assert not BUILT_IN["mse"].higher_is_better
    assert BUILT_IN["mse"].loss(0.0, 4.0) == 4.0
    assert BUILT_IN["top1"].loss(0.75, 0.5) == 0.25


def test_half_precision_outputs_do_not_overflow() -> None:
    big = np.full((2, 100), 60000, dtype=np.float16)
    assert BUILT_IN["mse"].scores({"y": big}, None, {"y": -big}, count=2) == pytest.approx([120000.0**2] * 2, rel=1e-3)


def test_miou_leaves_out_absent_classes_and_ignored_pixels() -> None:
    labels = np.array([[[0, 0], [1, 255]]])
    predicted = np.array([[[0, 1], [1, 1]]])
    scores = np.moveaxis(np.eye(4)[predicted], -1, 1)  # class 2 and 3 occur nowhere
    metric = MeanIoU()
    metric.update({"y": scores}, labels)
    assert metric.compute() == pytest.approx((1 / 2 + 1 / 2) / 2)
    metric.update({"y": scores[:, :, :1, :1]}, np.array([[[2]]]))
    assert metric.compute() == pytest.approx((1 / 3 + 1 / 2 + 0) / 3)


def test_miou_refuses_what_does_not_fit() -> None:
    maps = np.zeros((1, 4, 2, 2))
    for outputs, labels, words in [
        (np.zeros((1, 4)), np.zeros((1, 2, 2), int), "needs shape \\(n, C, H, W\\)"),
        (maps, np.zeros((1, 3, 2), int), "got int64 of shape \\(n, 3, 2\\)"),
        (maps, np.full((1, 2, 2), 7), "label 7"),
        (maps, None, "needs labels"),
    ]:
        with pytest.raises(DataError, match=words):
            MeanIoU().update({"y": outputs}, labels)
    assert MeanIoU().compute() == 0.0


def test_maps_without_a_labelled_pixel_are_nothing_to_score_but_batches_may_be() -> None:
    metric, rng = get_metric("miou"), np.random.default_rng(0)
    assert metric.has_content is not None
    labels = rng.integers(0, 3, (4, 8, 8))
    labels[2] = 255
    assert [metric.has_content(one[None]) for one in labels] == [True, True, False, True]
    maps, values = rng.standard_normal((4, 3, 8, 8)), []
    for size in (4, 1):
        whole = MeanIoU()
        for start in range(0, 4, size):
            part = MeanIoU()
            part.update({"y": maps[start : start + size]}, labels[start : start + size])
            assert part.compute() >= 0
            whole.merge(part)
        values.append(whole.compute())
    assert values[0] == values[1] > 0


def test_built_ins_refuse_outputs_and_labels_that_do_not_fit() -> None:
    with pytest.raises(DataError, match=r"first float output.*\(n, classes\).*'y' has shape \(2, 3, 4\)"):
        score("top1", np.zeros((2, 3, 4), np.float32), [0, 0])
    with pytest.raises(DataError, match="label 3 is not one of the model's 3 classes, which are numbered from 0 to 2"):
        score("top1", SCORES, [0, 1, 2, 3])
    with pytest.raises(DataError, match="class numbers, integers of shape"):
        score("top1", SCORES, [0.0, 1.0, 2.0, 0.5])
    with pytest.raises(DataError, match="needs labels"):
        score("top1", SCORES)
    with pytest.raises(DataError, match="none"):
        BUILT_IN["mse"].scores({"y": np.ones((2, 1), int)}, None, {"y": np.ones((2, 1), int)}, count=2)


@pytest.mark.parametrize("shape", [(), (2, 4), (3, 4, 1, 1)])
@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_built_ins_refuse_what_they_read_in_other_rows_than_the_samples(name: str, shape: tuple[int, ...]) -> None:
    array, metric = np.ones(shape, np.float32), BUILT_IN[name]
    labels = np.zeros((4, 1, 5) if metric.kind == "accumulating" else 4, int)
    words = re.escape(f"output 'y' has shape {shape} for 4 samples")
    gathers = metric.kind == "accumulating"
    given = {"y": array}, labels, *([] if gathers else [{"y": array}])
    with pytest.raises(DataError, match=words):
        (metric.accumulator().update if gathers else metric.scores)(*given, count=4)


def test_outputs_that_a_metric_does_not_read_are_of_any_shape() -> None:
    beside = {"y": SCORES, "scalar": np.array(3), "kept": np.ones(7, int)}
    assert BUILT_IN["mse"].scores(beside, None, beside, count=len(SCORES)).tolist() == [0.0] * len(SCORES)
    assert BUILT_IN["agreement"].scores(beside | {"z": np.ones(7)}, None, beside, count=len(SCORES)).all()


@pytest.mark.parametrize("name", ["top1", "top5", "agreement", "miou"])
def test_metrics_over_classes_refuse_a_single_class(name: str) -> None:
    """Its largest is always the same, so that a constant engine would be perfect."""
    metric = BUILT_IN[name]
    gathers = metric.kind == "accumulating"
    outputs = {"y": np.ones((4, 1, 2, 2) if gathers else (4, 1), np.float32)}
    labels = np.zeros((4, 2, 2) if gathers else 4, int)
    given = outputs, labels, *([] if gathers else [outputs])
    with pytest.raises(DataError, match=f"metric {name} compares classes and needs two or more.*sqnr"):
        (metric.accumulator().update if gathers else metric.scores)(*given, count=4)


def test_metrics_over_classes_read_the_first_float_output() -> None:
    """Converters of classical models put the class itself, an integer, before the probabilities."""
    outputs = {"label": np.array([1, 0, 0, 0]), "probabilities": SCORES}
    assert BUILT_IN["top1"].scores(outputs, np.array([1, 0, 2, 0]), count=4).tolist() == [1, 1, 0, 1]
    assert BUILT_IN["agreement"].scores(outputs, None, outputs, count=4).all()
    kinds = {"label": "i", "probabilities": "f", "features": "f"}
    assert BUILT_IN["top1"].outputs_read(kinds) == ["probabilities"]
    assert BUILT_IN["sqnr"].outputs_read(kinds) == ["probabilities", "features"]


AREAS = ("map", "map_small", "map_medium", "map_large")


def test_units_and_directions() -> None:
    assert {name for name, metric in BUILT_IN.items() if metric.ratio} == {
        "top1", "top5", "agreement", "miou", *AREAS
    }  # fmt: skip
    assert {name for name, metric in BUILT_IN.items() if not metric.higher_is_better} == {"mse"}
    assert {name for name, metric in BUILT_IN.items() if metric.needs_labels} == {"top1", "top5", "miou", *AREAS}
    assert BUILT_IN["sqnr"].unit == "dB"


@pytest.mark.usefixtures("own")
def test_own_function() -> None:
    metric = get_metric("own_metrics:share")
    assert (metric.unit, metric.ratio, metric.needs_labels, metric.higher_is_better) == ("share", True, False, True)
    scores = metric.scores({"y": SCORES}, np.array([1, 0, 0, 2]), count=4)
    assert scores.dtype == np.float64
    assert scores.tolist() == [1, 1, 1, 0]
    plain = get_metric("own_metrics:error")
    assert (plain.unit, plain.ratio, plain.needs_labels, plain.higher_is_better) == ("", False, True, False)


@pytest.mark.usefixtures("own")
def test_own_class() -> None:
    metric = get_metric("own_metrics:Total")
    assert (metric.kind, metric.unit) == ("accumulating", "points")
    total = metric.accumulator()
    total.update({"y": SCORES}, np.array([1, 2]), count=2)
    total.update({"y": SCORES}, np.array([3, 4]), count=2)
    assert total.compute() == 10.0
    with pytest.raises(MetricError, match=r"own_metrics:Total raised ValueError in update, on samples 64 to 65"):
        total.update({"y": SCORES}, np.array([-1, 4]), count=2, first=64)
    for name, words in {"NoNumber": "one number, got str", "NoValue": "gave nan"}.items():
        with pytest.raises(MetricError, match=words):
            get_metric(f"own_metrics:{name}").accumulator().compute()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", r"own_metrics:raises raised KeyError on samples 32 to 35"),
        ("wrong_shape", r"shape \(4,\), got shape \(4, 2\)"),
        ("text", "numbers"),
        ("sometimes_nan", r"gave nan on sample 34 \(1 of 4"),
    ],
)
def test_own_function_that_fails_is_named_with_the_sample(name: str, words: str) -> None:
    with pytest.raises(MetricError, match=words):
        get_metric(f"own_metrics:{name}").scores({"y": SCORES}, np.zeros(4, int), count=4, first=32)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mIoU", "Did you mean miou"),
        ("top_1", "Did you mean top1.*top1, top5, agreement, cosine, sqnr, mse, miou, map"),
        ("own_metrics:nothing", "has no nothing"),
        ("no_such_module:f", "importing no_such_module from"),
        ("broken_metrics:f", "not_there_at_all"),
        ("own_metrics:number", "must be a function or a class, got int"),
        ("own_metrics:Empty", "lacks compute"),
        ("own_metrics:odd", "ratio must be bool, got 'yes'"),
    ],
)
def test_unknown_metric(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        get_metric(name)
