"""What latencies are scaled by: all clean baselines, when they are read, so that one bad moment decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from evaluators.measure.latency_scale import baseline_doubt, off_reference, reference_of, scale_latencies, share_text
from search.values import Latency
from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits
from studies.store.store import Store
from studies.trials.ledger import Ledger
from tests.support.command_line import DATABASE, invoke, write_inputs
from tests.support.study_rows import METRIC, STUDY, TARGET, assignment, fresh_url, measured

SHARES = {**METRIC, "unit": "share"}


# -- the functions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "text"),
    [(2.457, "246 %"), (0.11, "11 %"), (0.0996, "10 %"), (0.0912, "9.1 %"), (0.02, "2 %"), (0, "0 %")],
)
def test_measured_shares_have_sensible_digits(share: float, text: str) -> None:
    assert share_text(share) == text


def test_the_reference_is_the_median_of_clean_baselines() -> None:
    assert reference_of([8.8, 4.0, 4.1, 3.9, np.nan], [True] * 5) == pytest.approx(4.05)
    assert reference_of([8.8, 4.0, 4.1, 3.9], [False, True, True, True]) == 4.0
    assert reference_of([8.8, 4.0, 4.2], [False] * 3) == 4.2  # nothing better is known
    assert reference_of([np.nan, np.nan], [True, True]) is None
    assert reference_of([], []) is None


def test_latencies_are_ratios_times_the_reference() -> None:
    np.testing.assert_allclose(scale_latencies([2.0, 3.0, np.nan], [4.0, np.nan, 4.0], 5.0), [2.5, 3.0, np.nan])
    np.testing.assert_array_equal(scale_latencies([2.0], [4.0], None), [2.0])


def test_a_baseline_is_off_by_more_than_half() -> None:
    assert list(off_reference([4.0, 6.1, 1.9, 5.9, np.nan], 4.0)) == [False, True, True, False, False]
    assert not off_reference([9.0], None).any()
    assert baseline_doubt(6.4, 4.0) == "the baseline ran 60 % slower than usual"
    assert baseline_doubt(1.6, 4.0) == "the baseline ran 60 % faster than usual"
    assert baseline_doubt(4.1, 4.0) == baseline_doubt(None, 4.0) == baseline_doubt(4.0, None) == ""


# -- stored rows -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as opened:
        study = opened.studies.create(STUDY.with_values(metric=SHARES))
        opened.targets.settle(opened.targets.add(study, TARGET, "demo/cpu"), latency_band=0.01)
        yield opened


def timed(raw_ms: float, baseline_ms: float | None, *warnings: str) -> Latency:
    return Latency(raw_ms, raw_ms, 0.01, baseline_ms, np.full(2, raw_ms), np.full(2, baseline_ms or 0.0), warnings)


def add(store: Store, trial: int, latency: Latency, role: str = "") -> int:
    codes = tuple(int(bit) for bit in f"{trial:06b}")
    chosen = assignment(*codes)
    accuracy = replace(measured(chosen).accuracy, loss=0.0, loss_low=0.0, loss_high=0.0, samples=8)  # type: ignore[type-var]
    (target,) = store.targets.of_study(store.studies.load(STUDY.name).id)
    number = store.claims.begin(target.id, chosen, chosen.digest, "w0", trial, role)
    store.claims.record(number, measured(chosen, latency=latency, accuracy=accuracy))
    return number


def judged(store: Store, budget_ms: float | None = None) -> Standing:
    study = store.studies.load(STUDY.name)
    (target,) = store.targets.of_study(study.id)
    return read_standing(store, study, target, Limits(latency_budget_ms=budget_ms))


def feasible(now: Standing) -> Sequence[int]:
    return [int(trial) for trial in now.table.trial[now.judgement.feasible]]


@pytest.mark.parametrize("factor", [2.2, 1 / 2.2])
def test_a_first_baseline_that_was_off_heals_as_rows_come(store: Store, factor: float) -> None:
    """FP32 takes 4 ms; whatever the moment, mixes of half and a quarter of that do not change."""
    add(store, 0, timed(4.0 * factor, 4.0 * factor), "baseline:fp32")
    assert judged(store).measures.latency_ms[0] == pytest.approx(4.0 * factor)  # nothing else is known yet
    for trial, share in enumerate([0.5, 0.25, 0.9], start=1):
        add(store, trial, timed(4.0 * share, 4.0))
    now = judged(store, budget_ms=2.1)
    np.testing.assert_allclose(now.measures.latency_ms, [4.0, 2.0, 1.0, 3.6])
    assert now.table.reference_ms == 4.0
    assert feasible(now) == [1, 2]
    assert store.evaluations.load(int(now.table.id[0])).evaluation.latency.value_ms == pytest.approx(4.0)  # type: ignore[union-attr]


def test_a_busy_moment_between_scales_itself_out(store: Store) -> None:
    for trial, slow in enumerate([1.0, 1.0, 1.6, 1.0]):
        add(store, trial, timed(2.0 * slow, 4.0 * slow))
    now = judged(store)
    np.testing.assert_allclose(now.measures.latency_ms, 2.0)
    doubts = store.measurements.doubts([int(number) for number in now.table.id], now.table.reference_ms)
    assert doubts == {int(now.table.id[2]): ("the baseline ran 60 % slower than usual",)}


def test_doubtful_measurements_do_not_move_the_reference(store: Store) -> None:
    add(store, 0, timed(4.0, 4.0), "baseline:fp32")
    for trial in (1, 2, 3):
        add(store, trial, timed(2.0, 9.0, "spread 30 %"))
    assert judged(store).table.reference_ms == 4.0


def test_rounds_that_measure_again_count_in_the_reference(store: Store) -> None:
    number = add(store, 0, timed(8.8, 8.8), "baseline:fp32")
    (target,) = store.targets.of_study(store.studies.load(STUDY.name).id)
    for _ in range(2):
        store.measurements.add_round(target.id, {number: timed(4.0, 4.0)})
    now = judged(store)
    assert (now.table.reference_ms, store.measurements.reference_ms(target.id)) == (4.0, 4.0)
    assert now.measures.latency_ms[0] == pytest.approx(4.0)


def test_the_latest_clean_measurement_counts(store: Store) -> None:
    number = add(store, 0, timed(2.0, 4.0, "drift"))
    for trial in (1, 2):
        add(store, trial, timed(3.0, 4.0))
    study = store.studies.load(STUDY.name)
    (target,) = store.targets.of_study(study.id)
    ledger = Ledger(store, cast(Any, None), study, target, Limits(), {})
    for latency, counts in [
        (timed(2.4, 4.0, "spread"), 2.4),  # both are doubtful: the later one
        (timed(2.2, 4.0), 2.2),
        (timed(2.8, 4.0, "spread"), 2.2),
        (timed(2.6, 6.5), 2.2),  # beside a baseline that was slow
        (timed(2.1, 4.0), 2.1),
    ]:
        store.measurements.add_round(target.id, {number: latency})
        assert ledger.read_standing().measures.latency_ms[0] == pytest.approx(counts)
        assert ledger.latencies() == {0: pytest.approx(counts), 1: 3.0, 2: 3.0}


def test_without_baselines_latencies_are_as_timed(store: Store) -> None:
    for trial, raw_ms in enumerate([4.0, 2.0]):
        add(store, trial, timed(raw_ms, None))
    now = judged(store)
    assert (now.table.reference_ms, list(now.measures.latency_ms)) == (None, [4.0, 2.0])


# -- a search ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_search_whose_first_measurement_was_slow_heals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On ONNX Runtime, with all 50 times as slow as it is while FP32 is measured first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITFRONT_TEST_SLOW_START", "50")
    write_inputs(tmp_path)
    said = invoke("search", "model.onnx", "--data", "data.npz", "--study", "s", "--trials", 6, "--sampler", "random")
    assert said.exit_code == 0, said.output
    assert "measuring the FP32 baseline" not in said.output
    with Store.open(f"sqlite:///{DATABASE}") as store:
        study = store.studies.load("s")
        now = read_standing(store, study, store.targets.of_study(study.id)[0], Limits())
    table = now.table
    assert table.baseline_ms[0] > 5 * table.baseline_ms[1:].max(), "else nothing was planted"
    assert table.reference_ms is not None
    assert table.reference_ms < 5 * table.baseline_ms[1:].max()
    np.testing.assert_allclose(table.latency_ms, table.raw_ms / table.baseline_ms * table.reference_ms)
    assert table.latency_ms[0] < table.raw_ms[0] / 5
