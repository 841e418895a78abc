"""The cross-device table: one row of a target, from its stored evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from search.values import LossEstimate, RecoveryRecord
from studies.judging.findings.device_table import DeviceRow, device_cells, device_header, device_row
from studies.judging.findings.rescue_table import seconds_text, won_back_text
from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits, MetricScale
from studies.store.store import Store
from tests.support.study_rows import METRIC, add, evaluated, make_study, scored

# FP32, all INT8, and a mix between them.
POINTS = [((0, 0), 4.0, 0.0, "baseline:fp32"), ((2, 2), 1.0, 0.2, "baseline:int8"), ((2, 0), 2.0, 0.02, "")]
LIMIT = Limits(max_drop=0.05)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        target = make_study(store)
        for trial, (codes, latency_ms, loss, role) in enumerate(POINTS):
            add(store, target, trial, evaluated(codes, latency_ms, loss, 0.001), role)
        yield store


def judged(store: Store, limits: Limits = LIMIT) -> Standing:
    study = store.studies.load("s")
    return read_standing(store, study, store.targets.of_study(study.id)[0], limits)


def row_of(store: Store, now: Standing) -> DeviceRow:
    return device_row(now, 1, "a board", store.evaluations.assignments(now.target.id))


def test_a_row_has_both_uniform_engines_and_the_best_mix(store: Store) -> None:
    found = row_of(store, judged(store))
    assert (found.fp32_ms, found.int8_ms, found.int8_loss) == (4.0, 1.0, 0.2)
    assert (found.trial, found.scheme, found.latency_ms) == (2, "1 int8, 1 fp32", 2.0)
    assert (found.final_value, found.final_loss) == (None, None)
    assert found.won_back == pytest.approx(0.9), "of the search samples, as nothing is known of the final ones"


def test_the_final_split_counts_where_recovery_scored_plain_int8_there(store: Store) -> None:
    best = int(judged(store).point(2).id)
    store.evaluations.set_final(best, scored(0.04, 0.01))
    now = judged(store)
    recovery = RecoveryRecord("auto", (), LossEstimate(0.4, 0.35, 0.45, 8))
    now = replace(
        now,
        target=now.target.with_values(recovery=recovery),
        study=now.study.with_values(data={"final": 8}),
    )
    found = row_of(store, now)
    assert (found.int8_loss, found.final_value, found.final_loss) == (0.4, 0.86, 0.04)
    assert found.won_back == pytest.approx(0.9)


def test_nothing_is_won_back_where_int8_shows_no_loss_and_nothing_is_told_of_a_mix_that_is_not_there(
    store: Store,
) -> None:
    now = judged(store, Limits(latency_budget_ms=0.5))
    found = row_of(store, now)
    assert (found.trial, found.scheme, found.latency_ms, found.won_back) == (None, "", None, None)
    recovery = RecoveryRecord("auto", (), LossEstimate(0.01, -0.01, 0.03, 8))
    harmless = replace(judged(store), target=now.target.with_values(recovery=recovery))
    assert row_of(store, harmless).won_back is None


def test_cells_stand_below_a_header_that_names_the_metric() -> None:
    metric = MetricScale.of(METRIC)
    known = DeviceRow(2, "a board", 4.0, 1.0, 0.2, 7, "1 int8, 1 fp32", 2.0, 0.88, 0.04, 0.8)
    cells = device_cells([known, DeviceRow(3, "another", None, None, None)], metric)
    assert dict(zip(device_header(metric), cells[0], strict=True)) == {
        "target": "2  a board",
        "FP32": "4.00 ms",
        "INT8": "1.00 ms",
        "INT8 loses": "20 %",
        "scheme": "1 int8, 1 fp32",
        "latency": "2.00 ms",
        "final top1": "88 %",
        "final loss": "4 %",
        "won back": "80 %",
    }
    assert cells[1] == ("3  another", *[""] * 8)


def test_shares_and_times_of_recovery_have_no_empty_signs() -> None:
    assert [won_back_text(x) for x in (-0.002, 0.374, -0.3, None)] == ["0 %", "37 %", "-30 %", ""]
    assert [seconds_text(x) for x in (0.008, 7.61, None)] == ["< 0.1", "7.6", ""]
