"""benchmarks/README.md says how every published table is made: what it names is there, and what is there it names."""

from __future__ import annotations

import re

import pytest

from benchmarks import ROOT

FOLDER = ROOT / "benchmarks"
README = (FOLDER / "README.md").read_text()
HEADLINES = (ROOT / "docs" / "benchmarks.md").read_text()
TABLES = [path.read_text() for path in (FOLDER / "results").glob("*.md")]
MODULE = re.compile(r"python -m (benchmarks(?:\.\w+)+)")
SCRIPTS = sorted(path for path in FOLDER.rglob("*.py") if '__name__ == "__main__"' in path.read_text())


def test_every_script_is_named_and_every_command_is_a_script_that_says_what_it_does() -> None:
    named = set(MODULE.findall(README))
    for script in SCRIPTS:
        name = script.relative_to(ROOT).with_suffix("").as_posix()
        assert name.replace("/", ".") in named or name.removeprefix("benchmarks/") + ".py" in README, name
    for module in {*named, *MODULE.findall(HEADLINES), *(each for text in TABLES for each in MODULE.findall(text))}:
        script = ROOT / f"{module.replace('.', '/')}.py"
        assert script in SCRIPTS, module
        assert re.search(r"arser\((description=)?__doc__", script.read_text()), module


def test_every_path_that_is_named_exists() -> None:
    named = re.findall(r"`((?:figures|trust|peers|samplers|h200|results|data)/[\w./]*)`", README)
    assert len(named) > 10
    assert [path for path in named if not (FOLDER / path).exists()] == []


@pytest.mark.parametrize("kind", ["results", "data"])
def test_every_stored_file_is_named(kind: str) -> None:
    assert [path.name for path in (FOLDER / kind).iterdir() if f"{kind}/{path.name}" not in README] == []


def test_the_page_of_headlines_is_short() -> None:
    assert len(HEADLINES.split()) <= 1500
