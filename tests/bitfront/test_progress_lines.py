"""What a search in Python tells of its progress where there is no terminal."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import bitfront as bf
from bitfront.progress import LOG
from tests.support.command_line import quick, write_inputs

pytestmark = pytest.mark.slow


def told(progress: bool | str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with quick():
        bf.search(
            "model.onnx", "data.npz", backend="fake", trials=3, progress=progress, if_exists="replace", study="one"
        )
    return capsys.readouterr().err.splitlines()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path, samples=40)
    monkeypatch.chdir(tmp_path)


def test_a_script_without_terminal_prints_the_lines_of_the_command_line(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, LOG.name):
        lines = told("auto", capsys)
        assert told(False, capsys) == []
    assert [line.split(":")[0] for line in lines if "/3 trial " in line] == [f"{n + 1}/3 trial {n}" for n in range(3)]
    assert any("calibrat" in line for line in lines)


@pytest.mark.parametrize("progress", [True, False])
def test_a_program_without_logging_sees_a_warning_once(progress: bool) -> None:
    script = (
        "import bitfront\nif __name__ == '__main__':\n    bitfront.search('model.onnx', 'data.npz', backend='fake', "
        f"trials=1, max_drop=0.01, recover='none', progress={progress})\n"
    )
    Path("run.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "run.py"], capture_output=True, text=True, check=True)
    assert done.stderr.count("WARNING: the allowed loss of 1 %") == 1


def test_a_logger_that_is_set_up_tells_evaluations_and_steps_and_nothing_twice(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, LOG.name):
        assert told("auto", capsys) == []
        messages = [record.getMessage() for record in caplog.records if record.name == LOG.name]
        assert any("1/3 trial 0: " in each for each in messages)
        assert any("calibrat" in each for each in messages)
        assert told(True, capsys)
