"""Large outputs are scored in threads beside the engine: the same numbers, errors and stops as one after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.data import dataset
from evaluators.data.dataset import read_ahead
from evaluators.measure import scoring
from evaluators.measure.accuracy import evaluate, reference
from evaluators.measure.scoring import NonFiniteError, ScoreTally
from evaluators.metrics.contract import Metric
from evaluators.metrics.registry import BUILT_IN, get_metric
from search.errors import DataError, EvaluatorError
from search.values import Accuracy
from tests.support.table_session import Rows, Table, batched

TOTAL, BATCH = 40, 4
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, (TOTAL, 160, 160))
LABELS[RNG.random(LABELS.shape) < 0.1] = 255
CLASSES = np.where(LABELS == 255, 0, LABELS)[:, 0, 0]


def maps(noise: float) -> NDArray[np.float32]:
    """(40, 3, 160, 160): 1.2 MB for a batch, more than is scored at once."""
    wanted = np.moveaxis(np.eye(3, dtype=np.float32)[np.where(LABELS == 255, 0, LABELS)], -1, 1)
    return wanted + np.float32(noise) * np.random.default_rng(1).normal(size=wanted.shape).astype(np.float32)


GOOD, WORSE = maps(0.2), maps(0.6)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Switches to scoring everything in the caller's thread."""
    return lambda: monkeypatch.setattr(scoring, "_SMALL_BYTES", 2**60)


def scored(metric: Metric, folder: Path, **options: Any) -> Accuracy:
    fp32 = reference(Table(y=GOOD), metric, batched(TOTAL, BATCH, LABELS), folder)
    return evaluate(Table(y=WORSE), metric, batched(TOTAL, BATCH, LABELS), fp32, **options)


@pytest.mark.parametrize("name", ["miou", "sqnr", "cosine", "mse"])
def test_threads_change_no_number(name: str, tmp_path: Path, alone: Callable[[], None]) -> None:
    beside = scored(BUILT_IN[name], tmp_path / "beside")
    alone()
    one_by_one = scored(BUILT_IN[name], tmp_path / "alone")
    assert (beside.value, beside.loss, beside.loss_low, beside.loss_high) == (
        one_by_one.value,
        one_by_one.loss,
        one_by_one.loss_low,
        one_by_one.loss_high,
    )
    np.testing.assert_array_equal(beside.scores, one_by_one.scores)
    assert beside.resemblance == one_by_one.resemblance
    assert beside.run_s >= 0
    assert beside.score_s >= 0


def test_miou_is_that_of_counting_every_pixel(tmp_path: Path) -> None:
    found = scored(BUILT_IN["miou"], tmp_path)
    predicted, counted = WORSE.argmax(axis=1), LABELS != 255
    shares = [
        np.sum(counted & (predicted == c) & (c == LABELS)) / np.sum(counted & ((predicted == c) | (c == LABELS)))
        for c in range(3)
    ]
    assert found.value == pytest.approx(np.mean(shares), rel=1e-14)


def test_sqnr_of_large_outputs_is_that_of_its_formula(tmp_path: Path) -> None:
    found = scored(BUILT_IN["sqnr"], tmp_path)
    theirs, mine = (array.reshape(TOTAL, -1).astype(np.float64) for array in (GOOD, WORSE))
    expected = 10 * np.log10(np.square(theirs).sum(axis=1) / np.square(theirs - mine).sum(axis=1))
    np.testing.assert_allclose(found.scores, expected, rtol=1e-12)


def test_half_precision_outputs_score_as_their_values(tmp_path: Path) -> None:
    fp32 = reference(Table(y=GOOD), BUILT_IN["miou"], batched(TOTAL, BATCH, LABELS), tmp_path)
    half = WORSE.astype(np.float16)
    found = [
        evaluate(Table(y=array), BUILT_IN["miou"], batched(TOTAL, BATCH, LABELS), fp32).value
        for array in (half, half.astype(np.float32))
    ]
    assert found[0] == found[1]


def test_an_early_stop_comes_where_it_came_and_the_engine_runs_no_further(tmp_path: Path) -> None:
    fp32 = reference(Table(y=GOOD), BUILT_IN["sqnr"], batched(TOTAL, BATCH), tmp_path)
    session = Table(y=WORSE)
    found = evaluate(session, BUILT_IN["sqnr"], batched(TOTAL, BATCH), fp32, allowed_drop=1.0, subset=8)
    assert found.samples == session.rows_seen == 8
    assert len(found.scores) == 8


class Breaking(Table):
    """A session that fails at the batch with a given first row."""

    def __init__(self, first: int, **outputs: NDArray[Any]) -> None:
        super().__init__(**outputs)
        self.first = first

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        if inputs["x"][0] == self.first:
            time.sleep(0.05)  # what comes before is scored by now, and has told nobody
            raise EvaluatorError("the device is gone")
        return super().run(inputs)


