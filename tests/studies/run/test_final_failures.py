"""A mix that is best in the search and gives infinite values on the final data: stored, shown, and no pick."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits
from studies.run import finalists, finish
from studies.store.records import OF_FINAL
from studies.store.store import Store
from tests.support.command_line import DATABASE, invoke, ok
from tests.support.networks import Net, save

pytestmark = pytest.mark.slow

FAILS = "fails on the final split, so it is not recommended: outputs hold NaN or infinite values"
INFINITE = "outputs hold NaN or infinite values on samples 0 to 3 (logits: 32)"
METRIC = """
def size(outputs, labels):
    return outputs["logits"].mean(axis=1)
"""


def divides() -> onnx.ModelProto:
    """1 / a convolution, of which INT8 makes zero where the image is faint; and two convolutions of little weight."""
    n = Net(0)
    weight = n.const("divisor.w", np.abs(n.rng.standard_normal((8, 3, 3, 3))).astype(np.float32))
    divisor = n.op("Relu", [n.op("Conv", ["image", weight], "divisor", kernel_shape=[3, 3])], "divisor/relu")
    beside = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    beside = n.op("Relu", [n.conv(beside, "second", 8, 8)], "second/relu")
    divisor, beside = (
        n.op("Flatten", [n.op("GlobalAveragePool", [x], f"{name}/pool")], f"{name}/flat")
        for name, x in (("divisor", divisor), ("beside", beside))
    )
    inverse = n.op("Div", [n.const("one", np.float32(1)), divisor], "inverse")
    n.op("Add", [inverse, n.op("Mul", [beside, n.const("little", np.float32(1e-4))], "less")], "sum")
    return n.model([4, 3, 8, 8], "logits", [4, 8])


def write_data(folder: Path, name: str, scale: float) -> Path:
    images = scale * np.abs(np.random.default_rng(0).standard_normal((40, 3, 8, 8)))
    np.savez(folder / f"{name}.npz", image=images.astype(np.float32), labels=np.zeros(40, np.int64))
    return folder / f"{name}.npz"


@pytest.fixture(scope="module")
def searched_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished study `s` of all eight mixes, and what the search printed.

    Calibrated on fainter images than it is scored on, INT8 keeps the divisor small: by the metric those four mixes are
    far better than FP32. On the final images, fainter still, they divide by zero.
    """
    folder = tmp_path_factory.mktemp("final")
    save(divides(), folder / "model.onnx")
    (folder / "mine.py").write_text(METRIC, encoding="utf-8")
    scales = {"data": 10.0, "calibration-data": 1.0, "final-data": 1e-4}
    data = [word for name, scale in scales.items() for word in (f"--{name}", str(write_data(folder, name, scale)))]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(finish, "_CONFIRMATIONS", 99)  # every pick's turn comes, whatever is measured
        result = invoke("search", "model.onnx", *data, "--study", "s", "--metric", "mine:size", "--trials", 8)
    assert result.exit_code == 0, result.output
    return folder, result.output


@pytest.fixture
def here(searched_once: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the study's folder to work in; its database is another, of which no function was allowed yet."""
    shutil.copytree(searched_once[0], tmp_path / "in")
    monkeypatch.chdir(tmp_path / "in")
    monkeypatch.setattr(finish, "_CONFIRMATIONS", 99)
    return tmp_path / "in"


def judged(store: Store, limits: Limits | None = None, read: Any = read_standing) -> Standing:
    study = store.studies.load("s")
    now: Standing = read(store, study, store.targets.of_study(study.id)[0], limits or Limits())
    return now


def front_of(*options: Any) -> dict[int, dict[str, Any]]:
    """Trial → its row in `front --json`."""
    return {row["trial"]: row for row in json.loads(ok("front", "s", "--json", *options))["rows"]}


def failing(rows: dict[int, dict[str, Any]]) -> list[int]:
    """Their trials by number: the rows' own order is that of latencies, which may have been measured again."""
    return sorted(trial for trial, row in rows.items() if row["final_failure"])


def again(folder: Path) -> Counter[int]:
    """Evaluation id → how often it was measured again, the FP32 baseline left out."""
    with sqlite3.connect(folder / DATABASE) as connection:
        rows = connection.execute(
            "SELECT evaluation_id FROM bf_sample JOIN bf_evaluation e ON e.id = evaluation_id "
            "WHERE round > 0 AND bf_sample.role = 'candidate' AND e.role != 'baseline:fp32'"
        ).fetchall()
    connection.close()
    return Counter(row[0] for row in rows)


def forget(folder: Path) -> None:
    """What an older version left: nothing about failures on the final data."""
    with sqlite3.connect(folder / DATABASE) as connection:
        connection.execute("DELETE FROM bf_score WHERE split = 'final' AND samples = 0")
        for number, notes in connection.execute("SELECT id, notes FROM bf_evaluation").fetchall():
            kept = [note for note in json.loads(notes or "[]") if not note.startswith(OF_FINAL)]
            connection.execute("UPDATE bf_evaluation SET notes = ? WHERE id = ?", (json.dumps(kept), number))
    connection.close()


def test_what_fails_on_the_final_data_is_not_the_best(here: Path, searched_once: tuple[Path, str]) -> None:
    rows, printed = front_of(), searched_once[1]
    bad = failing(rows)
    assert len(bad) == 4
    assert {trial for trial, row in rows.items() if row["loss"] < 0} == set(bad), "else they were not the best before"
    assert Counter(line for line in printed.splitlines() if FAILS in line) == Counter(
        f"trial {trial} {FAILS} on samples 0 to 3 (logits: 32)" for trial in bad
    )
    best = next(trial for trial, row in rows.items() if "best" in row["picks"])
    assert f"Best, the knee of the front: trial {best} takes " in printed
    assert best not in bad


def test_the_next_pick_gets_its_turn_however_many_fail_before_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalists, "_FEWEST", 1)
    forget(here)
    resumed = invoke("resume", "s", "--trust-functions")
    assert (resumed.exit_code, resumed.output.count(FAILS)) == (0, 4)
    best = next(row for row in front_of().values() if "best" in row["picks"])
    assert (best["final_failure"], best["final_loss"] is not None) == (None, True)


