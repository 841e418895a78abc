"""The metric `map` against pycocotools on random cases, the layouts of boxes, and what is refused."""

from __future__ import annotations

import contextlib
import io
import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from evaluators.data.opening import open_data
from evaluators.metrics.boxes.matching import paired_overlap
from evaluators.metrics.boxes.suppression import BestDetections, suppress_overlaps
from evaluators.metrics.contract import Metric
from evaluators.metrics.detections import get_decoder
from evaluators.metrics.labels import check_labels
from evaluators.metrics.registry import get_metric
from evaluators.process.evaluator import Evaluator
from evaluators.process.job import StopLimits
from search.errors import ConfigError, DataError, MetricError
from search.graph.model import TensorSpec
from search.values import Precision
from tests.support.evaluator_jobs import SAMPLES, case
from tests.support.networks import Net, images

Floats = NDArray[np.float64]
NAMES = ("map", "map_small", "map_medium", "map_large")
CLASSES = 4


@pytest.mark.parametrize(
    ("name", "box", "counts"),
    [
        ("map_small", [0, 0, 200, 200, 1, 0], False),
        ("map_large", [0, 0, 200, 200, 1, 0], True),
        ("map", [0, 0, 200, 200, 1, 0], True),
        ("map", [0, 0, 200, 200, 1, 1], False),
        ("map", [0, 0, 200, 200, -1, 0], False),
    ],
)
def test_objects_that_do_not_count_are_nothing_to_score(name: str, box: list[int], counts: bool) -> None:
    """Objects of another size and crowds: every engine would score 0, and none would lose anything."""
    has_content = get_metric(name).has_content
    assert has_content is not None
    assert has_content(np.array([[box]])) == counts