def test_the_first_error_in_order_is_raised_whichever_thread_meets_it_first(tmp_path: Path) -> None:
    fp32 = reference(Table(y=GOOD), BUILT_IN["miou"], batched(TOTAL, BATCH, LABELS), tmp_path)
    spoilt = WORSE.copy()
    spoilt[9, 1, 3, 3] = np.inf
    spoilt[13, 0, 0, 0] = np.nan
    for session in (Table(y=spoilt), Breaking(12, y=spoilt)):
        with pytest.raises(NonFiniteError, match=r"samples 8 to 11 \(y: 1\)"):
            evaluate(session, BUILT_IN["miou"], batched(TOTAL, BATCH, LABELS), fp32)
    with pytest.raises(EvaluatorError, match="gone"):
        evaluate(Breaking(8, y=spoilt), BUILT_IN["miou"], batched(TOTAL, BATCH, LABELS), fp32)
    bad = LABELS.copy()
    bad[5, 0, 0] = 77
    with pytest.raises(DataError, match="label 77"):
        evaluate(Table(y=spoilt), BUILT_IN["miou"], batched(TOTAL, BATCH, bad), fp32)
    with pytest.raises(DataError, match="end 20 samples before"):
        evaluate(Table(y=WORSE[:20]), BUILT_IN["miou"], batched(20, BATCH, LABELS), fp32)


OWN = """
import threading

class Gathers:
    made, needs_labels = [], False

    def __init__(self):
        self.sums = []
        Gathers.made.append(self)

    def update(self, outputs, labels):
        self.sums.append((threading.get_ident(), float(outputs["y"][0, 0, 0, 0])))

    def compute(self):
        return float(len(self.sums))

    def merge(self, other):
        raise RuntimeError("nobody asked for this")
"""


def test_metrics_of_the_users_own_are_called_by_one_thread_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gathering_metric.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    found = scored(get_metric("gathering_metric:Gathers"), tmp_path / "kept")
    import gathering_metric  # type: ignore[import-not-found]

    whole = gathering_metric.Gathers.made[1 + TOTAL // BATCH]
    assert found.value == TOTAL // BATCH
    assert whole.sums == [(threading.get_ident(), float(first)) for first in WORSE[::BATCH, 0, 0, 0]]


OWN_SPREAD = """
class Spread:
    needs_labels, updates = False, 0

    def __init__(self):
        self.values = []

    def update(self, outputs, labels):
        type(self).updates += 1
        self.values.extend(outputs["y"][:, 0, 0, 0].tolist())

    def compute(self):
        return max(self.values) - min(self.values)


class Merged(Spread):
    mergeable = True

    def merge(self, other):
        self.values.extend(other.values)
"""


def test_a_metric_of_the_users_own_that_is_mergeable_gets_every_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same value, loss and interval."""
    (tmp_path / "spread_metric.py").write_text(OWN_SPREAD)
    monkeypatch.chdir(tmp_path)
    plain, merged = (scored(get_metric(f"spread_metric:{name}"), tmp_path / name) for name in ("Spread", "Merged"))
    import spread_metric  # type: ignore[import-not-found]

    batches = -(-TOTAL // BATCH)
    # Of FP32 and of an engine; the count of the base class is that of the derived one, until that has its own.
    assert (spread_metric.Spread.updates, spread_metric.Merged.updates) == (4 * batches, 6 * batches)
    assert (plain.value, plain.loss, plain.loss_low) == (merged.value, merged.loss, merged.loss_low)
    assert plain.scores.tolist() == merged.scores.tolist()


def test_outputs_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is faster than scoring must not fill the memory."""
    monkeypatch.setattr(scoring, "_AHEAD_BYTES", 3 * GOOD[:BATCH].nbytes)
    let, most, made = threading.Event(), 0, 0

    def waits() -> None:
        let.wait(20)

    with ScoreTally(BUILT_IN["sqnr"]) as tally:
        for start in range(0, TOTAL, BATCH):
            part = {"y": GOOD[start : start + BATCH]}
            if made == 3:
                let.set()
            tally.add(Rows({}, None, BATCH), part, lambda part=part: (waits(), part)[1])  # type: ignore[misc]
            made += 1
            most = max(most, len(tally._pending))
    assert most == 3
    assert len(tally.scores) == TOTAL


# -- reading ahead -----------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every read is worth a thread, however coarse the clock is."""
    monkeypatch.setattr(dataset, "_WORTH_S", -1.0)


def items_read(count: int, seen: list[int], fail: int = -1) -> Iterator[str]:
    for number in range(count):
        if number == fail:
            raise DataError(f"sample {number} is gone")
        seen.append(threading.get_ident())
        yield f"item {number}"


@pytest.mark.usefixtures("slow_reads")
def test_reading_ahead_gives_the_same_items_from_another_thread() -> None:
    seen: list[int] = []
    assert list(read_ahead(items_read(6, seen))) == [f"item {number}" for number in range(6)]
    assert seen[0] == threading.get_ident()
    assert threading.get_ident() not in seen[2:]
    assert list(read_ahead(iter(["one"]))) == ["one"]
    assert list(read_ahead(iter(()))) == []


@pytest.mark.usefixtures("slow_reads")
def test_what_reading_raises_comes_in_its_place() -> None:
    found: list[str] = []
    with pytest.raises(DataError, match="sample 4 is gone"):
        found.extend(read_ahead(items_read(6, [], fail=4)))
    assert found == [f"item {number}" for number in range(4)]


@pytest.mark.usefixtures("slow_reads")
def test_a_generator_that_is_closed_reads_no_more() -> None:
    seen: list[int] = []
    items = read_ahead(items_read(1000, seen))
    assert [next(items) for _ in range(4)] == [f"item {number}" for number in range(4)]
    items.close()
    read = len(seen)
    assert read <= 5
    time.sleep(0.02)
    assert len(seen) == read
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reading")]
