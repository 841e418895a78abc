"""Samplers by name: shipped ones, and those of other packages, registered or named by module and class."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from search.errors import ConfigError, DataError
from search.sampler.registry import SAMPLERS, make_sampler, sampler_named

TOY = """
import optuna
from search.sampler.kinds import SamplerKind, continued_seed

class Toy(SamplerKind):
    name = "toy"
    def make(self, seed, finished, guidance):
        return optuna.samplers.RandomSampler(seed=continued_seed(seed, finished))

class Lacking(Toy):
    def explain_missing(self):
        return "it needs a crystal ball: buy one"

class Unfinished(SamplerKind):
    name = "unfinished"

function = len
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a package that is installed there, and registers two samplers."""
    (tmp_path / "toy_samplers.py").write_text(TOY)
    info = tmp_path / "toy_samplers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-samplers\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[bitfront.samplers]\ntoy = toy_samplers:Toy\ntoy-broken = toy_samplers:Missing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "toy_samplers", raising=False)
    yield tmp_path
    sys.modules.pop("toy_samplers", None)


@pytest.mark.parametrize("name", ["tpe", "nsga2", "random"])
def test_a_shipped_sampler_is_made(name: str) -> None:
    assert isinstance(make_sampler(name, 3, 0), optuna.samplers.BaseSampler)


def test_an_installed_package_registers_a_sampler(elsewhere: Path) -> None:
    assert SAMPLERS.names()[-2:] == ("toy", "toy-broken")
    assert isinstance(make_sampler("toy", 1, 2), optuna.samplers.RandomSampler)


def test_a_sampler_is_named_by_module_and_class(elsewhere: Path) -> None:
    assert isinstance(make_sampler("toy_samplers:Toy", 1, 2), optuna.samplers.RandomSampler)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("none", r"--sampler none: there is no such sampler; known are guided, .*, toy, toy-broken, and package"),
        ("toy-broken", r"loading toy_samplers:Missing, .* toy-broken of bitfront.samplers, .*Correct or remove"),
        ("toy_samplers:Lacking", r"--sampler toy_samplers:Lacking: it needs a crystal ball"),
        ("toy_samplers:Unfinished", r"Unfinished cannot be made: .*make"),
        ("toy_samplers:function", r"expected a subclass of SamplerKind, got <built-in function len>"),
    ],
)
def test_what_is_no_sampler_is_refused(elsewhere: Path, name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        sampler_named(name)


def test_a_module_that_is_not_there_is_named(elsewhere: Path) -> None:
    with pytest.raises(DataError, match="no_such_module"):
        sampler_named("no_such_module:Toy")
