"""Doubtful latencies are measured again: by themselves before a search ends, and on request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from bitfront import verbs
from bitfront.cli.main import program_for
from studies.crew import locked_study
from studies.run.noise import remeasurement
from tests.support.command_line import DATABASE, copy_finished, quick, run_sql, write_inputs

pytestmark = pytest.mark.slow

OFF = 100.0  # relative, of a baseline from its usual time: quick measurements of a busy machine are all within that


@pytest.fixture(autouse=True)
def steady_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubts are the planted ones alone."""
    monkeypatch.setattr("evaluators.measure.latency_scale.BASELINE_LIMIT", OFF)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished study of four trials in which nothing is doubtful."""
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    run_sql("update bf_sample set warnings = '[]' where role = 'candidate'")
    run_sql("update bf_evaluation set doubts = 0")
    return tmp_path


def doubt(*trials: int) -> None:
    """Let every measurement of these trials be doubtful."""
    of_trial, planted = "select evaluation_id from bf_trial where number = ?", '["planted"]'
    for trial in trials:
        samples = f"role = 'candidate' and evaluation_id in ({of_trial})"
        run_sql(f"update bf_sample set warnings = '{planted}' where {samples}", trial)
        run_sql(f"update bf_evaluation set doubts = 1 where id in ({of_trial})", trial)


def run(*arguments: Any, tries: int = 3) -> Result:
    """A command in this process, quick but for how often it measures what is doubtful."""
    with quick(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(remeasurement, "TRIES", tries)
        words = [str(argument) for argument in arguments]
        return CliRunner().invoke(program_for(words), words)


def remeasured(which: Any = "doubtful") -> list[dict[str, Any]]:
    said = run("resume", "small", "--remeasure", which, "--json")
    assert said.exit_code == 0, said.output
    found: list[dict[str, Any]] = json.loads(said.stdout)["measured"]
    return found


def rounds(trial: int) -> list[tuple[Any, ...]]:
    query = "select round, raw_ms, baseline_ms, warnings from bf_sample s join bf_trial t using (evaluation_id) "
    return run_sql(f"{query} where t.number = ? and role = 'candidate' order by round", trial)


def marked() -> set[int]:
    """Trials that `front` calls doubtful."""
    found = json.loads(run("front", "small", "--json").stdout)
    return {row["trial"] for row in found["rows"] if row["warnings"]}


# -- on request --------------------------------------------------------------------------------------------------------


def test_what_is_doubtful_and_matters_is_measured_until_it_is_clean(here: Path) -> None:
    doubt(0, 1)
    assert marked() == {0, 1}
    before = {trial: rounds(trial) for trial in (0, 1)}
    shown = {row["trial"]: row["latency_ms"] for row in json.loads(run("front", "small", "--json").stdout)["rows"]}
    found = remeasured()
    assert [(row["trial"], row["tries"]) for row in found] == [(0, 1), (1, 1)]
    assert all(row["doubts_before"] == ["planted"] and row["doubts"] == [] for row in found)
    assert [row["before_ms"] for row in found] == pytest.approx([shown[0], shown[1]])
    assert marked() == set()
    after = {row["trial"]: row["latency_ms"] for row in json.loads(run("front", "small", "--json").stdout)["rows"]}
    assert [row["after_ms"] for row in found] == pytest.approx([after[0], after[1]])
    for trial, older in before.items():
        assert rounds(trial)[: len(older)] == older
        assert len(rounds(trial)) == len(older) + 1
    assert remeasured() == []


def test_a_trial_is_measured_again_even_if_it_is_clean(here: Path) -> None:
    before = rounds(1)
    said = run("resume", "small", "--remeasure", 1)
    assert said.exit_code == 0, said.output
    assert "trial 1: " in said.stdout
    assert " before, " in said.stdout
    assert rounds(1)[:-1] == before


def test_what_stays_doubtful_is_given_up_after_some_tries_and_told(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside baselines that are never as usual, as nothing is within a limit below zero."""
    monkeypatch.setattr("evaluators.measure.latency_scale.BASELINE_LIMIT", -1.0)
    (found,) = remeasured(1)
    assert found["tries"] == 3
    assert any("than usual" in text for text in found["doubts"])
    assert "still doubtful: the baseline ran" in run("resume", "small", "--remeasure", 1).stdout


