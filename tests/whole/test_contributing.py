"""The tour leads to what it names, and what the page about adding things shows works as it is written there."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest

from search.graph.model import load
from studies.options.limits import LIMITS, register_limit
from tests.support.chains import Chain
from tests.support.command_line import ok, write_inputs
from tests.support.docs_pages import blocks, read
from tests.support.extensions import install
from tests.support.paths import ROOT

TOUR, GUIDE = (ROOT / "docs" / "development" / name for name in ("tour.md", "extending.md"))
STOP = re.compile(r"^\| (\d+) \| `([\w/.]+)` \| `(\w+)` \|", re.MULTILINE)
FAKE = ("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--study", "s", "--trials", 4, "--quiet")


def example(title: str) -> tuple[str, str]:
    """Module and text of the Python example that is shown under a title."""
    _, _, section = read(GUIDE).partition(f"\n## {title}\n")
    found = re.search(r"```python\n# (\w+)\.py\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
    assert found is not None, title
    return found[1], found[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_tour_has_at_most_twelve_stops_each_a_name_of_its_file() -> None:
    stops = STOP.findall(read(TOUR))
    assert [int(number) for number, _, _ in stops] == list(range(1, len(stops) + 1))
    assert 8 <= len(stops) <= 12
    for _, file, name in stops:
        tree = ast.parse(read(ROOT / file))
        assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}, file


@pytest.mark.slow
def test_the_sampler_that_is_shown_goes_through_a_search(here: Path) -> None:
    module, text = example("A sampler")
    (here / f"{module}.py").write_text(text)
    ok(*FAKE, "--sampler", f"{module}:SmallPopulation")


def test_the_metric_that_is_shown_gives_a_score_a_sample() -> None:
    space: dict[str, object] = {}
    exec(blocks(ROOT / "docs" / "metrics.md", "python")[0], space)
    within = space["within_one"]
    logits = np.eye(5)[[0, 1, 4]]
    assert within({"logits": logits}, np.asarray([1, 1, 2])).tolist() == [1.0, 1.0, 0.0]  # type: ignore[operator]
    assert within.ratio is True  # type: ignore[attr-defined]


def test_the_limit_that_is_shown_is_one() -> None:
    space: dict[str, object] = {}
    exec(example("A limit")[1], space)
    limit = register_limit(space["MAX_BUILD_TIME"])  # type: ignore[arg-type]
    assert LIMITS.pop(limit.name).option == "max-build-time"


def test_the_recovery_step_of_the_guide_is_tried(here: Path) -> None:
    name, text = example("A recovery step")
    (here / f"{name}.py").write_text(text)
    found = json.loads(ok("recover", "model.onnx", "--data", "data.npz", "--recover", f"{name}:Percentile", "--json"))
    assert [step["name"] for step in found["recovery"]["steps"]] == ["percentile"]


def test_the_rewrite_that_is_shown_changes_a_model_where_it_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = Chain()
    chain.conv()
    chain.add("Clip")
    chain.add("Relu")
    path = chain.save(tmp_path / "m.onnx")
    before = load(path)
    module, text = example("An exact rewrite")
    source = tmp_path / f"{module}.py"
    source.write_text(text)
    install(str(source), tmp_path / "site", "bitfront.rewrites", "mine", f"{module}:remove_dead_clips")
    monkeypatch.syspath_prepend(tmp_path / "site")
    after = load(path)
    assert [node.op_type for node in before.graph.graph] == ["Conv", "Clip", "Relu"]
    assert [node.op_type for node in after.graph.graph] == ["Conv", "Relu"]
    assert before.digest != after.digest
