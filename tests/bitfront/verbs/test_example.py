"""The shipped example: its files fit each other, its data are the same at every call, and it needs a mix."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bitfront import verbs
from bitfront.verbs.example import Demo
from evaluators.data.opening import open_data
from evaluators.lowering.lower import lower
from search.graph.model import Model, load
from search.values import Precision, Recovery
from studies.run.search_result import SearchResult
from studies.store.store import Store
from tests.support.paths import ROOT
from tests.support.recovery_contexts import context_for, run_over
from tests.support.study_rows import add, evaluated, fresh_url, make_study

SAMPLES = runpy.run_path(str(ROOT / "examples" / "exposures" / "samples.py"))
SCENES, FRAMES = 100, 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The example's model, and the first of its scenes."""
    return verbs.write_example(tmp_path_factory.mktemp("example") / "demo", SCENES)


@pytest.fixture(scope="module")
def model(files: tuple[Path, Path]) -> Model:
    return load(files[0], batch=16)


def drawn(seed: int, scenes: int) -> dict[str, NDArray[Any]]:
    parts = list(SAMPLES["blocks"](seed, scenes))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_the_frames_of_a_scene_are_a_cluster(files: tuple[Path, Path], model: Model) -> None:
    opened = open_data(str(files[1]), model.inputs)
    labels = opened.labels(np.arange(len(opened)))
    assert opened.clusters is not None
    assert labels is not None
    np.testing.assert_array_equal(opened.clusters, np.repeat(np.arange(SCENES), FRAMES))
    np.testing.assert_array_equal(labels, labels[::FRAMES].repeat(FRAMES))


def test_frames_are_numbers_of_twelve_bits_with_a_quarter_of_the_light_each(files: tuple[Path, Path]) -> None:
    with np.load(files[1]) as data:
        raw = data["raw"].astype(np.float64)
    counted = raw * 4095
    np.testing.assert_allclose(counted, np.round(counted), atol=1e-3)
    assert raw.max() == 1.0
    middles = np.median(raw.reshape(SCENES, FRAMES, -1), axis=(0, 2))
    np.testing.assert_allclose(middles[1:] / middles[:-1], 0.25, rtol=0.2)


def test_scenes_come_again_and_those_of_two_seeds_do_not_meet() -> None:
    few, more, others = drawn(0, 20), drawn(0, 260), drawn(2, 20)
    np.testing.assert_array_equal(drawn(0, 20)["raw"], few["raw"])
    np.testing.assert_array_equal(more["clusters"], np.repeat(np.arange(260), FRAMES))
    assert not np.array_equal(few["raw"], others["raw"])


def test_int8_needs_the_first_layer_in_float(files: tuple[Path, Path], model: Model) -> None:
    with np.load(files[1]) as data:
        raw, labels = data["raw"], data["labels"]
    context = context_for(model, {"raw": raw[: 40 * FRAMES]}, {"raw": raw[40 * FRAMES :]})
    ranges, held_out = context.calibrate(Recovery()), labels[40 * FRAMES :]
    (stem,) = [group for group in model.groups if "/stem/" in group.name]

    def right_at_each_exposure(first: Precision) -> NDArray[Any]:
        mix = context.assignment.replace({stem.id: first})
        opened = context.emulator.open(lower(context.model(ranges.recovery), mix, ranges, context.placement))
        found = run_over(opened, context)["logits"].argmax(axis=1)
        return np.asarray((found == held_out).reshape(-1, FRAMES).mean(axis=0))

    in_int8, in_float = right_at_each_exposure(Precision.INT8), right_at_each_exposure(Precision.FP32)
    assert in_float.min() > 0.6
    assert in_int8[-1] < in_float[-1] - 0.2


def test_the_demo_says_where_it_could_not_show_its_point(tmp_path: Path) -> None:
    """A mix that is better than one precision for all layers is what it is to show."""
    url = fresh_url("sqlite", tmp_path)

    def missed() -> str:
        now = verbs.front("s", storage=url).standing
        return Demo(SearchResult(now, "", {}, {}), None, None, tmp_path).missed_point

    with Store.open(url, create=True) as store:
        target = make_study(store, **{"max-drop": "1%"})
        add(store, target, 0, evaluated((0, 0), 4.0, 0.5, 0.0005))
        assert missed() == "nothing keeps the limit, although 1 mix was evaluated"
        add(store, target, 1, evaluated((0, 0, 0), 4.0, 0.0, 0.0005), "baseline:fp32")
        assert missed() == "all FP32 is recommended, although 1 mix was evaluated"
        add(store, target, 2, evaluated((2, 0), 1.0, 0.0, 0.0005))
        assert missed() == ""
    (tmp_path / "other").mkdir()
    url = fresh_url("sqlite", tmp_path / "other")
    with Store.open(url, create=True) as store:
        target = make_study(store, **{"max-drop": "1%"})
        add(store, target, 0, evaluated((0, 0), 4.0, 0.0, 0.0005), "baseline:fp32")
    assert missed() == "no mix was evaluated, so that all FP32 is recommended"
