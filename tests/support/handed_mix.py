"""Mixes to hand over, without a study: a network, the user's file of it, and which groups stay float."""

from __future__ import annotations

from pathlib import Path

import onnx

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, Placement
from search.graph.model import load
from search.graph.user_nodes import read_user_nodes
from search.values import Assignment, Precision
from studies.export.handover.mix import Feed, Mix, Source, float_between, match_layers
from tests.support.networks import Net, observed, save


def mix_of(
    proto: onnx.ModelProto,
    folder: Path,
    floats: dict[str, Precision],
    placement: Placement = ONNXRUNTIME_CPU,
    *,
    rescaled: bool = False,
) -> Mix:
    """The network, written to `model.onnx`, with INT8 in every group but those whose first weighted op is named."""
    path = save(proto, folder / "model.onnx")
    model = load(path)
    free = {group.id: Precision.FP32 if group.pinned else Precision.INT8 for group in model.groups}
    named = {group.id: floats[group.name] for group in model.groups if group.name in floats}
    assignment = Assignment({**free, **named})
    nodes = read_user_nodes(path, model.graph.graph)
    return Mix(
        source=Source("study", 7, "onnxruntime on a processor", "0.1.0", rescaled),
        feed=Feed(tuple(spec.name for spec in model.inputs), model.batch, 60),
        layers=match_layers(model.groups, assignment, nodes),
        between=float_between(model.graph.graph, model.groups, assignment, nodes),
        new_names=nodes.new_names,
        lower=lambda: lower(model, assignment, observed(model), placement).graph,
        weight_bits=placement.weight_bits,
    )


def nameless(folder: Path) -> Mix:
    """A network with a node that has no name, in FP32, and two of one name, in INT8."""
    net = Net()
    x = net.op("Relu", [net.conv("image", "first", 3, 32)], "relu")
    x = net.op("Relu", [net.conv(x, "second", 32, 32)], "other")
    net.head(x, 32)
    proto = net.model([2, 3, 8, 8], "logits", [2, 10])
    proto.graph.node[0].name = ""
    proto.graph.node[3].name = "relu"
    return mix_of(proto, folder, {"Conv_first_out": Precision.FP32})
