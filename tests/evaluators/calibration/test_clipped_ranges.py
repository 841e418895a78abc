"""Ranges by several methods in one pass, where the extremes are known: those of `collect` for the same method."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluators.calibration import activations, histograms
from evaluators.calibration.activations import collect, collect_clipped
from evaluators.data import Dataset
from evaluators.data.opening import open_data
from search.graph.model import Model, load
from search.values import Ranges
from tests.support.networks import NETWORKS, feeds, save

METHODS = ("percentile", "mse", "entropy", "percentile:99")


def opened(name: str, folder: Path) -> tuple[Model, Dataset, Ranges]:
    model = load(save(NETWORKS[name](), folder / "net.onnx"))
    some = [feeds(model, seed) for seed in range(6)]
    np.savez(
        folder / "data.npz", allow_pickle=False, **{n: np.concatenate([each[n] for each in some]) for n in some[0]}
    )
    dataset = open_data(str(folder / "data.npz"), model.inputs)
    return model, dataset, collect(model, dataset, np.arange(len(dataset)), "minmax")


@pytest.mark.parametrize("name", ["residual", "mobile"])
def test_they_are_those_of_each_method_alone(name: str, tmp_path: Path) -> None:
    model, dataset, known = opened(name, tmp_path)
    everything, tensors = np.arange(len(dataset)), set(known.tensors) - set(known.constant)
    for method, found in zip(
        METHODS, collect_clipped(model, dataset, everything, known, METHODS, tensors), strict=True
    ):
        alone = collect(model, dataset, everything, method).tensors
        assert found == {tensor: alone[tensor] for tensor in tensors}


def test_only_what_is_asked_for_is_looked_at(tmp_path: Path) -> None:
    model, dataset, known = opened("residual", tmp_path)
    wanted = {model.groups[1].output, model.inputs[0].name}
    (found,) = collect_clipped(model, dataset, np.arange(len(dataset)), known, ["mse"], wanted)
    assert set(found) == wanted


def test_ranges_that_were_stored_give_the_same_where_tensors_are_fetched_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, dataset, known = opened("residual", tmp_path)
    monkeypatch.setattr(histograms, "FETCH_BYTES", 1)
    args, tensors = (model, dataset, np.arange(len(dataset))), set(known.tensors)
    stored = Ranges.from_json(known.to_json())
    assert list(stored.observed) != list(known.observed)
    assert collect_clipped(*args, stored, ["mse"], tensors) == collect_clipped(*args, known, ["mse"], tensors)


def test_a_part_of_the_values_gives_nearly_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, dataset, known = opened("residual", tmp_path)
    tensors = {group.output for group in model.groups[:3]}
    args = model, dataset, np.arange(len(dataset)), known, ["percentile:99", "mse"], tensors
    whole = collect_clipped(*args)
    monkeypatch.setattr(activations, "_MOST_VALUES", 20_000)
    part = collect_clipped(*args)
    assert part != whole
    for one, other in zip(whole, part, strict=True):
        assert {name: other[name].magnitude / one[name].magnitude for name in tensors} == pytest.approx(
            dict.fromkeys(tensors, 1.0), rel=0.15
        )


def test_the_mean_is_that_of_the_extremes_of_each_sample(tmp_path: Path) -> None:
    model, dataset, known = opened("residual", tmp_path)
    (name,) = (spec.name for spec in model.inputs)
    (found, whole) = collect_clipped(
        model, dataset, np.arange(len(dataset)), known, ["mean", "percentile:100"], set(known.tensors)
    )
    with np.load(tmp_path / "data.npz") as file:
        rows = file[name].reshape(len(file[name]), -1)
    assert found[name].low == pytest.approx(rows.min(1).mean())
    assert found[name].high == pytest.approx(rows.max(1).mean())
    for tensor, mean in found.items():
        assert whole[tensor].low <= mean.low + 1e-6
        assert mean.high <= whole[tensor].high + 1e-6
    assert sum(found[tensor].magnitude < 0.95 * whole[tensor].magnitude for tensor in found) > len(found) / 2
