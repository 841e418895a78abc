"""The effect of a precision on each group's own activations, with exact inputs: one float run, and each group alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.diagnose.distributions import (
    Distance,
    Levels,
    Narrow,
    OutputError,
    Scaled,
    by_channel,
    distance,
    output_error,
    weight_divergence,
)
from evaluators.engine import Arrays
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import Placement
from evaluators.measure.group_tensors import Piece, cut, tensors_of_pieces
from search.errors import EvaluatorError, ModelError
from search.graph.model import Model
from search.values import REFERENCE, Assignment, Precision, Ranges

Grid = Levels | Narrow | Scaled
Pair = tuple[str, Precision]


@dataclass(frozen=True)
class Network:
    """A model and how a target writes precision into it."""

    model: Model
    ranges: Ranges
    placement: Placement

    def placement_of(self, precision: Precision) -> Placement:
        """A quantized one alone has float sides in FP32: what FP16 adds belongs to other pairs."""
        return replace(self.placement, float_side=REFERENCE) if precision.quantized else self.placement


@dataclass(frozen=True)
class Local:
    """One group in one precision on exact inputs.

    Attributes:
        error: of the group's output.
        weight_kl: of its weights, see `weight_divergence`; None if it has no constant weight.
        distance: of the worst tensor that is rounded; None if none is.
    """

    error: OutputError
    weight_kl: float | None
    distance: Distance | None

    @property
    def noise(self) -> float:
        """The error relative to each channel's variance, mean over channels; infinite if it is not finite."""
        return self.error.by_channel


def local_noise(
    emulator: Emulator,
    network: Network,
    pairs: Sequence[Pair],
    batches: Sequence[Arrays],
    notes: list[str],
    alive: Callable[[], None] = lambda: None,
) -> dict[Pair, Local]:
    """Look at every pair of group and precision.

    Args:
        batches: inputs of the whole model.
        notes: gets a sentence for every pair that cannot be looked at; it is left out.
        alive: called after every pair.
    """
    noise_by_pair: dict[Pair, Local] = {}
    wanted: dict[str, list[Precision]] = {}
    for group, precision in pairs:
        wanted.setdefault(group, []).append(precision)
    pieces = [cut(network.model, group) for group in network.model.groups if group.id in wanted]
    for piece, tensors in tensors_of_pieces(emulator, network.model, pieces, batches):
        for precision in wanted[piece.group.id]:
            seen = _look_or_note(emulator, network, piece, precision, tensors, notes)
            if seen is not None:
                noise_by_pair[piece.group.id, precision] = seen
            alive()
    return noise_by_pair


def _look_or_note(
    emulator: Emulator,
    network: Network,
    piece: Piece,
    precision: Precision,
    tensors: Sequence[Arrays],
    notes: list[str],
) -> Local | None:
    try:
        return _look(emulator, network, piece, precision, tensors)
    except (ModelError, EvaluatorError) as error:
        notes.append(f"{piece.group.name} in {precision.label} is left out: {error}")
        return None


def _look(emulator: Emulator, network: Network, piece: Piece, precision: Precision, tensors: Sequence[Arrays]) -> Local:
    graph = lower_piece(piece, precision, network.ranges, network.placement_of(precision))
    weight_kl = weight_divergence(piece.model.graph, graph, piece.group.anchors)
    session = emulator.open(graph)
    outputs = [session.run({name: t[name] for name in piece.inputs}, [piece.output])[piece.output] for t in tensors]
    error = output_error(_rows(outputs, piece), _rows([t[piece.output] for t in tensors], piece))
    distances = []
    for name, grid in grids(graph, precision, piece).items():
        rows = _rows([t[name] for t in tensors], piece)
        if np.isfinite(rows).all():
            distances.append(distance(rows, grid))
    return Local(error, weight_kl, _worst(distances))


def _rows(arrays: Sequence[NDArray[Any]], piece: Piece) -> NDArray[Any]:
    """(channels, values) of one tensor over all batches.

    One channel where batches differ along that axis: it counts positions then, as in the product of attention.
    """
    rows = [by_channel(array, piece.axis) for array in arrays]
    if len({len(each) for each in rows}) > 1:
        rows = [each.reshape(1, -1) for each in rows]
    return np.concatenate(rows, axis=1)


def _worst(distances: Sequence[Distance]) -> Distance | None:
    if not distances:
        return None
    return Distance(
        kl=max(d.kl for d in distances),
        overlap=min(d.overlap for d in distances),
        saturated=max(d.saturated for d in distances),
        tails=max(d.tails for d in distances),
        peak=max(d.peak for d in distances),
        channel_ratio=max(d.channel_ratio for d in distances),
    )


def lower_piece(piece: Piece, precision: Precision, ranges: Ranges, placement: Placement) -> ir.Model:
    """The piece in a precision, with the outputs of the float piece.

    Raises:
        ModelError: it cannot be written in that precision.
    """
    return spelled_out(lower(piece.model, Assignment({piece.group.id: precision}), ranges, placement))


def grids(graph: ir.Model, precision: Precision, piece: Piece) -> Mapping[str, Grid]:
    """What each activation of a lowered piece is rounded to: the piece's inputs and output, where they are at all."""
    known = {*piece.inputs, piece.output}
    if not precision.quantized:
        return {name: Narrow(precision) for name in known}
    grid_by_tensor: dict[str, Grid] = {}
    for node in graph.graph:
        value = node.inputs[0] if node.op_type == "QuantizeLinear" else None
        name = (value.name or "").removesuffix("/raw") if value is not None else ""
        if name in known:
            grid_by_tensor[name] = _levels(node, precision)
    return grid_by_tensor


def _levels(node: ir.Node, precision: Precision) -> Grid:
    scale, zero = (node.inputs[i].const_value for i in (1, 2))  # type: ignore[union-attr]
    assert scale is not None
    assert zero is not None
    if not precision.recovered:
        return Scaled(precision, float(scale.numpy()))
    signed = zero.dtype is ir.DataType.INT8
    return Levels(float(scale.numpy()), int(zero.numpy()), -128 if signed else 0, 127 if signed else 255)
