"""`--capabilities` through a study: never offered, part of the target, kept without its file, told by exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from search.values import Precision
from studies.export.folder import find_reasons
from studies.store.store import Store
from tests.support.command_line import invoke, ok, write_inputs

INT8 = Precision.INT8
INPUTS = ("model.onnx", "--data", "data.npz", "--backend", "fake")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    (tmp_path / "npu.toml").write_text('[int8]\nwithout = ["Conv"]\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def options_of_targets(folder: Path) -> list[Mapping[str, str]]:
    with Store.open(f"sqlite:///{folder / 'bitfront.db'}", write=False) as store:
        return [record.target.options for record in store.targets.of_study(store.studies.load("s").id)]


@pytest.mark.slow
def test_a_study_keeps_what_the_file_says_and_its_exports_say_why(here: Path) -> None:
    ok("search", *INPUTS, "--study", "s", "--trials", 3, "--capabilities", "npu.toml")
    (here / "npu.toml").unlink()
    ok("resume", "s", "--trials", 4)
    with Store.open(f"sqlite:///{here / 'bitfront.db'}", write=False) as store:
        study = store.studies.load("s")
        [target] = store.targets.of_study(study.id)
        convolutions = {group.id for group in store.studies.groups(study.id) if group.op == "Conv"}
        tried = store.evaluations.assignments(target.id)
        assert len(tried) == 4
        assert not any(mix[group] is INT8 for mix in tried.values() for group in convolutions)
        reasons = find_reasons(store.spaces.choices(target.id), next(iter(tried.values())))
    why = "it was never offered in INT8: the capabilities file npu offers no INT8 to Conv"
    assert {reasons[group] for group in convolutions} == {why}


@pytest.mark.slow
def test_another_file_is_another_target(here: Path) -> None:
    ok("search", *INPUTS, "--study", "s", "--trials", 2, "--capabilities", "npu.toml")
    (here / "other.toml").write_text('[int8]\nwithout = ["Gemm"]\n')
    refused = invoke("resume", "s", "--trials", 3, "--capabilities", "other.toml")
    assert (refused.exit_code, "this host is another one" in refused.stderr) == (2, True), refused.output
    ok("resume", "s", "--trials", 2, "--capabilities", "other.toml", "--new-target")
    digests = [each["capabilities"] for each in options_of_targets(here)]
    assert len(set(digests)) == 2


def test_layers_say_which_file_takes_a_precision_away(here: Path) -> None:
    told = ok("inspect", "model.onnx", "--backend", "fake", "--capabilities", "npu.toml")
    assert "the capabilities file npu offers no INT8 to Conv" in told


def test_a_broken_file_is_refused_before_anything_is_made(here: Path) -> None:
    (here / "npu.toml").write_text('[int8]\nwithout = ["Convolution"]\n')
    refused = invoke("search", *INPUTS, "--study", "s", "--capabilities", "npu.toml")
    assert refused.exit_code == 2
    assert "--capabilities npu.toml: [int8] without: expected op types that groups are made of" in refused.stderr
    assert not (here / "bitfront.db").exists()
