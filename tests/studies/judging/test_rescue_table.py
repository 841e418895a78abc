"""What the rescue table says where plain INT8 shows no loss."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search.values import NOT_TRIED, LossEstimate, RecoveryRecord, StepRecord
from studies.judging.findings.rescue_table import (
    RescuedPick,
    recovery_text,
    rescue_cells,
    rescue_header,
    rescue_legend,
    rescue_notes,
    rescue_rows,
)
from studies.options.limits import Limits, MetricScale
from studies.show.terminal.text_table import plain_table

TOP1 = MetricScale("top1", "share", ratio=True)
KEPT = StepRecord("bias", exact=False, kept=True, reason="", final=LossEstimate(0.0, -0.1, 0.1, 15))


@pytest.mark.parametrize(
    ("loss", "limits", "told", "cell"),
    [
        (LossEstimate(0.0, -0.2, 0.2, 15), Limits(), "15 samples are too few to tell", "unsure"),
        (LossEstimate(0.08, -0.01, 0.17, 180), Limits(), "180 samples are too few", "unsure"),
        (LossEstimate(0.0, -0.004, 0.004, 3000), Limits(), "plain INT8 loses nothing there", "no loss"),
        (
            LossEstimate(0.0, -0.004, 0.004, 300),
            Limits(max_drop=0.002),
            "300 samples are too",
            "unsure",
        ),
    ],
)
def test_that_nothing_is_seen_is_not_told_as_that_there_is_nothing(
    loss: LossEstimate, limits: Limits, told: str, cell: str
) -> None:
    record = RecoveryRecord("auto", (KEPT,), loss)
    assert any(note.startswith(told) for note in rescue_notes(record, TOP1, limits))
    cells = rescue_cells(rescue_rows(record), TOP1, limits)
    assert cells[1][3] == cell
    assert rescue_legend(cells).startswith(f"{cell}: ")


@pytest.mark.parametrize("limits", [Limits(), Limits(max_drop=0.002)])
def test_the_table_fits_80_columns_whole(limits: Limits) -> None:
    loss = LossEstimate(0.0, -0.004, 0.004, 300)
    record = RecoveryRecord("auto", (KEPT,), loss)
    rows = rescue_rows(record, RescuedPick("best: trial 123", loss, 0.0796), plain_ms=12.3, recovered_ms=12.1)
    cells = rescue_cells(rows, TOP1, limits)
    assert plain_table(cells, rescue_header(TOP1)).fit(None).width <= 80


def test_a_loss_beyond_chance_is_won_back() -> None:
    record = RecoveryRecord("auto", (KEPT,), LossEstimate(0.1, 0.05, 0.15, 300))
    assert rescue_cells(rescue_rows(record), TOP1)[1][3] == "100 %"
    assert not any("tell" in note or "win back" in note for note in rescue_notes(record, TOP1))


@pytest.mark.parametrize(
    ("cuts", "said"),
    [
        (("", ""), "2 steps tried, in 12s"),
        (("", "it ran out of time after 0 of 4 streams"), "2 steps tried, 1 of which ran out of time, in 12s"),
        (
            ("it ran out of time", NOT_TRIED, NOT_TRIED),
            "1 step tried, 1 of which ran out of time; 2 not tried for lack",
        ),
        ((NOT_TRIED,), "0 steps tried; 1 not tried for lack of time, in 12s"),
    ],
)
def test_steps_that_were_not_tried_are_not_counted_as_tried(cuts: tuple[str, ...], said: str) -> None:
    steps = tuple(StepRecord("smooth", exact=True, kept=False, reason="", cut=cut) for cut in cuts)
    assert recovery_text(RecoveryRecord("auto", steps, seconds=12.0)).startswith(f"nothing kept of {said}")


@pytest.mark.parametrize(
    ("metric", "plain", "kept", "shown"),
    [
        (
            MetricScale("sqnr", "dB", relative=True),
            LossEstimate(97.3, 96.8, 97.8, 300, 2.7),
            LossEstimate(95.6, 95.2, 96.2, 300, 4.4),
            [("2.7 dB", "2.2 … 3.2 dB"), ("4.4 dB", "3.8 … 4.8 dB")],
        ),
        (
            MetricScale("mse", "", higher_is_better=False, relative=True),
            LossEstimate(0.2, 0.1, 0.4, 300, 0.2),
            LossEstimate(0.1, 0.05, 0.15, 300, None),
            [("0.20", "0.10 … 0.40"), ("", "")],
        ),
    ],
)
def test_a_metric_that_compares_with_fp32_shows_its_own_values_and_no_share(
    metric: MetricScale, plain: LossEstimate, kept: LossEstimate, shown: list[tuple[str, str]]
) -> None:
    record = RecoveryRecord("auto", (replace(KEPT, final=kept),), plain)
    assert rescue_header(metric) == ("step", metric.name, "95 % interval", "latency", "seconds")
    cells = rescue_cells(rescue_rows(record), metric)
    assert [row[1:3] for row in cells] == shown
    assert {len(row) for row in cells} == {5}
    assert rescue_legend(cells) == ""
    assert RecoveryRecord.from_json(record.to_json()) == record
