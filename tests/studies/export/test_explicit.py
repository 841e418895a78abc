"""A mix that weak typing found, written out as Q/DQ and Cast, from a model file and an old plan alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from evaluators.calibration import cache
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.int8.plan import quantized_tensors
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_TWIN
from search.graph.model import load
from search.values import Precision
from studies.export.explicit import explicit_graph
from tests.support.assignments import uniform
from tests.support.command_line import invoke, ok, write_inputs
from tests.support.networks import feeds, loaded, observed, ranged, residual_cnn, session_of, sqnr_db
from tests.support.paths import DATA
from tests.support.silu_networks import silu_network

MODEL = ("export", "in/model.onnx", "--out", "twin")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in", residual_cnn())
    (tmp_path / "old.cache").write_text(cache.write(ranged("residual")))
    return tmp_path


def written() -> tuple[onnx.ModelProto, dict[str, str]]:
    return onnx.load("twin/model.onnx"), json.loads(Path("twin/mix.json").read_text(encoding="utf-8"))


def test_the_layers_and_the_cache_of_an_old_plan_become_an_explicit_file() -> None:
    recorded = json.loads((DATA / "tensorrt_8_6_residual_mixed.json").read_text(), strict=False)
    Path("layers.json").write_text(recorded["inspector"], encoding="utf-8")
    ok(*MODEL, "--assign", "layers.json", "--calibration-cache", "old.cache", "--typing", "strong")
    proto, mix = written()
    groups = {group.anchors[0]: group.id for group in loaded("residual").groups}
    assert {groups[name]: label for name, label in mix.items()} == recorded["assignment"]
    makers = {name: node for node in proto.graph.node for name in node.output}
    conv = {node.name: node for node in proto.graph.node}
    reads = {name: makers[conv[name].input[1]].op_type for name in mix if conv[name].input[1] in makers}
    assert reads == dict.fromkeys([name for name, label in mix.items() if label == "int8"], "DequantizeLinear")
    constants = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    assert {constants[conv[name].input[1]].dtype.name for name, label in mix.items() if label == "fp16"} == {"float16"}


def test_a_cache_alone_says_where_int8_is_and_with_what_scale() -> None:
    said = ok(*MODEL, "--assign", "old.cache")
    assert "6 int8, 1 fp16" in said
    proto, _ = written()
    constants = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    quantize = next(node for node in proto.graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "image")
    assert constants[quantize.input[1]] == pytest.approx(
        cache.read_file(Path("old.cache"))["image"] / 127, rel=1e-3
    )  # half precision
    again = ok(
        "export", "in/model.onnx", "--out", "again", "--assign", "twin/mix.json", "--data", "in/data.npz", "--json"
    )
    assert json.loads(again)["precision"] == json.loads(Path("twin/mix.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("assign", "label"),
    [("all=int8", "fp16"), ("old.cache", "fp16"), ("all=int8,stem=bf16", "bf16"), ("all=int8,fc=fp32", "fp32")],
)
def test_a_layer_that_cannot_be_int8_is_what_weakly_typed_networks_have(assign: str, label: str) -> None:
    """The last Gemm, whose N is 10; BF16 only in a mix that itself asks for what weak typing does not have."""
    said = json.loads(ok(*MODEL, "--assign", assign, "--calibration-cache", "old.cache", "--json"))
    assert said["precision"]["fc"] == label
    assert said["precision"]["block.0/conv1"] == "int8"
    if label == "fp16":
        assert "run in fp16 instead of int8: 10 K or N is below 16" in said["notes"][-1]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--assign", "all=int8"), "Give a --calibration-cache that has this range, or --data"),
        (("--assign", "old.cache", "--typing", "weak"), "--typing weak: expected strong"),
        (("--assign", "old.cache", "--pick", "fast"), "--pick: with --assign there is no study"),
        (("--assign", "old.cache", "--max-drop", "1%"), "--max-drop: with --assign there is no study"),
        (("--assign", "old.cache", "--latency-tolerance", "5%"), "--latency-tolerance: with --assign there is no"),
        (("--batch", "4"), "--batch: a study has its own"),
    ],
)
def test_what_cannot_be_written_is_refused(more: tuple[str, ...], words: str) -> None:
    refused = invoke(*MODEL, *more)
    assert refused.exit_code == 2
    assert words in " ".join(refused.stderr.split())
    assert not Path("twin").exists()


def test_it_rounds_where_weakly_typed_engines_round() -> None:
    """There and nowhere else: a SiLU with an Add behind it is a kernel of its own, which reads INT8."""
    onnx.save(silu_network(residual=True), "silu.onnx")
    model = load(Path("silu.onnx"))
    int8, ranges = uniform(model, Precision.INT8), observed(model)
    graph = explicit_graph(model, int8, ranges)
    rounded, usual = (
        {node.inputs[0].name for node in each.graph if node.op_type == "QuantizeLinear" and node.inputs[0] is not None}
        for each in (graph, lower(model, int8, ranges, TENSORRT))
    )
    assert rounded - usual == set(quantized_tensors(model, int8, TENSORRT_TWIN)) - usual != set()
    exact = session_of(ir.to_proto(model.graph)).run(None, feeds(model))[0]
    rough = session_of(ir.to_proto(spelled_out(graph))).run(None, feeds(model))[0]
    assert 15 < sqnr_db(np.asarray(exact), np.asarray(rough)) < 60


def test_what_int8_convolutions_hand_on_is_rounded_for_floats_too() -> None:
    model = loaded("residual")
    names = {group.name: group.id for group in model.groups}
    mix = uniform(model, Precision.INT8).replace({names["block.0/conv2"]: Precision.FP16, names["fc"]: Precision.FP32})
    rounded = quantized_tensors(model, mix, TENSORRT_TWIN)
    makers = {node.name: node.outputs[0].name for node in model.graph.graph}
    assert {makers[name] for name in ("stem/relu", "block.0/relu1", "block.1/relu2", "block.1/down")} <= rounded
    assert not {makers[name] for name in ("block.1/conv2", "block.0/conv2", "fc")} & rounded
    half = explicit_graph(model, mix, ranged("residual")).graph
    conv = half.node("block.0/conv2")
    assert conv.inputs[0] is not None
    assert conv.inputs[0].producer().op_type == "DequantizeLinear"  # type: ignore[union-attr]


@pytest.mark.parametrize("first", ["block.1/conv2", "block.1/down"])
def test_the_earlier_of_two_convolutions_adds_and_reads_what_the_later_one_rounded(first: str, tmp_path: Path) -> None:
    """As engines of 8.6.0 have it: the recorded one, and ResNet-18 with its downsampling first on an H100."""
    graph = residual_cnn()
    nodes = {node.name: node for node in graph.graph.node}
    if first == "block.1/down":
        order = [name for name in nodes if not name.startswith("block.1/down")]
        place = order.index("block.1/conv1")
        order[place:place] = [name for name in nodes if name.startswith("block.1/down")]
        ordered = [nodes[name] for name in order]
        del graph.graph.node[:]
        graph.graph.node.extend(ordered)
    else:
        recorded = json.loads((DATA / "tensorrt_8_6_residual_int8.json").read_text())
        assert "block.1/conv2 + block.1/add" in json.dumps(recorded)
    onnx.save(graph, tmp_path / "ordered.onnx")
    model = load(tmp_path / "ordered.onnx", batch=4)
    makers = {node.name: node.outputs[0].name for node in model.graph.graph}
    rounded = quantized_tensors(model, uniform(model, Precision.INT8), TENSORRT_TWIN)
    later = {"block.1/conv2", "block.1/down"} - {first}
    assert makers[first] not in rounded
    assert {makers[name] for name in later} <= rounded


def test_what_a_block_hands_past_its_convolutions_is_added_by_its_last_one() -> None:
    """As in the identity blocks of ResNet-18 on an H200: what the block before hands on has other readers too."""
    model = loaded("mobile")
    makers = {node.name: node.outputs[0].name for node in model.graph.graph}
    rounded = quantized_tensors(model, uniform(model, Precision.INT8), TENSORRT_TWIN)
    assert makers["mb.0/add"] in rounded
    assert not {makers["mb.0/project"], makers["mb.1/project"]} & rounded
