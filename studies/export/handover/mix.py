"""The content of a hand-over, which is precisions of the user's nodes and constants of INT8, and its interface."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import onnx_ir as ir

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import Placement
from search.graph.model import Group, Model
from search.graph.user_nodes import UserNode, UserNodes, read_user_nodes
from search.values import REFERENCE, Assignment, Precision, Ranges
from studies import __version__
from studies.run.work import Work
from studies.store import target_names


@dataclass(frozen=True)
class MixGroup:
    """A group of layers, as the user's file has it.

    Attributes:
        group: as `layers` and `show` name it.
        op: of its weighted ops.
        precision: that it runs in.
        weighted: its weighted ops: name in the clean graph → the node, where the file has it.
        folded: of the same: the nodes that are folded into its weight and bias.
        nodes: all of its nodes that the file has, in the order of the file; what was folded into others included.
        lost: names of its weighted ops, in the clean graph, that the file does not have.
    """

    group: str
    op: str
    precision: Precision
    weighted: Mapping[str, UserNode]
    folded: Mapping[str, tuple[UserNode, ...]]
    nodes: tuple[UserNode, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Where a mix comes from.

    Attributes:
        study: name of the study.
        trial: number of the trial in it.
        target: what it was measured on, in words.
        version: of bitfront.
        rescaled: whether exact recovery steps changed the float model, so that ranges are not those of the user's file.
    """

    study: str
    trial: int
    target: str
    version: str
    rescaled: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "bitfront": self.version,
            "study": self.study,
            "trial": self.trial,
            "target": self.target,
            "rescaled": self.rescaled,
        }


@dataclass(frozen=True)
class Feed:
    """What a tool has to feed the model with to calibrate it.

    Attributes:
        inputs: names of the model's inputs.
        batch: samples in one inference.
        samples: that ranges were calibrated from.
    """

    inputs: tuple[str, ...]
    batch: int
    samples: int


@dataclass(frozen=True)
class Mix:
    """A mix of precisions in terms of the user's file; all that a writer is given.

    Attributes:
        layers: in topological order.
        between: nodes outside all groups that stay float: those that a float group feeds, or that feed float groups
            alone.
        new_names: first output → name, of nodes that the file has no name for, or one that another node has too.
        lower: makes the graph that was measured, with quantization and casts in it.
        weight_bits: width of the codes of INT8 weights.
        made_static: how many layers are INT8 here whose activations the mix quantizes anew in each inference, which
            none of the tools writes.
        made_float: what layers that are FP32 here run in in the mix, each by its label: weights alone in integers, or
            FP8, of which none of the tools is told.
    """

    source: Source
    feed: Feed
    layers: tuple[MixGroup, ...]
    between: tuple[UserNode, ...]
    new_names: Mapping[str, str]
    lower: Callable[[], ir.Graph]
    weight_bits: int = 8
    made_static: int = 0
    made_float: tuple[str, ...] = ()

    def layers_in(self, precision: Precision) -> tuple[MixGroup, ...]:
        return tuple(layer for layer in self.layers if layer.precision is precision)

    @property
    def float_nodes(self) -> tuple[UserNode, ...]:
        """Every node that must not be quantized, once each: those of float groups, and what is between them."""
        groups = (node for layer in self.layers if not layer.precision.quantized for node in layer.nodes)
        return tuple(dict.fromkeys((*groups, *self.between)))

    @property
    def lost(self) -> tuple[str, ...]:
        """Weighted ops that have no counterpart in the file."""
        return tuple(name for layer in self.layers for name in layer.lost)


def lost_text(mix: Mix) -> str:
    """Which layers of the mix the user's file does not have."""
    shown = ", ".join(repr(name) for name in mix.lost[:5]) + (", …" if len(mix.lost) > 5 else "")
    one = len(mix.lost) == 1
    has, are = ("layer has", "is") if one else ("layers have", "are")
    return (
        f"{len(mix.lost)} {has} no counterpart among the nodes of the model file's main graph, for example because "
        "they are inside its "
        f"functions, and {are} not handed over: {shown}"
    )


def rescaled_text(mix: Mix) -> str:
    """Which file the ranges belong to, where that is not the user's; empty if it is."""
    if not mix.source.rescaled:
        return ""
    return (
        "recovery rescaled channels of the float model, so the ranges handed over belong to model.float.onnx. Give "
        "that file to the tools; its layers have the same names"
    )


def match_layers(groups: Sequence[Group], assignment: Assignment, nodes: UserNodes) -> tuple[MixGroup, ...]:
    """The groups of a model in terms of the user's file."""
    return tuple(_layer(group, assignment[group.id], nodes) for group in groups)


