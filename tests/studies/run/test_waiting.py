"""A search that waits for another process on its device says so."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from bitfront import verbs
from studies.artifacts import shipping
from studies.artifacts.folder import Artifacts
from studies.events import Quiet
from studies.options.read_options import read_config
from studies.run.pipeline import pipeline
from tests.support.command_line import environment, quick, write_inputs
from tests.support.forks.processes import popen

HOLD = """
import sys
from evaluators.measure.device_lock import device_lock
with device_lock("cpu"):
    print("held", flush=True)
    sys.stdin.read()
"""


class Freeing(Quiet):
    """Lets go of the device once it was told that the search waits for it."""

    def __init__(self, holder: subprocess.Popen[str] | None) -> None:
        self.holder = holder
        self.told: list[str] = []

    def step(self, text: str, done: int, total: int) -> None:
        self.note(text)

    def note(self, text: str) -> None:
        if "waiting" in text:
            self.told.append(text)
            if self.holder is not None and self.holder.stdin is not None:
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
    with popen(words, stdin=-1, stdout=-1, text=True, env=environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        events = Freeing(holder)
        with quick():
            verbs.search(read_config(given), events)
    at = events.told.index(f"trial 0: waiting for process {holder.pid}, which measures on cpu")
    assert events.told[at - 1 : at + 2 : 2] == ["0: latency", "0: latency"]


HOLD_FILE = """
import sys
from pathlib import Path
from evaluators.measure.device_lock import locked_file
with locked_file(Path(sys.argv[1]), print):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another(lock: Path) -> Iterator[subprocess.Popen[str]]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-c", HOLD_FILE, str(lock)]
    with popen(words, stdin=-1, stdout=-1, text=True, env=environment()) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder


@dataclass
class Shelf:
    """An object store with one object."""

    bucket: Any
    content: bytes = b"engine"

    def has(self, name: str) -> bool:
        return True

    def read(self, name: str, out: BinaryIO) -> bool:
        return bool(out.write(self.content))


def test_who_waits_for_a_fetch_of_another_process_says_so(tmp_path: Path) -> None:
    told: list[str] = []
    with held_by_another(tmp_path / "copies" / "fetching.lock") as holder:

        def tell(text: str) -> None:
            told.append(text)
            assert holder.stdin is not None
            holder.stdin.close()

        store: Any = Shelf(SimpleNamespace(url="s3://bucket"))
        artifacts = Artifacts(tmp_path / "copies", store, tell)
        assert artifacts.path(hashlib.sha256(b"engine").hexdigest()).read_bytes() == b"engine"
    assert told == [
        f"waiting for process {holder.pid}, which fetches artifacts from s3://bucket to {tmp_path / 'copies'}"
    ]


def test_who_waits_for_copies_of_a_studys_files_says_so(tmp_path: Path) -> None:
    events = Freeing(None)
    with held_by_another(tmp_path / "key.lock") as holder:
        events.holder = holder
        with shipping.fetching_alone(tmp_path, "key", events):
            pass
    said = "which fetches or checks this host's copies of the study's files"
    assert events.told == [f"waiting for process {holder.pid}, {said}"]


def test_waits_for_one_process_are_told_once_with_how_long_and_then_by_their_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    events: Any = SimpleNamespace(
        note=told.append, step=lambda text, done, total: told.append(text), stage=lambda trial, stage: None
    )
    moment = [0.0]
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(monotonic=lambda: moment[0]))
    waits = pipeline.Waiting(events)
    for trial in range(9):
        waits.tell(trial, "process 7, which measures on cpu")
        moment[0] += 10
        waits.tell(trial, "")
    assert told == [
        "trial 0: waiting for process 7, which measures on cpu",
        "waited 10s for process 7, which measures on cpu",
        "waited 1m10s so far for others on this device",
    ]
