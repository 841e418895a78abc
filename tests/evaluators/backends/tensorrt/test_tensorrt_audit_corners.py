"""What the audit makes of odd node names, of constants among a kernel's inputs, and of several spellings of its JSON.

Layers are shaped after what others have published of TensorRT 10: the verbose log in Torch-TensorRT's user guide on
mixed precision (`__mye116_dconst`, `..._constantFloat`, in any order with the data), trtexec's log of AlexNet in FP16
(a product with `_alpha` and `_beta`), an INT8 product of a Q/DQ network (`..._by_fusion_tactic`), and NVIDIA's page on
migrating IEngineInspector from 10.x to 11.x.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.backends.tensorrt.audit import EngineLayer, _tactic_precision, audit_rows, layer_times, parse
from search.graph.grouping import Group
from search.values import Answer, Assignment, AuditRow, Precision
from tests.support.networks import loaded
from tests.support.paths import DATA

FP32, FP16, BF16, INT8 = Precision.FP32, Precision.FP16, Precision.BF16, Precision.INT8
OBEYED, NOT_OBEYED, OPAQUE = Answer.OBEYED, Answer.NOT_OBEYED, Answer.OPAQUE
RECORDED = sorted(DATA.glob("tensorrt_8_6_*.json")) + sorted(DATA.glob("tensorrt_1*_shape.json"))
I8_TACTIC = "sm80_xmma_gemm_i8f32_i8i32_f32_tn_n_tilesize32x64x64_stage6_warpsize2x2x1_tensor16x8x32_by_fusion_tactic"


def group_of(*anchors: str, nodes: tuple[str, ...] = ()) -> Group:
    first = loaded("residual").groups[0]
    return replace(first, id="g000", name=anchors[0], anchors=anchors, nodes=(*anchors, *nodes))


def tensor(name: str, words: str, sizes: list[int] | None = None) -> dict[str, Any]:
    return {"Name": name, "Dimensions": sizes or [1, 40, 256], "Format/Datatype": words}


def layer(metadata: str, *inputs: dict[str, Any], kind: str = "gemm", **more: Any) -> dict[str, Any]:
    return {"Name": "n_myl0_4", "LayerType": kind, "Inputs": list(inputs), "Outputs": [], "Metadata": metadata, **more}


def audited(asked: Precision, group: Group, *layers: dict[str, Any]) -> AuditRow:
    (row,) = audit_rows(parse(json.dumps({"Layers": layers})), [group], Assignment({group.id: asked}))
    return row


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", ["\x1e", "\x1f", "", " ", "\x1e\x1f", ", "])
@pytest.mark.parametrize("name", ["m[0]/Conv", "m[0]", "[0]", "a]b", "a] b", "m[0][1]/Conv", "a]", "a + b", "x[ONNX"])
def test_a_name_with_brackets_is_read_whole(name: str, between: str) -> None:
    group = group_of(name, nodes=("m[1]/Relu",))
    others = f"[ONNX Layer: w/dq]{between}[ONNX Layer: {name}]{between}[ONNX Layer: m[1]/Relu]"
    row = audited(INT8, group, layer(others, tensor("x", "Half")))
    assert (row.answer, row.got) == (NOT_OBEYED, FP16)
    assert row.details["beside"].endswith("Relu: in the kernel")


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_names_are_read_as_they_were(path: Path) -> None:
    """Known or not: in none of the recorded engines is a name in doubt."""
    text = path.read_text(encoding="utf-8")
    layers = parse(json.loads(text)["inspector"] if "inspector" in json.loads(text, strict=False) else text)
    names = {part for each in layers for part in each.metadata.split("\x1e") if part}
    assert all(name.startswith("[ONNX Layer: ") and name.endswith("]") for name in names)
    known = {name[len("[ONNX Layer: ") : -1] for name in names}
    assert len(known) > 1 or "fp16" in path.stem
    for each in layers:
        expected = {part[len("[ONNX Layer: ") : -1] for part in each.metadata.split("\x1e") if part}
        assert each.nodes() == each.nodes(known) == (expected or each.nodes())


def test_a_name_is_not_taken_for_the_beginning_of_another() -> None:
    metadata = "[ONNX Layer: m[0]/Conv]\x1e[ONNX Layer: m[0]/Relu]"
    assert EngineLayer("n", "gemm", metadata).nodes({"m[0", "m[0]"}) == {"m[0]/Conv", "m[0]/Relu"}


@pytest.mark.parametrize("after", [" [Local Function: f]", "[Local Function: f]", ", of f", " | f"])
def test_what_follows_a_name_is_no_part_of_it(after: str) -> None:
    group = group_of("m[0]/Conv")
    row = audited(INT8, group, layer(f"[ONNX Layer: m[0]/Conv]{after}", tensor("x", "Half")))
    assert row.answer is NOT_OBEYED


def test_where_two_known_names_fit_the_group_is_opaque() -> None:
    one, other = group_of("a"), replace(group_of("a] b"), id="g001")
    layers = parse(json.dumps({"Layers": [layer("[ONNX Layer: a] b] [f] c", tensor("x", "Half"))]}))
    rows = audit_rows(layers, [one, other], Assignment({"g000": FP16, "g001": FP16}))
    assert [row.answer for row in rows] == [OPAQUE, OPAQUE]


@pytest.mark.parametrize("name", ["a/Conv + a/Relu || b/Conv + b/Relu", "b/Conv", "a/Conv || b/Conv"])
def test_without_metadata_the_layers_name_tells(name: str) -> None:
    """Two convolutions of one input, side by side, are one layer: `a || b`."""
    row = audited(INT8, group_of("b/Conv"), {**layer("", tensor("x", "Half")), "Name": name})
    assert row.answer is NOT_OBEYED


def test_times_go_to_groups_whose_names_have_brackets() -> None:
    group = group_of("m[0]/Conv")
    layers = parse(json.dumps({"Layers": [layer("[ONNX Layer: m[0]/Conv]", tensor("x", "Half"))]}))
    (timed,) = layer_times({"n_myl0_4": 1.0}, layers, [group])
    assert timed.group == "g000"
    (unlisted,) = layer_times({"m[0]/Conv + m[0]/Relu": 1.0}, (), [group])
    assert unlisted.group == "g000"


# -- what a kernel without weights computes in -------------------------------------------------------------------------

HALF, INT = tensor("__myln_k_arg__bb1_2", "Half"), tensor("/x/q", "Int8")
SCALE = tensor("__mye116_dconst", "Float", [1, 256])
BIAS = tensor("linear1/addmm_constant_0 _ linear1/addmm_broadcast_constantFloat", "Float", [1, 256])
ALPHA, BETA = (tensor(f"__mye574/classifier/classifier_6/Gemm_{f}", "Float", [1]) for f in ("alpha", "beta"))
UNKNOWN = tensor("/x/scale", "Float", [1, 256])
UNTOLD = tensor("x", "N/A due to dynamic shapes")  # of every tensor of an engine with dynamic shapes in TensorRT 8.6.0


@pytest.mark.parametrize(
    ("inputs", "tactic", "got"),
    [
        ([HALF], "", FP16),
        ([HALF, HALF], "", FP16),
        ([SCALE, INT], "", INT8),
        ([BIAS, SCALE, INT], "", INT8),
        ([ALPHA, BETA, HALF], "", FP16),
        ([HALF, tensor("__mye595_dconst", "Half", [256, 10]), ALPHA, BETA], "cublas_gemvx_f16f16_f32_f32_tn", FP16),
        ([tensor("ids", "Int32"), HALF], "", FP16),
        # What is no recognised constant leaves it to the tactic.
        ([UNKNOWN, INT], I8_TACTIC, INT8),
        ([INT, UNKNOWN], I8_TACTIC, INT8),
        ([INT, INT, UNKNOWN], "sm80_xmma_gemm_i8i8_i8i32_f32_tn_n", INT8),
        ([UNKNOWN, HALF], "sm80_xmma_gemm_f16f16_f16f16_f16_nn", FP16),
        ([UNKNOWN, HALF], "sm80_xmma_gemm_f32f32_tf32f32_f32_nn", FP32),
        ([SCALE], "sm80_xmma_gemm_i8i8_i8i32_f32_tn_n", INT8),
        ([UNTOLD, UNTOLD], "sm80_xmma_gemm_f16f16_f16f16_f16_nn", FP16),
        # Nobody can tell.
        ([UNKNOWN, INT], "", None),
        ([UNKNOWN, INT], "sm80_xmma_gemm_f16f32_f32f32_f32_nn", None),
        ([UNKNOWN, INT], "sm80_xmma_gemm_f16f16_f16f16_f16_nn", None),
        ([UNKNOWN, INT], "sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", None),
        ([SCALE, INT], "sm80_xmma_gemm_f32f32_tf32f32_f32_nn", None),
        ([tensor("__mye595_dconst", "Float", [256, 10]), INT], "", None),
        ([tensor("x", "BFloat16")], "sm80_xmma_gemm_f16f16_f16f16_f16_nn", BF16),
        ([tensor("x", "FP4"), HALF], "", None),
        ([SCALE], "", None),
        ([UNTOLD, UNTOLD], "", None),
        ([UNTOLD], "sm80_xmma_gemm_f16f32_f32f32_f32_nn", None),
        ([], "", None),
    ],
)
def test_what_a_kernel_without_weights_computes_in(inputs: list[Any], tactic: str, got: Precision | None) -> None:
    row = audited(INT8 if got is None else got, group_of("fc"), layer("[ONNX Layer: fc]", *inputs, TacticName=tactic))
    assert (row.answer, row.got) == ((OPAQUE, None) if got is None else (OBEYED, got))


@pytest.mark.parametrize(
    ("inputs", "asked", "got"),
    [([HALF], INT8, FP16), ([UNKNOWN, INT], FP16, FP32), ([INT, UNKNOWN], FP16, INT8), ([SCALE, HALF], INT8, FP16)],
)
def test_where_nothing_is_of_what_was_asked_it_was_not_obeyed(
    inputs: list[Any], asked: Precision, got: Precision
) -> None:
    row = audited(asked, group_of("fc"), layer("[ONNX Layer: fc]", *inputs))
    assert (row.answer, row.got) == (NOT_OBEYED, got)


def test_a_kernel_whose_precision_cannot_be_told_is_shown() -> None:
    row = audited(INT8, group_of("fc"), layer("[ONNX Layer: fc]", UNKNOWN, INT, kind="fusion", TacticName="t"))
    assert (row.kernel, row.details["tactic"], row.details["inputs"]) == ("fusion", "t", "Float; Int8")


def test_constants_of_the_engine_are_followed_through_what_only_changes_their_form() -> None:
    made = {"Name": "c", "LayerType": "Constant", "Inputs": [], "Outputs": [tensor("c", "Float", [1, 256])]}
    moved = {"Name": "r", "LayerType": "Reformat", "Inputs": made["Outputs"], "Outputs": [tensor("s", "Float", [256])]}
    data = {"Name": "r2", "LayerType": "Reformat", "Inputs": [INT], "Outputs": [tensor("y", "Float", [1, 256])]}
    product = layer("[ONNX Layer: fc]", tensor("s", "Float", [256]), INT)
    assert audited(INT8, group_of("fc"), made, moved, product).answer is OBEYED
    product["Inputs"][0] = tensor("y", "Float", [1, 256])
    assert audited(INT8, group_of("fc"), made, data, product).answer is OPAQUE


def test_weights_tell_before_all_else() -> None:
    fused = layer("[ONNX Layer: fc]", HALF, Weights={"Type": "Int8", "Count": 9}, TacticName="f16f16_f16f16")
    assert audited(INT8, group_of("fc"), fused).answer is OBEYED


@pytest.mark.parametrize(
    ("asked", "weights", "read", "got"),
    [
        (Precision.FP8, "FP8", "FP8", Precision.FP8),
        (Precision.W4, "Int4", "Half", Precision.W4),
        (Precision.W8, "Int8", "Half", Precision.W8),
        (Precision.W8, "Int8", "Int8", INT8),
        (INT8, "Int8", "Half", INT8),
        (Precision.W8, "Half", "Half", FP16),
    ],
)
def test_formats_of_strong_typing(asked: Precision, weights: str, read: str, got: Precision) -> None:
    """The words are those of TensorRT's data types; no engine with them has been listed for this project yet."""
    found = layer("[ONNX Layer: fc]", tensor("x", read), Weights={"Type": weights, "Count": 9})
    assert audited(asked, group_of("fc"), found).got is got


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_tactics_of_recorded_engines_never_contradict_their_weights(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    layers = parse(json.loads(text)["inspector"] if "inspector" in json.loads(text, strict=False) else text)
    told = [(each.weights, _tactic_precision(each.tactic)) for each in layers if each.weights is not None]
    assert told
    assert all(tactic == weights for weights, tactic in told if tactic is not None)
    assert any(tactic is not None for _, tactic in told)


# -- spellings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "said",
    [
        {"Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format"},
        {"Format/DataType": "Int8"},
        {"Format": "Row major linear format (kLINEAR)", "Datatype": "Int8"},
        {"Format": "Row major linear FP32 format (kLINEAR)", "DataType": "Int8"},
        {"DataType": "Int8"},
    ],
)
def test_a_tensors_type_is_read_however_its_key_is_spelled(said: dict[str, str]) -> None:
    row = audited(INT8, group_of("fc"), layer("[ONNX Layer: fc]", {"Name": "x", "Dimensions": [4, 8], **said}))
    assert row.answer is OBEYED
    assert "Int8" in row.details["inputs"]


def test_the_type_counts_where_the_format_names_another() -> None:
    said = {"Name": "x", "Format": "Row major linear FP32 format (kLINEAR)", "DataType": "Half"}
    assert audited(FP32, group_of("fc"), layer("[ONNX Layer: fc]", said)).got is FP16
