"""Beyond which values a tensor needs no codes, because nothing that reads it tells them apart."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from evaluators.lowering.int8.flat import flat_beyond
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU
from search.graph.model import Model, load
from search.values import Precision, Ranges, TensorRange
from tests.support.assignments import uniform
from tests.support.networks import Net, feeds, observed, save, session_of, sqnr_db

INF = math.inf
BODIES = {
    "a HardSwish": ("out = HardSwish(v)", (-3.0, INF)),
    "a Relu": ("out = Relu(v)", (0.0, INF)),
    "a HardSigmoid": ("out = HardSigmoid<alpha = 0.25, beta = 0.5>(v)", (-2.0, 2.0)),
    "a Clip": ("out = Clip(v, minus, six)", (-2.0, 6.0)),
    "a SiLU": ("s = Sigmoid(v) out = Mul(v, s)", (-7.75, INF)),
    "a GELU, written out": (
        "d = Div(v, root) e = Erf(d) a = Add(e, one) m = Mul(v, a) out = Mul(m, half)",
        (-3.375, INF),
    ),
    "a view before it": ("r = Reshape(v, shape) out = HardSwish(r)", (-3.0, INF)),
    "two readers": ("h = HardSwish(v) s = Relu(v) out = MatMul(h, s)", (-3.0, INF)),
    "a mirrored HardSwish": ("n = Neg(v) out = HardSwish(n)", (-INF, 3.0)),
    "a reader that tells all apart": ("h = HardSwish(v) out = MatMul(h, v)", None),
    "a sum with another tensor": ("h = HardSwish(v) s = Add(v, x) out = MatMul(h, s)", None),
    "a root, which grows on": ("r = Relu(v) out = Sqrt(r)", (0.0, INF)),
    "a line": ("out = Mul(v, half)", None),
    "a line that hardly rises": ("out = Mul(v, tiny)", None),
    "a small HardSwish": ("h = HardSwish(v) out = Mul(h, tiny)", (-3.0, INF)),
    "an Exp, whose small values may be summed": ("out = Exp(v)", None),
}


@pytest.mark.parametrize(("body", "wanted"), BODIES.values(), ids=BODIES)
def test_what_reads_a_tensor_says_where_it_is_flat(body: str, wanted: tuple[float, float] | None) -> None:
    proto = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 17]>
        agraph (float[4, 4] x) => (float[4, 4] out)
        <float root = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}}, float minus = {{-2.0}},
         float six = {{6.0}}, float tiny = {{0.00001}}, int64[2] shape = {{4, 4}}>
        {{ v = Reciprocal(x) {body} }}""")
    assert flat_beyond(ir.from_proto(proto).graph).get("v") == wanted


def test_an_output_of_the_model_keeps_all_its_values() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        agraph (float[4] x) => (float[4] v, float[4] out) { v = Reciprocal(x) out = HardSwish(v) }""")
    assert flat_beyond(ir.from_proto(proto).graph) == {}


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Convolutions whose outputs reach far below what their HardSwish tells apart."""
    n = Net(4)
    x = n.op("HardSwish", [n.conv("image", "first", 3, 16)], "first/swish")
    x = n.op("HardSwish", [n.conv(x, "second", 16, 16)], "second/swish")
    proto = n.model([2, 3, 8, 8], n.head(x, 16), [2, 10])
    for each in proto.graph.initializer:
        if each.name.startswith("first") and len(each.dims) == 1:  # the bias
            each.CopyFrom(onnx.numpy_helper.from_array(np.linspace(-30, 4, 16, dtype=np.float32), each.name))
    return load(save(proto, tmp_path / "net.onnx"))


def scale_before_swish(model: Model, ranges: Ranges) -> float:
    lowered = lower(model, uniform(model, Precision.INT8), ranges, ONNXRUNTIME_CPU)
    name = next(node.outputs[0].name for node in model.graph.graph if node.op_type == "Conv")
    scale = lowered.graph.initializers[f"{name}/scale"].const_value
    assert scale is not None
    return float(scale.numpy())


def test_no_code_is_spent_on_what_an_activation_makes_nothing_of(model: Model) -> None:
    ranges, inputs = observed(model), feeds(model)
    name = next(node.outputs[0].name for node in model.graph.graph if node.op_type == "Conv") or ""
    seen = ranges.tensors[name]
    assert seen.low < -20
    assert scale_before_swish(model, ranges) == pytest.approx((seen.high + 3) / 255)

    by_hand = replace(ranges, fixed=(name,))
    assert scale_before_swish(model, by_hand) == pytest.approx((seen.high - seen.low) / 255)

    wanted = session_of(ir.to_proto(model.graph)).run(None, inputs)[0]
    cut, whole = (
        sqnr_db(wanted, session_of(ir.to_proto(lower(model, uniform(model, Precision.INT8), each, ONNXRUNTIME_CPU)))
                .run(None, inputs)[0])
        for each in (ranges, by_hand)
    )  # fmt: skip
    assert cut > whole + 1


def test_a_range_of_nothing_but_what_is_flat_stays(model: Model) -> None:
    name = next(node.outputs[0].name for node in model.graph.graph if node.op_type == "Conv") or ""
    ranges = observed(model)
    low = replace(ranges, tensors={**ranges.tensors, name: TensorRange(-9.0, -5.0)})
    assert scale_before_swish(model, low) == pytest.approx(9 / 255)
