"""An evaluator process that dies over an evaluation is replaced, and everything that tells of the study says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bitfront import verbs
from studies.events import Quiet
from studies.options.read_options import read_config
from tests.support.command_line import evaluator_processes, invoke, ok, quick, write_inputs

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks for the evaluator process among its children"),
    pytest.mark.slow,
]


class Killer(Quiet):
    """Kills the evaluator process when a trial reaches a stage, so often; notes what is said.

    Args:
        times: (trial, stage) → how often.
        held: folder with a file for each stage that evaluations stay in, to be killed there.
    """

    def __init__(self, times: dict[tuple[int, str], int], held: Path) -> None:
        self.times = times
        self.notes: list[str] = []
        self._held = held
        self._hold()

    def _hold(self) -> None:
        """Have the next evaluation stay in every stage that one is yet to be killed in."""
        for (_, stage), left in self.times.items():
            if left:
                (self._held / stage).touch()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def stage(self, trial: int, stage: str) -> None:
        kills = self.times.get((trial, stage), 0)
        if kills:
            self.times[trial, stage] -= 1
            [evaluator] = evaluator_processes()
            evaluator.kill()
        if kills <= 1:
            (self._held / stage).unlink(missing_ok=True)  # it may go on, or is tried again
        if stage == "accuracy":
            self._hold()


def test_a_replaced_evaluator_is_told_wherever_the_study_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    options = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "trials": "4", "sampler": "random"}
    held = tmp_path / "held"
    held.mkdir()
    monkeypatch.setenv("BITFRONT_TEST_HELD", str(held))
    killer = Killer({(0, "latency"): 1, (3, "build"): 2}, held)
    with quick():
        finished = verbs.search(read_config(options), killer)
    assert [(d.trial, d.death.stage.value, d.death.kind.value) for d in finished.deaths] == [
        (0, "latency", "crashed"),
        (3, "build", "crashed"),
        (3, "build", "crashed"),
    ]
    assert sum("evaluator process replaced at" in note for note in killer.notes) == 3
    once = ok("show", "s", 0)
    assert "SIGKILL" in once
    assert "evaluator process replaced at latency (crashed)" in once
    assert once.count("tried again in a fresh process") == 1
    assert "ok" in once.splitlines()[0]
    twice = ok("show", "s", 3)
    assert (twice.count("tried again in a fresh process"), twice.count("not tried again")) == (1, 1)
    [told] = json.loads(ok("show", "s", 0, "--json"))["replaced"]
    assert (told["stage"], told["kind"], "SIGKILL" in told["message"]) == ("latency", "crashed", True)
    assert json.loads(ok("show", "s", 1, "--json"))["replaced"] == []
    assert "replaced" not in ok("show", "s", 1)
    summary = "The evaluator process was replaced 3 times over trials 0, 3: 2 crashed at build, 1 crashed at latency"
    assert summary in ok("resume", "s")
    assert "3 times over trials 0, 3: 2 crashed at build, 1 crashed at latency" in ok("status", "s")
    assert json.loads(ok("status", "s", "--json"))["targets"][0]["replaced"] == 3
    ok("report", "s", "--out", "report.html")
    assert "replaced 3 times over trials 0, 3" in Path("report.html").read_text(encoding="utf-8")


def test_what_each_part_of_an_evaluation_took_is_stored_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 3, "--sampler", "random")
    for trial in range(3):
        shown = json.loads(ok("show", "s", trial, "--json"))
        assert {"lower", "build", "audit", "load", "latency", "run", "score"} <= shown["stage_s"].keys()
        assert 0 <= shown["build_s"] <= shown["total_s"]
    assert invoke("show", "s", 0).exit_code == 0
