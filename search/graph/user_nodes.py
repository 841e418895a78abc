"""The nodes of the user's file that correspond to nodes of the clean graph, for tools that know only the file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import onnx
import onnx_ir as ir

# What these give says nothing of the values that go in, so the way of the data does not lead through them.
_MEASURES = frozenset({"Shape", "Size"})
# Ops behind which a tensor has the same axes, perhaps in another order.
_MOVING = frozenset({"Cast", "Identity", "Transpose"})


@dataclass(frozen=True)
class UserNode:
    """A node of the main graph of the user's file.

    Attributes:
        name: its own, if no node before it has the same; otherwise one made of its op type and first output.
        op: op type.
        output: its first output, which is unique in the graph.
        constants: for each input, the initializer or Constant that it is computed from; empty for an activation, a
            missing input, and an input that is computed from several constants.
        own: whether the file has this name for it.
        axes: for each input, the axes of that constant in the order in which the input has them; None where the input
            has other axes, as behind a Reshape, and where there is no constant.
    """

    name: str
    op: str
    output: str
    constants: tuple[str, ...]
    own: bool
    axes: tuple[tuple[int, ...] | None, ...] = ()


@dataclass(frozen=True)
class UserNodes:
    """The nodes of the user's file for every node of the clean graph.

    Attributes:
        of: for each node of the clean graph by name, its nodes of the file in their order: several if nodes were folded
            into one, none if it has no counterpart.
        every: all nodes of the main graph, in the order of the file.
    """

    of: Mapping[str, tuple[UserNode, ...]]
    every: tuple[UserNode, ...]

    @property
    def new_names(self) -> dict[str, str]:
        """Names by first output, of the nodes that have no name of their own in the file."""
        return {node.output: node.name for node in self.every if not node.own}


def read_user_nodes(path: Path, graph: ir.Graph) -> UserNodes:
    """Find the nodes of a clean graph in the file that it was loaded from.

    Weights are not read. A clean node is found by the tensor that it computes: its counterparts are the nodes before
    that tensor, back to the tensors of other clean nodes. Nodes that are computed from constants alone are left out. If
    the main graph of the file does not have that tensor, the node is found by its name, if exactly one node has it.
    Otherwise it has no counterpart, for example because it was inside a function of the file.
    """
    proto = onnx.load(str(path), load_external_data=False)
    every = tuple(_name_nodes(proto.graph))
    return UserNodes(_Counterparts(proto.graph, every, graph).find(), every)


def _name_nodes(graph: onnx.GraphProto) -> Iterator[UserNode]:
    taken = {node.name for node in graph.node}
    seen: set[str] = set()
    # tensor → the one constant that it is computed from
    constants = {tensor.name: _Constant.of_tensor(tensor.name, tensor) for tensor in graph.initializer}
    for node in graph.node:
        own = bool(node.name) and node.name not in seen
        output = next(filter(None, node.output), "")
        name = node.name if own else _fresh(f"{node.op_type}_{output or 'node'}", taken)
        seen.add(name)
        taken.add(name)
        read = [constants.get(tensor) for tensor in node.input]
        known = [constant for constant in read if constant is not None]
        if node.op_type == "Constant":
            constants[output] = _Constant.of(node)
        elif len({constant.name for constant in known}) == 1 and len(known) == len([*filter(None, node.input)]):
            constants.update(dict.fromkeys(node.output, known[0].behind(node)))
        names = tuple(constant.name if constant is not None else "" for constant in read)
        axes = tuple(constant.axes if constant is not None else None for constant in read)
        yield UserNode(name, node.op_type, output, names, own, axes)


@dataclass(frozen=True)
class _Constant:
    """What a tensor is computed from alone: a constant, and the order in which the tensor has its axes, if it has."""

    name: str
    axes: tuple[int, ...] | None

    @classmethod
    def of_tensor(cls, name: str, tensor: onnx.TensorProto) -> _Constant:
        return cls(name, tuple(range(len(tensor.dims))))

    @classmethod
    def of(cls, node: onnx.NodeProto) -> _Constant:
        values = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        return cls.of_tensor(node.output[0], values[0]) if values else cls(node.output[0], None)

    def behind(self, node: onnx.NodeProto) -> _Constant:
        """This constant as it is behind one more node."""
        if self.axes is None or node.op_type not in _MOVING:
            return _Constant(self.name, None)
        turned = [attribute.ints for attribute in node.attribute if attribute.name == "perm"]
        order = turned[0] if turned else range(len(self.axes))[:: -1 if node.op_type == "Transpose" else 1]
        return _Constant(self.name, tuple(self.axes[axis] for axis in order))


def _fresh(wanted: str, taken: set[str]) -> str:
    return next(name for i in count() if (name := f"{wanted}_{i}" if i else wanted) not in taken)


class _Counterparts:
    """Looks for the nodes of one file."""

    def __init__(self, proto: onnx.GraphProto, every: tuple[UserNode, ...], graph: ir.Graph) -> None:
        self._graph = graph
        self._every = every
        self._makers = {output: place for place, node in enumerate(proto.node) for output in node.output if output}
        counts = Counter(node.name for node in proto.node)
        self._places = {node.name: place for place, node in enumerate(every) if counts[node.name] == 1}
        self._reads = [_all_inputs(node) for node in proto.node]
        self._outputs = [set(node.output) for node in proto.node]
        self._carrying = self._data_nodes({value.name for value in proto.input} - _initializers(proto))
        self._made = {value.name for node in graph for value in node.outputs}
        self._claimed: set[int] = set()

    def find(self) -> dict[str, tuple[UserNode, ...]]:
        counterparts = {}
        for node in self._graph:
            places = sorted(self._behind(node))
            self._claimed.update(places)
            counterparts[node.name or ""] = tuple(self._every[place] for place in places)
        return counterparts

    def _data_nodes(self, reached: set[str]) -> set[int]:
        """Indices of the nodes that depend on inputs; in a file, nodes are in topological order."""
        places = set[int]()
        for place, node in enumerate(self._every):
            if node.op not in _MEASURES and not reached.isdisjoint(self._reads[place]):
                places.add(place)
                reached |= self._outputs[place]
        return places

    def _behind(self, node: ir.Node) -> set[int]:
        """Indices of the nodes that correspond to a clean node."""
        outputs = [value.name or "" for value in node.outputs]
        start = next(
            (self._makers[name] for name in outputs if name in self._makers), self._places.get(node.name or "")
        )
        places = set[int]()
        waiting = [] if start is None else [start]
        while waiting:
            place = waiting.pop()
            if place in places or place in self._claimed or place not in self._carrying:
                continue
            places.add(place)
            others = [name for name in self._reads[place] if name not in self._made]
            waiting += [self._makers[name] for name in others if name in self._makers]
        return places


def _all_inputs(node: onnx.NodeProto) -> list[str]:
    """The inputs of a node, including those that its bodies read from outside."""
    names = list(node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            names += [name for inner in body.node for name in _all_inputs(inner)]
    return names


def _initializers(proto: onnx.GraphProto) -> set[str]:
    return {tensor.name for tensor in proto.initializer}
