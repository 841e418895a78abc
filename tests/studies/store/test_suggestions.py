"""Commands in messages can be pasted where they are read: this bitfront, and the study's database."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from studies.store.store import Store
from studies.store.suggestions import PROGRAM, command, program
from tests.support.command_line import copy_finished, environment


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a program `.venv/bin/bitfront`, which is not on the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BITFRONT_STORAGE", raising=False)
    script = tmp_path / ".venv/bin/bitfront"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!{sys.executable}\nfrom bitfront.cli.main import main\nmain()\n")
    script.chmod(0o755)
    return tmp_path


def test_the_program_is_named_as_the_shell_finds_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/bitfront", "demo"])
    assert program() == ".venv/bin/bitfront"
    monkeypatch.setenv("PATH", str(here / ".venv/bin"), prepend=os.pathsep)
    assert program() == "bitfront"
    other = here / "other/bitfront"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(other.parent), prepend=os.pathsep)
    assert program() == ".venv/bin/bitfront", "the shell would find another one"
    monkeypatch.setattr(sys, "argv", ["/x/bitfront/__main__.py"])
    assert program() == f"{sys.executable} -m bitfront"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert program() == "bitfront", "called from Python"
    monkeypatch.setenv(PROGRAM, ".venv/bin/bitfront")
    assert program() == ".venv/bin/bitfront", "of a worker as of its parent"


def test_the_database_is_named_as_seen_from_here(here: Path) -> None:
    assert command("front", "s", storage=None) == "bitfront front s"
    assert command("front", "s", storage="sqlite:///bitfront.db") == "bitfront front s"
    below = f"sqlite:///{here}/demo/bitfront.db"
    assert command("front", "s", storage=below) == "bitfront front s --storage sqlite:///demo/bitfront.db"
    elsewhere = "sqlite:////elsewhere/a b.db"
    assert command("front", "s", storage=elsewhere) == f"bitfront front s --storage {shlex.quote(elsewhere)}"


@pytest.mark.slow
def test_the_command_that_goes_on_can_be_pasted_as_it_is_printed(here: Path) -> None:
    (here / "demo").mkdir()
    copy_finished(here / "demo")
    with Store.open("sqlite:///demo/bitfront.db") as store:
        study = store.studies.load("small")
        store.studies.update(study.id, state="interrupted", config={**study.config, "trials": 5})
    env = {**environment(), "PATH": "/usr/bin:/bin"}

    def run(line: str) -> str:
        done = subprocess.run(line, shell=True, cwd=here, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed = run(".venv/bin/bitfront front small --storage sqlite:///demo/bitfront.db")
    [line] = [line for line in printed.splitlines() if line.startswith("Go on with: ")]
    assert line == "Go on with: .venv/bin/bitfront resume small --storage sqlite:///demo/bitfront.db"
    assert "5 evaluations are done" in run(line.removeprefix("Go on with: "))
    assert "ENDED EARLY" not in run(".venv/bin/bitfront front small --storage sqlite:///demo/bitfront.db")
