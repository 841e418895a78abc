"""`bitfront resume --as` of a study with two targets, and after a kill at the worst moment; with invented numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import environment, ok, write_inputs
from tests.support.forks.processes import run_python

pytestmark = pytest.mark.slow

OTHER = ("--new-target", "--backend-option", "fake-seed=7", "--quiet")
FRESH = ("--data", "fresh.npz", "--max-drop", "90%")
KILLED = """
import os, signal
from bitfront import verbs
from studies.store.repositories.studies import Studies
create = Studies.create

def create_and_die(*given, **options):
    create(*given, **options)
    os.kill(os.getpid(), signal.SIGKILL)

Studies.create = create_and_die
verbs.resume("s", {"data": "fresh.npz"}, fresh="k")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path, samples=400)
    with np.load("data.npz") as data:
        np.savez("fresh.npz", **{**data, "image": data["image"] + np.float32(0.001)})
    ok("search", "model.onnx", "--data", "data.npz", "--study", "s", "--backend", "fake", "--recover", "none",
       "--trials", 3, "--quiet")  # fmt: skip
    return tmp_path


def test_the_target_that_was_judged_is_exported(here: Path) -> None:
    ok("resume", "s", *OTHER)
    ok("resume", "s", "--as", "s-renewed", *FRESH)
    ok("resume", "s-renewed", *OTHER)
    ok(
        "resume",
        "s",
        "--as",
        "s-renewed",
        "--target",
        "2",
        "--data",
        "fresh.npz",
        "--max-drop",
        "90%",
        "--out",
        "exported",
    )
    manifest = json.loads((here / "exported/manifest.json").read_text())
    assert manifest["target"]["options"]["seed"] == "7"


def test_a_renewal_that_was_killed_as_its_study_was_made_goes_on(here: Path) -> None:
    killed = run_python([sys.executable, "-c", KILLED], env=environment())
    assert killed.returncode == -9
    assert "k" in ok("status")
    ok("resume", "s", "--data", "fresh.npz", "--as", "k", "--max-drop", "90%")
    assert json.loads(ok("status", "k", "--json"))["renewed_from"] == "s"
