"""What the rescue table says where plain INT8 shows no loss."""

from __future__ import annotations

import pytest

from search.values import LossEstimate, RecoveryRecord, StepRecord
from studies.judging.findings.rescue_table import rescue_cells, rescue_notes, rescue_rows
from studies.options.limits import Limits, MetricScale

TOP1 = MetricScale("top1", "share", ratio=True)
KEPT = StepRecord("bias", exact=False, kept=True, reason="", final=LossEstimate(0.0, -0.1, 0.1, 15))


@pytest.mark.parametrize(
    ("loss", "limits", "told", "cell"),
    [
        (LossEstimate(0.0, -0.2, 0.2, 15), Limits(), "15 samples are too few to tell", "too few samples to tell"),
        (LossEstimate(0.08, -0.01, 0.17, 180), Limits(), "180 samples are too few", "too few samples to tell"),
        (LossEstimate(0.0, -0.004, 0.004, 3000), Limits(), "plain INT8 loses nothing there", "nothing to win back"),
        (
            LossEstimate(0.0, -0.004, 0.004, 300),
            Limits(max_drop=0.002),
            "300 samples are too",
            "too few samples to tell",
        ),
    ],
)
def test_that_nothing_is_seen_is_not_told_as_that_there_is_nothing(
    loss: LossEstimate, limits: Limits, told: str, cell: str
) -> None:
    record = RecoveryRecord("auto", (KEPT,), loss)
    assert any(note.startswith(told) for note in rescue_notes(record, TOP1, limits))
    assert rescue_cells(rescue_rows(record), TOP1, limits)[1][4] == cell


def test_a_loss_beyond_chance_is_won_back() -> None:
    record = RecoveryRecord("auto", (KEPT,), LossEstimate(0.1, 0.05, 0.15, 300))
    assert rescue_cells(rescue_rows(record), TOP1)[1][4] == "100 %"
    assert not any("tell" in note or "win back" in note for note in rescue_notes(record, TOP1))
