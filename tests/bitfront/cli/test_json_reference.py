"""What `--json` prints is in docs/json.md, key by key; every verb has it, with the version of its form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from bitfront.cli.main import VERBS, program
from bitfront.printing.output import JSON_VERSION, json_line
from bitfront.verbs.dashboard_server import Dashboard
from tests.support.command_line import copy_finished, invoke, write_inputs
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/json.md").read_text(encoding="utf-8")
SLOW = pytest.mark.slow
SMALL = (*("model.onnx", "--data", "data.npz"),)
CALLS = [
    ("front", "small"),
    ("front", "small", "--all"),
    ("show", "small", 1),
    ("status", "small"),
    ("status",),
    ("inspect", "model.onnx"),
    ("show", "small", 0, "--profile"),
    ("sensitivity", "small"),
    ("resume", "small", "--remeasure", "doubtful"),
    ("doctor", "--backend", "onnxruntime"),
    ("report", "small", "--out", "report.html"),
    pytest.param(("compare", "small", 1, "--groups"), marks=SLOW),
    pytest.param(("evaluate", *SMALL, "--assign", "all=int8"), marks=SLOW),
    pytest.param(("recover", *SMALL, "--recover", "ranges"), marks=SLOW),
    pytest.param(("drift", "small", "--data", "data.npz"), marks=SLOW),
    pytest.param(("resume", "small", "--data", "data.npz", "--as", "new-data"), marks=SLOW),
    pytest.param(("search", *SMALL, "--study", "new", "--trials", 2, "--backend", "fake"), marks=SLOW),
    pytest.param(("export", "small", "--out", "engine"), marks=SLOW),
    # The last three need what those before them made.
    pytest.param(("gate", "engine", "--against", "engine", "--data", "data.npz", "--max-drop", "50%"), marks=SLOW),
    pytest.param(("inspect", "engine"), marks=SLOW),
    pytest.param(("delete", "new", "--yes"), marks=SLOW),
]
NOT_RUN = {"worker", "demo", "dashboard"}  # the first prints as `search` does


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("json")
    copy_finished(made)
    write_inputs(made)
    return made


@pytest.mark.parametrize("words", CALLS, ids=lambda words: words[0])
def test_every_key_is_in_the_reference(words: tuple[Any, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    result = invoke(*words, "--json")
    assert result.exit_code in (0, 3), f"{result.output}\n{result.exception!r}"
    said = json.loads(result.stdout)
    assert said.pop("schema") == f"bitfront.{words[0]}"
    assert said.pop("schema_version") == JSON_VERSION
    assert said
    assert not (lacking := sorted(set(keys(said)) - documented(words[0]))), "\n".join(lacking)


def keys(said: dict[str, Any]) -> Iterator[str]:
    """Of the answer, and of the rows in it."""
    for key, value in said.items():
        yield key
        if isinstance(value, list):
            yield from (name for row in value if isinstance(row, dict) for name in row)


def documented(verb: str) -> set[str]:
    """Names in the sections of a verb."""
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    heads = [(text.partition("\n")[0].split(", "), text) for text in sections]
    mine = [text for names, text in heads if verb in {name.split()[0] for name in names}]
    assert mine, f"docs/json.md has no section for {verb}"
    return {name for text in mine for name in re.findall(r"`([^`]+)`", text)}


def test_every_verb_prints_json_and_has_its_section() -> None:
    commands: dict[str, Any] = typer.main.get_command(program()).commands  # type: ignore[attr-defined]
    assert [name for name in VERBS if not any("--json" in each.opts for each in commands[name].params)] == []
    for verb in VERBS:
        assert documented(verb)
    run = {(call.values[0] if hasattr(call, "values") else call)[0] for call in CALLS}
    assert run | NOT_RUN == set(VERBS)


def test_the_dashboard_says_where_it_listens() -> None:
    found = Dashboard("sqlite:///bitfront.db", 8123)
    said = json.loads(json_line("dashboard", {"url": found.url}))
    assert said == {"schema": "bitfront.dashboard", "schema_version": JSON_VERSION, "url": "http://localhost:8123/"}
    assert "url" in documented("dashboard")
