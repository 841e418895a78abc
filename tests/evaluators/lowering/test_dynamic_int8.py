"""Products of dynamic INT8: what ONNX Runtime computes of them, which kernels it takes, and who may have them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.calibration.scales import weight_scales
from evaluators.diagnose.distributions import weight_divergence
from evaluators.engine_files.onnx_layers import read_layers
from evaluators.lowering.float_types import why_not_written
from evaluators.lowering.lower import lower
from search.errors import ConfigError
from search.graph.model import Model, load
from search.space.capability_file import read_capability_rules
from search.space.choices import make_space
from search.values import Answer, Assignment, Correction, Precision, Ranges, Recovery
from tests.support.assignments import mixes
from tests.support.command_line import invoke, ok, write_inputs
from tests.support.networks import Net, feeds, finish, loaded, observed, ranged, save, sqnr_db, transformer

FP32, DYNAMIC, INT8 = Precision.FP32, Precision.INT8_DYNAMIC, Precision.INT8
K, N, M = 48, 24, 10
FORMS = {
    "plain": {},
    "transposed": {"transB": 1},
    "scaled": {"alpha": 0.5, "beta": -2.0},
    "turned": {"transA": 1},
}


def one_product(form: str) -> onnx.ModelProto:
    n = Net(5)
    attributes = FORMS.get(form, {})
    shape = (N, K) if "transB" in attributes else (K, N)
    weight, bias = n.random("w", *shape, fan_in=K), n.const("b", n.rng.standard_normal(N).astype(np.float32))
    read = [K, M] if "transA" in attributes else [M, K]
    if form == "matmul":
        n.op("Add", [n.op("MatMul", ["x", weight], "product"), bias], "y")
    else:
        n.op("Gemm", ["x", weight, bias], "product", **attributes)
    n.nodes[-1].output[0] = "y"
    return finish(n, {"x": read}, {"y": [M, N]})


def run(
    model: Model, ranges: Ranges, assignment: Assignment, folder: Path, x: NDArray[np.float32]
) -> NDArray[np.generic]:
    backend = OnnxRuntimeBackend()
    builder, out = backend.builder(model, ranges), folder / "engine.onnx"
    audit = builder.audit(builder.build(builder.lower(assignment), out), assignment)
    assert {row.answer for row in audit.rows} == {Answer.OBEYED}
    return np.asarray(builder.load(out).run({model.inputs[0].name: x})[model.outputs[0].name])


def by_hand(form: str, proto: onnx.ModelProto, x: NDArray[np.float32]) -> NDArray[np.float64]:
    """DynamicQuantizeLinear and MatMulInteger as ONNX words them, in float64 from the codes on."""
    weight, bias = (onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer)
    attributes = FORMS.get(form, {})
    weight = weight.T if "transB" in attributes else weight
    x = x.T if "transA" in attributes else x
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = np.float32((np.float32(high) - np.float32(low)) / np.float32(255))
    zero = np.clip(np.rint(-np.float32(low) / step), 0, 255)
    codes = np.clip(np.rint(x / step) + zero, 0, 255) - zero
    scales = weight_scales(weight, 1, 8, OnnxRuntimeBackend().placement.pair_limit)
    product = codes.astype(np.float64) @ np.rint(weight / scales) * np.float64(step) * scales
    found: NDArray[np.float64] = product * attributes.get("alpha", 1.0) + bias * attributes.get("beta", 1.0)
    return found


@pytest.mark.parametrize("form", [*FORMS, "matmul"])
def test_engines_compute_what_onnx_words(tmp_path: Path, form: str) -> None:
    proto = one_product(form)
    model = load(save(proto, tmp_path / "model.onnx"))
    assignment = Assignment(dict.fromkeys([group.id for group in model.groups], DYNAMIC))
    x = 3 * feeds(model, 1)["x"]
    found = run(model, observed(model), assignment, tmp_path, x)
    expected = by_hand(form, proto, x)
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_its_products_need_no_ranges(tmp_path: Path) -> None:
    model = load(save(one_product("plain"), tmp_path / "model.onnx"))
    lowered = lower(model, Assignment({"g000": DYNAMIC}), Ranges("none", {}, {}, 0), OnnxRuntimeBackend().placement)
    onnx.checker.check_model(ir.to_proto(lowered), full_check=True)
    offered = make_space(model, OnnxRuntimeBackend().capability(), Ranges("none", {}, {}, 0)).precisions
    assert offered == (FP32, DYNAMIC)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["transformer", "text_encoder", "products"])
def test_every_mix_runs_as_asked_and_near_the_float_model(tmp_path: Path, network: str) -> None:
    model, ranges, backend = loaded(network), ranged(network), OnnxRuntimeBackend()
    space, builder, batch = (
        make_space(model, backend.capability(), ranges),
        backend.builder(model, ranges),
        feeds(model),
    )
    exact = backend.float_session(model).run(batch)
    for mix in dict.fromkeys(space.nearest(mix) for mix in mixes(model, [FP32, DYNAMIC, INT8])):
        engine = builder.build(builder.lower(mix), tmp_path / "engine.onnx")
        rows = builder.audit(engine, mix).rows
        assert [row for row in rows if row.answer not in (Answer.OBEYED, Answer.OPAQUE)] == []
        made = builder.load(engine.path).run(batch)
        assert all(sqnr_db(exact[name], made[name]) > 20 for name in exact if exact[name].dtype == np.float32)


def test_it_survives_inputs_that_calibration_did_not_see(tmp_path: Path) -> None:
    """Static ranges cut off what is beyond them; one far token makes the steps of all others coarser, and no more."""
    model = load(save(one_product("plain"), tmp_path / "model.onnx"))
    ranges, usual = observed(model), feeds(model, 9)["x"]
    outlier = usual.copy()
    outlier[0] *= 20
    losses = {}
    for name, x in (("usual", usual), ("larger", 3 * usual), ("outlier", outlier)):
        exact = OnnxRuntimeBackend().float_session(model).run({"x": x})["y"]
        for precision in (DYNAMIC, INT8):
            made = run(model, ranges, Assignment({"g000": precision}), tmp_path, x)
            losses[name, precision] = -sqnr_db(exact, made)
    assert losses["usual", DYNAMIC] < -30
    assert losses["larger", DYNAMIC] < -30 < losses["larger", INT8]
    assert losses["outlier", DYNAMIC] < -30 < losses["outlier", INT8]


def test_corrections_of_static_int8_leave_it_alone(tmp_path: Path) -> None:
    """They are for the error of static ranges, and were measured to add to that of dynamic ones."""
    model = load(save(one_product("transposed"), tmp_path / "model.onnx"))
    rounding = np.zeros((N, K), np.int8)
    rounding[0, 0] = 1
    corrections = {"product": Correction(offset=np.ones(N, np.float32), rounding=rounding)}
    x, plain = feeds(model)["x"], observed(model)
    corrected = replace(plain, recovery=Recovery(corrections=corrections))
    moved = {}
    for precision in (DYNAMIC, INT8):
        mix = Assignment({"g000": precision})
        moved[precision] = run(model, corrected, mix, tmp_path, x) - run(model, plain, mix, tmp_path, x)
    assert not moved[DYNAMIC].any()
    assert moved[INT8].all()


def test_only_products_with_a_constant_matrix_are_offered_it() -> None:
    capability = OnnxRuntimeBackend().capability()
    space = make_space(loaded("products"), capability, ranged("products"))
    batched = next(group.id for group in loaded("products").groups if group.name == "m2")
    reasons = {choice.precision: choice.reason for choice in space.choices[batched]}
    assert (reasons[DYNAMIC], reasons[INT8]) == ("its weight is no matrix, but has 3 axes", "")
    space = make_space(loaded("transformer"), capability, ranged("transformer"))
    why = {
        group.name: choice.reason
        for group in loaded("transformer").groups
        for choice in space.choices[group.id]
        if choice.precision is DYNAMIC
    }
    assert why["patch"] == "the target has no INT8-DYNAMIC kernel for Conv"
    assert "both factors are activations" in why["layer.0/attn/qk"]
    assert [name for name, reason in why.items() if not reason][:3] == [
        "layer.0/attn/q",
        "layer.0/attn/k",
        "layer.0/attn/v",
    ]
    assert "int8-dynamic" in space.baselines


def test_networks_of_convolutions_are_spared_it() -> None:
    """Its uniform assignment is nearly FP32 there, and its head is hardly any of the work."""
    capability = OnnxRuntimeBackend().capability()
    space = make_space(loaded("residual"), capability, ranged("residual"))
    assert space.precisions == (FP32, INT8)
    assert list(space.baselines) == ["fp32", "int8"]
    head = next(group.id for group in loaded("residual").groups if group.op == "Gemm")
    why = next(choice.reason for choice in space.choices[head] if choice.precision is DYNAMIC)
    assert why.endswith("of the multiply-adds, below 5%: it gains nothing")


def test_targets_that_do_not_run_it_refuse_it() -> None:
    rules = read_capability_rules('[int8-dynamic]\nops = ["MatMul"]\n', "mine", "mine.toml")
    for target in ("tensorrt", "onnxruntime-cuda"):
        with pytest.raises(ConfigError, match=r"lists MatMul, but .* runs nothing in INT8-DYNAMIC"):
            rules.narrow(shipped_capability(target), target)
    assert why_not_written(DYNAMIC, "Conv") == "codes for the operator Conv: it writes them for Gemm, MatMul"
    assert why_not_written(DYNAMIC, "MatMul") == ""


def test_files_tell_which_products_are_dynamic(tmp_path: Path) -> None:
    """Also before they are optimized, and beside Q/DQ. Read as a model, the file is the float one again."""
    model, placement = loaded("products"), OnnxRuntimeBackend().placement
    products = [group.id for group in model.groups if group.name in ("m1", "g1")]
    mix = Assignment({group.id: DYNAMIC if group.id in products else INT8 for group in model.groups})
    lowered = lower(model, mix, ranged("products"), placement)
    kind, layers = read_layers(ir.to_proto(lowered))
    assert kind == "ONNX with Q/DQ"
    assert {layer.nodes[0] for layer in layers if layer.precision is DYNAMIC} == {"m1", "g1"}
    assert "INT8" in {layer.precision.name for layer in layers if layer.precision}
    again = load(save(ir.to_proto(lowered), tmp_path / "lowered.onnx"))
    assert {group.op for group in again.groups} == {group.op for group in model.groups} | {"MatMul"}
    batch, session = feeds(model), OnnxRuntimeBackend()
    exact, found = (session.float_session(each).run(batch) for each in (model, again))
    assert all(sqnr_db(exact[name], found[name]) > 25 for name in exact)


@pytest.mark.parametrize("form", ["plain", "transposed", "matmul"])
def test_what_weights_lose_is_told_of_it_too(tmp_path: Path, form: str) -> None:
    model, placement = load(save(one_product(form), tmp_path / "model.onnx")), OnnxRuntimeBackend().placement
    lost = [
        weight_divergence(
            model.graph, lower(model, Assignment({"g000": each}), observed(model), placement), ["product"]
        )
        for each in (DYNAMIC, INT8)
    ]
    assert lost[0] is not None
    assert lost[0] == pytest.approx(lost[1], abs=1e-3)


@pytest.mark.slow
def test_a_search_chooses_it_and_its_export_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", transformer())
    said = ok(
        "search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 8, "--backend", "onnxruntime"
    )
    assert "INT8-DYNAMIC" in said
    trials = {shown["role"]: shown for trial in range(3) for shown in [json.loads(ok("show", "s", trial, "--json"))]}
    assert {group["answer"] for group in trials[DYNAMIC.role]["groups"]} <= {"obeyed", "opaque"}
    assert '"int8-dynamic"' in ok("sensitivity", "s", "--json")
    told = invoke(
        "export", "s", "--trial", trials[DYNAMIC.role]["trial"], "--out", "engine", "--for", "nncf", "--for", "qat"
    ).output
    assert "layers run in int8-dynamic in the mix. They are handed over as int8 on calibrated ranges" in told
    quantized = json.loads(Path("engine/handover/qat/qat.json").read_text(encoding="utf-8"))["layers"]
    assert {layer["precision"] for layer in quantized if layer["op"] == "MatMul" and layer["weight_name"]} == {"int8"}
    layers = ok("inspect", "engine")
    assert "int8-dynamic" in layers
    ok("report", "s", "--out", "report.html")
    assert DYNAMIC.colour in Path("report.html").read_text(encoding="utf-8")
