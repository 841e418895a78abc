"""`--decide attention`: products of activations may be INT8 where the target has it, and not otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT
from search.space.choices import make_space
from search.values import ATTENTION, Assignment, Capability, Precision
from tests.support.command_line import ok
from tests.support.networks import feeds, loaded, ranged, save, session_of, sqnr_db, transformer

INT8, FP32 = Precision.INT8, Precision.FP32
PRODUCTS = frozenset({"Gemm", "MatMul"})


@pytest.mark.parametrize(("ops", "decided", "offered"), [
    (PRODUCTS | {ATTENTION}, True, 4), (PRODUCTS | {ATTENTION}, False, 0), (PRODUCTS, True, 0),
])  # fmt: skip
def test_it_is_offered_where_it_is_asked_for_and_there(ops: frozenset[str], decided: bool, offered: int) -> None:
    model = loaded("transformer").with_decisions(["attention"]) if decided else loaded("transformer")
    space = make_space(model, Capability({INT8: ops}), ranged("transformer"))
    products = [group.id for group in model.groups if not group.weights]
    assert sum(space.uniform(INT8)[group] is INT8 for group in products) == offered
    assert len(products) == 4


def test_it_changes_the_digest_of_the_space() -> None:
    model, runs = loaded("transformer"), Capability({INT8: PRODUCTS | {ATTENTION}})
    assert make_space(model, runs).digest != make_space(model.with_decisions(["attention"]), runs).digest


@pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, TENSORRT], ids=lambda each: each.name)
def test_both_factors_are_read_from_codes(placement: object) -> None:
    model = loaded("transformer")
    attention = {group.id for group in model.groups if not group.weights}
    mix = Assignment({group.id: INT8 if group.id in attention else FP32 for group in model.groups})
    low = lower(model, mix, ranged("transformer"), placement)  # type: ignore[arg-type]
    for group in model.groups:
        makers = [v.producer() for v in low.graph.node(group.anchors[0]).inputs[:2] if v is not None]
        kinds = {maker.op_type for maker in makers if maker is not None}
        assert (kinds == {"DequantizeLinear"}) == (group.id in attention)
    exact, rough = (session_of(ir.to_proto(each)).run(None, feeds(model))[0] for each in (model.graph, low))
    assert 20 < sqnr_db(exact, rough) < 80


@pytest.mark.slow
def test_the_processor_runs_it_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(transformer(), tmp_path / "net.onnx")
    shape = onnx.load("net.onnx").graph.input[0].type.tensor_type.shape.dim
    import numpy as np

    rows = np.random.default_rng(0).normal(size=(40, *(d.dim_value for d in shape[1:]))).astype(np.float32)
    np.savez("data.npz", **{onnx.load("net.onnx").graph.input[0].name: rows})
    common = ("net.onnx", "--data", "data.npz", "--metric", "sqnr", "--assign", "all=int8", "--recover", "none")
    told = json.loads(ok("evaluate", *common, "--sensitivity-time", "1s", "--decide", "attention", "--json"))
    assert {(row["asked"], row["answer"]) for row in told["groups"]} == {("int8", "obeyed")}
