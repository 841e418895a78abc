"""A search that waits for another process on its device says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bitfront import verbs
from studies.events import Quiet
from studies.options.read_options import read_config
from studies.run.pipeline import waiting
from tests.support.command_line import environment, quick, write_inputs

HOLD = """
import sys
from evaluators.measure.device_lock import device_lock
with device_lock("cpu"):
    print("held", flush=True)
    sys.stdin.read()
"""


class Freeing(Quiet):
    """Lets go of the device once it was told that the search waits for it."""

    def __init__(self, holder: subprocess.Popen[str]) -> None:
        self.holder = holder
        self.told: list[str] = []

    def step(self, text: str, done: int, total: int) -> None:
        if "waiting" in text:
            self.told.append(text)
            if self.holder.stdin is not None:
                self.holder.stdin.close()

    def stage(self, trial: int, stage: str) -> None:
        self.told.append(f"{trial}: {stage}")


@pytest.mark.slow
def test_a_search_tells_that_it_waits_and_when_its_turn_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    write_inputs(tmp_path)
    given = {"model": "model.onnx", "data": "data.npz", "study": "s", "recover": "none", "trials": "1"}
    given["threads"] = "2"  # with one, nobody waits for his turn
    words = [sys.executable, "-c", HOLD]
    with subprocess.Popen(words, stdin=-1, stdout=-1, text=True, env=environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        events = Freeing(holder)
        with quick():
            verbs.search(read_config(given), events)
    at = events.told.index(f"trial 0: waiting for process {holder.pid}, which measures on cpu")
    assert events.told[at - 1 : at + 2 : 2] == ["0: latency", "0: latency"]


def test_waits_for_one_process_are_told_once_with_how_long_and_then_by_their_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    events: Any = SimpleNamespace(
        note=told.append, step=lambda text, done, total: told.append(text), stage=lambda trial, stage: None
    )
    moment = [0.0]
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    waits = waiting.Waiting(events)
    for trial in range(9):
        waits.tell(trial, "process 7, which measures on cpu")
        moment[0] += 10
        waits.tell(trial, "")
    assert told == [
        "trial 0: waiting for process 7, which measures on cpu",
        "waited 10s for process 7, which measures on cpu",
        "waited 1m10s so far for others on this device",
    ]
