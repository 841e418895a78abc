"""benchmarks/README.md says how every published table is made: what it names is there, and what is there it names."""

from __future__ import annotations

import re

import pytest

from benchmarks import DOCS, ROOT

FOLDER = ROOT / "benchmarks"
README = (FOLDER / "README.md").read_text()
MODULE = re.compile(r"python -m (benchmarks(?:\.\w+)+)")
SCRIPTS = sorted(path for path in FOLDER.rglob("*.py") if '__name__ == "__main__"' in path.read_text())


def commands(text: str) -> list[str]:
    """Modules that a text starts, once each."""
    return sorted(set(MODULE.findall(text)))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_script_is_named_with_its_command(script):
    name = script.relative_to(ROOT).with_suffix("").as_posix()
    assert name.replace("/", ".") in commands(README) or name.removeprefix("benchmarks/") + ".py" in README


@pytest.mark.parametrize("module", commands(README + DOCS.read_text()))
def test_every_command_is_a_script(module):
    script = ROOT / f"{module.replace('.', '/')}.py"
    assert script in SCRIPTS
    assert re.search(r"arser\((description=)?__doc__", script.read_text()), "it says with --help what it does"


def test_every_path_that_is_named_exists():
    named = re.findall(r"`((?:figures|trust|crashes_and_load|samplers|h200|results|data)/[\w./]*)`", README)
    assert len(named) > 20
    assert [path for path in named if not (FOLDER / path).exists()] == []
    assert [path for path in re.findall(r"`(docs/[\w./]+)`", README) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("kind", ["results", "data"])
def test_every_stored_file_is_named(kind):
    assert [path.name for path in (FOLDER / kind).iterdir() if f"`{kind}/{path.name}`" not in README] == []


def test_every_section_that_is_named_is_on_the_page():
    headings = re.findall(r"^#+ (.*)$", DOCS.read_text(), flags=re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    named = re.findall(r"docs/benchmarks-tables\.md#([\w-]+)", README)
    assert len(named) > 10
    assert set(named) <= anchors
