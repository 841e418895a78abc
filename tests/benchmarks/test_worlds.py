"""Made-up worlds whose costs are no sums, and what is judged on them."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from benchmarks.samplers.simulator import best_front
from benchmarks.samplers.worlds import catalogue, run, tables
from benchmarks.samplers.worlds.latency import _fused

FOLDER = Path(catalogue.__file__).parent


def test_worlds_import_nothing_of_the_models_that_they_judge() -> None:
    for name in ("graphs", "latency", "loss", "catalogue"):
        tree = ast.parse((FOLDER / f"{name}.py").read_text())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not [module for module in modules if module.startswith(("search.forecast", "search.sampler"))]


@pytest.mark.parametrize("name", ["branching_22", "encoder_broken_62", "killers_60", "between_60", "five_60"])
def test_a_world_is_the_same_at_every_call_and_loses_what_its_recipe_says(name: str) -> None:
    world = catalogue.make(name)
    uniform = np.array(list(world.baselines.values()))
    ms, loss = world.measures(uniform)
    again = catalogue.make.__wrapped__(name)
    assert np.array_equal(again.measures(uniform)[0], ms)
    assert (np.diff(ms) < 0).all()
    assert loss[0] == 0
    assert loss[-1] == pytest.approx(catalogue.WORLDS[name].worst, abs=0.01)


def test_a_mixed_opaque_region_runs_in_its_highest_precision() -> None:
    world = catalogue.make("encoder_broken_62")
    truth = world.truth
    assert isinstance(truth, catalogue.Truth)
    region = truth.latency.regions[1]
    rows = np.full((2, len(world.layout.groups)), 2, np.int8)
    rows[1, region[3]] = 1
    took = truth.latency.by_group(rows)[:, region].sum(axis=1)
    assert took[1] > 1.3 * took[0], "one group in FP16 costs the whole region"


def test_products_of_activations_have_no_int8_and_uniform_int8_runs_their_region_as_a_whole() -> None:
    world = catalogue.make("encoder_products_62")
    latency, lowest = world.truth.latency, world.layout.uniforms[-1]  # type: ignore[attr-defined]
    region = latency.regions[0]
    assert set(lowest[region].tolist()) == {1, 2}
    rows = np.stack([lowest, lowest])
    rows[1, region[0]] = 1
    whole, mixed = latency.by_group(rows)[:, region].sum(axis=1)
    assert mixed > 1.5 * whole


@pytest.mark.parametrize(("name", "more"), [("between_60", ["bf16"]), ("five_60", ["bf16", "w8"])])
def test_further_precisions_err_and_take_between_fp16_and_int8(name: str, more: list[str]) -> None:
    world = catalogue.make(name)
    assert list(world.baselines) == ["fp32", "fp16", *more, "int8"]
    assert world.alone is not None
    assert world.alone.shape == (60, 3 + len(more))
    assert (np.diff(world.alone, axis=1) > 0).mean() > 0.9
    took, loss = world.measures(np.array(list(world.baselines.values())))
    assert (np.diff(loss[1:]) > 0).all()
    assert loss[2] < loss[-1] / 3
    assert (np.diff(took) < 0).all()


def test_a_run_of_equal_precision_takes_by_its_ends() -> None:
    jumps = np.ones((3, 4, 4))
    jumps[2, 1, 2] = 0.5
    factors = _fused(np.array([[0, 2, 2, 1], [2, 2, 2, 2]], np.int8), jumps)
    assert factors[0, 1] == factors[0, 2] < 0.5 < factors[0, 0] == 1.0
    assert factors[1, 0] < 1.0, "longer runs save time"


def test_the_best_known_front_is_no_worse_than_where_it_began() -> None:
    world = catalogue.make("branching_22")
    starts = np.random.default_rng(0).integers(3, size=(40, 22))
    front = best_front.find(world, starts, least=9_000)
    assert front.tried >= 9_000
    ms, loss = world.measures(starts)
    assert all(((front.ms <= m) & (front.loss <= q)).any() for m, q in zip(ms, loss, strict=True))
    share = tables.shares(world, front, front.codes)
    assert share[-1] == pytest.approx(1.0)


@pytest.mark.slow
def test_runs_are_stored_go_on_and_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, todo = tmp_path / "worlds.json", list(run.tasks(["branching_22"], ["one_shot_then_climb", "random"], 1, 8))
    limited = run.Task("branching_22", "one_shot", 0, 6, None, 0.05, "loss 0.5")
    results = {"runs": {task.key: {"0": run.perform(task)} for task in [*todo, limited]}}
    world = catalogue.make("branching_22")
    starts = np.concatenate([tables.codes_of(seeds["0"]) for seeds in results["runs"].values()])
    text = tables.text(results, {"branching_22": best_front.find(world, starts, least=9_000)})
    assert "| branching_22 | one_shot_then_climb | 1 |" in text
    assert "| branching_22 | one_shot | loss 0.5 | " in text
    run.run_all(todo, results, out, 1)
    assert capsys.readouterr().out == "", "nothing was left to run"
