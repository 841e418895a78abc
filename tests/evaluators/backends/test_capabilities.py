"""What the shipped capabilities files say, and a backend under a user's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.backends.registry import open_backend
from search.errors import ConfigError
from search.space.capability_file import read_capability_rules
from search.space.capability_rules import CapabilityRules
from search.space.choices import make_space
from search.values import ATTENTION, FREE, Precision
from tests.support.networks import loaded, ranged

FP16, INT8 = Precision.FP16, Precision.INT8


def rules_of(text: str) -> CapabilityRules:
    return read_capability_rules(text, "npu", "--capabilities npu.toml")


def test_the_shipped_files_say_what_the_backends_run() -> None:
    every = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
    products = {"Gemm", "MatMul"}
    alone = dict.fromkeys([Precision.W8, Precision.W4], products)
    dynamic = {Precision.INT8_DYNAMIC: products}
    assert shipped_capability("onnxruntime-cpu").ops == {INT8: {ATTENTION, "Conv", *products}, **dynamic, **alone}
    cuda = shipped_capability("onnxruntime-cuda")
    assert cuda.ops == {FP16: every, Precision.BF16: products, **alone, Precision.WF8: products}
    assert [cuda.size(precision, "most_rows") for precision in (Precision.W8, Precision.W4, Precision.WF8)] == [
        2,
        4,
        16,
    ]
    less = every - {"ConvTranspose"}
    floats = {FP16: every | set(FREE), Precision.BF16: less | set(FREE), Precision.FP8: less}
    newer, older = shipped_capability("tensorrt"), shipped_capability("tensorrt", "tensorrt-8", "tensorrt-weak")
    assert newer.ops == {**floats, INT8: {ATTENTION, *every}, **alone}
    assert {newer.size(p, "min_matmul_size") for p in newer.ops if p.quantized} == {16}
    weak = {precision: ops for precision, ops in older.ops.items() if ops}
    sizes = older.size(INT8, "min_matmul_size"), older.size(FP16, "min_matmul_size")
    assert (weak, *sizes) == ({FP16: every, INT8: every - {"ConvTranspose"}}, 16, 0)
    assert older.why_not(INT8, "ConvTranspose") == "the target has no INT8 kernel for ConvTranspose"


def test_the_digest_is_part_of_the_target() -> None:
    plain = open_backend("onnxruntime", "cpu", {}).target()
    rules = rules_of('[int8]\nwithout = ["Gemm"]\n')
    ruled = open_backend("onnxruntime", "cpu", {}, rules).target()
    assert ruled.differences(plain) == [f"options.capabilities: {rules.digest[:12]} against None"]


def test_what_the_file_takes_away_is_never_offered_and_the_layer_says_why() -> None:
    model = loaded("residual")
    backend = open_backend("onnxruntime", "cpu", {}, rules_of('[int8]\nwithout = ["Conv"]\n'))
    choices = make_space(model, backend.capability()).choices
    int8 = {g.op: c for g in model.groups for c in choices[g.id] if c.precision is INT8}
    assert not int8["Conv"].offered
    assert int8["Conv"].reason == "the capabilities file npu offers no INT8 to Conv"


def test_symmetric_engines_of_onnx_runtime_have_their_zero_point_in_the_middle_and_run_in_int8(tmp_path: Path) -> None:
    model, ranges = loaded("residual"), ranged("residual")
    backend = open_backend("onnxruntime", "cpu", {}, rules_of("[int8]\nsymmetric = true\n"))
    assert backend.placement.symmetric
    builder = backend.builder(model, ranges)
    int8 = make_space(model, backend.capability(), ranges).uniform(INT8)
    lowered = builder.lower(int8)
    zeros = [
        value.const_value.numpy()
        for node in lowered.graph
        if node.op_type == "QuantizeLinear" and (value := node.inputs[2]) is not None and value.const_value is not None
    ]
    assert {(str(zero.dtype), int(zero)) for zero in zeros} == {("uint8", 128)}
    engine = builder.build(lowered, tmp_path / "engine.onnx")
    rows = builder.audit(engine, int8).rows
    assert rows
    assert all(row.got is row.asked for row in rows), rows


def test_a_backend_that_quantizes_otherwise_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"symmetric = false, but backend fake .* always quantizes activations with zero point 0"
    ):
        open_backend("fake", None, {}, rules_of("[int8]\nsymmetric = false\n"))
    assert open_backend("fake", None, {}, rules_of("[int8]\nsymmetric = true\n")).placement.symmetric
