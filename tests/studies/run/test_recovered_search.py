"""`--recover` through a search: what is kept is stored, shown, exported, used again and not changed any more."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from search.values import Ranges, RecoveryRecord
from tests.support.command_line import DATABASE, invoke, ok, three_layers, write_inputs
from tests.support.networks import with_uneven_channels

STEP = "tests.support.extensions.toy_step:Balance"
FACTORS = {"first.w", "first.b", "second.w"}


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study whose INT8 was recovered."""
    folder = tmp_path_factory.mktemp("recovered")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs(folder, with_uneven_channels(three_layers(), "first", "second"), samples=160)
        ok(*search("s", "--trials", 4, "--keep-engines", "all"))
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
    assert "as of an earlier study" in result.stderr
    assert stored(here, "again") == stored(here, "s")


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


def test_ranges_that_were_given_are_not_changed(here: Path) -> None:
    ok("export", "s", "--out", "engine", "--quiet")
    refused = invoke(*search("cached", "--calibration-cache", "engine/calibration.cache"))
    assert refused.exit_code == 2
    assert "--calibration-cache: give one" in refused.stderr
