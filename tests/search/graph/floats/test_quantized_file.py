"""Files that are quantized already: the float model that they stand for, and their own scales."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from search.errors import ModelError
from search.graph.model import Model, load
from search.values import TensorRange
from tests.support.networks import NETWORKS, Net, feeds, finish, plain_session, save, sqnr_db
from tests.support.old_runtime import NEWER
from tests.support.quantized_files import quantized, with_rounded_constants

C = 16


def distance_db(model: Model, proto: onnx.ModelProto) -> float:
    """Signal to noise of a loaded model's first output beside that of another model."""
    batch = feeds(model, 7)
    twin = plain_session(ir.to_proto(model.graph)).run(None, batch)[0]
    return sqnr_db(plain_session(proto).run(None, batch)[0], twin)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("layout", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", ["mobile", "unet", "transformer"])
def test_the_twin_is_the_float_model_with_its_constants_rounded(
    name: str, layout: str, per_channel: bool, tmp_path: Path
) -> None:
    model = load(quantized(NETWORKS[name](), tmp_path, layout, per_channel=per_channel))
    assert distance_db(model, with_rounded_constants(tmp_path)) > (100 if layout == "QDQ" else 80)
    left_float = ("ConvTranspose",) if layout == "QOperator" else ()
    weighted = [group for group in model.groups if group.weights and group.op not in left_float]
    assert all(map(model.own.owns, weighted))
    assert f"INT8 of {len(weighted)} of {len(model.groups)} groups has the file's own scales" in model.origin


def test_scales_go_through_a_batch_norm_that_is_fused(tmp_path: Path) -> None:
    model = load(quantized(NETWORKS["residual"](), tmp_path))
    assert "BatchNormalization" not in {node.op_type for node in model.graph.graph}
    assert all(map(model.own.owns, model.groups))
    for group in model.groups:
        weight = model.graph.graph.initializers[group.weights[0]].const_value
        assert weight is not None
        codes = weight.numpy() / model.own.weights[group.name]
        np.testing.assert_allclose(codes, np.rint(codes), atol=2e-3)


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("name", ["mobile", "transformer"])
def test_dynamically_quantized_weights_are_read(name: str, per_channel: bool, tmp_path: Path) -> None:
    source, out = save(NETWORKS[name](), tmp_path / "float.onnx"), tmp_path / "quantized.onnx"
    quantize_dynamic(source, out, per_channel=per_channel)
    model = load(out)
    assert all(model.own.owns(group) for group in model.groups if group.weights)
    assert not model.own.tensors
    assert distance_db(model, onnx.load(str(source))) > 30


@pytest.mark.parametrize("activations", ["QUInt8", "QUInt16", "QInt16"])
def test_a_clamp_that_the_quantizer_dropped_is_put_back(activations: str, tmp_path: Path) -> None:
    n = Net()
    x = n.op("Relu", [n.conv("image", "one", 3, C)], "relu")
    bounds = [n.const("low", np.float32(0)), n.const("high", np.float32(1))]
    x = n.op("Clip", [n.conv(x, "two", C, C), *bounds], "clip")
    n.head(n.conv(x, "three", C, C), C)
    path = quantized(n.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path, activations=QuantType[activations])
    assert not {"Relu", "Clip"} & {node.op_type for node in onnx.load(str(path)).graph.node}
    model = load(path)
    counts = Counter(node.op_type for node in model.graph.graph)
    assert (counts["Relu"], counts["Clip"]) == (1, 1)
    assert distance_db(model, with_rounded_constants(tmp_path)) > 90


@pytest.mark.parametrize("times", [1, 1000])
def test_where_calibration_ends_is_no_clamp_of_the_model(times: int, tmp_path: Path) -> None:
    n = Net()
    x = n.op("Mul", ["image", n.const("times", np.float32(times))], "scaled")
    for name in ("one", "two"):
        x = n.op("Relu", [n.conv(x, name, 3 if name == "one" else C, C)], f"{name}.relu")
    n.head(n.conv(x, "three", C, C), C)
    model = load(quantized(n.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path))
    assert "Clip" not in {node.op_type for node in model.graph.graph}


def test_a_relu_that_is_there_is_not_doubled(tmp_path: Path) -> None:
    network = NETWORKS["residual"]()
    relus = sum(node.op_type == "Relu" for node in network.graph.node)
    model = load(quantized(network, tmp_path, signed=True))
    assert sum(node.op_type in ("Relu", "Clip") for node in model.graph.graph) == relus


def with_fake_quantization(zero: int = 0, signed: bool = True, second: float | None = None) -> onnx.ModelProto:
    """As quantization-aware training exports: the float weight goes through Quantize and Dequantize as well."""
    n = Net()
    dtype = np.int8 if signed else np.uint8
    scale, point = n.const("scale", np.float32(0.05)), n.const("zero", dtype(zero))
    read = n.const("second", np.float32(second)) if second is not None else scale
    codes = n.op("QuantizeLinear", ["image", scale, point], "q")
    image = n.op("DequantizeLinear", [codes, read, point], "dq")
    weight = np.random.default_rng(0).normal(size=(C, 3, 3, 3)).astype(np.float32)
    steps, points = n.const("w.scale", np.full(C, 0.02, np.float32)), n.const("w.zero", np.zeros(C, np.int8))
    parts = [n.op("QuantizeLinear", [n.const("w", weight), steps, points], "w.q", axis=0), steps, points]
    n.head(n.op("Conv", [image, n.op("DequantizeLinear", parts, "w.dq", axis=0)], "stem", pads=[1] * 4), C)
    return n.model([2, 3, 8, 8], "logits", [2, 10])


def test_a_float_weight_that_is_quantized_in_the_file_is_rounded(tmp_path: Path) -> None:
    proto = with_fake_quantization()
    model = load(save(proto, tmp_path / "qat.onnx"))
    given = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}["w"]
    weight = model.graph.graph.initializers[model.groups[0].weights[0]].const_value
    assert weight is not None
    expected = np.clip(np.rint(given / np.float32(0.02)), -128, 127).astype(np.float32) * np.float32(0.02)
    np.testing.assert_array_equal(weight.numpy(), expected)
    assert model.own.tensors["image"] == TensorRange(-127 * np.float32(0.05), 127 * np.float32(0.05))