def _layer(group: Group, precision: Precision, nodes: UserNodes) -> MixGroup:
    weighted = {name: _find_weighted(group, name, nodes) for name in group.anchors}
    members = {node for name in group.nodes for node in nodes.of.get(name, ())}
    return MixGroup(
        group=group.id,
        op=group.op,
        precision=precision,
        weighted={name: node for name, node in weighted.items() if node is not None},
        folded={name: tuple(n for n in nodes.of.get(name, ()) if n != node) for name, node in weighted.items() if node},
        nodes=tuple(node for node in nodes.every if node in members),
        lost=tuple(name for name, node in weighted.items() if node is None),
    )


def _find_weighted(group: Group, name: str, nodes: UserNodes) -> UserNode | None:
    """The weighted op itself among the nodes that were folded into one."""
    return next((node for node in nodes.of.get(name, ()) if node.op == group.op), None)


def float_between(
    graph: ir.Graph, groups: Sequence[Group], assignment: Assignment, nodes: UserNodes
) -> tuple[UserNode, ...]:
    """Nodes outside all groups that stay float: a float group feeds them, or no INT8 group reads what they make."""
    owner = {name: assignment[group.id].quantized for group in groups for name in group.nodes}
    fed: dict[ir.Value, bool] = {}  # whether all that reaches a value comes from INT8 groups
    for node in graph:
        quantized = owner.get(node.name or "", all(fed.get(v, True) for v in node.inputs if v is not None))
        fed.update((value, quantized) for value in node.outputs)
    read: dict[ir.Value, bool] = {}  # whether an INT8 group reads it, also behind other nodes outside all groups
    for node in reversed(graph):
        quantized = owner.get(node.name or "", any(read.get(value, False) for value in node.outputs))
        for value in node.inputs:
            if value is not None:
                read[value] = read.get(value, False) or quantized
    outside = [node for node in graph if node.name not in owner]
    floats = [node for node in outside if not (fed[node.outputs[0]] and any(read.get(v, False) for v in node.outputs))]
    return tuple(user for node in floats for user in nodes.of.get(node.name or "", ()))


def gather_mix(work: Work, assignment: Assignment, trial: int) -> Mix:
    """The mix that an assignment of the study is; reads the user's file, and no weights of it.

    Args:
        trial: number of the trial that it was measured in.
    """
    problem, ledger = work.problem, work.ledger
    ranges = ledger.ranges().for_mix(assignment)
    dynamic = {g: Precision.INT8 for g, p in assignment.items() if p.quantized and not p.calibrated and not p.blocks}
    untold = {g: p.label for g, p in assignment.items() if p.quantized and not p.recovered and g not in dynamic}
    assignment = assignment.replace({**dynamic, **dict.fromkeys(untold, REFERENCE)})
    written = Placement.from_json(work.bench.keeper.description.placement)
    placement = replace(written, before_activations=False)  # other tools write Q/DQ, which has none there
    (target,) = target_names.names([ledger.target.target])
    source = Source(ledger.study.name, trial, target, __version__, bool(ranges.recovery.factors))
    model = problem.model
    inputs = tuple(spec.name for spec in model.inputs)
    nodes = read_user_nodes(Path(problem.config.model), model.graph.graph)
    return Mix(
        source=source,
        feed=Feed(inputs, model.batch, ranges.samples),
        layers=match_layers(model.groups, assignment, nodes),
        between=float_between(model.graph.graph, model.groups, assignment, nodes),
        new_names=nodes.new_names,
        lower=partial(_lower, model, assignment, ranges, placement),
        weight_bits=placement.weight_bits,
        made_static=len(dynamic),
        made_float=tuple(sorted(untold.values())),
    )


def _lower(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> ir.Graph:
    return lower(model.scale_constants(ranges.recovery.factors), assignment, ranges, placement).graph


_SCRIPTS = Path(__file__).parent / "scripts"


class Handover(ABC):
    """Writes a mix for one other tool. Another package registers its own by the entry-point group
    `bitfront.handovers`.

    Attributes:
        name: as `--for` names it; its files lie in a folder of that name.
        needs_int8: whether a mix without INT8 has nothing for the tool.
    """

    name: ClassVar[str] = ""
    needs_int8: ClassVar[bool] = True

    @abstractmethod
    def files(self, mix: Mix) -> Mapping[str, str]:
        """File name → text."""

    def notes(self, mix: Mix) -> tuple[str, ...]:
        """What of the mix the tool cannot be told, one sentence each."""
        return ()


def json_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1, ensure_ascii=False) + "\n"


def script_text(name: str) -> str:
    """A script that is handed over as it is: it reads what it needs from the JSON file beside it."""
    return (_SCRIPTS / name).read_text(encoding="utf-8")
