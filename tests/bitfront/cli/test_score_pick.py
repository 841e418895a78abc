"""A pick by a score through the verbs: front, show, report and export; and the search whose reward it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import copy_finished, finished, invoke, ok

PICK = ("--pick", "score:20,1")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose default database has the finished study `small`."""
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_front_and_show_know_the_pick_by_a_score(here: Path) -> None:
    found = json.loads(ok("front", "small", *PICK, "--json"))
    rows = {row["trial"]: row for row in found["rows"]}
    picked = found["scores"]["score:20,1"]
    fp32 = next(row for row in found["rows"] if row["role"] == "baseline:fp32")
    by_hand = {
        trial: -20 * row["loss"] - (row["latency_ms"] / fp32["latency_ms"] - 1)
        for trial, row in rows.items()
        if row["feasible"]
    }
    assert picked["score"] == pytest.approx(max(by_hand.values()))
    assert by_hand[picked["trial"]] == pytest.approx(picked["score"])
    assert "score:20,1" in rows[picked["trial"]]["picks"]
    assert f"score:20,1 is {picked['score']:.3g}" in ok("front", "small", *PICK)
    assert json.loads(ok("show", "small", *PICK, "--json"))["trial"] == picked["trial"]
    assert json.loads(ok("front", "small", "--json"))["scores"] == {}


def test_report_and_export_know_the_pick_by_a_score(here: Path) -> None:
    ok("report", "small", *PICK, "--out", "report.html")
    assert "score:20,1</b>" in (here / "report.html").read_text(encoding="utf-8")
    trial = json.loads(ok("show", "small", *PICK, "--json"))["trial"]
    ok("export", "small", *PICK, "--out", "engine", "--quiet")
    manifest = json.loads((here / "engine/manifest.json").read_text(encoding="utf-8"))
    assert (manifest["pick"], manifest["trial"]) == ("score:20,1", trial)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("front", "small", "--pick", "score:1"), "there is no such pick"),
        (("export", "small", "--pick", "score:0,0", "--out", "engine"), "there is no such pick"),
        (("report", "small", "--pick", "bets", "--out", "report.html"), "there is no such pick"),
        (("show", "small"), "give a TRIAL or --pick"),
        (("show", "small", "0", "--pick", "best"), "give a TRIAL or --pick"),
    ],
)
def test_what_is_no_pick_is_refused(here: Path, words: tuple[str, ...], says: str) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert says in result.stderr
    assert not (here / "report.html").exists()


@pytest.mark.slow
def test_a_search_by_rewards_is_resumed_from_what_the_study_holds(here: Path) -> None:
    inputs = finished() / "in"
    fake = ("--backend", "fake", "--study", "r", "--quiet", "--sampler", "rl", "--reward", "0.5,0.5")
    ok("search", inputs / "model.onnx", "--data", inputs / "data.npz", *fake, "--trials", 5)
    ok("resume", "r", "--trials", 7, "--quiet")
    assert json.loads(ok("front", "r", "--json"))["evaluations"] == 7


def test_weights_for_a_sampler_without_a_reward_are_refused(here: Path) -> None:
    inputs = finished() / "in"
    words = ("search", inputs / "model.onnx", "--data", inputs / "data.npz", "--backend", "fake", "--study", "r")
    for weights, says in (("0.5,0.5", "the sampler guided does not use a reward"), ("2", "two weights of at least 0")):
        result = invoke(*words, "--reward", weights)
        assert (result.exit_code, says in result.stderr) == (2, True), result.output