def test_codes_that_are_read_with_another_scale_stay_codes(tmp_path: Path) -> None:
    proto = with_fake_quantization(second=0.1)
    model = load(save(proto, tmp_path / "qat.onnx"))
    assert distance_db(model, proto) > 100


def test_where_all_layers_are_in_a_form_that_is_not_read_it_is_named(tmp_path: Path) -> None:
    n = Net()
    codes, scales = np.zeros((16, 1, 16), np.uint8), np.ones(16, np.float32)
    parts = ["image", n.const("codes", codes), n.const("scales", scales)]
    n.op("MatMulNBits", parts, "four", domain="com.microsoft", K=32, N=16, bits=4, block_size=32)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            n.nodes,
            "net",
            [onnx.helper.make_tensor_value_info("image", TensorProto.FLOAT, [2, 32])],
            [onnx.helper.make_tensor_value_info("four_out", TensorProto.FLOAT, [2, 16])],
            n.weights,
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )
    with pytest.raises(ModelError, match=r"such as 'four' \(MatMulNBits\): it is quantized in a form that is not read"):
        load(save(model, tmp_path / "m.onnx"))


@NEWER
def test_an_op_on_codes_that_is_not_known_stays_and_is_named(tmp_path: Path) -> None:
    n = Net()
    parts = [n.const("scale", np.float32(0.03)), n.const("zero", np.uint8(120))]
    codes = n.op("QuantizeLinear", [n.conv("image", "stem", 3, C), *parts], "q")
    weight = n.const("w", np.random.default_rng(0).integers(-100, 100, (C, C, 1, 1)).astype(np.int8))
    made = n.op("ConvInteger", [codes, weight], "odd")
    n.head(n.op("Cast", [made], "number", to=TensorProto.FLOAT), C)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load(save(proto, tmp_path / "odd.onnx"))
    assert [(each.name, each.why) for each in model.left_out] == [
        ("odd", "it is quantized in a form that is not read, and runs as it is")
    ]
    assert distance_db(model, proto) > 100


def test_codes_as_an_output_stay_codes(tmp_path: Path) -> None:
    n = Net()
    scale, point = n.const("scale", np.float32(0.1)), n.const("zero", np.uint8(128))
    n.op("QuantizeLinear", [n.conv("image", "stem", 3, C), scale, point], "y")
    n.nodes[-1].output[0] = "y"
    proto = finish(n, {"image": [2, 3, 8, 8]}, {"y": [2, C, 8, 8]}, y=TensorProto.UINT8)
    model = load(save(proto, tmp_path / "codes.onnx"))
    assert model.outputs[0].dtype == "uint8"
    assert distance_db(model, proto) == np.inf
