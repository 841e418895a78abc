"""`--decide softmax` and the like: layers without weights have a type of their own where the target has it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.lowering.float_types import float_type, spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CUDA, TENSORRT, Placement
from evaluators.process.job import Job
from evaluators.process.tasks.open_model import OpenModel
from search.graph.model import Model
from search.space.choices import make_space
from search.values import FREE, Assignment, Capability, Precision, Target
from studies.show.layer_table import Layers, rule_rows
from tests.support.command_line import ok
from tests.support.networks import NETWORKS, ODD, feeds, images, loaded, ranged, save, session_of, sqnr_db, transformer

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
WEIGHTED = frozenset({"Conv", "Gemm", "MatMul"})
FAKE = [w for o in ("fake-precision=fp16", "fake-precision=int8", "fake-emulated=on") for w in ("--backend-option", o)]
EVERY = [op.lower() for op in FREE]


def free(model: Model) -> list[str]:
    return [group.id for group in model.groups if group.id.startswith("n")]


def test_layers_that_none_takes_in_are_groups_and_the_others_keep_their_names() -> None:
    model = loaded("transformer")
    decided = model.with_decisions(EVERY)
    ops = [group.op for group in decided.groups if group.id in free(decided)]
    assert {op: ops.count(op) for op in ops} == {"LayerNormalization": 5, "Softmax": 2}
    assert {g.id: g.nodes for g in decided.groups}.items() >= {g.id: g.nodes for g in model.groups}.items()
    only = model.with_decisions(["softmax"])
    assert {group.op for group in only.groups if group.id in free(only)} == {"Softmax"}
    assert model.with_decisions([]) is not decided
    resized = loaded("unet").with_decisions(["resize"])
    assert [group.op for group in resized.groups if group.id in free(resized)].count("Resize") >= 1


@pytest.mark.parametrize("ops", [WEIGHTED | set(FREE), WEIGHTED], ids=["there", "not there"])
def test_floats_are_offered_where_the_target_has_them_and_change_the_digest(ops: frozenset[str]) -> None:
    model = loaded("transformer")
    runs = Capability({FP16: ops, BF16: ops, INT8: WEIGHTED})
    decided = make_space(model.with_decisions(EVERY), runs, ranged("transformer"))
    offered = {c.precision for group in free(model.with_decisions(EVERY)) for c in decided.choices[group] if c.offered}
    assert offered == ({FP32, FP16, BF16} if "Softmax" in ops else {FP32})
    reasons = {c.reason for group in free(model.with_decisions(EVERY)) for c in decided.choices[group] if not c.offered}
    assert "the target has no INT8 kernel for Softmax" in reasons
    assert decided.digest != make_space(model, runs, ranged("transformer")).digest


@pytest.mark.parametrize("precision", [FP16, BF16], ids=lambda p: p.label)
def test_each_is_written_in_its_type(precision: Precision) -> None:
    model = loaded("transformer").with_decisions(EVERY)
    chosen = free(model)[::2]
    mix = Assignment({g.id: precision if g.id in chosen else INT8 if g.weights else FP32 for g in model.groups})
    low = lower(model, mix, ranged("transformer"), TENSORRT)
    wanted = ir.DataType.from_numpy(np.dtype(precision.dtype))
    for group in model.groups:
        if group.id in free(model):
            node = low.graph.node(group.anchors[0])
            types = {node.outputs[0].dtype, *(value.dtype for value in node.inputs if value is not None)}
            assert types == {wanted if group.id in chosen else ir.DataType.FLOAT}
    if precision is FP16:
        exact, rough = (session_of(ir.to_proto(each)).run(None, feeds(model))[0] for each in (model.graph, low))
        assert sqnr_db(exact, rough) > 20


def test_the_evaluator_process_knows_what_is_decided(tmp_path: Path) -> None:
    """Else recovery and ranges are those of another space."""
    job = Job(str(save(transformer(), tmp_path / "net.onnx")), "", str(tmp_path), decide=("attention", "softmax"))
    opened = OpenModel(job, lambda event, value: None)
    assert {group.pinned for group in opened.user_model.groups} == {""}
    assert [group.op for group in opened.model.groups].count("Softmax") == 2


def test_strong_typing_offers_them_and_weak_typing_does_not() -> None:
    strong, weak = shipped_capability("tensorrt"), shipped_capability("tensorrt", "tensorrt-weak")
    assert all(not strong.why_not(precision, op) for precision in (FP16, BF16) for op in FREE)
    assert all(weak.why_not(precision, op) for precision in (FP16, BF16) for op in FREE)
    assert not weak.why_not(FP16, "Conv")


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("text_encoder", {"LayerNormalization": (1, "fp32")}),
        ("masked", {"LayerNormalization": (3, "fp32"), "Softmax": (1, "fp32")}),
        ("unet", {"Resize": (1, "as its neighbours")}),
    ],
)
def test_inspect_lists_them_with_their_type_and_how_to_decide(
    network: str, expected: dict[str, tuple[int, str]], tmp_path: Path
) -> None:
    path = save({**NETWORKS, **ODD}[network](), tmp_path / "net.onnx")
    said = ok("inspect", path, "--backend", "fake", *FAKE)
    rows = json.loads(ok("inspect", path, "--backend", "fake", *FAKE, "--json"))["by_rule"]
    assert Counter((row["op"], row["runs_in"]) for row in rows) == {
        (op, runs_in): count for op, (count, runs_in) in expected.items()
    }
    for op in expected:
        told = f"may be decided: --decide {op.lower()}"
        assert told in said
        assert {row["why"].partition("; ")[2] for row in rows if row["op"] == op} == {told}
    decide = [word for op in expected for word in ("--decide", op.lower())]
    assert json.loads(ok("inspect", path, "--backend", "fake", *FAKE, *decide, "--json"))["by_rule"] == []


def test_inspect_says_where_none_of_them_can_be_decided(tmp_path: Path) -> None:
    path = save(transformer(), tmp_path / "net.onnx")
    said = ok("inspect", path, "--backend", "onnxruntime")
    assert "the target has no other float type" in said
    assert "--decide" not in said
    (tmp_path / "npu.toml").write_text('name = "npu"\n[fp16]\nwithout = ["Softmax"]\n')
    file = ("--capabilities", tmp_path / "npu.toml")
    rows = json.loads(ok("inspect", path, "--backend", "fake", *FAKE, *file, "--json"))["by_rule"]
    assert {row["why"] for row in rows if row["op"] == "Softmax"} == {
        "sums over an axis stay in it; the capabilities file npu offers no FP16 to Softmax"
    }


@pytest.mark.parametrize(
    ("placement", "narrow"),
    [(ONNXRUNTIME_CUDA, {"LayerNormalization", "Softmax"}), (TENSORRT, set())],
    ids=["cuda", "tensorrt"],
)
@pytest.mark.parametrize("precision", [FP16, BF16], ids=lambda p: p.label)
def test_what_sums_in_fp32_by_itself_needs_no_casts(
    placement: Placement, precision: Precision, narrow: set[str]
) -> None:
    model = loaded("transformer")
    mix = Assignment({group.id: precision for group in model.groups})
    lowered = lower(model, mix, ranged("transformer"), placement)
    types = {(node.op_type, node.outputs[0].dtype) for node in lowered.graph if node.op_type in FREE}
    dtype = float_type(precision)
    for op in ("LayerNormalization", "Softmax"):
        assert {kind for name, kind in types if name == op} == {dtype if op in narrow else ir.DataType.FLOAT}, op
    outputs = [session_of(ir.to_proto(each)).run(None, feeds(model)) for each in (spelled_out(lowered), model.graph)]
    assert min(sqnr_db(exact, rounded) for rounded, exact in zip(*outputs, strict=True)) > (
        50 if precision is FP16 else 30
    )
    target = Target("any", "any", {}, {}, "median", relative=False)
    space = make_space(model, Capability({precision: WEIGHTED}), ranged("transformer"))
    rules = rule_rows(Layers(model, space, target, Capability({precision: WEIGHTED}), placement))
    assert {row["op"] for row in rules if row["runs_in"] == "as its neighbours"} == narrow


def test_with_weak_typing_their_types_are_the_engine_s() -> None:
    model, capability = loaded("transformer"), shipped_capability("tensorrt", "tensorrt-weak")
    target = Target("tensorrt", "GPU", {}, {"typing": "weak"}, "median", relative=False)
    rows = rule_rows(Layers(model, make_space(model, capability), target, capability, TENSORRT))
    assert {(row["runs_in"], row["why"]) for row in rows} == {("any type", "with weak typing the engine chooses")}


@pytest.mark.slow
def test_a_search_decides_on_them_and_shows_what_came_of_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(transformer(), tmp_path / "net.onnx")
    np.savez("data.npz", image=images(64))
    decide = [word for op in ("softmax", "layernormalization") for word in ("--decide", op)]
    common = ("--backend", "fake", *FAKE)
    told = json.loads(ok("inspect", "net.onnx", *common, *decide, "--json"))
    rows = [row for row in told["groups"] if row["op"] in ("Softmax", "LayerNormalization")]
    assert len(rows) == 7
    ok(
        "search",
        "net.onnx",
        "--data",
        "data.npz",
        "--metric",
        "sqnr",
        "--trials",
        "6",
        "--study",
        "s",
        *common,
        *decide,
    )
    trials = json.loads(ok("front", "s", "--all", "--json"))["rows"]
    shown = json.loads(ok("show", "s", str(trials[-1]["trial"]), "--json"))
    mine = [row for row in shown["groups"] if row["op"] in ("Softmax", "LayerNormalization")]
    assert len(mine) == 7
    assert {row["answer"] for row in mine} == {"obeyed"}


def test_inspect_says_once_what_holds_for_all_layers_of_an_op_type(tmp_path: Path) -> None:
    path, why = save(NETWORKS["residual"](), tmp_path / "net.onnx"), "the target has no W8 kernel for Conv"
    said = ok("inspect", path, "--backend", "onnxruntime")
    assert said.count(why) == 1
    assert f"w8            {why}" in said.partition("What no layer of an op type may run in:")[2]
    rows = json.loads(ok("inspect", path, "--backend", "onnxruntime", "--json"))["groups"]
    convolutions = [row for row in rows if row["op"] == "Conv"]
    assert len(convolutions) > 1
    assert {row["why_not"]["w8"] for row in convolutions} == {why}