def coco_values(detections: list[Floats], labels: Floats) -> dict[str, float]:
    """What pycocotools gives; -1 where nothing is to be found."""
    images = [{"id": i} for i in range(len(labels))]
    objects = [
        {"image_id": i, "category_id": int(row[4]), "bbox": [*row[:2], *(row[2:4] - row[:2])],
         "iscrowd": int(row[5]), "area": float(row[6])}
        for i, rows in enumerate(labels) for row in rows if row[4] >= 0
    ]  # fmt: skip
    found = [
        {"image_id": i, "category_id": int(row[5]), "bbox": [*row[:2], *(row[2:4] - row[:2])], "score": float(row[4])}
        for i, rows in enumerate(detections)
        for row in rows
    ]
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": images,
        "categories": [{"id": i} for i in range(CLASSES)],
        "annotations": [{"id": i, **each} for i, each in enumerate(objects, start=1)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        truth.createIndex()
        run = COCOeval(truth, truth.loadRes(found) if found else _nothing(truth), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    return dict(zip(NAMES, (float(run.stats[place]) for place in (0, 3, 4, 5)), strict=True))


def _nothing(truth: COCO) -> COCO:
    empty = COCO()
    empty.dataset = {**truth.dataset, "annotations": []}
    empty.createIndex()
    return empty


def random_case(seed: int) -> tuple[list[Floats], Floats]:
    """Detections and labels with tied scores, duplicates, crowds, images and classes without objects.

    Coordinates are whole, so that no overlap differs by rounding.
    """
    random = np.random.default_rng(seed)
    count, most, reach = int(random.integers(1, 9)), 7, int(random.choice([40, 150, 400]))
    labels = np.full((count, most, 7), -1.0)
    detections = []
    for rows in labels:
        for row in rows[: random.integers(0, most + 1)]:
            low = random.integers(0, reach, 2)
            row[:2], row[2:4], row[4] = low, low + random.integers(1, reach, 2), random.integers(0, CLASSES - 1)
            row[5], row[6] = random.random() < 0.15, random.integers(1, reach**2)
        known = rows[rows[:, 4] >= 0]
        drawn = known[random.integers(0, len(known), 2 * len(known))] if len(known) else known
        moved = np.column_stack([drawn[:, :4], random.integers(0, 6, len(drawn)) / 5, drawn[:, 4]])
        moved[:, 2:4] += random.integers(0, 12, (len(moved), 2))
        stray = random.integers(0, reach, (int(random.integers(0, 5)), 2)).astype(float)
        strays = np.column_stack(
            [stray, stray + random.integers(1, reach, stray.shape), random.random(len(stray)).round(1)]
        )
        detections.append(np.concatenate([moved, np.column_stack([strays, random.integers(0, CLASSES, len(strays))])]))
    return detections, labels


def padded(detections: list[Floats]) -> Floats:
    """(n, most, 6), rows that fill up have class -1."""
    array = np.full((len(detections), max(1, *map(len, detections), 1), 6), -1.0)
    for rows, found in zip(array, detections, strict=True):
        rows[: len(found)] = found
    return array


def value(metric: Metric, outputs: Floats, labels: Floats, step: int) -> float:
    """The metric with a batch of `step` samples at a time, each gathered apart and merged."""
    whole = metric.accumulator()
    for start in range(0, len(labels), step):
        some = slice(start, start + step)
        part = metric.accumulator()
        part.update({"y": outputs[some]}, labels[some], count=len(labels[some]))
        whole.merge(part)
    return whole.compute()


def assert_equal_to_coco(detections: list[Floats], labels: Floats, step: int) -> None:
    for name, wanted in coco_values(detections, labels).items():
        found = value(get_metric(name), padded(detections), labels, step)
        assert found == pytest.approx(max(wanted, 0.0), abs=1e-9), name


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_random_cases_equal_pycocotools(seed: int, step: int) -> None:
    assert_equal_to_coco(*random_case(seed), step)


def test_of_a_class_the_best_hundred_count_in_each_sample() -> None:
    random = np.random.default_rng(3)
    low = random.integers(0, 300, (230, 2)).astype(float)
    found = np.column_stack([low, low + 30, random.random(230).round(2), np.arange(230) % 2])
    truth = np.column_stack([low, low + 30, np.arange(230) % 2, np.zeros(230), np.full(230, 900)])
    assert_equal_to_coco([found, found[:50]], np.stack([truth, truth[::-1]]), 2)


def test_perfect_boxes_are_1_and_none_are_0() -> None:
    labels = np.array([[[0, 0, 9, 9, 0], [5, 5, 30, 30, 1]], [[0, 0, 0, 0, -1], [0, 0, 0, 0, -1]]])
    perfect = np.insert(labels.astype(float), 4, 0.9, axis=2)
    assert value(get_metric("map"), perfect, labels, 1) == pytest.approx(1.0)
    assert value(get_metric("map"), np.full_like(perfect, -1), labels, 1) == 0.0


# -- layouts of boxes --------------------------------------------------------------------------------------------------


def yolo_rows() -> tuple[Floats, Floats]:
    """(boxes, 4) centres and sizes, (boxes, 2) class scores: two objects, each found twice, and one box of nothing."""
    boxes = np.array([[20, 20, 10, 10], [21, 20, 10, 10], [60, 50, 20, 12], [60, 50, 22, 12], [20, 20, 10, 10.0]])
    scores = np.array([[0.9, 0], [0.8, 0], [0, 0.6], [0, 0.7], [0, 0.5]])
    more = np.zeros((4, 4))
    return np.concatenate([boxes, more]), np.concatenate([scores, more[:, :2]])


YOLO_LABELS = np.array([[[15, 15, 25, 25, 0], [49, 44, 71, 56, 1.0]]])


@pytest.mark.parametrize("layout", ["yolov5", "yolov8"])
def test_yolo_layouts_keep_of_each_class_the_best_of_boxes_that_overlap(layout: str) -> None:
    boxes, scores = yolo_rows()
    if layout == "yolov5":
        output = np.column_stack([boxes, np.where(scores.max(1) > 0, 0.5, 0), 2 * scores])[None]
    else:
        output = np.column_stack([boxes, scores]).T[None]
    (found,) = get_decoder(layout)({"y": output.astype(np.float32)}, 1)
    wanted = [[15, 15, 25, 25, 0.9, 0], [49, 44, 71, 56, 0.7, 1], [15, 15, 25, 25, 0.5, 1]]
    assert found == pytest.approx(np.array(wanted))
    assert value(get_metric("map", layout), output, YOLO_LABELS, 1) == pytest.approx(1.0)


def suppress(samples: list[Floats], most_overlap: float) -> list[Floats]:
    """Suppression in detections (k, 6) of each sample."""
    candidates = [BestDetections(rows[:, 4], np.arange(len(rows)), rows[:, 5].astype(int)) for rows in samples]
    starts = np.cumsum([0, *map(len, samples)])
    together = np.concatenate(samples)
    return suppress_overlaps(candidates, lambda owners, places: together[starts[owners] + places, :4], most_overlap)


def test_suppression_leaves_what_overlaps_little() -> None:
    rows = np.array([[0, 0, 10, 10, 0.5, 0], [5, 0, 15, 10, 0.9, 0], [6, 0, 16, 10, 0.8, 0]])
    (found,) = suppress([rows], 0.7)
    assert found.tolist() == [rows[1].tolist(), rows[0].tolist()]


def kept_one_by_one(detections, most_overlap):
    """Greedy suppression by its definition: the best first, each against all that are kept."""
    kept = []
    for row in detections[np.argsort(-detections[:, 4], kind="stable")[:3000]]:
        rivals = np.array([other for other in kept if other[5] == row[5]]).reshape(-1, 6)
        if not (paired_overlap(np.broadcast_to(row, rivals.shape), rivals) > most_overlap).any():
            kept.append(row)
    return np.array(kept[:300]).reshape(-1, 6)


def random_detections(rng, count, spread):
    """Equal scores and boxes that are empty or inside out occur."""
    low, sides = rng.uniform(0, spread, (count, 2)), rng.lognormal(2, 0.6, (count, 2))
    sides[rng.random(count) < 0.05] *= rng.choice([0, -1])
    return np.column_stack([low, low + sides, rng.integers(0, 40, count) / 40, rng.integers(0, 3, count)])


@pytest.mark.parametrize("counts", [[0], [1, 0], [64, 128, 65], [700, 3, 513], [3500]])
@pytest.mark.parametrize("spread", [20.0, 400.0])
def test_suppression_keeps_what_its_definition_keeps(counts, spread):
    rng = np.random.default_rng(counts[0])
    samples = [random_detections(rng, count, spread) for count in counts]
    for found, rows in zip(suppress(samples, 0.5), samples, strict=True):
        assert np.array_equal(found, kept_one_by_one(rows, 0.5))


@pytest.mark.parametrize("layout", ["yolov5", "yolov8"])
def test_of_equal_scores_the_lower_box_goes_first_and_a_score_of_just_the_least_counts(layout):
    boxes = np.array([[10, 10, 4, 4], [10, 10, 5, 4], [50, 50, 4, 4], [80, 80, 4, 4]])
    scores = np.array([[0.25, 0.5], [0.25, 0.5], [0.001, 0.0], [0.0009, 0.0]])
    parts = [boxes, *([np.ones(4)] if layout == "yolov5" else []), scores]
    output = np.column_stack(parts).astype(np.float32)[None]
    filled = np.pad(output, ((0, 0), (0, 8), (0, 0)))  # a layout has no fewer boxes than columns
    (found,) = get_decoder(layout)({"y": filled if layout == "yolov5" else filled.transpose(0, 2, 1)}, 1)
    assert found[:, 2].tolist() == [12.0, 12.0, 52.0]
    assert found[:, 5].tolist() == [1, 0, 0]


@pytest.fixture
def decoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_decoders.py").write_text(
        """
def corners(outputs):
    scores, boxes = outputs["scores"], outputs["boxes"]
    return [[[*box, score, 0] for box, score in zip(b, s) if score > 0] for b, s in zip(boxes, scores)]

def fails(outputs):
    raise KeyError("no such output")

def too_few(outputs):
    return []

def narrow(outputs):
    return outputs["boxes"]
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("own_decoders", None)


OWN_OUTPUTS = {
    "constants": np.ones(7),
    "scores": np.array([[0.5, 0.0], [0.0, 0.0]]),
    "boxes": np.array([[[0, 0, 4, 4.0], [0, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 0]]]),
}
OWN_LABELS = np.array([[[0, 0, 4, 4, 0]], [[0, 0, 0, 0, -1]]])


@pytest.mark.usefixtures("decoders")
def test_own_decode_function_reads_any_outputs() -> None:
    metric = get_metric("map", "own_decoders:corners")
    assert metric.outputs_read({"constants": "f", "scores": "f", "count": "i"}) == ["constants", "scores", "count"]
    gathered = metric.accumulator()
    gathered.update(OWN_OUTPUTS, OWN_LABELS, count=2)
    assert gathered.compute() == pytest.approx(1.0)


@pytest.mark.usefixtures("decoders")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", r"--decode own_decoders:fails raised KeyError.*'boxes': \(2, 2, 4\)"),
        ("too_few", "one array per sample, 2, got 0"),
        ("narrow", r"shape \(k, 6\).*got shape \(2, 4\)"),
    ],
)
def test_own_decode_function_that_fails_is_named(name: str, words: str) -> None:
    with pytest.raises(MetricError, match=words):
        get_metric("map", f"own_decoders:{name}").accumulator().update(OWN_OUTPUTS, OWN_LABELS, count=2)


@pytest.mark.parametrize(
    ("metric", "decoder", "words"),
    [
        ("top1", "yolov5", "only map, map_small, map_medium, map_large read boxes, got --metric top1"),
        ("map", "yolov9x", "Did you mean yolov"),
        ("map", "no_such_module:f", "no_such_module"),
    ],
)
def test_unknown_decoders(metric: str, decoder: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        get_metric(metric, decoder)


@pytest.mark.parametrize(
    ("layout", "shape", "words"),
    [
        (None, (1, 84, 8400), r"shape \(n, boxes, 6\).*--decode yolov5 or yolov8"),
        ("yolov5", (1, 84, 8400), r"\(n, boxes, 5 \+ classes\).*\(1, 84, 8400\)"),
        ("yolov8", (1, 8400, 85), r"\(n, 4 \+ classes, boxes\).*\(1, 8400, 85\)"),
    ],
)
def test_outputs_of_another_layout_are_refused(layout: str | None, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(DataError, match=words):
        get_metric("map", layout).accumulator().update({"y": np.zeros(shape)}, YOLO_LABELS, count=1)


@pytest.mark.slow
def test_a_detector_is_scored_on_its_target(tmp_path: Path) -> None:
    """From the metric and decoder of a job to an engine: FP32 loses nothing, and boxes of chance find little."""
    net = Net()
    net.op("Reshape", [net.conv("image", "boxes", 3, 6), net.const("shape", np.array([4, 6, 64]))], "rows")
    network = net.model([4, 3, 8, 8], "detections", [4, 6, 64])
    labels = np.full((SAMPLES, 2, 5), -1, np.float32)
    labels[::3, 0] = [1, 1, 4, 4, 1]
    made = case(tmp_path, network, metric="map", decode="yolov8")
    np.savez(tmp_path / "data.npz", image=images(SAMPLES, shape=(3, 8, 8)), labels=labels)
    evaluator = Evaluator(made.job, lambda event, value: None)
    evaluator.setup.try_out()
    found = evaluator.candidates.evaluate(made.uniform(Precision.FP32), made.out, StopLimits())
    assert found.accuracy is not None
    assert (found.accuracy.metric, found.accuracy.loss) == ("map", 0.0)
    assert 0.0 <= found.accuracy.value < 0.5


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0, 0, 1, 1], r"shape \(n, most boxes, 5\)"),
        ([5, 0, 1, 1, 0], "expected x1 <= x2"),
        ([0, 0, 1, 1, 0.5], "whole class"),
        ([0, 0, 1, math.nan, 0], "expected x1 <= x2"),
        ([0, 0, 1, 1, -2], "class below -1"),
        ([-1, -1, -1, -1, -1], "sample.* metric map finds nothing to score in any of the 3"),
    ],
)
def test_labels_are_checked_before_anything_is_built(tmp_path: Path, row: list[float], words: str) -> None:
    labels = np.array([[[0, 0, 0, 0, -1][: len(row)]], [row], [[0, 0, 0, 0, -1][: len(row)]]], np.float32)
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 1), np.float32), labels=labels)
    dataset = open_data(str(tmp_path / "data.npz"), [TensorSpec("x", "float32", (1, 1))])
    with pytest.raises(DataError, match=words):
        check_labels(get_metric("map"), lambda some: {"y": np.zeros((1, 1, 6))}, dataset, np.arange(3), "final")
