"""The audit of TensorRT engines, on inspector JSON recorded on an H200 (TensorRT 8.6.0) and on newer shapes of it."""

from __future__ import annotations

import json
from collections import Counter

import onnx_ir as ir
import pytest

from evaluators.backends.tensorrt.audit import audit_rows, layer_times, parse, summary, type_of
from search.graph.cleaning import clean, infer_shapes
from search.graph.grouping import find_groups
from search.values import Answer, Assignment, Precision
from tests.support.networks import NETWORKS
from tests.support.paths import DATA


def recorded(network: str, mix: str):
    record = json.loads((DATA / f"tensorrt_8_6_{network}_{mix}.json").read_text())
    graph = clean(ir.from_proto(NETWORKS[network]()))
    groups, _ = find_groups(graph.graph, infer_shapes(graph, {}))
    return record["inspector"], groups, Assignment.from_json(record["assignment"])


@pytest.mark.parametrize("mix", ["int8", "mixed"])
def test_every_group_of_a_residual_network_obeys(mix):
    text, groups, assignment = recorded("residual", mix)
    rows = audit_rows(parse(text), groups, assignment)
    assert {row.group: row.got for row in rows} == dict(assignment)
    assert {row.answer for row in rows} == {Answer.OBEYED}


def test_weights_tell_the_precision_in_an_engine_of_dynamic_shapes_which_shows_no_formats():
    """Recorded on an H100: TensorRT 8.6.0 shows none, although the inspector has a context with shapes."""
    record = json.loads((DATA / "tensorrt_8_6_dynamic_mixed.json").read_text())
    groups = recorded("residual", "mixed")[1]
    layers = parse(record["inspector"])
    assert {tensor.words for layer in layers for tensor in layer.inputs} == {"N/A due to dynamic shapes"}
    rows = audit_rows(layers, groups, Assignment.from_json(record["assignment"]))
    assert {row.group: row.got.label for row in rows} == record["assignment"]
    assert len(set(record["assignment"].values())) == 3
    assert {row.answer for row in rows} == {Answer.OBEYED}


def test_where_residual_adds_and_activations_run_stands_beside_the_answer():
    text, groups, assignment = recorded("residual", "mixed")
    rows = {row.group: row for row in audit_rows(parse(text), groups, assignment)}
    others = {group.id: [node for node in group.nodes if node not in group.anchors] for group in groups}
    assert {group for group, row in rows.items() if "beside" in row.details} == {
        g for g, nodes in others.items() if nodes
    }
    assert rows["g002"].details["beside"] == "add, relu2: in the kernel"


def test_other_nodes_in_layers_of_their_own_are_shown_with_their_types():
    groups = recorded("residual", "mixed")[1]
    group = next(group for group in groups if "block.0/add" in group.nodes)

    def layer(name, kind, inputs, **more):
        tensors = {"Inputs": inputs, "Outputs": ["Row major linear FP32"]}
        sides = {side: [{"Name": "x", "Format/Datatype": words} for words in some] for side, some in tensors.items()}
        return {"Name": name, "LayerType": kind, **sides, **more}

    conv = layer(group.anchors[0], "CaskConvolution", ["Int8"], Weights={"Type": "Int8", "Count": 9})
    add = layer("block.0/add", "ElementWise", ["Row major linear FP32", "Row major linear FP16"])
    asked = Assignment({group.id: Precision.INT8})
    for layers, beside in (
        ([conv, add], "add: ElementWise fp32, fp16 → fp32; relu2: not shown"),
        ([conv, {**add, "Name": "{ForeignNode[x]}", "Metadata": "[ONNX Layer: block.0/add]"}],
         "add: in an opaque region; relu2: not shown"),
    ):  # fmt: skip
        (row,) = audit_rows(parse(json.dumps({"Layers": layers})), [group], asked)
        assert row.answer is Answer.OBEYED
        assert row.details["beside"] == beside


def test_other_nodes_of_an_opaque_group_are_no_more_seen_than_it():
    text, groups, assignment = recorded("transformer", "fp16")
    rows = [row for row in audit_rows(parse(text), groups, assignment) if row.answer is Answer.OPAQUE]
    places = {part.rpartition(": ")[2] for row in rows for part in row.details.get("beside", "").split("; ") if part}
    assert places == {"not shown"}


