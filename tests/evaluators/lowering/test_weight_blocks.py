"""Products with weights alone as codes: what engines compute of them, which kernels they take, who may have them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.backends.openvino.backend import OpenVinoBackend
from evaluators.backends.registry import open_backend
from evaluators.diagnose.distributions import weight_divergence
from evaluators.engine_files.onnx_layers import read_layers
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CUDA, TENSORRT
from evaluators.lowering.weight_blocks import block_scales, codes_in_blocks
from evaluators.lowering.weights import holdable_scales
from search.graph.model import Model, load
from search.space.capability_file import read_capability_rules
from search.space.choices import make_space
from search.values import Answer, Assignment, Capability, Precision, TensorRange
from tests.support.command_line import invoke, ok
from tests.support.networks import Net, feeds, finish, loaded, observed, row_products, save, sqnr_db

FP32, W8, WF8, INT8, W4 = Precision.FP32, Precision.W8, Precision.WF8, Precision.INT8, Precision.W4
K, N = 128, 48
FORMS = {
    "plain": {},
    "transposed": {"transB": 1},
    "scaled": {"alpha": 0.5, "beta": -2.0},
    "matmul": {},
}
TURNED = {"transA": 1}


def one_product(form: str, rows: int = 5, depth: int = K) -> onnx.ModelProto:
    n = Net(5)
    attributes = FORMS.get(form, TURNED)
    weight = n.random("w", *((N, depth) if "transB" in attributes else (depth, N)), fan_in=depth)
    bias = n.const("b", n.rng.standard_normal(N).astype(np.float32))
    if form == "matmul":
        n.op("Add", [n.op("MatMul", ["x", weight], "product"), bias], "y")
    else:
        n.op("Gemm", ["x", weight, bias], "product", **attributes)
    n.nodes[-1].output[0] = "y"
    return finish(n, {"x": [depth, rows] if "transA" in attributes else [rows, depth]}, {"y": [rows, N]})


def by_hand(
    form: str, precision: Precision, proto: onnx.ModelProto, x: NDArray[np.float32], side: Precision = FP32
) -> NDArray[np.float64]:
    """The product with the weight that the codes stand for, in float64."""
    weight, bias = (onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer)
    attributes = FORMS[form]
    weight = weight.T if "transB" in attributes else weight
    scales = holdable_scales(
        block_scales(weight, precision.block(K), precision), replace(ONNXRUNTIME_CUDA, float_side=side)
    )
    read = codes_in_blocks(weight, scales, precision) * np.repeat(scales, precision.block(K), 0).astype(np.float64)
    found: NDArray[np.float64] = x @ read * attributes.get("alpha", 1.0) + bias * attributes.get("beta", 1.0)
    return found


def both() -> list[OnnxRuntimeBackend | OpenVinoBackend]:
    return [OnnxRuntimeBackend(), OpenVinoBackend()]


@pytest.mark.parametrize("precision", [W8, W4], ids=lambda p: p.label)
@pytest.mark.parametrize("form", FORMS)
def test_engines_run_it_as_asked_and_compute_what_onnx_words(tmp_path: Path, form: str, precision: Precision) -> None:
    """OpenVINO's kernels read floats; ONNX Runtime's round what they read to eight bits in each block."""
    proto = one_product(form)
    model = load(save(proto, tmp_path / "model.onnx"))
    mix, x = Assignment({"g000": precision}), feeds(model, 1)["x"]
    expected = by_hand(form, precision, proto, x)
    for backend, least_db in zip(both(), (40, 100), strict=True):
        builder = backend.builder(model, observed(model))
        engine = builder.build(builder.lower(mix), tmp_path / "engine.onnx")
        (row,) = builder.audit(engine, mix).rows
        assert (row.got, row.answer) == (precision, Answer.OBEYED)
        found = np.asarray(builder.load(engine.path).run({"x": x})["y"])
        assert sqnr_db(expected, found) > least_db
        emulated = Emulator(OnnxRuntimeBackend(), backend.placement).open(
            lower(model, mix, observed(model), backend.placement)
        )
        assert sqnr_db(found, emulated.run({"x": x})["y"]) > 100
    placement = replace(TENSORRT, float_side=FP32)
    as_written = lower(model, mix, observed(model), placement)
    emulated = Emulator(OnnxRuntimeBackend(), placement).open(as_written).run({"x": x})["y"]
    assert sqnr_db(expected, emulated) > 100
    onnx.checker.check_model(ir.to_proto(as_written), full_check=True)


@pytest.mark.parametrize("form", FORMS)
def test_floats_of_eight_bits_are_emulated_as_onnx_words_them(tmp_path: Path, form: str) -> None:
    """No kernel of the processor computes in them; what ONNX Runtime then runs is what the file says, in FP16 too."""
    proto = one_product(form)
    model = load(save(proto, tmp_path / "model.onnx"))
    mix, x = Assignment({"g000": WF8}), feeds(model, 1)["x"]
    for side, least_db in ((FP32, 100), (Precision.FP16, 55)):
        expected = by_hand(form, WF8, proto, x, side)
        placement = replace(ONNXRUNTIME_CUDA, float_side=side)
        lowered = lower(model, mix, observed(model), placement)
        onnx.checker.check_model(ir.to_proto(lowered), full_check=True)
        (layer,) = (each for each in read_layers(ir.to_proto(lowered))[1] if each.weighted)
        assert layer.precision is WF8
        emulated = Emulator(OnnxRuntimeBackend(), placement).open(spelled_out(lowered)).run({"x": x})["y"]
        assert sqnr_db(expected, emulated) > least_db
    exact = OnnxRuntimeBackend().float_session(model).run({"x": x})["y"]
    assert 25 < sqnr_db(exact, expected) < 40


def test_scales_of_floats_make_the_largest_weight_the_largest_code() -> None:
    matrix = np.random.default_rng(0).standard_normal((256, 8)).astype(np.float32)
    scales = block_scales(matrix, 128, WF8)
    assert np.allclose(scales, np.abs(matrix.reshape(2, 128, 8)).max(axis=1) / 448, rtol=1e-6)
    codes = codes_in_blocks(matrix, scales, WF8)
    assert codes.dtype == ml_dtypes.float8_e4m3fn
    assert np.abs(codes.astype(np.float32)).reshape(2, 128, 8).max(axis=1).tolist() == [[448] * 8] * 2
    zeros = np.zeros((128, 2), np.float32)
    assert not codes_in_blocks(zeros, block_scales(zeros, 128, WF8), WF8).astype(np.float32).any()


@pytest.mark.parametrize("shape", [(5, N), (5, 1), (1,), (), None], ids=str)
def test_what_a_gemm_adds_may_have_any_shape(tmp_path: Path, shape: tuple[int, ...] | None) -> None:
    """The kernel of ONNX Runtime adds vectors alone; None is a bias that is computed."""
    n = Net(5)
    bias = "c" if shape is None else n.const("c", np.asarray(n.rng.standard_normal(shape), np.float32))
    n.op("Gemm", ["x", n.random("w", K, N, fan_in=K), bias], "product")
    n.nodes[-1].output[0] = "y"
    inputs: dict[str, list[int | str | None]] = {"x": [5, K], **({"c": [5, N]} if shape is None else {})}
    model = load(save(finish(n, inputs, {"y": [5, N]}), tmp_path / "model.onnx"))
    backend, mix = OnnxRuntimeBackend(), Assignment({"g000": W8})
    builder = backend.builder(model, observed(model))
    engine = builder.build(builder.lower(mix), tmp_path / "engine.onnx")
    (row,) = builder.audit(engine, mix).rows
    assert (row.got, row.answer) == (W8, Answer.OBEYED)
    exact, found = (
        each.run(feeds(model, 1))["y"] for each in (backend.float_session(model), builder.load(engine.path))
    )
    assert sqnr_db(exact, found) > 30


def test_four_bits_cut_off_what_loses_least() -> None:
    matrix = np.random.default_rng(0).standard_normal((256, 32)).astype(np.float32)
    scales = block_scales(matrix, 32, W4)
    plain = np.abs(matrix.reshape(-1, 32, 32)).max(1) / 7
    lost = [
        np.square(codes_in_blocks(matrix, each, W4) * np.repeat(each, 32, 0) - matrix).sum() for each in (scales, plain)
    ]
    assert lost[0] < 0.85 * lost[1]
    assert codes_in_blocks(matrix, scales, W4).min() == -8
    zeros = np.zeros((32, 2), np.float32)
    assert block_scales(zeros, 32, W4).tolist() == [[1.0, 1.0]]


def choices_of(proto: onnx.ModelProto, path: Path) -> dict[Precision, str]:
    model = load(save(proto, path))
    return {c.precision: c.reason for c in make_space(model, OnnxRuntimeBackend().capability()).choices["g000"]}


def test_floats_of_eight_bits_are_for_what_half_precision_holds(tmp_path: Path) -> None:
    """Their kernel multiplies FP16."""
    model = load(save(one_product("plain"), tmp_path / "model.onnx"))
    runs, ranges = Capability({W8: frozenset({"Gemm"}), WF8: frozenset({"Gemm"})}), observed(model)
    wide = replace(ranges, observed={**ranges.observed, "x": TensorRange(-7e4, 1.0)})
    for seen, reason in ((ranges, ""), (wide, "tensor x reaches 7e+04, above WF8's largest number 65504")):
        reasons = {c.precision: c.reason for c in make_space(model, runs, seen).choices["g000"]}
        assert (reasons[WF8], reasons[W8]) == (reason, "")


def test_it_is_offered_where_few_rows_are_multiplied_and_blocks_divide_k(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for form in FORMS:
        few = choices_of(one_product(form), path)
        assert few[W8] == few[W4] == ""
        many = choices_of(one_product(form, rows=17), path)
        assert many[W4] == "it multiplies 17 rows at once, and above 16 its weights are not what takes time"
        assert many[INT8] == ""
    odd = choices_of(one_product("plain", depth=72), path)
    assert odd[W4] == "blocks of 32 do not divide its K of 72"
    assert odd[W8] == "blocks of 128 or 64 or 32 do not divide its K of 72"
    turned = choices_of(one_product("turned"), path)
    assert turned[W8] == "its first factor is transposed, which kernels for blocks do not take"
    assert [W8.block(depth) for depth in (384, 128, 96, 32)] == [128, 64, 32, 0]


@pytest.mark.slow
def test_every_mix_of_all_precisions_runs_as_asked(tmp_path: Path) -> None:
    model = loaded("row_products")
    rng, x = np.random.default_rng(0), feeds(model, 1)
    for backend in both():
        space = make_space(model, backend.capability(), observed(model))
        assert {W8, W4} <= set(space.precisions)
        assert {*space.coarsest.values()} == {INT8}
        builder = backend.builder(model, observed(model))
        exact = backend.float_session(model).run(x)["y"]
        tried = [rng.choice(np.array(space.precisions, object), 3) for _ in range(16)]
        for mix in [
            space.nearest({group.id: precision for group, precision in zip(model.groups, some, strict=True)})
            for some in tried
        ]:
            engine = builder.build(builder.lower(mix), tmp_path / "engine.onnx")
            assert {row.answer for row in builder.audit(engine, mix).rows} == {Answer.OBEYED}
            assert sqnr_db(exact, builder.load(engine.path).run(x)["y"]) > 8


def test_files_tell_of_it_and_stand_for_the_float_model(tmp_path: Path) -> None:
    model, placement = loaded("row_products"), OnnxRuntimeBackend().placement
    mix = Assignment({"g000": W8, "g001": W4, "g002": FP32})
    lowered = lower(model, mix, observed(model), placement)
    again = load(save(ir.to_proto(lowered), tmp_path / "lowered.onnx"))
    x = feeds(model, 1)
    exact, found = (OnnxRuntimeBackend().float_session(each).run(x)["y"] for each in (model, again))
    assert 10 < sqnr_db(exact, found) < 60
    assert [layer.precision for layer in read_layers(ir.to_proto(lowered))[1] if layer.weighted] == [W8, W4, FP32]
    builder = OnnxRuntimeBackend().builder(model, observed(model))
    builder.build(builder.lower(mix), tmp_path / "engine.onnx")
    optimized = onnx.load(str(tmp_path / "engine.onnx.optimized.onnx"), load_external_data=False)
    assert [layer.precision for layer in read_layers(optimized)[1] if layer.weighted] == [W8, W4, FP32]


@pytest.mark.parametrize("form", ["plain", "transposed", "matmul"])
def test_what_weights_lose_is_told(tmp_path: Path, form: str) -> None:
    model: Model = load(save(one_product(form), tmp_path / "model.onnx"))
    lost = [
        weight_divergence(model.graph, lower(model, Assignment({"g000": each}), observed(model), TENSORRT), ["product"])
        for each in (W8, WF8, W4)
    ]
    assert None not in lost
    assert min(lost[0], lost[1]) > 0
    assert max(lost[0], lost[1]) < lost[2]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_search_mixes_it_and_its_export_runs(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(row_products(), tmp_path / "model.onnx")
    np.savez("data.npz", image=np.random.default_rng(2).standard_normal((60, 64)).astype(np.float32))
    given = ("--study", "s", "--trials", 12, "--backend", backend)
    ok("search", "model.onnx", "--data", "data.npz", *given)
    numbers = [row["trial"] for row in json.loads(ok("front", "s", "--all", "--json"))["rows"]]
    shown = {trial: json.loads(ok("show", "s", trial, "--json")) for trial in numbers}
    baselines = {each["role"]: trial for trial, each in shown.items() if each["role"]}
    assert {W8.role, W4.role, INT8.role} <= baselines.keys()
    for each in shown.values():
        assert {group["answer"] for group in each["groups"]} == {"obeyed"}
    sizes = [shown[baselines[precision.role]]["size_bytes"] for precision in (FP32, W8, W4)]
    assert sizes[0] > 2.5 * sizes[1] > 3.5 * sizes[2]
    ok("export", "s", "--trial", baselines[W4.role], "--out", "engine")
    assert "w4" in ok("inspect", "engine")
    ok("report", "s", "--out", "report.html")
    assert 'data-label="precision">w4<' in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_other_tools_get_it_as_floats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(row_products(), tmp_path / "model.onnx")
    np.savez("data.npz", image=np.random.default_rng(2).standard_normal((60, 64)).astype(np.float32))
    given = ("--study", "s", "--trials", 3, "--backend", "onnxruntime", "--keep", "up=w4")
    ok("search", "model.onnx", "--data", "data.npz", *given)
    roles = {json.loads(ok("show", "s", trial, "--json"))["role"]: trial for trial in range(3)}
    tools = [word for tool in ("modelopt", "polygraphy", "qat", "nncf") for word in ("--for", tool)]
    told = invoke("export", "s", "--trial", roles[INT8.role], "--out", "engine", *tools).output
    assert "1 of the layers run in w4 in the mix, and are handed over as fp32" in told
    layers = json.loads(Path("engine/handover/qat/qat.json").read_text(encoding="utf-8"))["layers"]
    assert [layer["precision"] for layer in layers] == ["fp32", "int8", "int8"]


def test_a_file_that_leaves_w8_fewer_rows_leaves_w4_as_it_was(tmp_path: Path) -> None:
    model = load(save(one_product("plain", rows=4), tmp_path / "model.onnx"))
    rules = read_capability_rules("[w8]\nmost_rows = 1\n[int8-dynamic]\nmin_matmul_size = 64\n", "npu", "npu.toml")
    backend = open_backend("onnxruntime", "cpu", {}, rules)
    reasons = {choice.precision: choice.reason for choice in make_space(model, backend.capability()).choices["g000"]}
    assert reasons[W8].startswith("it multiplies 4 rows at once, and above 1 its weights")
    assert reasons[Precision.INT8_DYNAMIC] == "48 K or N is below 64, where INT8-DYNAMIC gains nothing on this target"
    assert (reasons[W4], reasons[INT8]) == ("", "")
