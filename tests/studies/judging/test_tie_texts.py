"""What is said of a pick that is ahead only by noise, where another one loses measurably less."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from studies.judging.sentences.picks import ties_text
from studies.judging.standing import read_standing
from studies.options.limits import Limits
from studies.store.store import Store
from tests.support.study_rows import evaluated, make_study


@pytest.mark.parametrize(
    ("half", "says"),
    [(0.001, "ties with trial 2; trial 2 loses 0.40 % less"), (0.009, "ties with trial 2")],
)
def test_a_tie_with_a_measurably_smaller_loss_says_how_much_smaller(half: float, says: str, tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}", create=True) as store:
        target = make_study(store)
        for trial, (latency_ms, loss, role) in enumerate(
            [(4.0, 0.0, "baseline:fp32"), (1.0, 0.008, ""), (1.01, 0.004, "")]
        ):
            made = evaluated((trial, 1), latency_ms, loss, half if trial else 0.0)
            number = store.claims.begin(target, made.assignment, made.assignment.digest, "w0", trial, role)
            store.claims.record(number, made)
        study = store.studies.load("s")
        now = read_standing(store, study, store.targets.of_study(study.id)[0], Limits(max_drop=0.05))
        assert now.picks.best is not None
        assert ties_text(now, now.point(now.picks.best), "best") == says


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ((0,), "ties with all FP32 (trial 0)"),
        ((0, 2), "ties with all FP32 (trial 0) and trial 2"),
        ((2, 3, 0), "ties with trial 2, trial 3 and 1 more"),
    ],
)
def test_no_trial_in_the_list_reads_as_the_number_of_the_name_before_it(rows: tuple[int, ...], says: str) -> None:
    table = SimpleNamespace(role=["baseline:fp32", "", "", ""], trial=[0, 1, 2, 3])
    now: Any = SimpleNamespace(table=table, point=lambda row: SimpleNamespace(loss=None))
    point: Any = SimpleNamespace(ties={"best": rows}, loss=0.0)
    assert ties_text(now, point, "best") == says
