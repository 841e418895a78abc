"""What a repository's host and other tools read beside the program: workflow, issue forms, citation, hooks."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml

from studies import __version__
from tests.support.docs_pages import read
from tests.support.paths import ROOT

SCHEMAS = {
    ".github/workflows/tests.yml": "vendor.github-workflows",
    ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
    ".github/ISSUE_TEMPLATE/bug.yml": "vendor.github-issue-forms",
    ".github/ISSUE_TEMPLATE/idea.yml": "vendor.github-issue-forms",
    "CITATION.cff": "vendor.citation-file-format",
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_they_follow_their_schemas(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[name], str(ROOT / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_what_ci_runs_and_the_hooks_what_lint_runs() -> None:
    (job,) = yaml.safe_load(read(ROOT / ".github/workflows/tests.yml"))["jobs"].values()
    assert job["steps"][-1]["run"].endswith(".ci/run")
    assert (ROOT / ".ci/run").exists()
    hooks = yaml.safe_load(read(ROOT / ".pre-commit-config.yaml"))["repos"][0]["hooks"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in hooks]
    makefile = read(ROOT / "Makefile")
    assert entries == ["ruff check", "ruff format --check", "mypy"]
    assert all(f"$(BIN)/{entry}" in makefile for entry in entries)


def test_the_version_is_the_same_everywhere() -> None:
    assert yaml.safe_load(read(ROOT / "CITATION.cff"))["version"] == __version__
    assert f"version-{__version__}-" in read(ROOT / "README.md")


def test_guides_for_contributors_are_short() -> None:
    assert len(read(ROOT / "CONTRIBUTING.md").split()) <= 1200
