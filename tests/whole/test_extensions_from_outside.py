"""A sampler, a metric and a limit that this package knows nothing of, from modules and packages of others."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import environment, invoke, ok, write_inputs
from tests.support.extensions import install, toy_limit, toy_sampler, toy_step
from tests.support.forks.processes import run_python

FAKE = ("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--study", "s", "--trials", 6, "--quiet")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and its data."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_sampler_named_by_its_class_goes_through_a_search(here: Path) -> None:
    shutil.copy(toy_sampler.__file__, here)
    assert "the toy sampler is made" in ok(*FAKE, "--sampler", "toy_sampler:ToySampler")
    assert "the toy sampler is made" in ok("resume", "s", "--trials", 7, "--quiet")


@pytest.mark.slow
def test_an_installed_package_registers_a_sampler(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(toy_sampler.__file__, here / "site", "bitfront.samplers", "mine", "toy_sampler:ToySampler")
    refused = invoke(*FAKE, "--sampler", "mine")
    assert refused.exit_code == 2
    assert "expected one of guided, tpe, nsga2, gp, random" in refused.stderr
    monkeypatch.syspath_prepend(here / "site")
    assert "the toy sampler is made" in ok(*FAKE, "--sampler", "mine")


@pytest.mark.slow
def test_a_metric_of_a_module_is_scored(here: Path) -> None:
    (here / "toy_metric.py").write_text(
        "import numpy as np\n"
        "def least(outputs, labels):\n"
        "    return -np.abs(next(iter(outputs.values()))).reshape(len(labels), -1).max(axis=1)\n"
    )
    ok(*FAKE, "--metric", "toy_metric:least")
    assert json.loads(ok("front", "s", "--json"))["metric"]["name"] == "toy_metric:least"


def test_an_installed_package_registers_a_recovery_step(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(toy_step.__file__, here / "site", "bitfront.recovery", "balance", "toy_step:Balance")
    given = ("recover", "model.onnx", "--data", "data.npz", "--recover", "balance", "--json")
    refused = invoke(*given)
    assert refused.exit_code == 2
    assert "--recover balance: there is no such recover" in refused.stderr
    monkeypatch.syspath_prepend(here / "site")
    (step,) = json.loads(ok(*given))["recovery"]["steps"]
    assert (step["name"], step["kept"]) == ("balance", True)


def run(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process that finds what is installed in a folder."""
    start = f"import sys; sys.path.insert(0, {str(site)!r}); from bitfront.cli.main import main; main()"
    return run_python([sys.executable, "-c", start, *words], env=environment())


@pytest.mark.slow
def test_an_installed_package_adds_a_limit(here: Path) -> None:
    site = here / "site"
    install(toy_limit.__file__, site, "bitfront.limits", "max-file", "toy_limit:MAX_FILE")
    ok(*FAKE)
    assert "--max-file" in run(site, "front", "--help").stdout
    allowed = run(site, "front", "s", "--max-file", "1GB", "--json")
    assert json.loads(allowed.stdout)["evaluations"], allowed
    none = run(site, "front", "s", "--max-file", "1B")
    assert none.returncode == 0, none
    assert re.search(r"trial 1: file is [\d,]+ × the limit of 1 B", none.stdout), none


def test_a_package_that_cannot_be_imported_is_named_with_exit_code_2(here: Path) -> None:
    site = here / "site"
    install(toy_limit.__file__, site, "bitfront.limits", "max-file", "toy_limit:MISSING")
    refused = run(site, "status")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused
    assert "loading toy_limit:MISSING" in refused.stderr


def test_a_verb_that_cannot_be_imported_is_named_with_exit_code_2(here: Path) -> None:
    site = here / "site"
    install(toy_limit.__file__, site, "bitfront.verbs", "greet", "no_such_module")
    refused = run(site, "greet")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused
    assert "adding the verb greet" in refused.stderr
    assert run(site, "front", "--help").returncode == 0  # verbs of bitfront do without it
