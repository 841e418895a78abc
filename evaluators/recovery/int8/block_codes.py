"""Scales and codes of weights in blocks, chosen by the second moments of what the op reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.lowering.corrections import OpConstants, scaled_weight
from evaluators.lowering.placement import Placement
from evaluators.lowering.weight_blocks import best_clip, block_scales, codes_in_blocks, limits_of
from evaluators.lowering.weights import holdable_scales
from evaluators.recovery.int8.second_moments import moments, product_error, round_by_moments
from search.values import Correction, Precision

Array = NDArray[Any]
Floats = NDArray[np.float64]

HURTS = 1e-5  # of the output's power, from which on an op is looked at
WORTH = 0.9  # of the error of the nearest codes, at most, on held-out samples


def round_blocks(
    constants: OpConstants, known: Correction, precision: Precision, placement: Placement, rows: Array, others: Array
) -> Correction | None:
    """The correction with scales and roundings of an op's weight; None if plain ones lose little, or hardly more.

    Args:
        rows: (1, rows, K) to fit to; `others` judge.
    """
    matrix, shifted = _matrix(constants, known), constants.bias is not None
    mean = rows.mean(axis=1) if shifted else np.zeros((1, rows.shape[2]), np.float32)
    second, judging = moments(rows, mean), moments(others, mean)
    plain, _ = _codes(matrix, precision, placement, None)
    before, power = _error(plain, matrix, judging), _error(np.zeros_like(matrix), matrix, judging)
    if not np.isfinite(before) or before <= HURTS * power:
        return None
    clip = None  # of eight bits nothing is cut off
    if precision.largest_code < 127:
        clip = best_clip(matrix.astype(np.float32), precision.block(len(matrix)), precision, np.diagonal(second[0]))
    clipped, steps = _codes(matrix, precision, placement, clip)
    nearest = np.rint(clipped / steps)
    low, high = limits_of(precision)
    made = round_by_moments(matrix.T[None], nearest.T[None], second, steps.T[None])[0].T
    rounding = (np.clip(made, low, high) - nearest).astype(np.int8)
    best = min(
        ((_error((nearest + moved) * steps, matrix, judging), moved) for moved in (np.zeros_like(rounding), rounding)),
        key=lambda pair: pair[0],
    )
    if best[0] > WORTH * before:
        return None
    change = mean[0].astype(np.float64) @ ((nearest + best[1]) * steps - matrix)
    offset = (-change).astype(np.float32) if shifted else known.offset
    return Correction(known.scale, offset, best[1] if best[1].any() else None, clip)


def _matrix(constants: OpConstants, known: Correction) -> Floats:
    """(K, N), with all that the op multiplies it by."""
    node = constants.node
    weight = constants.weight if known.scale is None else scaled_weight(constants, known.scale)
    turned = weight.T if node.attributes.get_int("transB", 0) else weight
    return np.asarray(turned * np.float32(node.attributes.get_float("alpha", 1.0)), np.float64)


def _codes(
    matrix: Floats, precision: Precision, placement: Placement, clip: NDArray[np.int8] | None
) -> tuple[Floats, Floats]:
    """(K, N) what the nearest codes stand for, and what one code is worth."""
    block, single = precision.block(len(matrix)), matrix.astype(np.float32)
    scales = holdable_scales(block_scales(single, block, precision, clip), placement)
    steps = np.repeat(scales, block, axis=0).astype(np.float64)
    return codes_in_blocks(single, scales, precision) * steps, steps


def _error(made: Floats, matrix: Floats, second: Floats) -> float:
    return product_error((made - matrix).T[None], second)
