"""Models with an input that holds another number of samples than the others: said at once, with what works."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from search.errors import ModelError
from search.graph.onnx_file import read_input_shapes
from studies.options.config import SearchConfig
from studies.run.session.batch_check import check_batches
from studies.run.session.data_shapes import model_notes, with_shapes_of_data
from studies.run.session.setup import load_model
from tests.support.networks import Net, feeds, finish, plain_session, save

Dims = list[int | str]
UNROLLED = "examples/recurrent/unroll.py makes one model of all steps"


def stateful(state: Dims, folder: Path, batch: int | str = "N") -> str:
    """A layer beside a state of six or eight numbers, which has perhaps layers and a batch before them."""
    n, width = Net(), int(state[-1])
    last = "state" if len(state) == 2 else n.op("ReduceMean", ["state"], "last", axes=[0], keepdims=0)
    n.op("Add", [n.linear("x", "project", 8, width), last], "sum")
    n.nodes[-1].output[0] = "y"
    n.op("Add", ["state", n.op("Tanh", ["y"], "squashed")], "update")
    n.nodes[-1].output[0] = "next"
    after: Dims = ["", *state[1:]] if len(state) == 2 else [state[0], "", *state[2:]]
    shown = {"y": [batch, width], "next": [dim or None for dim in after]}
    proto = finish(n, {"x": [batch, 8], "state": state}, shown)  # type: ignore[arg-type]
    return str(save(proto, folder / "net.onnx"))


def test_a_state_of_one_sample_behind_layers_works_with_one_sample_at_a_time(tmp_path: Path) -> None:
    path = stateful([2, 1, 6], tmp_path)
    with pytest.raises(ModelError, match=r"'x' begins with 4 and 'state', of the shape 2x1x6, with 2\. ") as found:
        with_shapes_of_data(SearchConfig(path, "data.npz", batch=4))
    [note] = model_notes(load_model(SearchConfig(path, "data.npz", batch=4)))
    assert note.startswith("the input 'state' (2x1x6) does not begin with the 4 samples of a batch"), "inspect lists it"
    assert "--batch 1, at which a sample of 'state' is 2x6" in str(found.value)
    assert UNROLLED in str(found.value)
    model = load_model(SearchConfig(path, "data.npz", batch=1))
    assert [spec.shape for spec in (*model.inputs, *model.outputs)] == [(1, 8), (1, 2, 6), (1, 6), (1, 2, 6)]
    given = feeds(model)
    y, after = plain_session(ir.to_proto(model.graph)).run(None, given)
    own = {**given, "state": np.moveaxis(given["state"], 0, 1)}
    wanted = plain_session(ir.to_proto(ir.load(path))).run(None, own)
    np.testing.assert_array_equal(y, wanted[0])
    np.testing.assert_array_equal(np.moveaxis(after, 0, 1), wanted[1])


def test_a_state_whose_batch_has_another_name_needs_that_of_the_others(tmp_path: Path) -> None:
    path = stateful([2, "M", 6], tmp_path)
    config = SearchConfig(path, "data.npz", batch=4)
    with pytest.raises(ModelError, match=r"has the name 'N', as that of 'x'") as found:
        with_shapes_of_data(config)
    assert "--batch 1" not in str(found.value)
    assert load_model(SearchConfig(stateful([2, "N", 6], tmp_path), "data.npz", batch=4)).inputs[1].shape == (4, 2, 6)


@pytest.mark.parametrize(("state", "word"), [([1, 8], "--batch 1"), ([1, 1], "--input-value state=VALUE")])
def test_an_input_for_one_sample_beside_several(state: Dims, word: str, tmp_path: Path) -> None:
    path = stateful(state, tmp_path)
    with pytest.raises(ModelError, match=re.escape(word)):
        with_shapes_of_data(SearchConfig(path, "data.npz", batch=4))
    assert load_model(SearchConfig(path, "data.npz", batch=1)).batch == 1
    check_batches(SearchConfig(path, "data.npz", batch=4, input_values=("state=0",)), read_input_shapes(Path(path), 4))
