"""What TensorRT says, read: the group that a refusal names, notes of its warnings, tensors that it keeps narrower."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import numpy as np
import onnx
import pytest

from evaluators.backends.tensorrt import api as tensorrt_api
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.engine import RefusedError
from search.errors import DataError
from search.graph.model import Model, load
from search.values import Assignment, Precision
from tests.support.assignments import THREE, uniform_and_mixed
from tests.support.command_line import DATABASE, ok, write_inputs
from tests.support.networks import Net, finish, loaded, observed, ranged, save
from tests.support.tensorrt.stand_in import V8, V10, standing_in

FP32, FP16, INT8 = THREE
HEAD = "Could not find any implementation for node"


def group_of(model: Model, node: str) -> str:
    return next(group.id for group in model.groups if node in group.nodes)


def asked(model: Model, **precisions: Precision) -> Assignment:
    """All FP32, but for groups named by a node with `.` for `__` and `/` for `_`."""
    changed = {group_of(model, n.replace("__", ".").replace("_", "/")): p for n, p in precisions.items()}
    return Assignment({group.id: FP32 for group in model.groups}).replace(changed)


# -- which group is meant ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "node"),
    [
        (f"10: {HEAD} {{ForeignNode[block.0/conv1...block.0/conv2]}}.", "block.0/conv2"),
        (f"10: {HEAD} {{ForeignNode[block.0/conv2...block.0/conv1]}}.", "block.0/conv2"),
        (f"10: {HEAD} {{ForeignNode[block.0/conv1/weight + ONNXTRT_Broadcast...block.0/conv2]}}.", "block.0/conv2"),
        (f"10: {HEAD} {{ForeignNode[onnx::Conv_7...block.0/conv1]}}.", "block.0/conv1"),
        (f"10: {HEAD} {{ForeignNode[block.0/conv1...onnx::Conv_7]}}.", "block.0/conv1"),
        (f"block.0/conv1: no tactic\n10: {HEAD} {{ForeignNode[block.0/conv2...stem]}}.", "block.0/conv1"),
        (f"10: {HEAD} {{ForeignNode[block.0/conv1]}}.", "block.0/conv1"),
        ("no kernel for block.0/conv1...", "block.0/conv1"),
    ],
)
def test_of_a_regions_two_ends_the_lower_is_meant(message: str, node: str) -> None:
    model = loaded("residual")
    mix = asked(model, block__0_conv1=FP16, block__0_conv2=INT8)
    assert tensorrt_api.named_group(message, model.groups, mix) == group_of(model, node)


def test_of_equal_ends_the_first_is_meant() -> None:
    model = loaded("residual")
    message = f"10: {HEAD} {{ForeignNode[block.0/conv2...block.0/conv1]}}."
    same = asked(model, block__0_conv1=INT8, block__0_conv2=INT8)
    for mix in (same, None):
        assert tensorrt_api.named_group(message, model.groups, mix) == group_of(model, "block.0/conv2")


def test_a_region_of_strangers_names_nobody() -> None:
    model = loaded("residual")
    assert tensorrt_api.named_group(f"{HEAD} {{ForeignNode[a...b]}}.", model.groups, None) is None


def test_the_builder_tells_which_end_of_a_region_to_demote() -> None:
    model = loaded("residual")
    mix = asked(model, block__0_conv1=FP16, block__0_conv2=INT8)

    def refuse(builder: object, network: object, config: object) -> None:
        logger = builder.logger  # type: ignore[attr-defined]
        logger.log(type(logger).ERROR, f"10: {HEAD} {{ForeignNode[block.0/conv1...block.0/conv2]}}.")

    with standing_in(V10) as engines:
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        engines.fake.behaviours["Builder.build_serialized_network"] = refuse
        with pytest.raises(RefusedError) as refused:
            builder.build(builder.lower(mix), Path("never"))
    assert refused.value.group == group_of(model, "block.0/conv2")


@pytest.mark.slow
@pytest.mark.parametrize(("version", "typing"), [(V8, "weak"), (V10, "strong")])
def test_a_search_learns_what_a_region_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, typing: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    monkeypatch.setenv("BITFRONT_TEST_TENSORRT", version)
    monkeypatch.setenv("BITFRONT_TEST_REGION", "fc,second,int8")  # fc may not run in INT8, so all INT8 has it in FP16
    inputs = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--backend", "tensorrt", "--typing", typing)
    ok("search", *inputs, "--trials", 6)
    shown = json.loads(ok("show", "s", 1, "--json"))
    assert (shown["status"], shown["role"]) == ("failed", "baseline:int8")
    assert shown["failure"]["message"] == f"10: {HEAD} {{ForeignNode[fc/weight...second]}}."
    with contextlib.closing(sqlite3.connect(DATABASE)) as database:
        marked = database.execute('select "group", precision from bf_choice where not buildable').fetchall()
        mixes = database.execute("select assignment, status from bf_evaluation where role = '' order by id").fetchall()
    assert marked == [("g001", INT8.id)]
    assert mixes
    assert all(json.loads(mix)["g001"] != "int8" and status == "ok" for mix, status in mixes)


# -- notes -------------------------------------------------------------------------------------------------------------

NORM = (
    "Running layernorm after self-attention in FP16 may cause overflow. Exporting the model to the latest available "
    "ONNX opset (later than opset 17) to use the INormalizationLayer can help with preserving accuracy."
)


def test_unlike_warnings_are_notes_of_their_own() -> None:
    found = tensorrt_api.notes_of(["TensorRT was linked against cuDNN 8.9", "Using kFASTER_DYNAMIC_SHAPES preview"])
    assert found == (
        "warning: TensorRT was linked against cuDNN 8.9",
        "warning: Using kFASTER_DYNAMIC_SHAPES preview",
    )


def test_warnings_that_differ_in_numbers_alone_are_one_note() -> None:
    found = tensorrt_api.notes_of([f"Skipping tactic 0x{n:08x}: {n} bytes" for n in range(40)] + [""])
    assert found == ("warning: Skipping tactic 0x00000000: 0 bytes (and 39 more of this kind)",)


def test_a_layernorm_in_fp16_has_a_name() -> None:
    listed = "Detected layernorm nodes in FP16: /blocks/norm1/ReduceMean, /blocks/norm2/ReduceMean"
    newer = "Running layernorm after self-attention with FP16 Reduce or Pow may cause overflow."
    assert tensorrt_api.notes_of([listed, NORM]) == (f"half-layernorm: {listed} (and 1 more of this kind)",)
    assert tensorrt_api.notes_of([newer]) == (f"half-layernorm: {newer}",)


def test_only_weights_that_are_cast_to_int32_are_said_to_be() -> None:
    cast = (
        "onnx2trt_utils.cpp:374: Your ONNX model has been generated with INT64 weights, while TensorRT does not "
        "natively support INT64. Attempting to cast down to INT32."
    )
    clamped = "onnx2trt_utils.cpp:400: One or more weights outside the range of INT32 was clamped"
    other = "INT64 shape tensors are slow"
    assert tensorrt_api.notes_of([cast]) == (f"int64-weights: {cast}",)
    assert tensorrt_api.notes_of([cast, clamped]) == (f"int64-weights: {cast} (and 1 more of this kind)",)
    assert tensorrt_api.notes_of([clamped]) == (f"int64-weights: {clamped}",)
    assert tensorrt_api.notes_of([other]) == (f"warning: {other}",)


def test_that_integers_are_bound_by_their_own_type_is_no_note() -> None:
    """A session's buffers have the engine's types, so there is nothing to make sure of."""
    said = ["ModelImporter.cpp:739: Make sure input ids has Int64 binding.", "Make sure output top has Int64 binding."]
    assert tensorrt_api.notes_of(said) == ()


def test_no_more_notes_than_a_person_reads_and_the_rest_is_counted() -> None:
    unlike = [f"warning of kind {letter}" for letter in "abcdefghijkl"]
    found = tensorrt_api.notes_of([*unlike, "Your ONNX model has INT64 weights", NORM])
    assert len(found) == 8
    assert [note.split(":")[0] for note in found[:2]] == ["int64-weights", "half-layernorm"]
    assert found[2:7] == tuple(f"warning: {text}" for text in unlike[:5])
    assert found[7] == "warning: 7 further warnings of other kinds"
    assert len(tensorrt_api.notes_of(unlike[:8])) == 8
    assert "further" not in tensorrt_api.notes_of(unlike[:8])[-1]


# -- InstanceNormalization ---------------------------------------------------------------------------------------------


def normalized(path: Path) -> Model:
    n = Net(0)
    x = n.conv("image", "first", 3, 8)
    scale, shift = n.const("scale", np.ones(8, np.float32)), n.const("shift", np.zeros(8, np.float32))
    x = n.op("InstanceNormalization", [x, scale, shift], "norm")
    n.head(x, 8)
    return load(save(n.model([4, 3, 8, 8], "logits", [4, 10]), path))


@pytest.mark.slow
def test_bindings_without_a_switch_for_instancenorm_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = normalized(tmp_path / "net.onnx")
    plain = loaded("residual")
    ranges = {id(model): observed(model), id(plain): ranged("residual")}
    with standing_in(V8) as engines:
        for has_switch in (True, False):
            if not has_switch:  # as the bindings of 8.6.0
                monkeypatch.delattr(engines.trt, "OnnxParserFlag")
            for network in (model, plain):
                builder = TensorRTBackend("cuda").builder(network, ranges[id(network)])
                engine = builder.build(builder.lower(uniform_and_mixed(network)[0]), tmp_path / "model.plan")
                said = [note for note in engine.notes if note.startswith("instancenorm: ")]
                assert len(said) == (network is model and not has_switch)


# -- integers ----------------------------------------------------------------------------------------------------------


def with_ids(path: Path) -> Model:
    """Looks rows of a table up by INT64 numbers, and multiplies."""
    n = Net(0)
    rows = n.op("Gather", [n.random("table", 50, 16, fan_in=16), "ids"], "look-up")
    n.op("MatMul", [rows, n.random("product/weight", 16, 16, fan_in=16)], "product")
    proto = finish(n, {"ids": (4,)}, {"product_out": (4, 16)}, ids=onnx.TensorProto.INT64)
    return load(save(proto, path))


@pytest.mark.parametrize(("version", "held"), [(V8, "int32"), (V10, "int64")])
def test_numbers_that_an_engine_cannot_hold_are_refused(tmp_path: Path, version: str, held: str) -> None:
    model = with_ids(tmp_path / "net.onnx")
    with standing_in(version):
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, observed(model))
        engine = builder.build(builder.lower(Assignment({g.id: FP32 for g in model.groups})), tmp_path / "a.plan")
        session = builder.load(engine.path)
        assert session.types["ids"] == held
        session.run({"ids": np.array([0, 1, 2**31 - 1, -(2**31)])})
        assert session._host["ids"].tolist() == [0, 1, 2**31 - 1, -(2**31)]
        for value in (2**40 + 1, -(2**31) - 1):
            given = {"ids": np.array([0, 1, 2, value])}
            for ask in (session.run, session.bind):
                if held == "int64":
                    ask(given)
                    continue
                with pytest.raises(DataError, match=rf"its input ids is int32, and the data hold {value}, which"):
                    ask(given)
        session.close()
