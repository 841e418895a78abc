"""`--recover` through a search: what is kept is stored, shown, exported, used again and not changed any more."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.recovery.registry import STEPS
from search.graph.model import load
from search.values import Ranges, RecoveryRecord
from tests.support.command_line import DATABASE, RECOVER, invoke, ok, three_layers, write_inputs
from tests.support.networks import with_uneven_channels

pytestmark = pytest.mark.slow

STEP = "tests.support.extensions.toy_step:Balance"
FACTORS = {"first.w", "first.b", "second.w"}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study whose INT8 was recovered."""
    folder = tmp_path_factory.mktemp("recovered")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs(folder, with_uneven_channels(three_layers(), "first", "second"), samples=160)
        (folder / "summary.txt").write_text(ok(*search("s", "--trials", 4, "--keep-engines", "all")))
        (folder / "printed.txt").write_text(ok("status", "s"))
    return folder


def search(study: str, *more: Any, steps: str = STEP) -> list[Any]:
    words = ["search", "model.onnx", "--data", "data.npz", "--metric", "mse", "--study", study, "--recover", steps]
    return [*words, *more]


@pytest.fixture
def here(searched: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(searched)
    return searched


def row(folder: Path, query: str) -> Any:
    with sqlite3.connect(folder / DATABASE) as connection:
        return connection.execute(query).fetchone()


def ranges_of(folder: Path, study: str) -> Ranges:
    digest, _ = stored(folder, study)
    (path,) = [p for p in (folder / f"{DATABASE}.artifacts").rglob(f"{digest}*") if p.is_file()]
    return Ranges.from_json(json.loads(path.read_text()))


def stored(folder: Path, study: str) -> tuple[str, RecoveryRecord]:
    digest, record = row(
        folder,
        "select ranges_digest, recovery from bf_study_target t join bf_study s on s.id = t.study_id "
        f"where s.name = '{study}'",
    )
    return digest, RecoveryRecord.from_json(json.loads(record))


def test_what_is_kept_is_in_the_ranges_and_its_record_with_the_target(here: Path) -> None:
    _, record = stored(here, "s")
    assert [(step.name, step.kept) for step in record.steps] == [("balance", True)]
    assert record.asked == STEP
    assert record.steps[0].final.loss < record.plain.loss
    assert set(ranges_of(here, "s").recovery.factors) == FACTORS


def test_status_tells_of_it(here: Path) -> None:
    assert "balance kept of 1 step tried" in (here / "printed.txt").read_text()
    (target,) = json.loads(ok("status", "s", "--json"))["targets"]
    assert target["recovery"]["steps"][0]["name"] == "balance"


def test_a_second_study_takes_it_over(here: Path) -> None:
    result = invoke(*search("again", "--trials", 3))
    assert result.exit_code == 0, result.output
    assert "taken over from an earlier study" in result.stderr
    assert stored(here, "again") == stored(here, "s")


def test_so_does_one_with_another_database_unless_it_keeps_no_cache(here: Path) -> None:
    elsewhere = ("--trials", 3, "--storage", "sqlite:///other.db")
    result = invoke(*search("other", *elsewhere))
    assert result.exit_code == 0, result.output
    assert "calibration and recovery: taken over" in result.stderr
    with sqlite3.connect(here / "other.db") as connection:
        assert connection.execute("select ranges_digest from bf_study_target").fetchall() == [(stored(here, "s")[0],)]
    alone = invoke(*search("alone", "--trials", 3, "--storage", "sqlite:///alone.db", "--no-cache"))
    assert alone.exit_code == 0, alone.output
    assert "taken over" not in alone.stderr


def test_recovery_that_fails_as_a_whole_ends_no_search_unless_its_steps_were_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RECOVER, "auto")
    monkeypatch.setenv("BITFRONT_TEST_NO_EMULATION", "1")
    words = ("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--trials", 2, "--no-cache")
    result = invoke(*words, "--study", "broken", "--storage", "sqlite:///broken.db")
    assert result.exit_code == 0, result.output
    assert "recovery is left out, because it failed" in result.stderr
    named = invoke(*words, "--study", "named", "--storage", "sqlite:///broken.db", "--recover", "bias")
    assert named.exit_code != 0
    assert "no emulation today" in named.stderr


