"""Losses against FP32, their intervals (by simulation), and the ways to stop early."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.measure.accuracy import (
    ReferenceScores,
    evaluate,
    load_reference,
    reference,
    reference_accuracy,
    subset_size,
)
from evaluators.measure.intervals import paired_interval
from evaluators.measure.scoring import NonFiniteError
from evaluators.metrics.contract import Metric
from evaluators.metrics.registry import BUILT_IN
from search.errors import DataError
from tests.support.table_session import Table, batched


def logits(wrong: NDArray[np.bool_]) -> NDArray[np.float32]:
    """(n, 2) scores for class 0, or for class 1 where wrong."""
    return np.eye(2, dtype=np.float32)[wrong.astype(int)]


TOP1 = BUILT_IN["top1"]
TOTAL = 1000
LABELS = np.zeros(TOTAL, dtype=np.int64)


@pytest.fixture
def fp32(tmp_path: Path) -> ReferenceScores:
    """90 % right: every tenth sample is wrong."""
    return reference(Table(y=logits(np.arange(TOTAL) % 10 == 0)), TOP1, batched(TOTAL, 32, LABELS), tmp_path)


def candidate(wrong_share: float) -> Table:
    return Table(y=logits(np.random.default_rng(0).random(TOTAL) < wrong_share))


def test_reference_counts_real_rows_only(fp32: ReferenceScores) -> None:
    assert fp32.samples == len(fp32.scores) == TOTAL
    assert fp32.counts == (32,) * 31 + (8,)
    assert fp32.value == 0.9
    assert fp32.batch(0) is None, "top1 does not compare with FP32's outputs"


def test_fp32_against_itself_has_no_loss_yet_an_interval(fp32: ReferenceScores) -> None:
    same = Table(y=logits(np.arange(TOTAL) % 10 == 0))
    accuracy = evaluate(same, TOP1, batched(TOTAL, 32, LABELS), fp32, allowed_drop=0.0)
    assert (accuracy.loss, accuracy.value, accuracy.samples) == (0.0, 0.9, TOTAL)
    assert accuracy.complete
    assert accuracy.loss_low < -1 / TOTAL
    assert accuracy.loss_high == pytest.approx(2 / TOTAL, rel=0.05)


@pytest.mark.parametrize("clusters", [None, np.arange(TOTAL) // 4])
def test_what_made_a_reference_scores_as_it_would_again(
    fp32: ReferenceScores, clusters: NDArray[np.int64] | None
) -> None:
    same = Table(y=logits(np.arange(TOTAL) % 10 == 0))
    again = evaluate(same, TOP1, batched(TOTAL, 32, LABELS), fp32, clusters=clusters)
    known = reference_accuracy(TOP1, fp32, clusters)
    assert known.run_s > 0
    assert np.array_equal(known.scores, again.scores)
    nothing = {"run_s": 0.0, "score_s": 0.0, "scores": np.empty(0)}
    assert repr(replace(known, **nothing)) == repr(replace(again, **nothing))


def test_loss_of_a_whole_split(fp32: ReferenceScores) -> None:
    accuracy = evaluate(candidate(0.15), TOP1, batched(TOTAL, 32, LABELS), fp32)
    assert accuracy.loss == pytest.approx(fp32.value - accuracy.value)
    assert accuracy.loss == pytest.approx(np.mean(fp32.scores - accuracy.scores))
    assert accuracy.loss_low < accuracy.loss < accuracy.loss_high
    assert 0.02 < accuracy.loss_high - accuracy.loss_low < 0.08


def test_loss_of_a_metric_that_is_better_when_lower(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    fp32 = reference(Table(y=rows), BUILT_IN["mse"], batched(100, 32), tmp_path)
    accuracy = evaluate(Table(y=rows + 2), BUILT_IN["mse"], batched(100, 32), fp32)
    assert accuracy.value == accuracy.loss == pytest.approx(4.0)
    assert fp32.value == 0.0


def test_hopeless_candidates_are_stopped_at_the_subset(fp32: ReferenceScores) -> None:
    bad = candidate(0.9)
    accuracy = evaluate(bad, TOP1, batched(TOTAL, 32, LABELS), fp32, allowed_drop=0.01)
    assert accuracy.samples == bad.rows_seen == 224, "a fifth of the split in whole batches"
    assert accuracy.total == TOTAL
    assert not accuracy.complete
    assert accuracy.loss_low > 0.01
    assert len(accuracy.scores) == 224


def test_candidates_near_the_limit_are_looked_at_again_after_twice_as_many(fp32: ReferenceScores) -> None:
    near = candidate(0.2)
    accuracy = evaluate(near, TOP1, batched(TOTAL, 32, LABELS), fp32, allowed_drop=0.0, subset=64)
    assert accuracy.samples in {128, 256, 512}
    losses = fp32.scores[: accuracy.samples] - accuracy.scores
    assert paired_interval(losses, ratio=True, z=2.5758)[0] > 0
    assert paired_interval(losses[: accuracy.samples // 2], ratio=True, z=2.5758)[0] <= 0


def test_clusters_that_are_alike_need_more_samples_to_stop(fp32: ReferenceScores) -> None:
    """Of 1000 samples 133 are lost: far beyond a limit of 5 % if each counts, but not if all are of one cluster."""
    wrong = np.arange(TOTAL) % 10 == 0
    lost = (np.arange(TOTAL) % 6 == 0) & ~wrong
    clusters = np.where(lost, 0, 1 + np.arange(TOTAL) % 12)
    session = Table(y=logits(wrong | lost))
    batches = lambda: batched(TOTAL, 32, LABELS)  # noqa: E731
    alone = evaluate(session, TOP1, batches(), fp32, allowed_drop=0.05, subset=224)
    together = evaluate(session, TOP1, batches(), fp32, allowed_drop=0.05, subset=224, clusters=clusters)
    assert not alone.complete
    assert together.complete
    assert together.loss == pytest.approx(lost.mean())
    assert together.loss_low < 0.05 < together.loss_high


def test_a_first_look_waits_for_a_second_cluster(fp32: ReferenceScores) -> None:
    clusters = (np.arange(TOTAL) >= 300).astype(np.int64)
    found = evaluate(candidate(0.9), TOP1, batched(TOTAL, 32, LABELS), fp32, max_samples=64, clusters=clusters)
    assert found.samples == 320
    assert np.isfinite([found.loss_low, found.loss_high]).all()


def test_no_limit_no_stop(fp32: ReferenceScores) -> None:
    assert evaluate(candidate(0.9), TOP1, batched(TOTAL, 32, LABELS), fp32).complete


def test_at_most_so_many_samples_where_the_latency_limit_is_missed(fp32: ReferenceScores) -> None:
    session = candidate(0.1)
    accuracy = evaluate(session, TOP1, batched(TOTAL, 32, LABELS), fp32, max_samples=subset_size(TOTAL))
    assert accuracy.samples == session.rows_seen == 224


def test_subset_size() -> None:
    assert [subset_size(total) for total in (10, 100, 320, 1001)] == [10, 64, 64, 201]


def test_outputs_of_fp32_lie_on_disk_and_are_found_again(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    table = Table(**{"a/b:0": rows, "file": rows * 2})
    made = reference(table, BUILT_IN["sqnr"], batched(50, 16), tmp_path / "new")
    found = load_reference(tmp_path / "new")
    assert found is not None
    assert (found.metric, found.value, found.counts, found.outputs) == ("sqnr", 100.0, made.counts, ("a/b:0", "file"))
    np.testing.assert_array_equal(found.scores, made.scores)
    stored = found.batch(3)
    assert stored is not None
    np.testing.assert_array_equal(stored["file"], rows[48:] * 2)
    accuracy = evaluate(Table(**{"a/b:0": rows * 1.1, "file": rows * 2.2}), BUILT_IN["sqnr"], batched(50, 16), found)
    assert accuracy.value == pytest.approx(20.0, abs=1e-3)
    assert accuracy.loss == pytest.approx(80.0, abs=1e-3)


def test_no_reference_where_none_was_finished(tmp_path: Path, fp32: ReferenceScores) -> None:
    assert load_reference(tmp_path / "nowhere") is None
    with pytest.raises(NonFiniteError):
        reference(Table(y=np.full((4, 2), np.nan)), TOP1, batched(4, 2, LABELS), fp32.folder)
    assert load_reference(fp32.folder) is None, "the old one must not pass for the new one"


def test_agreement_needs_no_labels(tmp_path: Path) -> None:
    right = Table(y=logits(np.zeros(100, bool)))
    fp32 = reference(right, BUILT_IN["agreement"], batched(100, 32), tmp_path)
    half = Table(y=logits(np.arange(100) % 2 == 0))
    assert evaluate(half, BUILT_IN["agreement"], batched(100, 32), fp32).loss == 0.5


def test_non_finite_outputs_are_named_and_counted(fp32: ReferenceScores) -> None:
    rows = logits(np.zeros(TOTAL, bool))
    rows[40] = [np.nan, np.inf]
    session = Table(y=rows)
    with pytest.raises(NonFiniteError, match=r"samples 32 to 63 \(y: 2\)") as caught:
        evaluate(session, TOP1, batched(TOTAL, 32, LABELS), fp32)
    assert caught.value.counts == {"y": 2}
    assert session.rows_seen == 64, "at once"


def test_data_that_do_not_fit_are_refused(tmp_path: Path, fp32: ReferenceScores) -> None:
    session = candidate(0.1)
    with pytest.raises(DataError, match="top1 needs labels"):
        evaluate(session, TOP1, batched(TOTAL, 32), fp32)
    with pytest.raises(DataError, match="batch 0 has 16 samples, but FP32 saw 32"):
        evaluate(session, TOP1, batched(TOTAL, 16, LABELS), fp32)
    with pytest.raises(DataError, match="end 40 samples before"):
        evaluate(session, TOP1, batched(960, 32, LABELS), fp32)
    with pytest.raises(DataError, match="metric top1, not agreement"):
        evaluate(session, BUILT_IN["agreement"], batched(TOTAL, 32), fp32)
    with pytest.raises(DataError, match="at least two samples"):
        reference(session, TOP1, batched(1, 32, LABELS), tmp_path)
    with pytest.raises(DataError, match="at least two samples"):
        reference(session, TOP1, iter(()), tmp_path)


class OneRow(Table):
    """A session with an output that has no row per sample."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        return {**super().run(inputs), "total": np.zeros(1)}


