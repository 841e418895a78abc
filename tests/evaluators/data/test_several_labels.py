"""Several labels, each an array of its own, which metrics read by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluators.data import batches
from evaluators.data.opening import open_data
from evaluators.data.reading.user_batches import batches_of
from evaluators.metrics.default_metric import default_metric
from evaluators.metrics.registry import BUILT_IN
from evaluators.process.handed_metric.shared_arrays import ArrayReader, ArrayWriter
from search.errors import DataError
from search.graph.model import TensorSpec

INPUTS = [TensorSpec("x", "float32", (4, 2))]
X = np.arange(14, dtype=np.float32).reshape(7, 2)
PRICE, MAPS = np.arange(7) * 1.5, np.arange(42, dtype=np.int32).reshape(7, 2, 3)


def save(path: Path, **more: object) -> str:
    np.savez(path, **{"x": X, "labels.price": PRICE, "labels.maps": MAPS, **more})  # type: ignore[arg-type]
    return str(path)


def test_each_is_read_by_its_name(tmp_path: Path) -> None:
    data = open_data(save(tmp_path / "d.npz"), INPUTS, labels_required=True)
    *_, last = batches(data, np.array([6, 0, 3, 3, 5]), 4)
    assert list(last.inputs) == ["x"]
    assert last.labels is not None
    np.testing.assert_array_equal(last.labels["price"], PRICE[[5]])
    np.testing.assert_array_equal(last.labels["maps"], MAPS[[5]])
    some = data.labels(np.array([2, 1]))
    assert some is not None
    np.testing.assert_array_equal(some["maps"], MAPS[[2, 1]])


def test_they_are_handed_to_a_metric_of_another_process(tmp_path: Path) -> None:
    labels = open_data(save(tmp_path / "d.npz"), INPUTS).labels(np.arange(7))
    assert labels is not None
    writer = ArrayWriter(tmp_path)
    (place,) = writer.write([labels])
    found = ArrayReader().read(writer.file, place)
    assert found.dtype == labels.dtype
    np.testing.assert_array_equal(found["maps"], MAPS)


def test_loaders_give_them_as_a_dict() -> None:
    (batch,) = batches_of([(X, {"price": PRICE, "maps": MAPS})], ["x"])
    assert sorted(batch) == ["labels.maps", "labels.price", "x"]


def test_another_label_is_other_data(tmp_path: Path) -> None:
    digest = open_data(save(tmp_path / "d.npz"), INPUTS).digest
    assert open_data(save(tmp_path / "e.npz", **{"labels.price": PRICE + 1}), INPUTS).digest != digest


def test_an_input_of_that_name_is_an_input(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", **{"labels.x": X})
    data = open_data(str(tmp_path / "d.npz"), [TensorSpec("labels.x", "float32", (4, 2))])
    assert not data.has_labels
    assert data.batch(np.array([0]))[0]["labels.x"].shape == (1, 2)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"labels": PRICE}, "has both 'labels' and 'labels.maps'"),
        ({"labels.": PRICE}, "has 'labels.', which is not an input"),
        ({"labels.price": PRICE[:5]}, "labels.price 5"),
    ],
)
def test_refuses(tmp_path: Path, more: dict[str, object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        open_data(save(tmp_path / "d.npz", **more), INPUTS)


def test_a_batch_may_be_all_inputs_and_then_the_labels() -> None:
    for given in ((X, PRICE, MAPS), ([X, PRICE], MAPS)):
        (batch,) = batches_of([given], ["ids", "mask"])
        assert list(batch) == ["ids", "mask", "labels"]
        assert (batch["mask"] == PRICE).all()
        assert batch["labels"].shape == MAPS.shape


def test_a_label_without_the_prefix_is_told_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, price=PRICE)
    with pytest.raises(DataError, match=r"If it holds the labels, rename it to 'labels'.*each 'labels\.NAME'"):
        open_data(str(tmp_path / "d.npz"), INPUTS)


@pytest.mark.parametrize("name", ["label", "y", "Targets"])
def test_an_array_that_looks_like_the_labels_is_told_their_name(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "d.npz", x=X, **{name: PRICE})
    with pytest.raises(DataError, match=f"has '{name}'.* It looks like the labels: rename it to 'labels'"):
        open_data(str(tmp_path / "d.npz"), INPUTS)


def test_a_second_label_is_told_how_several_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, labels=PRICE, price=PRICE)
    with pytest.raises(DataError, match=r"name every array of labels 'labels\.NAME', as 'labels\.price'"):
        open_data(str(tmp_path / "d.npz"), INPUTS)


def test_integer_inputs_are_not_told_to_be_scaled(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((7, 2), np.int32))
    for dtype, scaled in (("int64", False), ("float32", True)):
        with pytest.raises(DataError, match=f"{dtype}, got int32") as caught:
            open_data(str(tmp_path / "d.npz"), [TensorSpec("x", dtype, (4, 2))])
        assert ("scaling" in str(caught.value)) == scaled


def test_metrics_of_one_label_say_that_these_are_several(tmp_path: Path) -> None:
    labels = open_data(save(tmp_path / "d.npz"), INPUTS).labels(np.arange(7))
    outputs = [TensorSpec("logits", "float32", (4, 10))]
    assert "several labels, maps, price, are read by a metric of your own" in default_metric(outputs, labels).why
    with pytest.raises(DataError, match=r"got .*price"):
        BUILT_IN["top1"].scores({"logits": np.zeros((7, 10), np.float32)}, labels, count=7)
