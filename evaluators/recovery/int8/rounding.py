"""Rounding weights by the effect on the output of their op, where rounding to the nearest loses much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data import Batch
from evaluators.engine import Arrays
from evaluators.lowering.corrections import OpConstants, find_constants, scaled_weight
from evaluators.lowering.weights import along, channel_axis, nearest_codes
from evaluators.measure.group_tensors import Piece, batches_in, cut, tensors_of_pieces
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.int8.bias import correct_means
from evaluators.recovery.int8.block_codes import HURTS, WORTH, round_blocks
from evaluators.recovery.int8.sample_errors import USUAL, rows_of, sample_weights
from evaluators.recovery.int8.second_moments import moments, product_error, round_by_moments, rows_read
from evaluators.recovery.step import Proposal, RecoveryStep
from search.values import Correction, Precision, Ranges

Array = NDArray[Any]
Floats = NDArray[np.float64]

_SAMPLES = 24  # to fit to, and as many to judge on
_FEW_ROWS = 512  # of weights in blocks, which are offered where a sample has few rows
_TOTAL_BYTES = 512 * 2**20  # of activations of the samples to fit to, and as much again to judge on
_MOST_INPUTS = 4608  # of one output: the time of a factor grows with the third power
_TIME_SHARE = 0.6  # of what is left; the rest corrects means anew


class RoundStep(RecoveryStep):
    """Rounds weights by second moments of their inputs, as GPTQ does: see `second_moments.round_by_moments`.

    Of weights in blocks it chooses the scales by them too, see `block_codes`. In INT8 the largest weights of each
    channel keep their codes, so that the scale stays. What rounding takes from a mean goes into the bias. Where means
    were corrected before, they are corrected again: they made up for other codes.
    """

    version = 4
    name = "round"
    summary = "chooses the rounding of weights by its effect on the output, where rounding to the nearest loses much"

    def serves(self, precision: Precision) -> bool:
        return precision.recovered or (bool(precision.blocks) and precision.dtype.startswith("int"))

    def propose(self, context: RecoveryContext, ranges: Ranges) -> Proposal | None:
        rounding = _Rounding(context, ranges)
        corrections = rounding.run()
        if not corrections:
            return Proposal(ranges, tuple(rounding.notes), rounding.cut)
        known = ranges.recovery.of(context.precision)
        rounded = replace(
            ranges, recovery=ranges.recovery.with_corrections(context.precision, {**known, **corrections})
        )
        if all(each.scale is None and each.offset is None for each in known.values()):
            return Proposal(rounded, tuple(rounding.notes), rounding.cut)
        again = correct_means(context, rounded, context.assignment)
        return Proposal(again.ranges, (*rounding.notes, *again.notes), rounding.cut or again.cut)


@dataclass(frozen=True)
class _Codes:
    """A weight as (parts, outputs, inputs).

    Attributes:
        weights: in units of one code.
        nearest: codes.
        scales: (parts, outputs) of one code.
    """

    weights: Floats
    nearest: Floats
    scales: Floats


class _Rounding:
    def __init__(self, context: RecoveryContext, ranges: Ranges) -> None:
        self.notes: list[str] = []
        self.cut = ""  # as of `Proposal`
        self._context = context
        self._ranges = ranges
        self._model = context.model(ranges.recovery)
        samples = _FEW_ROWS if context.precision.blocks else _SAMPLES
        count = batches_in(self._model, samples, _TOTAL_BYTES)
        fitting = list(islice(context.fitting(), count))
        self._batches: list[Batch] = [*fitting, *islice(context.held_out(), count)]
        self._fitted = len(fitting)

    def run(self) -> dict[str, Correction]:
        """Corrections of the ops that it helps, by name."""
        wanted, precision = self._context.assignment, self._context.precision
        model = self._model
        own = model.own if precision.recovered else None
        groups = [g for g in model.groups if wanted[g.id] is precision and not (own and own.owns(g))]
        single = [group for group in groups if len(group.anchors) == 1]
        if len(single) < len(groups):
            self.notes.append(f"{len(groups) - len(single)} weights that several ops share are unchanged")
        inputs = [batch.inputs for batch in self._batches]
        corrections: dict[str, Correction] = {}
        pieces = [cut(self._model, group) for group in single]
        until = (1 - _TIME_SHARE) * self._context.seconds_left()
        looked_at = tensors_of_pieces(self._context.emulator, self._model, pieces, inputs) if pieces else ()
        for seen, (piece, tensors) in enumerate(looked_at):
            if self._context.seconds_left() <= until:
                self.cut = f"it ran out of time after {seen} of {len(pieces)} weights"
                break
            correction = self._round(piece, tensors)
            if correction is not None:
                corrections[piece.group.anchors[0]] = correction
            self._context.alive()
        self.notes.append(f"{len(corrections)} of {len(pieces)} weights rounded by their outputs")
        return corrections

    def _round(self, piece: Piece, tensors: Sequence[Arrays]) -> Correction | None:
        group = piece.group
        constants = find_constants(self._model.graph.graph.node(group.anchors[0]), group.nodes)
        if constants is None:
            return None
        precision = self._context.precision
        known = self._ranges.recovery.of(precision).get(group.anchors[0], Correction())
        read = constants.node.inputs[0]
        assert read is not None
        fitting, held_out = self._usual([arrays[read.name or ""] for arrays in tensors], piece)
        codes = None if precision.blocks else self._codes(constants, known)
        rows = rows_read(constants.node, fitting, constants.weight.shape) if fitting and held_out else None
        others = rows_read(constants.node, held_out, constants.weight.shape) if rows is not None else None
        if rows is None or others is None or rows.shape[2] > _MOST_INPUTS:
            return None
        if precision.blocks:
            return round_blocks(constants, known, precision, self._context.placement, rows, others)
        return None if codes is None else _round_weights(constants, known, codes, rows, others)

    def _usual(self, arrays: Sequence[Array], piece: Piece) -> tuple[list[Array], list[Array]]:
        """The samples of usual amplitude, those to fit to and those that judge."""
        batch = self._model.batch
        rows = [rows_of(a, piece.axis, self._batches[i].count, batch) for i, a in enumerate(arrays)]
        kept = []
        for i, (array, weights) in enumerate(zip(arrays, sample_weights(rows), strict=True)):
            if len(weights) == self._batches[i].count and array.shape[0] % batch == 0:
                by_sample = array.reshape(batch, array.shape[0] // batch, *array.shape[1:])[: len(weights)]
                kept.append(by_sample[weights >= USUAL].reshape(-1, *array.shape[1:]))
            else:
                kept.append(array if (weights >= USUAL).all() else array[:0])
        parts = [[a for a in part if len(a)] for part in (kept[: self._fitted], kept[self._fitted :])]
        return parts[0], parts[1]

    def _codes(self, constants: OpConstants, known: Correction) -> _Codes | None:
        """The codes of a weight; None if one scale serves several channels, or rounding does not know the op."""
        node, weight = constants.node, constants.weight
        axis = channel_axis(node, weight)
        if axis is None or node.op_type == "ConvTranspose":
            return None
        scaled = weight if known.scale is None else scaled_weight(constants, known.scale)
        nearest, scales = nearest_codes(node, scaled, self._context.placement)
        group = node.attributes.get("group")
        parts = 1 if group is None else int(group.as_int())
        shape = (parts, scales.size // parts, -1)
        units = scaled.astype(np.float64) / along(scales.astype(np.float64), axis, weight.ndim)
        flat = [np.moveaxis(array, axis, 0).reshape(shape).astype(np.float64) for array in (units, nearest)]
        return _Codes(flat[0], flat[1], scales.astype(np.float64).reshape(parts, -1))


def _round_weights(
    constants: OpConstants, known: Correction, codes: _Codes, rows: Array, others: Array
) -> Correction | None:
    """The correction with a rounding; None if the nearest codes lose little, or others lose hardly less.

    Args:
        rows: (parts, rows, inputs) to fit to; `others` judge.
    """
    shifted = constants.bias is not None
    mean = rows.mean(axis=1) if shifted else np.zeros((rows.shape[0], rows.shape[2]), np.float32)
    second, judging = moments(rows, mean), moments(others, mean)
    scales = codes.scales[:, :, None]
    before = product_error((codes.nearest - codes.weights) * scales, judging)
    power = product_error(codes.weights * scales, judging)
    if not np.isfinite(before) or before <= HURTS * power:
        return None
    made = round_by_moments(codes.weights, codes.nearest, second)
    largest = np.abs(codes.nearest) >= np.abs(codes.nearest).max(axis=2, keepdims=True)
    made = np.where(largest, codes.nearest, made)
    if product_error((made - codes.weights) * scales, judging) > WORTH * before:
        return None
    offset = known.offset
    if shifted:
        change = np.einsum("pok,pk->po", (made - codes.weights) * scales, mean.astype(np.float64)).reshape(-1)
        alpha = constants.node.attributes.get("alpha")
        offset = (-change if alpha is None else -change * alpha.as_float()).astype(np.float32)
    return Correction(known.scale, offset, _as_stored(made - codes.nearest, constants))


def _as_stored(moves: Floats, constants: OpConstants) -> NDArray[np.int8]:
    """(parts, outputs, inputs) in the shape of the weight."""
    weight = constants.weight
    axis = channel_axis(constants.node, weight)
    assert axis is not None
    turned = [weight.shape[axis], *(size for i, size in enumerate(weight.shape) if i != axis)]
    return np.ascontiguousarray(np.moveaxis(moves.reshape(turned), 0, axis), np.int8)