def test_outputs_without_rows_are_refused_only_where_rows_are_filled_up(tmp_path: Path) -> None:
    session = OneRow(y=logits(np.zeros(10, bool)))
    assert reference(session, TOP1, batched(10, 5, LABELS), tmp_path).value == 1.0
    with pytest.raises(DataError, match=r"output 'total' has shape \(1,\).*multiple of the batch"):
        reference(session, TOP1, batched(10, 4, LABELS), tmp_path)


def test_accumulating_metrics_see_everything_and_bootstrap_over_batches(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    maps = rng.integers(3, size=(60, 4, 4))
    good = np.moveaxis(np.eye(3)[maps], -1, 1)
    spoilt = np.where(rng.random(maps.shape) < 0.2, 2, maps)
    metric = BUILT_IN["miou"]
    fp32 = reference(Table(y=good), metric, batched(60, 8, maps), tmp_path)
    worse = Table(y=np.moveaxis(np.eye(3)[spoilt], -1, 1))
    accuracy = evaluate(worse, metric, batched(60, 8, maps), fp32, allowed_drop=0.0, max_samples=8)
    assert accuracy.complete
    assert fp32.value == 1.0
    assert accuracy.scores.shape == fp32.scores.shape == (8,)
    assert accuracy.loss == pytest.approx(1.0 - accuracy.value)
    assert accuracy.loss_low < accuracy.loss < accuracy.loss_high
    again = evaluate(worse, metric, batched(60, 8, maps), fp32)
    assert (again.loss_low, again.loss_high) == (accuracy.loss_low, accuracy.loss_high)
    with pytest.raises(DataError, match=r"at least two batches.*smaller batch"):
        reference(Table(y=good), metric, batched(60, 60, maps), tmp_path)


def test_own_metric_may_need_no_labels(tmp_path: Path) -> None:
    def first(outputs: Mapping[str, NDArray[Any]], labels: object, reference: object) -> NDArray[Any]:
        return outputs["y"][:, 0]

    metric = Metric("mine:first", "", True, False, "per_sample", False, False, score=first)
    fp32 = reference(Table(y=logits(np.zeros(10, bool))), metric, batched(10, 4), tmp_path)
    assert fp32.value == 1.0
