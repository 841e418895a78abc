"""Sequential correction of biases and of the scales of channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.engine import Arrays
from evaluators.lowering.corrections import OpConstants, find_constants
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.weights import channel_axis
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.int8.channel_fits import ChannelFits, fit_channels
from evaluators.recovery.int8.sample_errors import helps, rows_of, sample_errors, sample_weights, usual_power
from evaluators.recovery.int8.stages import StagedRuns, live_bytes, plan_stages
from evaluators.recovery.step import Proposal, RecoveryStep
from search.graph.grouping import Group
from search.graph.model import Model
from search.values import Assignment, Correction, Precision, Ranges

Floats = NDArray[np.float64]
Array = NDArray[Any]

_HELD_BYTES = 384 * 2**20  # of activations that wait for later stages
_MOST_SAMPLES = 96  # to fit to; half as many decide
_LATER = 0.5  # of the time of an op, that later ones take, which mostly hold fewer values


class BiasStep(RecoveryStep):
    """Gives the output of each weighted op in INT8 the mean, and where that helps the scale, that it has in float.

    The sequential bias correction of M. Nagel et al., "Data-Free Quantization through Weight Equalization and Bias
    Correction" (ICCV 2019, https://arxiv.org/abs/1906.04721), section 4.2, with means measured on samples: op by op in
    the order of the graph, all corrections before it in effect. The scale of a channel is the slope of the regression
    of its float output on its INT8 output.
    """

    version = 4
    name = "bias"
    least_share = 0.3  # the steps before it may take all of the time, and it often wins the most
    summary = "corrects the mean of each channel for the error of INT8, and its scale where that helps"

    def serves(self, precision: Precision) -> bool:
        return True

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        return correct_means(context, ranges, context.assignment)


@dataclass(frozen=True)
class _Op:
    """A weighted op that can be corrected.

    Attributes:
        tap: what its correction acts on, in the float graph.
        axis: which axis of that counts channels.
        scalable: whether a scale leaves the codes of its weight as they are, and is its own.
    """

    name: str
    tap: str
    axis: int
    shifted: bool
    scalable: bool


def correct_means(context: RecoveryContext, ranges: Ranges, assignment: Assignment) -> Proposal:
    """Correct the ops that an assignment runs in the context's precision, again: what they had before is dropped.

    Args:
        ranges: whose roundings are kept, and all of the ops for which no time is left.
        assignment: of the whole model, such as all INT8, or a mix that was picked.

    Raises:
        EvaluatorError: ONNX Runtime cannot run a part of the model.
    """
    precision = context.precision
    plain = replace(ranges, recovery=ranges.recovery.with_means({}, precision))
    model = context.model(plain.recovery)
    ops, notes = _correctable(model, assignment, precision)
    if not ops:
        return Proposal(plain, tuple(notes))
    corrections = _Pass(context, model, plain, assignment, ops)
    corrections_by_op = corrections.run(notes)
    known = ranges.recovery.of(precision)
    corrections_by_op |= {name: known[name] for name in corrections.left if name in known}
    return Proposal(
        replace(plain, recovery=plain.recovery.with_means(corrections_by_op, precision)), tuple(notes), corrections.cut
    )


def _correctable(model: Model, assignment: Assignment, precision: Precision) -> tuple[list[_Op], list[str]]:
    ops, notes = [], []
    for group in model.groups:
        if assignment[group.id] is not precision or (precision.recovered and model.own.owns(group)):
            continue
        for anchor in group.anchors:
            constants = find_constants(model.graph.graph.node(anchor), group.nodes)
            if constants is None:
                notes.append(f"{anchor} is left alone: its weight or bias is computed, or has no channels")
            else:
                ops.append(_op(constants, group))
    order = {node.name: place for place, node in enumerate(model.graph.graph)}
    return sorted(ops, key=lambda op: order[op.name]), notes


def _op(constants: OpConstants, group: Group) -> _Op:
    node = constants.node
    user = constants.bias[0] if constants.bias is not None else node
    by_channel = channel_axis(node, constants.weight) is not None
    return _Op(
        name=node.name or "",
        tap=user.outputs[0].name or "",
        axis=-1 if node.op_type in ("Gemm", "MatMul") else 1,
        shifted=constants.bias is not None,
        scalable=by_channel and len(group.anchors) == 1,
    )


class _Pass:
    """Both models side by side, op by op."""

    def __init__(
        self, context: RecoveryContext, model: Model, ranges: Ranges, assignment: Assignment, ops: Sequence[_Op]
    ) -> None:
        self._context = context
        self._batch = model.batch
        lowered = spelled_out(lower(model, assignment, ranges, context.placement))
        nodes = {node.name: node for node in lowered.graph}
        makers = {name: _maker(model.graph.graph, op) for op in ops for name in [op.name]}
        order = {node.name: place for place, node in enumerate(lowered.graph)}
        self._ops = sorted(ops, key=lambda op: order[makers[op.name]])
        self.cut = ""  # as of `Proposal`
        self.left: tuple[str, ...] = ()  # names of the ops for which there was no time
        self._taps = [nodes[makers[op.name]].outputs[0].name or "" for op in self._ops]
        self._stages = plan_stages(lowered.graph, self._taps)
        self._float_stages = plan_stages(model.graph.graph, [op.tap for op in self._ops])
        # To fit to: as many as memory holds, which for large images are few, but each of many values.
        held = 2 * live_bytes(self._float_stages, model.shapes)
        by_memory = _HELD_BYTES // max(1, held) * 2 // 3
        wanted = -(-_MOST_SAMPLES // model.batch)
        count = int(max(1, min(wanted, by_memory)))
        fitting = list(islice(context.fitting(), count))
        held_out = list(islice(context.held_out(), max(1, count // 2)))
        self._batches: list[Batch] = [*fitting, *held_out]
        self._fitted = len(fitting)
        inputs = [batch.inputs for batch in self._batches]
        self._weights = [np.ones(batch.count) for batch in self._batches]
        for name in {name for name, array in inputs[0].items() if array.dtype.kind == "f"}:
            self._count_wild([rows_of(each[name], 1, b.count, self._batch) for each, b in self._pair_batches(inputs)])
        self._int8 = StagedRuns(context.emulator, lowered, self._stages, inputs)
        self._float = StagedRuns(context.emulator, model.graph, self._float_stages, inputs)

    def _pair_batches(self, inputs: Sequence[Arrays]) -> list[tuple[Arrays, Batch]]:
        return list(zip(inputs, self._batches, strict=True))

    def _count_wild(self, rows: Sequence[Array]) -> None:
        """A sample that is wild in one tensor counts little from there on: a Clip hides how wild it was."""
        pairs = zip(self._weights, sample_weights(rows), strict=True)
        self._weights = [np.minimum(old, new) if len(old) == len(new) else old for old, new in pairs]

    def run(self, notes: list[str]) -> dict[str, Correction]:
        corrections: dict[str, Correction] = {}
        for number, op in enumerate(self._ops):
            if self._context.seconds_left() <= 0:
                self.cut = f"it ran out of time after {number} of {len(self._ops)} ops"
                self.left = tuple(op.name for op in self._ops[number:])
                break
            before_s = self._context.seconds_left()
            correction = self._correct(number, op)
            if correction is not None:
                corrections[op.name] = correction
            self._context.alive()
            left_s = self._context.seconds_left()
            if _LATER * (before_s - left_s) * (len(self._ops) - number - 1) > left_s:
                self._halve()
        scaled = sum(each.scale is not None for each in corrections.values())
        notes.append(
            f"{len(corrections)} of {len(self._ops)} ops corrected, {scaled} of them in the scale of channels too"
        )
        return corrections

    def _halve(self) -> None:
        """Go on with half of the batches: all ops corrected by few samples are better than the first ops by many."""
        held_out = len(self._batches) - self._fitted
        kept = [*range(-(-self._fitted // 2)), *range(self._fitted, self._fitted + -(-held_out // 2))]
        self._fitted = -(-self._fitted // 2)
        self._batches = [self._batches[i] for i in kept]
        self._weights = [self._weights[i] for i in kept]
        for runs in (self._float, self._int8):
            runs.keep_batches(kept)

    def _correct(self, number: int, op: _Op) -> Correction | None:
        exact, rough = self._float.run(number), self._int8.run(number)
        reference = [self._rows(arrays[op.tap], op, i) for i, arrays in enumerate(exact)]
        rows = [self._rows(arrays[self._taps[number]], op, i) for i, arrays in enumerate(rough)]
        self._count_wild(reference)
        correction = _best(op, rows, reference, self._weights[: self._fitted])
        self._float.keep(number, exact)
        self._int8.keep(number, [self._correct_arrays(arrays, number, op, correction) for arrays in rough])
        return correction

    def _rows(self, array: Array, op: _Op, index: int) -> Array:
        return rows_of(array, op.axis, self._batches[index].count, self._batch)

    def _correct_arrays(self, arrays: Arrays, number: int, op: _Op, correction: Correction | None) -> Arrays:
        if correction is None:
            return arrays
        array = arrays[self._taps[number]]
        shape = [-1 if axis == op.axis % array.ndim else 1 for axis in range(array.ndim)]
        if correction.scale is not None:
            array = array * correction.scale.reshape(shape)
        if correction.offset is not None:
            array = array + correction.offset.reshape(shape)
        return {**arrays, self._taps[number]: array}


def _maker(graph: ir.Graph, op: _Op) -> str:
    """The node whose output is the tap: the op, or the Add behind it."""
    node = graph.node(op.name)
    if node.outputs[0].name != op.tap:
        node = node.outputs[0].consumers()[0]
    return node.name or ""


def _best(op: _Op, rows: Sequence[Array], reference: Sequence[Array], weights: Sequence[Floats]) -> Correction | None:
    """The correction that leaves the least error on held-out batches; None if none helps.

    Args:
        weights: of the samples of the first batches, which are fitted to; those behind them are held out.
    """
    power, fitted = usual_power(reference), len(weights)

    def errors(correction: Correction) -> Floats:
        pairs = zip(rows[fitted:], reference[fitted:], strict=True)
        return np.concatenate(
            [sample_errors(_apply_correction(made, correction), exact, power) for made, exact in pairs]
        )

    best: Correction | None = None
    least = errors(Correction())
    for correction in _fits(op, fit_channels(rows[:fitted], reference[:fitted], weights, shifted=op.shifted)):
        left = errors(correction)
        if helps(left, least):
            best, least = correction, left
    return best


def _apply_correction(rows: Array, correction: Correction) -> Array:
    for array, operation in ((correction.scale, np.multiply), (correction.offset, np.add)):
        if array is not None:
            rows = operation(rows, array[:, None])
    return rows


def _fits(op: _Op, channel_fits: ChannelFits | None) -> list[Correction]:
    """What may correct an op, the simplest first."""
    made = []
    if channel_fits is not None and op.shifted:
        made.append(Correction(offset=_single(channel_fits.offset)))
    if channel_fits is not None and op.scalable:
        made.append(
            Correction(_single(channel_fits.scale), _single(channel_fits.scaled_offset) if op.shifted else None)
        )
    return [each for each in made if all(np.isfinite(a).all() for a in (each.scale, each.offset) if a is not None)]


def _single(array: Floats) -> NDArray[np.float32]:
    return array.astype(np.float32)
