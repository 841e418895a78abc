"""Calibration stops when twice the samples hardly change the ranges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.calibration.activations import collect, collect_clipped
from evaluators.calibration.extremes import _are_stable
from evaluators.data.opening import open_data
from search.graph.model import Model
from tests.support.networks import loaded

SAMPLES = 512


@pytest.fixture(scope="module")
def model() -> Model:
    return loaded("residual")


def images(model: Model, heavy: bool) -> NDArray[np.float32]:
    """All alike, or of an amplitude that doubles with every doubling of how many there are."""
    random = np.random.default_rng(0)
    shown = random.uniform(-1, 1, (SAMPLES, *model.inputs[0].shape[1:])).astype(np.float32)
    if heavy:
        order = np.random.RandomState(SAMPLES).permutation(SAMPLES)
        shown[order] *= (1 + np.arange(SAMPLES, dtype=np.float32)).reshape(-1, 1, 1, 1)
    return shown


def run(model: Model, folder: Path, shown: NDArray[np.float32], method: str = "auto", **options: object):  # type: ignore[no-untyped-def]
    np.savez(folder / "data.npz", **{model.inputs[0].name: shown})
    dataset = open_data(str(folder / "data.npz"), model.inputs)
    return collect(model, dataset, np.arange(len(shown)), method, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["auto", "minmax", "percentile", "entropy", "mse"])
def test_few_of_many_like_samples_give_the_ranges_of_all(method: str, model: Model, tmp_path: Path) -> None:
    shown = images(model, heavy=False)
    few, all_of_them = run(model, tmp_path, shown, method), run(model, tmp_path, shown, method, whole=True)
    assert few.samples == 64
    assert all_of_them.samples == SAMPLES
    widths = [[r.high - r.low for r in each.tensors.values()] for each in (few, all_of_them)]
    assert np.median(np.divide(*widths)) == pytest.approx(1, abs=0.1)


def test_ranges_that_still_grow_take_all_samples(model: Model, tmp_path: Path) -> None:
    ranges = run(model, tmp_path, images(model, heavy=True))
    assert ranges.samples == SAMPLES
    assert ranges.observed[model.inputs[0].name].magnitude > 0.99 * SAMPLES


def test_the_same_samples_give_the_same_ranges_with_any_threads(model: Model, tmp_path: Path) -> None:
    shown = images(model, heavy=False)
    assert run(model, tmp_path, shown, "mse", threads=1) == run(model, tmp_path, shown, "mse", threads=2)


@pytest.mark.slow
def test_ranges_by_another_method_are_of_the_same_samples(model: Model, tmp_path: Path) -> None:
    ranges = run(model, tmp_path, images(model, heavy=False))
    dataset = open_data(str(tmp_path / "data.npz"), model.inputs)
    runs: list[tuple[int, int]] = []
    names = [name for name in ranges.tensors if name not in ranges.constant]
    (mse,) = collect_clipped(
        model, dataset, np.arange(SAMPLES), ranges, ["mse"], names, progress=lambda *step: runs.append(step)
    )
    assert runs[-1] == (64 // model.batch,) * 2
    assert mse == {name: run(model, tmp_path, images(model, heavy=False), "mse").tensors[name] for name in names}


def test_a_few_tensors_that_grow_do_not_hide_among_many() -> None:
    before = np.ones(20)
    assert _are_stable(before, 1.02 * before)
    assert not _are_stable(before, np.where(np.arange(20) < 4, 1.2, 1.0))
    assert not _are_stable(before, np.where(np.arange(20) < 1, 3.0, 1.0))
    assert _are_stable(np.array([np.inf, np.nan, 1.0]), np.array([np.inf, 1.0, 1.0])), "masks and empty tensors"
