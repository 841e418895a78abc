"""Help: verbs and options in panels, whole sentences, and options of backends folded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len

from bitfront.cli import main
from bitfront.cli.help_panels import FIRST_OF_SEARCH, START
from bitfront.cli.main import VERBS, program
from studies import __version__
from tests.support.command_line import copy_finished, invoke, ok, write_inputs
from tests.support.paths import ROOT

HEAVY = ("numpy", "rich", "sqlalchemy", "optuna", "onnx", "scipy")


def test_every_verb_stands_in_a_panel_with_its_whole_sentence() -> None:
    said = ok("--help")
    for name, row in VERBS.items():
        [line] = [line for line in said.splitlines() if re.match(rf"│ {name}  ", line)]
        assert row.summary in line
        assert row.summary.endswith(".")
    assert [panel for panel in dict.fromkeys(row.panel for row in VERBS.values()) if f"─ {panel} ─" not in said] == []
    assert all(len(line) <= 80 for line in said.splitlines())


def test_help_begins_with_what_most_need() -> None:
    for words, first in ((("--help",), "bitfront demo"), (("search", "--help"), "MODEL")):
        said = ok(*words)
        boxes = [line.strip("╭╮─ ") for line in said.splitlines() if line.startswith("╭")]
        assert boxes[0] == START
        box = said[said.index("╭") : said.index("╰")]
        assert box.splitlines()[1].startswith(f"│ {first} ")
    for name in FIRST_OF_SEARCH[1:]:
        assert f"│ --{name.replace('_', '-')} " in box


def test_arguments_stand_by_their_names() -> None:
    said = ok("show", "--help")
    assert said.splitlines()[0].endswith("show [OPTIONS] STUDY [TRIAL]")
    assert re.search(r"│ STUDY  Name of the study\. +│", said)
    assert re.search(r"│ TRIAL  Number of the trial\. +│", said)


def test_every_option_of_every_verb_has_its_whole_text_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    app: Any = typer.main.get_command(program())
    for name in VERBS:
        folds = any("--help-all" in each.opts for each in app.commands[name].params)
        said = ok(name, "--help-all" if folds else "--help")
        assert [line for line in said.splitlines() if cell_len(line) > 80] == []
        columns = [re.split(r" {2,}", line.strip("│ "), maxsplit=1) for line in said.splitlines() if line[:1] == "│"]
        whole = " ".join(" ".join(parts) for parts in columns)
        for each in app.commands[name].params:
            for word in (each.help or "").split():
                assert word in whole, f"{name}: {each.name}"


def test_no_help_of_an_option_is_cut() -> None:
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", ok("search", "--help")).split())
    assert "Longest allowed time of one inference of the whole batch, for example 2.5ms or 800us." in said
    assert "..." not in said.replace("[ARGS]...", "")


def test_options_of_backends_are_folded_until_asked_for() -> None:
    short, whole = ok("search", "--help"), ok("search", "--help-all")
    assert "--timing-cache" not in short
    assert "more options for tensorrt are shown by" in " ".join(short.split())
    assert "--timing-cache" in whole
    assert "are shown by" not in whole


def test_help_of_all_verbs_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['bitfront', '--help']\n"
        "from bitfront.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.slow
def test_a_shell_is_offered_verbs_options_and_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert complete(monkeypatch, "bitfront fro", 1) == ["front"]
    assert "--latency-budget" in complete(monkeypatch, "bitfront front --lat", 2)
    assert complete(monkeypatch, "bitfront front sm", 2) == ["small"]


def complete(monkeypatch: pytest.MonkeyPatch, line: str, word: int) -> list[str]:
    """What the program offers bash for a line; by calling it as its completion script does."""
    with monkeypatch.context() as patch:
        patch.setenv(main.COMPLETE, "complete_bash")
        patch.setenv("COMP_WORDS", line)
        patch.setenv("COMP_CWORD", str(word))
        code = "import sys; sys.argv = ['bitfront']; from bitfront.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    return done.stdout.split()


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "bitfront", "--version"], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == f"bitfront {__version__}\n"


def test_an_unknown_verb_is_told_its_neighbours() -> None:
    result = invoke("fornt")
    assert result.exit_code == 2
    assert "front" in result.output


def test_a_verb_that_is_an_option_of_another_says_where_it_went() -> None:
    command = [sys.executable, "-m", "bitfront", "trials", "s"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    said = "error: bitfront trials: this is bitfront front STUDY --all now.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


@pytest.mark.slow
def test_replace_makes_a_study_anew_and_a_mistake_costs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ("--study", "small", "--trials", 2, "--backend", "fake", "--replace")
    refused = invoke("search", "missing.onnx", "--data", "data.npz", *words)
    assert refused.exit_code == 2
    assert len(json.loads(ok("front", "small", "--all", "--json"))["rows"]) == 4
    write_inputs(tmp_path)
    found = json.loads(ok("search", "model.onnx", "--data", "data.npz", *words, "--json", "--log-file", "told.log"))
    assert (found["schema"], found["schema_version"], found["study"]) == ("bitfront.search", 1, "small")
    assert len(json.loads(ok("front", "small", "--all", "--json"))["rows"]) == 2
    told = Path("told.log").read_text(encoding="utf-8")
    assert "2/2 trial 1: " in told
    assert told.splitlines()[-1].endswith(" ended")
    shown = ok("front", "small", "--all", "--sort", "latency").splitlines()
    assert shown[0].split()[:4] == ["pick", "trial", "latency", "×"]
    assert invoke("front", "small", "--all", "--sort", "size").exit_code == 2
