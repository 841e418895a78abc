"""A SiLU in floats behind a layer in INT8 is one op, and computes what its parts do; between two it has codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.lower import lower
from search.graph.model import load
from search.values import Assignment, Precision
from tests.support.chains import Chain
from tests.support.networks import observed, plain_session


def with_silus(*, is_gate_first: bool) -> Chain:
    made = Chain((2, 4, 8, 8))
    for _ in range(2):
        x = made.conv(size=3, pads=[1, 1, 1, 1])
        gate = made.add("Sigmoid", first=x)
        made.add("Mul", x if is_gate_first else gate, first=gate if is_gate_first else x)
    made.conv()
    return made


@pytest.mark.parametrize("is_gate_first", [False, True])
@pytest.mark.parametrize("codes", ["100", "110", "111", "000", "010"])  # which convolutions run in INT8
def test_it_is_one_op_where_it_is_in_floats_behind_codes(codes: str, is_gate_first: bool, tmp_path: Path) -> None:
    chain = with_silus(is_gate_first=is_gate_first)
    model = load(chain.save(tmp_path / "m.onnx"))
    backend, ranges = OnnxRuntimeBackend("cpu", threads=1), observed(model)
    choice = {"0": Precision.FP32, "1": Precision.INT8}
    assignment = Assignment({group.id: choice[code] for group, code in zip(model.groups, codes, strict=True)})
    builder = backend.builder(model, ranges)
    proto = ir.to_proto(builder.lower(assignment))
    onnx.checker.check_model(proto, full_check=True)
    joined = [node.name for node in proto.graph.node if node.op_type == "QuickGelu"]
    assert len(joined) == sum(codes[i : i + 2] == "10" for i in range(2))
    assert set(joined) <= {node.name for node in chain.nodes if node.op_type == "Mul"}
    apart = ir.to_proto(lower(model, assignment, ranges, backend.placement))
    x = np.random.default_rng(0).normal(size=model.inputs[0].shape).astype(np.float32)
    wanted, found = (np.asarray(plain_session(each).run(None, {"x": x})[0]) for each in (apart, proto))
    np.testing.assert_allclose(found, wanted, atol=2 * float(np.ptp(wanted)) / 255)
    engine = builder.build(builder.lower(assignment), tmp_path / "engine.onnx")
    assert [row.got for row in builder.audit(engine, assignment).rows] == [choice[code] for code in codes]