def test_all_are_those_that_matter_and_others(here: Path) -> None:
    doubt(0, 1, 2, 3)
    measured = {row["trial"] for row in json.loads(run("front", "small", "--json").stdout)["rows"]}
    assert {row["trial"] for row in remeasured("all")} == {0, 1, 2, 3}
    assert measured <= {0, 1, 2, 3}


def test_nothing_doubtful_is_nothing_to_do(here: Path) -> None:
    content = (here / DATABASE).read_bytes()
    said = run("resume", "small", "--remeasure", "doubtful")
    assert (said.exit_code, said.stdout) == (0, "No latency that was asked for is doubtful; nothing was measured.\n")
    assert (here / DATABASE).read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("small", 77), "There is no trial 77"),
        (("small", "some"), "--remeasure: expected doubtful, all or numbers of trials"),
        (("small", 1, "--trials", 9), "--trials: this option does not go with --remeasure"),
        (("small", 1, "--as", "new"), "--remeasure: this option does not go with --as"),
        (("none", "all"), "There is no study 'none'"),
        (("small", 1, "--data", "nowhere.npz"), "nowhere.npz"),
    ],
)
def test_bad_requests_are_refused(here: Path, arguments: tuple[Any, ...], says: str) -> None:
    content = (here / DATABASE).read_bytes()
    said = run("resume", arguments[0], "--remeasure", *arguments[1:])
    assert said.exit_code == 2
    assert says in said.stderr
    assert (here / DATABASE).read_bytes() == content


def test_no_database_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("resume", "small", "--remeasure", "doubtful").exit_code == 2
    assert not list(tmp_path.iterdir())


def test_a_failed_trial_has_nothing_to_measure(here: Path) -> None:
    run_sql(
        "update bf_evaluation set status = 'failed', stage = 'build', kind = 'refused', message = 'no' where id = 3"
    )
    [(trial,)] = run_sql("select number from bf_trial where evaluation_id = 3")
    said = run("resume", "small", "--remeasure", trial)
    assert said.exit_code == 2
    assert f"measuring trial {trial} again: its evaluation failed" in said.stderr


def test_it_takes_the_lock_of_the_study(here: Path) -> None:
    with locked_study(here / f"{DATABASE}.artifacts", f"sqlite:///{here / DATABASE}", "small"):
        said = run("resume", "small", "--remeasure", 1)
    assert said.exit_code == 2
    assert rounds(1)


def test_an_engine_that_was_not_kept_is_built_again(here: Path) -> None:
    for path in (here / f"{DATABASE}.artifacts").iterdir():
        if path.is_file() and len(path.name) == 64 and b"Conv" in path.read_bytes():
            path.unlink()
    assert [row["trial"] for row in remeasured(1)] == [1]


def test_the_function_gives_the_same(here: Path) -> None:
    doubt(1)
    with quick():
        (found,) = verbs.resume("small", remeasure="doubtful", storage=f"sqlite:///{DATABASE}")
    assert (found.trial, found.tries, found.doubts_before, found.doubts) == (1, 1, ("planted",), ())


# -- by itself ---------------------------------------------------------------------------------------------------------


def test_a_search_measures_what_is_doubtful_again_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITFRONT_TEST_DOUBTFUL", "1")
    write_inputs(tmp_path)
    search = ("search", "model.onnx", "--data", "data.npz", "--study", "small", "--trials", 4, "--sampler", "random")
    said = run(*search)
    assert said.exit_code == 0, said.output
    assert "doubtful latencies again" in said.stderr
    assert " before, " in said.stderr
    assert marked() == set()
    assert next(text for _, _, _, text in rounds(0)) == '["planted"]', "else nothing was planted"


def test_no_time_left_is_no_time_to_measure_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITFRONT_TEST_DOUBTFUL", "1")
    write_inputs(tmp_path)
    search = ("search", "model.onnx", "--data", "data.npz", "--study", "small", "--trials", 4, "--sampler", "random")
    monkeypatch.setattr("studies.run.pace.Pace.timing_s", lambda self, now, count: 1e9)
    said = run(*search, "--time-limit", "5m")
    assert said.exit_code == 0, said.output
    assert " before, " not in said.stderr
