"""Element types behind ops outside ONNX, where shape inference ends, and what lowering makes of such models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from evaluators.calibration.activations import collect
from evaluators.data.opening import open_data
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from search.graph.element_types import settle_types
from search.graph.model import load
from search.values import Assignment, Precision
from tests.support.assignments import mixes, precisions_of, uniform
from tests.support.networks import BEYOND, Net, feeds, images, loaded, plain_session, ranged, save, session_of, sqnr_db

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
PLACEMENTS = {"cpu": ONNXRUNTIME_CPU, "tensorrt": TENSORRT}
FLOAT, DOUBLE = ir.DataType.FLOAT, ir.DataType.DOUBLE


def types_of(nodes: list[object], weights: dict[str, np.ndarray], opset: int = 17) -> dict[str, ir.DataType | None]:
    """Types of the tensors of a graph over `x`, of which nothing but the weights' types is known."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", [x], [], stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))
    settle_types(model)
    return {value.name or "": value.dtype for node in model.graph.all_nodes() for value in node.outputs}


def behind(*nodes: object, **weights: np.ndarray) -> dict[str, ir.DataType | None]:
    """Types where `a` and `b` come from an op of nobody's."""
    return types_of([helper.make_node("Theirs", ["x"], ["a", "b"], domain="my"), *nodes], weights)


def test_a_weight_tells_the_type_of_what_it_is_multiplied_with_and_of_the_result() -> None:
    for dtype, expected in ((np.float32, FLOAT), (np.float64, DOUBLE)):
        product = helper.make_node("MatMul", ["a", "w"], ["c"])
        found = behind(product, helper.make_node("Relu", ["c"], ["d"]), w=np.eye(4, dtype=dtype))
        assert found == {"a": expected, "b": None, "c": expected, "d": expected}


def test_types_go_backwards_and_through_ops_with_any_number_of_inputs() -> None:
    found = behind(
        helper.make_node("Reshape", ["a", "shape"], ["c"]),
        helper.make_node("Concat", ["b", "c", "x"], ["d"], axis=0),
        helper.make_node("Shape", ["d"], ["e"]),
        shape=np.array([2, 4]),
    )
    assert found == {"a": FLOAT, "b": FLOAT, "c": FLOAT, "d": FLOAT, "e": None}


def test_ops_whose_inputs_may_differ_and_ops_of_nobodys_tell_nothing() -> None:
    found = behind(
        helper.make_node("Cast", ["a"], ["c"], to=TensorProto.DOUBLE),
        helper.make_node("Pow", ["x", "b"], ["d"]),
        helper.make_node("Theirs", ["x"], ["e"], domain="my"),
    )
    assert found == {"a": None, "b": None, "c": None, "d": FLOAT, "e": None}


def test_a_loaded_model_knows_every_type_but_those_no_op_tells(tmp_path: Path) -> None:
    model = loaded("foreign")
    assert all(value.dtype is FLOAT for node in model.graph.graph for value in node.outputs)
    assert [group.op for group in model.groups] == ["Conv"] * 4


def untold(folder: Path) -> Path:
    """A product of two tensors whose type nobody tells, behind a convolution."""
    n = Net()
    x = n.op("Relu", [n.conv("image", "first", 3, 4)], "relu")
    left, right = (n.op("Trilu", [x], name, domain="com.microsoft") for name in ("left", "right"))
    product = n.op("MatMul", [left, right], "product")
    n.op("Cast", [n.op("Trilu", [product], "after", domain="com.microsoft")], "out", to=TensorProto.FLOAT)
    info = [helper.make_tensor_value_info(*end) for end in (("image", 1, [2, 3, 8, 8]), ("out_out", 1, [2, 4, 8, 8]))]
    graph = helper.make_graph(n.nodes, "net", info[:1], info[1:], n.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "untold.onnx")


def test_an_op_of_unknown_type_is_no_layer_and_stays_as_it_is(tmp_path: Path) -> None:
    model = load(untold(tmp_path))
    assert [group.name for group in model.groups] == ["first"]
    np.savez(tmp_path / "data.npz", image=images(8, shape=(3, 8, 8)))
    ranges = collect(model, open_data(str(tmp_path / "data.npz"), model.inputs), np.arange(8), "minmax")
    expected = plain_session(ir.to_proto(model.graph)).run(None, feeds(model))[0]
    for precision, enough in ((FP16, 50), (INT8, 25)):
        lowered = lower(model, uniform(model, precision), ranges, TENSORRT)
        assert sqnr_db(expected, session_of(ir.to_proto(lowered)).run(None, feeds(model))[0]) > enough


@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_what_shape_inference_does_not_know_is_calibrated(method: str, tmp_path: Path) -> None:
    model = loaded("foreign")
    np.savez(tmp_path / "data.npz", image=images(8, shape=(3, 8, 8)))
    ranges = collect(model, open_data(str(tmp_path / "data.npz"), model.inputs), np.arange(8), method)
    assert set(ranges.tensors) == {"image", *(value.name for node in model.graph.graph for value in node.outputs)}


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
@pytest.mark.parametrize("name", BEYOND)
def test_every_mix_behind_a_foreign_op_runs_and_is_accurate(name: str, placement: Placement) -> None:
    model, ranges = loaded(name), ranged(name)
    batch = feeds(model)
    expected = plain_session(ir.to_proto(model.graph)).run(None, batch)[0]
    for assignment in mixes(model, precisions_of(placement)):
        proto = ir.to_proto(lower(model, assignment, ranges, placement))
        enough = {INT8: 20.0, FP16: 50.0, FP32: 300.0}[max(assignment.values())]
        assert sqnr_db(expected, session_of(proto).run(None, batch)[0]) > enough


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_no_convolution_has_its_weights_quantized_and_its_input_not(placement: Placement) -> None:
    model = loaded("foreign")
    graph = lower(model, uniform(model, INT8), ranged("foreign"), placement).graph
    for node in graph:
        if node.op_type == "Conv":
            made = [value.producer() for value in node.inputs[:2] if value is not None]
            assert [maker.op_type for maker in made if maker is not None] == ["DequantizeLinear"] * 2, node.name


def test_a_float_convolution_behind_a_foreign_op_reads_by_channel() -> None:
    """ONNX Runtime would quantize it unasked else; how many channels there are shows in its weight alone."""
    model = loaded("foreign")
    assignment = Assignment({group.id: FP32 if group.name == "third" else INT8 for group in model.groups})
    graph = lower(model, assignment, ranged("foreign"), ONNXRUNTIME_CPU).graph
    (third,) = (node for node in graph if node.name == "third")
    assert third.inputs[0] is not None
    maker = third.inputs[0].producer()
    assert maker is not None
    assert maker.op_type == "DequantizeLinear"
