"""A LayerNorm that is written out is one op, behind INT8 layers too, and computes what its parts do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.lower import lower
from search.graph.model import load
from search.values import Precision
from tests.support.assignments import uniform
from tests.support.chains import Chain
from tests.support.networks import feeds, observed, plain_session

PARTS = {"ReduceMean", "Sub", "Pow", "Sqrt", "Div", "Mul", "Add"}
FORMS = ["pow", "product", "two subs", "no bias"]


def reduce_mean(chain: Chain, axes: Sequence[int], opset: int, first: str = "") -> str:
    if opset < 18:
        return chain.add("ReduceMean", first=first, axes=list(axes))
    name = f"axes{len(chain.nodes)}"
    chain.constants[name] = np.array(axes, np.int64)
    return chain.add("ReduceMean", name, first=first)


def with_norm(form: str = "pow", axes: Sequence[int] = (-1,), opset: int = 17, size: tuple[int, ...] = (8,)) -> Chain:
    """Between two convolutions."""
    chain = Chain((2, 4, 8, 8))
    x = chain.conv()
    mean = reduce_mean(chain, axes, opset)
    centred = chain.add("Sub", mean, first=x)
    if form == "product":
        chain.add("Mul", centred)
    else:
        chain.add("Pow", chain.constant(2))
    reduce_mean(chain, axes, opset)
    chain.add("Add", chain.constant(1e-5))
    root = chain.add("Sqrt")
    if form == "two subs":
        centred = chain.add("Sub", mean, first=x)
    chain.add("Div", root, first=centred)
    chain.add("Mul", chain.random(*size))
    if form != "no bias":
        chain.add("Add", chain.last, first=chain.random(*size))
    chain.conv()
    return chain


def kinds(proto: onnx.ModelProto) -> list[str]:
    """The kinds of ops that compute, without those that quantize."""
    return [node.op_type for node in proto.graph.node if not node.op_type.endswith("eLinear")]


@pytest.mark.parametrize("opset", [17, 18])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_one_op_that_computes_the_same(form: str, opset: int, tmp_path: Path) -> None:
    chain = with_norm(form, opset=opset)
    model = load(chain.save(tmp_path / "m.onnx", opset))
    backend, ranges, batch = OnnxRuntimeBackend("cpu", threads=1), observed(model), feeds(model)
    builder = backend.builder(model, ranges)
    for precision in (Precision.FP32, Precision.INT8):
        assignment = uniform(model, precision)
        proto = ir.to_proto(builder.lower(assignment))
        assert kinds(proto) == ["Conv", "LayerNormalization", "Conv"]
        norm = next(node for node in proto.graph.node if node.op_type == "LayerNormalization")
        assert norm.name == chain.nodes[-2].name
        apart = ir.to_proto(lower(model, assignment, ranges, backend.placement))
        results = [plain_session(each).run(None, batch)[0] for each in (apart, proto)]
        tolerance = 2 * float(np.ptp(results[0])) / 255 if precision is Precision.INT8 else 1e-4
        np.testing.assert_allclose(*results, rtol=1e-4, atol=tolerance)
        assert builder.probe(assignment).run(batch).keys() == {group.id for group in model.groups}
    engine = builder.build(builder.lower(assignment), tmp_path / "engine.onnx")
    assert {row.got for row in builder.audit(engine, assignment).rows} == {Precision.INT8}
    options = backend.device.session_options()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    backend.device.ort.InferenceSession(str(engine.path), options, providers=backend.device.providers())
    found = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert found.count("DequantizeLinear") == 2  # for the LayerNorm and for the output
    assert not PARTS & set(found)


def test_it_stays_written_out_where_the_opset_has_no_layer_normalization(tmp_path: Path) -> None:
    model = load(with_norm(opset=13).save(tmp_path / "m.onnx", 13))
    builder = OnnxRuntimeBackend("cpu", threads=1).builder(model, observed(model))
    for precision in (Precision.FP32, Precision.INT8):
        proto = ir.to_proto(builder.lower(uniform(model, precision)))
        onnx.checker.check_model(proto, full_check=True)
        assert "ReduceMean" in kinds(proto)


@pytest.mark.parametrize(
    ("axes", "size", "joined"),
    [
        ([-2, -1], (8, 8), True),
        ([3, 2], (8, 8), True),
        ([1], (4, 1, 1), False),
        ([-1], (1,), False),
        ([2], (8,), False),
    ],
)
def test_it_goes_over_the_last_axes(axes: list[int], size: tuple[int, ...], joined: bool, tmp_path: Path) -> None:
    model = load(with_norm(axes=axes, size=size).save(tmp_path / "m.onnx"))
    builder = OnnxRuntimeBackend("cpu", threads=1).builder(model, observed(model))
    proto = ir.to_proto(builder.lower(uniform(model, Precision.FP32)))
    assert ("LayerNormalization" in kinds(proto)) is joined
    results = [plain_session(each).run(None, feeds(model))[0] for each in (ir.to_proto(model.graph), proto)]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", range(1, 8))
@pytest.mark.parametrize("other", ["reader", "output"])
def test_parts_that_others_read_stay(other: str, place: int, tmp_path: Path) -> None:
    chain = with_norm()
    inner = chain.nodes[place].output[0]
    if other == "reader":
        chain.add("Add", chain.last, first=inner)
    path = chain.save(tmp_path / "m.onnx")
    if other == "output":
        proto = onnx.load(path)
        proto.graph.output.append(next(info for info in proto.graph.value_info if info.name == inner))
        onnx.save(proto, path)
    model = load(path)
    proto = ir.to_proto(OnnxRuntimeBackend("cpu").builder(model, observed(model)).lower(uniform(model, Precision.INT8)))
    assert "LayerNormalization" not in kinds(proto)
    plain_session(proto).run(None, feeds(model))