def test_a_region_that_hides_its_layers_is_opaque_and_not_obeyed_by_default():
    text, groups, assignment = recorded("transformer", "fp16")
    rows = audit_rows(parse(text), groups, assignment)
    assert Counter(row.answer for row in rows)[Answer.OPAQUE] == 17
    assert all(row.got is None for row in rows if row.answer is Answer.OPAQUE)


def test_reshapes_around_a_matrix_product_do_not_answer_for_it():
    text, groups, assignment = recorded("transformer", "mixed")
    rows = {row.group: row for row in audit_rows(parse(text), groups, assignment)}
    int8 = [group for group, precision in assignment.items() if precision is Precision.INT8]
    assert {rows[group].answer for group in int8} == {Answer.OBEYED}
    assert Answer.NOT_OBEYED not in {row.answer for row in rows.values()}


def test_another_precision_than_asked_is_seen():
    text, groups, assignment = recorded("residual", "mixed")
    asked = assignment.replace({"g001": Precision.INT8})
    rows = {row.group: row for row in audit_rows(parse(text), groups, asked)}
    assert rows["g001"].answer is Answer.NOT_OBEYED
    assert rows["g001"].got is Precision.FP16


def test_newer_shapes_of_the_json_are_read():
    joined = {"Name": "a + b", "LayerType": "gemm", "Inputs": [{"Name": "x", "Format/Datatype": "Half"}], "Outputs": []}
    apart = {**joined, "Inputs": [{"Name": "x", "Format": "Row major linear", "Datatype": "Int8"}]}
    old, new = parse(json.dumps({"Layers": [joined], "Bindings": []})), parse(json.dumps({"Layers": [apart]}))
    assert old[0].precision() is Precision.FP16
    assert new[0].precision() is Precision.INT8
    assert old[0].nodes() == {"a", "b"}


@pytest.mark.parametrize("version", ["10", "11"])
def test_a_strongly_typed_engine_of_newer_versions_is_audited(version):
    """Shaped after NVIDIA's documented samples: Q/DQ fused by name, a Myelin region, a product with its type alone."""
    layers = parse((DATA / f"tensorrt_{version}_shape.json").read_text())
    graph = clean(ir.from_proto(NETWORKS["residual"]()))
    groups, _ = find_groups(graph.graph, infer_shapes(graph, {}))
    asked = Assignment({group.id: Precision.FP16 for group in groups}).replace({"g001": Precision.INT8})
    rows = {row.group: row for row in audit_rows(layers, groups, asked)}
    assert rows["g000"].answer is rows["g001"].answer is Answer.OBEYED
    assert rows["g001"].details["sparse"] == "yes"
    assert "Int8" in rows["g001"].details["inputs"]
    assert rows["g002"].answer is Answer.OPAQUE
    assert rows["g002"].kernel == "kgen"
    assert rows["g006"].got is Precision.FP32
    found = summary(layers)
    assert (found.layers, found.moves, found.opaque, found.sparse) == (7, 2, 1, 1)


def test_times_are_attributed_to_groups_and_to_moves():
    text, groups, _ = recorded("residual", "mixed")
    layers = parse(text)
    times = layer_times({layer.name: 1.0 for layer in layers}, layers, groups)
    moves = [layer for layer in times if layer.moves]
    assert len(moves) == summary(layers).moves == 7
    assert all(layer.group is None for layer in moves)
    assert {layer.group for layer in times if layer.group} == {group.id for group in groups}
    assert layer_times({"Reformatting CopyNode for x": 1.0}, (), groups)[0].moves


def test_names_alone_are_refused():
    with pytest.raises(ValueError, match="DETAILED"):
        parse(json.dumps({"Layers": ["conv1", "conv2"]}))


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("Thirty-two wide channel vectorized row major Int8 format", Precision.INT8),
        ("Channel major FP16 format where channel % 8 == 0", Precision.FP16),
        ("Row major linear FP32", Precision.FP32),
        ("Float", Precision.FP32),
        ("Half", Precision.FP16),
        ("Int32", None),
        ("UInt8", None),
        ("BFloat16", Precision.BF16),
        ("FP8", Precision.FP8),
        ("Int4", Precision.W4),
        ("FP4", None),
    ],
)
def test_types_are_read_from_words(text, precision):
    assert type_of(text) is precision
