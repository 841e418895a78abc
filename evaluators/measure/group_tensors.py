"""Single groups cut out of a model, and the float tensors that they read and write."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import onnx_ir as ir
import onnx_ir.passes.common as passes
from numpy.typing import NDArray
from onnx_ir.convenience import extract

from evaluators.engine import Arrays
from search.graph.grouping import is_constant
from search.graph.model import Group, Model

_HELD_BYTES = 256 * 2**20  # of activations at a time
_FEWEST = 8  # samples


class Runnable(Protocol):
    """A graph that is ready to run, as `Emulated` is."""

    def run(self, inputs: Mapping[str, NDArray[Any]], names: Sequence[str] | None = None) -> Arrays:
        """Outputs by name; with `names` only these."""


class Opener(Protocol):
    """What makes graphs ready to run, as `Emulator` does."""

    def open(self, graph: ir.Model) -> Runnable:
        """Raises EvaluatorError where the graph is refused."""


@dataclass(frozen=True)
class Piece:
    """One group as a model of its own.

    Attributes:
        inputs: tensors of the whole model that it reads, by name; every one has to be fed.
        output: the tensor that leaves the group.
    """

    group: Group
    model: Model
    inputs: tuple[str, ...]
    output: str

    @property
    def axis(self) -> int:
        """Which axis of its activations counts channels."""
        return -1 if self.group.op in ("Gemm", "MatMul") else 1


def cut(model: Model, group: Group) -> Piece:
    """Cut a group out of the clean model; the model is not changed."""
    graph = model.graph.graph
    nodes = [graph.node(name) for name in group.nodes]
    made = {value for node in nodes for value in node.outputs}
    read = dict.fromkeys(
        value for node in nodes for value in node.inputs if value is not None and not is_constant(value)
    )
    inputs = [value for value in read if value not in made]
    inside = set(nodes)
    # An anchor whose result also leaves the group is quantized elsewhere than one whose result does not.
    leaving = [v.name or "" for v in made if v.is_graph_output() or any(n not in inside for n in v.consumers())]
    alone = extract(graph, inputs, sorted(leaving))
    small = ir.Model(alone, ir_version=model.graph.ir_version)
    names = tuple(value.name or "" for value in inputs)
    return Piece(group, replace(model, graph=small, groups=(group,), edges=()), names, group.output)


def tensors_of_pieces(
    emulator: Opener, model: Model, pieces: Sequence[Piece], batches: Sequence[Arrays]
) -> Iterator[tuple[Piece, list[Arrays]]]:
    """Every piece with the float tensors that it reads and makes, batch by batch; few are held at a time."""
    made = dict.fromkeys(name for piece in pieces for name in _tensors(piece) if name not in batches[0])
    session = emulator.open(_expose_only(model, list(made)))
    for some in _chunks(model.shapes, pieces, len(batches)):
        names = list(dict.fromkeys(name for piece in some for name in _tensors(piece) if name in made))
        tensors = [{**inputs, **session.run(inputs, names)} for inputs in batches]
        for piece in some:
            yield piece, tensors


def batches_in(model: Model, samples: int, total_bytes: int) -> int:
    """How many batches give so many samples, or fewer, so that the tensors of all groups take no more memory in sum.

    They are never held together, but every 256 MiB of them take a run of the model of their own.
    """
    names = {name for group in model.groups for name in (*group.inputs, *group.skips, group.output)}
    each = 4 * sum(math.prod(model.shapes.get(name, ())) for name in names)
    wanted = -(-samples // model.batch)
    least = -(-min(samples, _FEWEST) // model.batch)
    return max(least, min(wanted, total_bytes // max(1, each)))


def _tensors(piece: Piece) -> tuple[str, ...]:
    return (*piece.inputs, piece.output)


def _expose_only(model: Model, names: Sequence[str]) -> ir.Model:
    """A copy of the float model whose outputs are those tensors."""
    copy = model.graph.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs.clear()
    copy.graph.outputs.extend(values[name] for name in names)
    return passes.RemoveUnusedNodesPass()(copy).model


def _chunks(shapes: Mapping[str, tuple[int, ...]], pieces: Sequence[Piece], batches: int) -> Iterator[list[Piece]]:
    some: list[Piece] = []
    held = 0
    for piece in pieces:
        size = 4 * batches * sum(math.prod(shapes.get(name, ())) for name in _tensors(piece))
        if some and held + size > _HELD_BYTES:
            yield some
            some, held = [], 0
        some.append(piece)
        held += size
    if some:
        yield some
