"""BF16 in lowered graphs: written as its own type, audited as such, and emulated where nothing computes it."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from evaluators.backends.onnxruntime.audit import audit_rows
from evaluators.backends.tensorrt.audit import audit_rows as audit_layers
from evaluators.backends.tensorrt.audit import parse
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from search.values import Precision
from tests.support.assignments import mixes, uniform
from tests.support.networks import feeds, loaded, plain_session, ranged, sqnr_db

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
LEAST_DB, MOST_DB = 25, 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "placement"),
    [
        *((name, TENSORRT) for name in ("residual", "mobile", "unet", "transformer", "branches", "products")),
        *((name, ONNXRUNTIME_CPU) for name in ("residual", "products")),
    ],
)
def test_every_mix_with_it_is_valid_and_near_the_float_model(network: str, placement: Placement) -> None:
    model, batch = loaded(network), feeds(loaded(network))
    exact = plain_session(ir.to_proto(model.graph)).run(None, batch)
    for assignment in mixes(model, [FP32, FP16, BF16, INT8] if placement is TENSORRT else [FP32, BF16, INT8]):
        lowered = lower(model, assignment, ranged(network), placement)
        onnx.checker.check_model(ir.to_proto(lowered), full_check=True)
        found = plain_session(ir.to_proto(spelled_out(lowered))).run(None, batch)
        assert all(sqnr_db(a, b) > 5 for a, b in zip(exact, found, strict=True))


def test_groups_compute_in_it_and_the_audit_sees_it() -> None:
    model = loaded("residual")
    for assignment in mixes(model, [FP32, FP16, BF16]):
        lowered = ir.to_proto(lower(model, assignment, ranged("residual"), TENSORRT))
        types = {each.name: each.data_type for each in lowered.graph.initializer}
        weights = {node.name: types[node.input[1]] for node in lowered.graph.node if node.op_type in ("Conv", "Gemm")}
        wanted = {FP32: TensorProto.FLOAT, FP16: TensorProto.FLOAT16, BF16: TensorProto.BFLOAT16}
        assert weights == {anchor: wanted[assignment[g.id]] for g in model.groups for anchor in g.anchors}
        assert [row.got for row in audit_rows(lowered.graph, model, assignment)] == list(assignment.values())


def test_products_run_in_it_as_written_and_as_emulated() -> None:
    """ONNX's own evaluator computes BF16 itself."""
    model, batch = loaded("products"), feeds(loaded("products"))
    exact = plain_session(ir.to_proto(model.graph)).run(None, batch)[0]
    lowered = lower(model, uniform(model, BF16), ranged("products"), TENSORRT)
    real = ReferenceEvaluator(ir.to_proto(lowered)).run(None, batch)[0]
    emulated = plain_session(ir.to_proto(spelled_out(lowered))).run(None, batch)[0]
    assert real.dtype == emulated.dtype == np.float32
    for found in (real, emulated):
        assert LEAST_DB < sqnr_db(exact, found) < MOST_DB


def test_it_is_read_from_the_layers_of_a_tensorrt_engine() -> None:
    model = loaded("residual")
    group = model.groups[0]
    tensor = {"Name": "x", "Format/Datatype": "Row major linear BF16"}
    layer = {"Name": group.name, "LayerType": "CaskConvolution", "Inputs": [tensor], "Outputs": [tensor]}
    listed = {"Metadata": f"[ONNX Layer: {group.name}]", "TacticName": "sm80_xmma_fprop_bf16bf16_bf16f32_f32"}
    layers = parse(json.dumps({"Layers": [{**layer, **listed, "Weights": {"Type": "BFloat16", "Count": 9}}]}))
    assert audit_layers(layers, [group], {group.id: BF16})[0].got is BF16
    without = parse(json.dumps({"Layers": [{**layer, **listed}]}))
    assert audit_layers(without, [group], {group.id: BF16})[0].got is BF16