def test_every_pick_is_scored_on_the_final_data(here: Path) -> None:
    rows = front_of()
    picked = [row for row in rows.values() if row["picks"]]
    assert {name for row in picked for name in row["picks"]} == {"best", "accurate", "fast", "knee"}
    assert all(row["final_loss"] is not None and row["final_failure"] is None for row in picked)


def test_it_is_shown_with_the_reason(here: Path) -> None:
    rows = front_of()
    for trial in failing(rows):
        row = rows[trial]
        assert (row["final_failure"], row["final_loss"], row["final_holds"]) == (INFINITE, None, False)
        assert (row["feasible"], row["on_front"], row["picks"]) == (False, False, [])
        text = ok("show", "s", trial)
        assert f"final: fails, so it is no pick: {INFINITE}" in text
        assert "note: final" not in text
        found = json.loads(ok("show", "s", trial, "--json"))
        assert (found["final"], found["final_failure"]) == (None, INFINITE)
        assert not any(note.startswith(OF_FINAL) for note in found["notes"])
    told = [line for line in ok("front", "s").splitlines() if "NaN or infinity" in line]
    lines = [line for line in told if "fails on the final data" in line]
    assert len(lines) == 4
    [faster] = (line for line in told if line not in lines)
    assert faster.startswith("all INT8 is faster than the best")
    ok("report", "s", "--out", "r.html")
    assert Path("r.html").read_text(encoding="utf-8").count(INFINITE) == 4


def test_status_counts_it_out_as_front_does(here: Path) -> None:
    rows = front_of()
    target = json.loads(ok("status", "s", "--json"))["targets"][0]
    assert target["front"] == sum(row["on_front"] for row in rows.values())
    assert {name: point["trial"] for name, point in target["picks"].items()} == {
        name: trial for trial, row in rows.items() for name in row["picks"]
    }


def test_it_is_measured_again_once_and_never_more(here: Path) -> None:
    bad, before = failing(front_of()), again(here)
    with Store.open(f"sqlite:///{DATABASE}") as store:
        now = judged(store)
        ids = [int(now.table.id[row]) for row in np.flatnonzero(now.final.unscorable)]
    assert [before[number] for number in ids] == [1] * len(bad)
    resumed = invoke("resume", "s", "--trust-functions")
    assert (resumed.exit_code, FAILS in resumed.output, "finalist" in resumed.output) == (0, False, False)
    assert again(here) == before


def test_an_export_takes_another_and_refuses_that_one_at_once(here: Path) -> None:
    bad, before = failing(front_of()), again(here)
    refused = invoke("export", "s", "--trial", bad[0], "--out", "bad", "--trust-functions")
    assert refused.exit_code == 1
    assert f"exporting trial {bad[0]}: its outputs on the final data hold NaN or infinite values" in refused.output
    assert not Path("bad").exists()
    assert again(here) == before
    ok("export", "s", "--out", "good", "--trust-functions")
    assert json.loads(Path("good/manifest.json").read_text(encoding="utf-8"))["trial"] not in bad


def test_a_study_without_such_records_reads_as_before_and_a_resume_brings_them(here: Path) -> None:
    with_records = front_of()
    bad = failing(with_records)
    forget(here)
    rows = front_of()
    assert failing(rows) == []
    best = next(row for row in rows.values() if "accurate" in row["picks"])
    assert best["trial"] in bad
    assert (best["final_loss"], best["final_holds"], best["feasible"]) == (None, None, True)
    assert "final" not in ok("show", "s", best["trial"])
    resumed = invoke("resume", "s", "--trust-functions")
    assert (resumed.exit_code, resumed.output.count(FAILS)) == (0, 4)
    assert failing(front_of()) == bad


def test_where_nothing_else_keeps_the_limits_the_nearest_that_hold_are_named(here: Path) -> None:
    rows = front_of()
    bad = failing(rows)
    bound = min(rows[trial]["metric"] for trial in bad)  # the failing ones alone keep it
    found = json.loads(ok("front", "s", "--accuracy-limit", bound, "--json"))
    assert {row["trial"] for row in found["rows"] if row["final_failure"]} == set(bad)
    assert not any(row["picks"] or row["on_front"] for row in found["rows"])
    assert len(found["nearest"]) == 3
    assert not any(f"trial {trial} " in text for trial in bad for text in found["nearest"])
    with Store.open(f"sqlite:///{DATABASE}") as store:
        now = judged(store, Limits(accuracy_limit=bound))
        assert not now.final.unscorable[finalists.finalist_rows(now)].any()
    assert set(now.table.trial[now.judgement.barred_rows]) == set(bad)
