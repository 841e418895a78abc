"""Files in half precision: their constants are widened exactly, and everything is computed in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from search.graph.model import Model, load, load_as_given
from tests.support.networks import NETWORKS, Net, feeds, finish, plain_session, save, sqnr_db

C = 16


def widened(proto: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor).astype(np.float32) for tensor in proto.graph.initializer}


def constants_of(model: Model) -> dict[str, NDArray[Any]]:
    found = {name: value.const_value for name, value in model.graph.graph.initializers.items()}
    return {name: tensor.numpy() for name, tensor in found.items() if tensor is not None}


@pytest.mark.parametrize("keep_io_types", [True, False])
@pytest.mark.parametrize("name", ["mobile", "transformer"])
def test_a_converted_file_is_the_float32_model_of_its_constants(name: str, keep_io_types: bool, tmp_path: Path) -> None:
    half = convert_float_to_float16(NETWORKS[name](), keep_io_types=keep_io_types)  # leaves nodes in any order
    model = load(save(half, tmp_path / "half.onnx"))
    wide, batch = NETWORKS[name](), feeds(model)
    for tensor in [each for each in wide.graph.initializer if each.data_type == TensorProto.FLOAT]:
        tensor.CopyFrom(numpy_helper.from_array(widened(half)[tensor.name], tensor.name))
    expected = plain_session(wide).run(None, batch)[0]
    assert sqnr_db(expected, plain_session(ir.to_proto(model.graph)).run(None, batch)[0]) > 110
    assert not {"Cast"} & {node.op_type for node in model.graph.graph}
    assert {spec.dtype for spec in (*model.inputs, *model.outputs)} <= {"float32", "int64", "bool"}
    assert model.origin.endswith("exactly" if keep_io_types else "as its inputs and outputs are")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("constant", [True, False])
def test_weights_are_widened_exactly(constant: bool, dtype: Any, tmp_path: Path) -> None:
    n = Net()
    array = np.random.default_rng(0).normal(size=(C, 3, 3, 3)).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    tensor = numpy_helper.from_array(array, "w")
    w = n.op("Constant", [], "w", value=tensor) if constant else n.const("w", array)
    n.op("Conv", ["image", w], "stem")
    n.nodes[-1].output[0] = "y"
    proto = finish(n, {"image": [1, 3, 8, 8]}, {"y": [1, C, 6, 6]}, image=kind, y=kind)
    model = load(save(proto, tmp_path / "half.onnx"))
    np.testing.assert_array_equal(constants_of(model)[model.groups[0].weights[0]], array.astype(np.float32))
    assert model.inputs[0].dtype == model.outputs[0].dtype == "float32"


def test_casts_to_half_and_back_inside_are_left_out(tmp_path: Path) -> None:
    n = Net()
    x = n.op("Cast", [n.conv("image", "stem", 3, C)], "down", to=TensorProto.FLOAT16)
    n.head(n.op("Cast", [x], "up", to=TensorProto.FLOAT), C)
    model = load(save(n.model([1, 3, 8, 8], "logits", [1, 10]), tmp_path / "cast.onnx"))
    assert "Cast" not in {node.op_type for node in model.graph.graph}
    assert [group.name for group in model.groups] == ["stem", "fc"]


def test_the_file_as_given_computes_in_half_precision_between_float32_ends(tmp_path: Path) -> None:
    half = convert_float_to_float16(NETWORKS["mobile"](), keep_io_types=False)
    path = save(half, tmp_path / "half.onnx")
    batch = feeds(load(path))
    given = load_as_given(path)
    assert [value.dtype for value in (*given.graph.inputs, *given.graph.outputs)] == [ir.DataType.FLOAT] * 2
    narrow = {name: array.astype(np.float16) for name, array in batch.items()}
    expected = plain_session(half).run(None, narrow)[0].astype(np.float32)
    # ONNX Runtime leaves out Casts between its own kernels, so that some values are rounded once less.
    assert sqnr_db(expected, plain_session(ir.to_proto(given)).run(None, batch)[0]) > 55


def test_a_float32_file_has_no_origin(tmp_path: Path) -> None:
    assert load(save(NETWORKS["residual"](), tmp_path / "float.onnx")).origin == ""
