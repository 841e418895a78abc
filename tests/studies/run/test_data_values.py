"""Inputs that are the same for all samples: the data may have them, once or for each sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from evaluators.data.opening import open_data
from search.errors import DataError, InputError
from search.graph.shapes import input_names
from studies.options.config import SearchConfig
from studies.run.session.data_shapes import values_text, with_shapes_of_data
from studies.run.session.setup import load_model
from tests.support.networks import Net, finish, save

SAMPLES = 16


def of_rate(dims: list[int | str], folder: Path, kind: int = TensorProto.INT64) -> SearchConfig:
    """A layer whose input is scaled by a sample rate, which has no batch axis."""
    n = Net()
    rate = n.op("Cast", ["rate"], "number", to=TensorProto.FLOAT)
    n.linear(n.op("Mul", ["x", rate], "scaled"), "layer", 8, 4)
    n.nodes[-1].output[0] = "y"
    proto = finish(n, {"x": ["N", 8], "rate": dims}, {"y": ["N", 4]}, rate=kind)
    return SearchConfig(str(save(proto, folder / "net.onnx")), str(folder / "data.npz"), batch=4)


def write_data(config: SearchConfig, rate: NDArray[Any]) -> None:
    x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype(np.float32)
    np.savez(config.data, x=x, rate=rate)


@pytest.mark.parametrize("dims", [[], [1]])
@pytest.mark.parametrize("shape", [(), (1,), (SAMPLES,), (SAMPLES, 1)])
def test_a_value_that_is_the_same_for_all_samples_is_taken_from_the_data(
    dims: list[int | str], shape: tuple[int, ...], tmp_path: Path
) -> None:
    given = of_rate(dims, tmp_path)
    write_data(given, np.full(shape, 16_000))
    config = with_shapes_of_data(given)
    assert config.input_values == ("rate=16000",)
    assert "rate=16000" in values_text(config, given)
    model = load_model(config)
    assert [spec.name for spec in model.inputs] == ["x"]
    data = open_data(config.data, model.inputs, fixed=input_names(config.input_values))
    assert list(data.batch(np.arange(4))[0]) == ["x"]
    assert len(data) == SAMPLES


def test_a_fraction_keeps_all_its_digits(tmp_path: Path) -> None:
    config = of_rate([], tmp_path, TensorProto.FLOAT)
    write_data(config, np.array(0.1, np.float32))
    (text,) = with_shapes_of_data(config).input_values
    assert np.float32(text.removeprefix("rate=")) == np.float32(0.1)


def test_what_the_user_says_counts(tmp_path: Path) -> None:
    config = replace(of_rate([], tmp_path), input_values=("rate=8000",))
    write_data(config, np.array(16_000))
    assert with_shapes_of_data(config).input_values == ("rate=8000",)


@pytest.mark.parametrize(("dims", "text"), [([], "expected one value of 'rate'"), ([1], "--input-value rate=VALUE")])
def test_several_values_are_refused_with_what_works(dims: list[int | str], text: str, tmp_path: Path) -> None:
    config = of_rate(dims, tmp_path)
    write_data(config, np.arange(SAMPLES))
    with pytest.raises(InputError, match=text):
        with_shapes_of_data(config)


def test_an_array_of_no_input_is_still_refused(tmp_path: Path) -> None:
    config = of_rate([], tmp_path)
    np.savez(config.data, x=np.zeros((SAMPLES, 8), np.float32), rate=np.array(1), other=np.zeros(SAMPLES))
    model = load_model(with_shapes_of_data(config))
    with pytest.raises(DataError, match="'other', which is not an input"):
        open_data(config.data, model.inputs, fixed=["rate"])
