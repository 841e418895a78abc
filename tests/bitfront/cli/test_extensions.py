"""Verbs and limits that other packages register are used like those of bitfront."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bitfront.cli import main
from bitfront.cli.main import VERBS, register_verb
from search.errors import ConfigError
from studies.options.limits import LIMITS, Limit, register_limit
from tests.support.command_line import copy_finished, finished, invoke, ok
from tests.support.extensions.toy_limit import MAX_FILE

TOY = "tests.support.extensions.toy_verb"


@pytest.fixture
def greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "VERBS", dict(VERBS))


def test_a_registered_verb_runs_and_its_errors_end_as_all_do(greeting: None) -> None:
    register_verb("greet", TOY)
    assert invoke("greet", "you", "--loudly").stdout == "HELLO YOU\n"
    refused = invoke("greet", "nobody")
    assert (refused.exit_code, refused.stderr) == (2, "error: greeting nobody: expected a name, got none. Give one.\n")
    assert "greet" in invoke("--help").stdout
    with pytest.raises(ConfigError, match="front"):
        register_verb("front", TOY)


def test_the_verb_of_an_installed_package_is_found(greeting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("greet", f"{TOY}:greet", main.GROUP)
    monkeypatch.setattr(main, "entry_points", lambda group: [point] if group == main.GROUP else [])
    assert invoke("greet", "me").stdout == "hello me\n"
    assert invoke("greets").exit_code == 2


@pytest.fixture
def largest_engine() -> Iterator[Limit]:
    finished()  # the study that all tests share has no such limit
    limit = register_limit(MAX_FILE)
    yield limit
    del LIMITS[limit.name]


def test_a_registered_limit_is_an_option_of_every_verb_that_judges(
    largest_engine: Limit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_finished(tmp_path)
    monkeypatch.chdir(tmp_path)
    for verb in ("search", "resume", "front", "export", "report"):
        assert "--max-file SIZE" in invoke(verb, "--help").stdout, verb
    found = json.loads(ok("front", "small", "--json", "--max-file", "1B"))
    assert found["limits"]["max_file_bytes"] == 1
    assert not any(row["feasible"] for row in found["rows"])
    assert "× the limit of 1 B" in ok("front", "small", "--max-file", "1B")
    refused = invoke("front", "small", "--max-file", "ten")
    assert refused.exit_code == 2
    assert "--max-file: expected a size with its unit" in refused.stderr
    ok("report", "small", "--out", "report.html", "--max-file", "10MB")
    assert "file ≤ 10 MB" in Path("report.html").read_text(encoding="utf-8")