def test_recovery_that_was_cut_goes_on_while_no_mix_rests_on_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECOVER, "auto")
    words = ("search", "model.onnx", "--data", "data.npz", "--metric", "mse", "--study", "cut")
    ok(*words, "--trials", 1, "--recover-time", "1ms")  # FP32 alone
    _, record = stored(here, "cut")
    assert len(record.cut) == len(record.steps) > 0
    result = invoke("resume", "cut", "--trials", 3)
    assert result.exit_code == 0, result.output
    assert "recovery goes on" in result.stderr
    assert stored(here, "cut")[1].again
    now = stored(here, "cut")
    assert "recovery goes on" not in invoke("resume", "cut", "--trials", 4).stderr
    assert stored(here, "cut") == now, "INT8 was evaluated"


def test_one_that_sets_the_time_for_recovery_makes_its_own(here: Path) -> None:
    result = invoke(*search("longer", "--trials", 3, "--recover-time", "2m"))
    assert result.exit_code == 0, result.output
    assert "calibration and recovery: taken over" not in result.stderr
    again = invoke(*search("longer-again", "--trials", 3, "--recover-time", "2m"))
    assert "calibration and recovery: taken over" in again.stderr


def test_other_steps_are_refused_later(here: Path) -> None:
    for more in ((), ("--new-target",)):
        refused = invoke("resume", "s", "--recover", "none", "--trials", 5, *more)
        assert refused.exit_code == 2
        assert f"--recover none: expected {STEP}, with which the study was made" in refused.stderr


def test_a_study_goes_on_under_the_same_ranges(here: Path) -> None:
    before, _ = stored(here, "s")
    ok("resume", "s", "--trials", 5, "--quiet")
    assert stored(here, "s")[0] == before


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("no-such-step", "--recover no-such-step: there is no such recover"),
        (f"{STEP},{STEP}", "named twice"),
        ("auto,equalize", "auto or none alone"),
        ("a b", "names of steps"),
        ("pathlib:Path", "expected a subclass of RecoveryStep"),
    ],
)
def test_steps_that_there_are_not_are_refused_before_anything_is_made(here: Path, steps: str, said: str) -> None:
    refused = invoke(*search("refused", steps=steps))
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert row(here, "select count(*) from bf_study where name = 'refused'") == (0,)


def test_by_default_a_search_tries_every_step(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RECOVER, "auto")
    ok("search", "model.onnx", "--data", "data.npz", "--study", "auto", "--backend", "fake", "--trials", 2, "--quiet")
    _, record = stored(here, "auto")
    assert tuple(step.name for step in record.steps) == STEPS.names()
    assert "equalize" in {step.name for step in record.kept_steps}
    assert set(ranges_of(here, "auto").recovery.factors) >= FACTORS


def test_an_export_is_built_again_and_carries_the_float_model(here: Path) -> None:
    with sqlite3.connect(here / DATABASE) as connection:
        for (digest,) in connection.execute("select digest from bf_artifact where kind = 'engine'"):
            (here / f"{DATABASE}.artifacts" / digest).unlink(missing_ok=True)
    ok("export", "s", "--trial", 1, "--out", "exported", "--for", "qat", "--quiet")
    manifest = json.loads((here / "exported/manifest.json").read_text())
    assert manifest["float_model"]["outputs"] == "equal"
    assert manifest["recovery"]["steps"][0]["kept"]
    assert "model.float.onnx" in manifest["handover"]["notes"][0]
    assert {"model.float.onnx", "ranges.json"} <= manifest["files"].keys()
    scaled, user = (load(here / path).graph.graph.initializers for path in ("exported/model.float.onnx", "model.onnx"))
    assert not np.array_equal(scaled["first.w"].const_value.numpy(), user["first.w"].const_value.numpy())


def test_sensitivities_and_comparisons_are_of_recovered_int8(here: Path) -> None:
    rows = {row["group"]: row for row in json.loads(ok("sensitivity", "s", "--json"))["groups"]}
    assert rows["g000"]["channel_ratio"] < 4  # 12.9 in the user's model
    (output,) = json.loads(ok("compare", "s", 1, "--json"))["outputs"]
    assert output["engine-emulated"]["sqnr_db"] > 80


def test_summary_and_report_have_the_table_with_the_mix_last(here: Path) -> None:
    printed = (here / "summary.txt").read_text()
    table = printed[printed.index("What INT8 loses") :].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["plain", "balance", "best:"]
    ok("report", "s", "--out", "report.html")
    page = (here / "report.html").read_text()
    assert "What INT8 loses, and what recovery won back" in page
    assert ">best: trial" in page


def test_ranges_that_were_given_are_not_changed(here: Path) -> None:
    (here / "some.cache").write_text("TRT-8601-MinMaxCalibration\nimage: 3c010a14\n")
    refused = invoke(*search("cached", "--calibration-cache", "some.cache"))
    assert refused.exit_code == 2
    assert "--calibration-cache: give one" in refused.stderr
