"""GELU behind INT8 layers is one op, and computes what its parts do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.builder import join_gelu
from evaluators.lowering.lower import lower
from search.graph.model import load
from search.values import Precision
from tests.support.assignments import uniform
from tests.support.chains import Chain
from tests.support.networks import observed, plain_session


@pytest.fixture(params=["scaled last", "scaled first", "scaled gate"])
def chain(request: pytest.FixtureRequest) -> Chain:
    made = Chain((2, 4, 8, 8))
    for _ in range(2):
        x = made.conv(size=3, pads=[1, 1, 1, 1])
        made.add("Div", made.constant(2**0.5))
        made.add("Erf")
        gate = made.add("Add", made.constant(1))
        if request.param == "scaled last":
            made.add("Mul", x)
            made.add("Mul", made.constant(0.5))
        elif request.param == "scaled first":
            made.add("Mul", made.constant(0.5), first=x)
            made.add("Mul", gate)
        else:
            made.add("Mul", made.constant(0.5))
            made.add("Mul", x)
    made.conv()
    return made


def test_it_is_one_op_with_the_name_of_the_last_and_computes_the_same(chain: Chain, tmp_path: Path) -> None:
    model = load(chain.save(tmp_path / "m.onnx"))
    backend, ranges = OnnxRuntimeBackend("cpu", threads=1), observed(model)
    assignment = uniform(model, Precision.INT8)
    builder = backend.builder(model, ranges)
    joined = ir.to_proto(builder.lower(assignment))
    onnx.checker.check_model(joined, full_check=True)
    found = {node.name for node in joined.graph.node if node.op_type == "Gelu"}
    assert len(found) == 2
    assert found <= {node.name for node in chain.nodes if node.op_type == "Mul"}
    assert not any(node.op_type == "Erf" for node in joined.graph.node)
    apart = ir.to_proto(lower(model, assignment, ranges, backend.placement))
    x = np.random.default_rng(0).normal(size=chain.shape).astype(np.float32)
    results = [plain_session(proto).run(None, {"x": x})[0] for proto in (apart, joined)]
    np.testing.assert_allclose(*results, atol=2 * float(np.ptp(results[0])) / 255)
    engine = builder.build(builder.lower(assignment), tmp_path / "engine.onnx")
    assert {row.got for row in builder.audit(engine, assignment).rows} == {Precision.INT8}


def test_in_floats_it_is_left_to_the_runtime(chain: Chain, tmp_path: Path) -> None:
    model = load(chain.save(tmp_path / "m.onnx"))
    lowered = lower(model, uniform(model, Precision.FP32), observed(model), OnnxRuntimeBackend("cpu").placement)
    assert "Gelu" not in {node.op_type for node in join_gelu(lowered).graph}
