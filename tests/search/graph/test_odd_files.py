"""Files that tools other than today's exporters write: they run in ONNX Runtime, so they are read or named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from evaluators.backends.onnxruntime.emulation import open_file
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from search.errors import ModelError
from search.graph.model import load
from search.graph.onnx_file import read_input_shapes
from search.graph.shapes import advise_shape, read_input_values
from search.values import Precision, Ranges, TensorRange
from tests.support.assignments import uniform
from tests.support.networks import Net, feeds, finish, observed, plain_session, residual_cnn, save, session_of, sqnr_db


def of_ir_3(opset: int) -> onnx.ModelProto:
    """As model zoos have them: constants are listed among the inputs."""
    proto = residual_cnn(opset=opset)
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return proto


@pytest.mark.parametrize("opset", [9, 13, 17, 18, 19])
def test_a_file_of_ir_version_3_is_lowered_to_half_and_stays_valid(opset: int, tmp_path: Path) -> None:
    model = load(save(of_ir_3(opset), tmp_path / "net.onnx"))
    onnx.checker.check_model(ir.to_proto(model.graph), full_check=True)
    for precision in (Precision.FP16, Precision.INT8):
        lowered = ir.to_proto(lower(model, uniform(model, precision), observed(model), TENSORRT))
        onnx.checker.check_model(lowered, full_check=True)
        assert session_of(lowered).run(None, feeds(model))[0].shape == (4, 10)
    assert load(save(ir.to_proto(model.graph), tmp_path / "clean.onnx")).groups == model.groups


@pytest.mark.parametrize("declared", [[], ["N"], ["N", 1, 4, 8, 8]])
def test_an_output_whose_shape_the_file_has_wrong_takes_the_one_that_is_computed(
    declared: list[int | str], tmp_path: Path
) -> None:
    n = Net(opset=11)
    n.conv("image", "conv", 3, 4)
    n.nodes[-1].output[0] = "y"
    proto = finish(n, {"image": ["N", 3, 8, 8]}, {"y": ["N", 4, 8, 8]})
    proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, declared))
    model = load(save(proto, tmp_path / "net.onnx"), batch=2)
    assert model.outputs[0].shape == (2, 4, 8, 8)
    for precision in (Precision.FP32, Precision.FP16, Precision.INT8):
        lowered = ir.to_proto(lower(model, uniform(model, precision), observed(model), TENSORRT))
        onnx.checker.check_model(lowered, full_check=True)


def split_in_parts(opset: int, size: object, *, keepdims: int = 1) -> onnx.ModelProto:
    """torch.split and its like, as exporters write them."""
    n = Net(opset=opset)
    parts = n.op(
        "SplitToSequence",
        ["x", n.const("size", np.array(1 if size is None else size))],
        "split",
        axis=1,
        keepdims=keepdims,
    )
    if size is None:
        n.nodes[-1].input[:] = ["x"]
    first = n.op("SequenceAt", [parts, n.const("first", np.int64(0))], "first_part")
    last = n.op("SequenceAt", [parts, n.const("last", np.int64(2))], "last_part")
    if not keepdims:
        first, last = (
            n.op("Unsqueeze", [each, n.const(f"{each}/axis", np.array([1]))], f"{each}/a") for each in (first, last)
        )
    joined = n.op("Concat", [first, last], "joined", axis=1)
    n.conv(joined, "conv", 2 if size is None or size == 1 else 4, 3, 1)
    n.nodes[-1].output[0] = "y"
    return finish(n, {"x": ["N", 6 if size not in (None, 1) else 3, 6, 6]}, {"y": ["N", 3, 6, 6]})


@pytest.mark.parametrize("opset", [13, 17, 18])
@pytest.mark.parametrize(("size", "keepdims"), [(2, 1), ([2, 2, 2], 1), (1, 1), (None, 1), (None, 0)])
def test_a_split_into_a_sequence_is_valid_in_every_opset(
    opset: int, size: object, keepdims: int, tmp_path: Path
) -> None:
    proto = split_in_parts(opset, size, keepdims=keepdims)
    model = load(save(proto, tmp_path / "net.onnx"), batch=2)
    clean = ir.to_proto(model.graph)
    onnx.checker.check_model(clean, full_check=True)
    wanted, found = (plain_session(each).run(None, feeds(model))[0] for each in (proto, clean))
    np.testing.assert_array_equal(found, wanted)
    assert len(model.shapes[model.groups[0].inputs[0]]) == 4


def with_sequence(n: Net, x: str) -> str:
    empty = n.op("SequenceEmpty", [], "empty")
    one = n.op("SequenceInsert", [empty, x], "one")
    return n.op("ConcatFromSequence", [n.op("SequenceInsert", [one, x], "two")], "joined", axis=1)


def with_built_sequence(n: Net, x: str) -> str:
    place = n.op("Cast", [n.op("ReduceMax", [n.op("Shape", [x], "shape")], "most", keepdims=0)], "index", to=7)
    zero = n.op("Sub", [place, place], "zero")
    sequence = n.op("SequenceConstruct", [x, n.op("Neg", [x], "negative")], "built")
    return n.op("Concat", [n.op("SequenceAt", [sequence, zero], "at"), x], "joined", axis=1)


def with_optional(n: Net, x: str) -> str:
    held = n.op("Optional", [x], "held")
    return n.op("Concat", [n.op("OptionalGetElement", [held], "got"), x], "joined", axis=1)


def with_loop(n: Net, x: str) -> str:
    """A sequence that a Loop carries and that gets one part with each round."""
    ins = [helper.make_tensor_value_info("round", TensorProto.INT64, [])]
    ins += [helper.make_tensor_value_info("go", TensorProto.BOOL, [])]
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    ins += [helper.make_value_info("carried", kind)]
    body = [helper.make_node("SequenceInsert", ["carried", x], ["more"], "insert")]
    body += [helper.make_node("Identity", ["go"], ["still"], "still")]
    outs = [helper.make_tensor_value_info("still", TensorProto.BOOL, []), helper.make_value_info("more", kind)]
    start, rounds, go = (
        n.op("SequenceEmpty", [], "empty"),
        n.const("rounds", np.int64(2)),
        n.const("yes", np.array(True)),
    )
    carried = n.op("Loop", [rounds, go, start], "loop", body=helper.make_graph(body, "body", ins, outs))
    return n.op("ConcatFromSequence", [carried], "joined", axis=1)


def with_collection(n: Net, x: str) -> str:
    """A Loop that begins with no channels and is handed what it has, which the file says is of the first round."""
    ins = [helper.make_tensor_value_info("round", TensorProto.INT64, [])]
    ins += [helper.make_tensor_value_info("go", TensorProto.BOOL, [])]
    ins += [helper.make_tensor_value_info("carried", TensorProto.FLOAT, [2, 0, 8, 8])]
    body = [helper.make_node("Concat", ["carried", x], ["more"], "insert", axis=1)]
    body += [helper.make_node("Identity", ["go"], ["still"], "still")]
    outs = [helper.make_tensor_value_info("still", TensorProto.BOOL, [])]
    outs += [helper.make_tensor_value_info("more", TensorProto.FLOAT, ["a", "b", "c", "d"])]
    start, rounds = n.const("none", np.zeros((2, 0, 8, 8), np.float32)), n.const("rounds", np.int64(2))
    inner = helper.make_graph(body, "body", ins, outs)
    return n.op("Loop", [rounds, n.const("yes", np.array(True)), start], "loop", body=inner)


BUILDS = [with_sequence, with_built_sequence, with_optional, with_loop, with_collection]


@pytest.mark.parametrize("placement", [TENSORRT, ONNXRUNTIME_CPU])
@pytest.mark.parametrize("build", BUILDS)
def test_sequences_optional_values_and_collections_stay_what_they_are(
    build: Callable[[Net, str], str], placement: Placement, tmp_path: Path
) -> None:
    n = Net(opset=17)
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "relu")
    n.conv(build(n, x), "second", 16, 4)
    n.nodes[-1].output[0] = "y"
    proto = finish(n, {"image": [2, 3, 8, 8]}, {"y": [2, 4, 8, 8]})
    model = load(save(proto, tmp_path / "net.onnx"))
    (wanted,) = plain_session(proto).run(None, feeds(model))
    names = [name for group in model.groups for name in (*group.inputs, *group.tensors)]
    ranges = Ranges("made up", dict.fromkeys(names, TensorRange(-9, 9)), {}, 2)
    for precision in (Precision.FP32, Precision.FP16, Precision.INT8):
        lowered = ir.to_proto(lower(model, uniform(model, precision), ranges, placement))
        onnx.checker.check_model(lowered, full_check=True)
        found = session_of(lowered).run(None, feeds(model))[0]
        assert sqnr_db(wanted, found) > (15 if precision is Precision.INT8 else 50)


def test_a_sequence_among_the_outputs_is_refused_in_one_sentence(tmp_path: Path) -> None:
    n = Net(opset=17)
    n.conv("image", "first", 3, 8)
    n.op("SequenceConstruct", ["first_out"], "parts")
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [2, 3, 8, 8])
    graph = helper.make_graph(n.nodes, "net", [image], [helper.make_value_info("parts_out", kind)], n.weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ModelError, match="output 'parts_out' is of the kind sequence"):
        load(save(proto, tmp_path / "net.onnx"))


def test_outputs_without_shape_or_type_are_inferred(tmp_path: Path) -> None:
    proto = residual_cnn()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.output.add().name = "pool_out"
    model = load(save(proto, tmp_path / "net.onnx"))
    assert [(spec.name, spec.shape) for spec in model.outputs] == [("logits", (4, 10)), ("pool_out", (4, 32, 1, 1))]


def test_an_output_that_cannot_be_inferred_is_named(tmp_path: Path) -> None:
    proto = residual_cnn()
    proto.opset_import.append(helper.make_opsetid("com.example", 1))
    proto.graph.node.append(helper.make_node("Odd", ["logits"], ["odd"], "odd", domain="com.example"))
    proto.graph.output.add().name = "odd"
    with pytest.raises(ModelError, match=r"a type and a shape of every output, but 'odd' has none"):
        load(save(proto, tmp_path / "net.onnx"))


def normed_in_groups(opset: int) -> onnx.ModelProto:
    n = Net(opset=opset)
    x = n.conv("image", "first", 3, 8)
    ones = n.const("ones", np.ones(2, np.float32))
    n.head(n.op("GroupNormalization", [x, ones, ones], "norm", num_groups=2), 8)
    n.nodes[-1].output[0] = "y"
    info = [helper.make_tensor_value_info(*each) for each in (("image", 1, [2, 3, 8, 8]), ("y", 1, [2, 10]))]
    graph = helper.make_graph(n.nodes, "net", info[:1], info[1:], n.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def test_a_deprecated_op_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"node 'norm' is a GroupNormalization.*opset 21 or newer") as found:
        load(save(normed_in_groups(18), tmp_path / "net.onnx"))
    assert str(found.value).count("\n") == 0


@pytest.mark.parametrize("op", ["Scatter", "Upsample"])
def test_other_deprecated_ops_are_named_too(op: str, tmp_path: Path) -> None:
    proto = residual_cnn()
    proto.graph.node.append(helper.make_node(op, ["logits", "logits"], ["odd"], "odd"))
    with pytest.raises(ModelError, match=rf"node 'odd' is a {op}.*Export the model with"):
        load(save(proto, tmp_path / "net.onnx"))


def test_a_size_of_minus_one_is_dynamic(tmp_path: Path) -> None:
    proto = residual_cnn()
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    path = save(proto, tmp_path / "net.onnx")
    assert read_input_shapes(path) == {"image": ("", 3, 16, 16)}
    assert load(path, batch=5).outputs[0].shape == (5, 10)
    with pytest.raises(ModelError, match="--batch 8"):
        load(path)


@pytest.mark.parametrize("beside", [False, True])
def test_a_file_with_repeated_node_names_runs(beside: bool, tmp_path: Path) -> None:
    proto = residual_cnn()
    wanted = plain_session(proto)
    for node in proto.graph.node:
        if node.op_type in ("Conv", "Relu"):
            node.name = "same"
    path = tmp_path / "net.onnx"
    onnx.save_model(proto, str(path), save_as_external_data=beside, location="weights", size_threshold=0)
    batch = feeds(load(path))
    (expected,) = wanted.run(None, batch)
    np.testing.assert_allclose(open_file(path, 1).run(batch)["logits"], expected, rtol=0, atol=1e-5)
    assert onnx.load(str(path)).graph.node[0].name == "same"


def recurrent(layers: int, batch: str | int) -> onnx.ModelProto:
    n = Net()
    n.linear("x", "project", 8, 6)
    n.op("ReduceMean", ["state"], "last", axes=[0], keepdims=0)
    n.op("Add", ["project/bias_out", "last_out"], "sum")
    n.nodes[-1].output[0] = "y"
    n.op("Add", ["state", n.op("Tanh", ["y"], "squashed")], "update")
    n.nodes[-1].output[0] = "next"
    inputs: dict[str, list[int | str]] = {"x": [batch, 8], "state": [layers, batch, 6]}
    return finish(n, inputs, {"y": [batch, 6], "next": [layers, batch, 6]})


def test_a_state_whose_other_sizes_have_names_of_their_own_is_taken_batch_first(tmp_path: Path) -> None:
    proto = recurrent(2, "N")
    proto.graph.output[1].type.tensor_type.shape.dim[0].dim_param = "Addnext_dim_0"  # as PyTorch's exporter writes it
    assert load(save(proto, tmp_path / "net.onnx"), batch=4).outputs[1].shape == (4, 2, 6)


@pytest.mark.parametrize("batch", ["N", 4])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_state_with_its_batch_on_another_axis_is_taken_batch_first(
    layers: int, batch: str | int, tmp_path: Path
) -> None:
    proto = recurrent(layers, batch)
    model = load(save(proto, tmp_path / "net.onnx"), batch=4)
    assert [spec.shape for spec in model.inputs] == [(4, 8), (4, layers, 6)]
    assert [spec.shape for spec in model.outputs] == [(4, 6), (4, layers, 6)]
    assert read_input_shapes(tmp_path / "net.onnx")["state"] == (batch, layers, 6)
    assert model.origin.startswith("state, next of the file have their batch on another axis")
    batch_first = feeds(model)
    given = {**batch_first, "state": np.moveaxis(batch_first["state"], 0, 1)}
    y, after = plain_session(proto).run(None, given)
    np.testing.assert_array_equal(plain_session(ir.to_proto(model.graph)).run(None, batch_first)[0], y)
    made = plain_session(ir.to_proto(model.graph)).run(None, batch_first)[1]
    np.testing.assert_array_equal(made, np.moveaxis(after, 1, 0))


def with_written_batch(target: list[int], size: int) -> onnx.ModelProto:
    n = Net()
    x = n.op("Reshape", [n.conv("image", "conv", 3, 4), n.const("target", np.array(target))], "view")
    n.gemm(x, "fc", size, 5)
    n.nodes[-1].output[0] = "y"
    return finish(n, {"image": ["N", 3, 4, 4]}, {"y": [None, 5]})


@pytest.mark.parametrize("target", [[1, -1], [1, 64], [2, -1]])
def test_a_batch_that_a_reshape_has_written_into_the_model_is_named(target: list[int], tmp_path: Path) -> None:
    proto = with_written_batch(target, 64)
    path = save(proto, tmp_path / "net.onnx")
    assert target[0] == 2 or load(path, batch=1).groups
    with pytest.raises(ModelError, match=rf"Reshape 'view' makes .*Give --batch {target[0]}, or export"):
        load(path, batch=8)


def test_a_reshape_of_any_batch_is_none(tmp_path: Path) -> None:
    assert load(save(with_written_batch([-1, 64], 64), tmp_path / "net.onnx"), batch=8).groups
    assert load(save(with_written_batch([0, 64], 64), tmp_path / "net.onnx"), batch=8).groups


@pytest.mark.parametrize(
    ("dims", "ways"),
    [
        (["N", 3, 48, 48], ("--batch 8", "--shape x:1x3x48x48:8x3x48x48:16x3x48x48")),
        (["N", 3, "H", "W"], ("--shape x:8x3xSIZExSIZE,", "--shape x:8x3xMINxMIN:8x3xOPTxOPT:8x3xMAXxMAX")),
        ([4, "T"], ("--shape x:4xSIZE,", "--shape x:4xMIN:4xOPT:4xMAX")),
    ],
)
def test_the_advice_on_sizes_proposes_a_range_and_makes_up_no_length(
    dims: list[int | str], ways: Sequence[str]
) -> None:
    advice = advise_shape("x", dims)
    assert all(way in advice for way in ways)
    assert not re.search(r"\d{3}", advice)


def with_rate(shape: list[int | str]) -> onnx.ModelProto:
    """Whether there is a layer more depends on an input that is the same for all samples."""
    n = Net()
    x = n.gemm("x", "first", 8, 8)
    bodies = []
    for name in ("high", "low"):
        body = Net(1)
        body.gemm(x, name, 8, 8)
        made = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        bodies.append(helper.make_graph(body.nodes, name, [], [made], body.weights))
    rate = n.op("Reshape", ["rate", n.const("none", np.array([], np.int64))], "scalar")
    high = n.op("Equal", [rate, n.const("wide", np.int64(16000))], "is_high")
    n.op("If", [high], "if", then_branch=bodies[0], else_branch=bodies[1])
    n.nodes[-1].output[0] = "y"
    return finish(n, {"x": ["N", 8], "rate": shape}, {"y": ["N", 8]}, rate=TensorProto.INT64)


@pytest.mark.parametrize("shape", [[], [1], ["M"]])
@pytest.mark.parametrize(("rate", "name"), [(16000, "high"), (8000, "low")])
def test_an_input_of_one_value_becomes_a_constant(shape: list[int | str], rate: int, name: str, tmp_path: Path) -> None:
    proto = with_rate(shape)
    path = save(proto, tmp_path / "net.onnx")
    model = load(path, batch=4, values=[f"rate={rate}"])
    assert [spec.name for spec in model.inputs] == ["x"]
    assert [(group.name, group.op) for group in model.groups] == [("first", "Gemm"), ("if", "Gemm")]
    given = feeds(model)
    fixed = read_input_values(proto, [f"rate={rate}"], path)
    wanted = plain_session(proto).run(None, {**given, **fixed})[0]
    found = plain_session(ir.to_proto(model.graph)).run(None, given)[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    assert model.digest != load(path, batch=4, values=["rate=1"]).digest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed=1", "its inputs are x, rate"),
        ("rate", "its inputs are x, rate"),
        ("rate=fast", "a number of type int64"),
    ],
)
def test_values_that_fit_no_input_are_refused(text: str, says: str, tmp_path: Path) -> None:
    path = save(with_rate([]), tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="--input-value rate=VALUE"):
        load(path, batch=4)
    with pytest.raises(ModelError, match=says):
        load(path, batch=4, values=[text])
