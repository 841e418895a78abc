"""Samples that flip: counted and named, and split into those that FP32 had right and wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.flips import ClassRecorder, count_flips, find_classes
from evaluators.metrics.own.imported_metric import make_own_metric
from evaluators.metrics.registry import BUILT_IN
from search.values import FlippedSamples, Flips
from studies.judging.sentences.evaluations import flip_texts

EXACT = np.array([0, 1, 2, 0, 1, 2])
OTHER = np.array([0, 2, 2, 1, 0, 0])
LABELS = np.array([0, 1, 0, 1, 2, 0])
INDICES = np.array([9, 8, 7, 6, 5, 4])


def test_flips_are_split_by_what_fp32_had_right() -> None:
    found = count_flips(EXACT, OTHER, LABELS, INDICES)
    assert (found.samples, found.right, found.count) == (6, 2, 4)
    assert found.lost == FlippedSamples(1, [8])
    assert found.gained == FlippedSamples(2, [4, 6])
    assert found.moved == FlippedSamples(1, [5])
    assert Flips.from_json(found.to_json()) == found


def test_without_labels_of_classes_all_that_differ_are_named() -> None:
    for labels in (None, LABELS.astype(np.float32), np.zeros((6, 2), int)):
        found = count_flips(EXACT, OTHER, labels, INDICES)
        assert (found.right, found.lost.count, found.gained.count) == (None, 0, 0)
        assert found.moved == FlippedSamples(4, [4, 5, 6, 8])


def test_only_the_first_are_named_and_all_are_counted() -> None:
    found = count_flips(np.zeros(100, int), np.ones(100, int), None, np.arange(100)[::-1])
    assert found.moved == FlippedSamples(100, list(range(10)))
    assert flip_texts(found)[1].endswith("0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …")


def test_sentences_tell_every_kind_that_there_is() -> None:
    assert flip_texts(count_flips(EXACT, OTHER, LABELS, INDICES)) == [
        "4 of 6 samples (66.7 %) have another class than in FP32",
        "1 of the 2 that FP32 had right are wrong now: 8",
        "2 of the 4 that FP32 had wrong are right now: 4, 6",
        "1 of the 4 that FP32 had wrong are wrong in another way: 5",
    ]
    assert len(flip_texts(count_flips(EXACT, EXACT, LABELS, INDICES))) == 1


def test_classes_are_told_only_where_the_metric_or_the_labels_read_them() -> None:
    integers, floats = np.zeros(1, np.int64), np.zeros((1, 2), np.float32)
    for name in ("top1", "top5", "agreement"):
        assert BUILT_IN[name].scores_classes(None)
    for name in ("sqnr", "mse", "cosine", "miou"):
        assert not BUILT_IN[name].scores_classes(integers), name
    own = make_own_metric("own", lambda outputs, labels: labels)
    assert own.scores_classes(integers)
    assert not own.scores_classes(floats)
    assert not own.scores_classes(None)
    assert not replace(own, unit="px").scores_classes(integers)


class Runner:
    """Gives its inputs back, the first of two outputs integers."""

    def run(self, inputs: Any) -> dict[str, NDArray[Any]]:
        return {"count": np.arange(4), "scores": inputs["x"]}


def test_classes_are_those_of_the_real_rows_of_the_scored_output() -> None:
    recorder, rng = ClassRecorder(Runner()), np.random.default_rng(0)
    parts = [rng.standard_normal((4, 3)).astype(np.float32) for _ in range(3)]
    for part in parts:
        recorder.run({"x": part})
    expected = np.concatenate([part.argmax(axis=1)[:count] for part, count in zip(parts, (4, 4, 1), strict=True)])
    found = recorder.classes((4, 4, 1))
    assert found is not None
    assert list(found) == list(expected)


def test_outputs_that_are_no_classes_give_none() -> None:
    for shape in ((4, 1), (8, 3), (4, 3, 2), (4,)):
        assert find_classes({"y": np.zeros(shape, np.float32)}, 4) is None
    assert find_classes({"y": np.zeros((4, 3), np.int64)}, 4) is None
