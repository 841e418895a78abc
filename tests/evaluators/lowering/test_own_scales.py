"""INT8 of a file that is quantized already: lowered again, it computes what the file does, with the file's scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.recovery.int8.bias import BiasStep
from evaluators.recovery.int8.narrow_ranges import is_free
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges, TensorRange
from tests.support.networks import NETWORKS, Net, feeds, observed, plain_session, sqnr_db
from tests.support.quantized_files import quantized
from tests.support.recovery_context import context_of

C = 16


def chain() -> onnx.ModelProto:
    """Convolutions and Relus, which every quantizer treats alike."""
    n = Net()
    x = n.op("Relu", [n.conv("image", "one", 3, C)], "one/relu")
    x = n.op("Relu", [n.conv(x, "two", C, C)], "two/relu")
    n.conv(x, "three", C, 4)
    return n.model([2, 3, 8, 8], "map", [2, 4, 8, 8])


def own_int8(model: Model) -> Assignment:
    return Assignment({g.id: Precision.INT8 if model.own.owns(g) else Precision.FP32 for g in model.groups})


def lowered(model: Model, placement: Placement) -> tuple[onnx.ModelProto, Ranges]:
    ranges = model.own.fix(observed(model))
    return ir.to_proto(lower(model, own_int8(model), ranges, placement)), ranges


def outputs(proto: onnx.ModelProto, model: Model) -> Any:
    return plain_session(proto).run(None, feeds(model, 7))[0]


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("layout", ["QDQ", "QOperator"])
def test_all_int8_is_the_file(layout: str, per_channel: bool, tmp_path: Path) -> None:
    # Kernels of QLinear ops saturate on processors without VNNI, unless weights have seven bits.
    path = quantized(chain(), tmp_path, layout, per_channel=per_channel, reduce_range=layout == "QOperator")
    model = load(path)
    proto, _ = lowered(model, ONNXRUNTIME_CPU)
    expected = outputs(onnx.load(str(path)), model)
    if layout == "QDQ":
        np.testing.assert_array_equal(outputs(proto, model), expected)
    else:  # kernels of QLinear ops round ties otherwise
        assert sqnr_db(expected, outputs(proto, model)) > 50


def test_symmetric_scales_are_those_of_the_file(tmp_path: Path) -> None:
    path = quantized(chain(), tmp_path, per_channel=True, signed=True)
    model = load(path)
    given = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}
    for placement in (TENSORRT.__class__(**{**vars(TENSORRT), "float_side": Precision.FP32}), ONNXRUNTIME_CPU):
        proto, _ = lowered(model, placement)
        written = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
        assert written["image/scale"] == given["image_scale"]
        for name in ("one", "two", "three"):
            codes = [key for key in written if key.startswith(f"{name}.w") and key.endswith("int8")]
            np.testing.assert_array_equal(written[codes[0]], given[f"{name}.w_quantized"])


@pytest.mark.parametrize("layout", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", ["residual", "mobile", "transformer"])
def test_where_ops_differ_it_is_as_near_to_the_float_model(name: str, layout: str, tmp_path: Path) -> None:
    path = quantized(NETWORKS[name](), tmp_path, layout)
    model = load(path)
    exact = outputs(onnx.load(str(tmp_path / "float.onnx")), model)
    own, given = (outputs(each, model) for each in (lowered(model, ONNXRUNTIME_CPU)[0], onnx.load(str(path))))
    assert sqnr_db(exact, own) > sqnr_db(exact, given) - 1
    assert sqnr_db(exact, own) > 30


def test_recovery_leaves_them_alone(tmp_path: Path) -> None:
    model = load(quantized(NETWORKS["mobile"](), tmp_path))
    ranges = model.own.fix(observed(model))
    assert set(model.own.tensors) <= set(ranges.fixed)
    assert not any(is_free(ranges, name) for name in model.own.tensors)
    found = BiasStep().propose(context_of(model, placement=ONNXRUNTIME_CPU), ranges)
    assert found is None or not found.ranges.recovery


def test_a_range_that_is_symmetric_has_its_zero_in_the_middle() -> None:
    from evaluators.calibration.scales import activation_scale

    assert activation_scale(TensorRange(-127 * 0.5, 127 * 0.5), signed=False, symmetric=False) == (0.5, 128)
    assert activation_scale(TensorRange(0.0, 127.5), signed=False, symmetric=False) == (0.5, 0)
