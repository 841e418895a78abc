"""The inputs of a weighted op as rows, and rounding of its weight by the second moments of these rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

_ROWS = 2048  # of one op, at most, in all samples together
_DAMPING = 0.01  # of the mean of the diagonal, added to it: few samples leave directions that they say nothing of
_BLOCK = 128


def rows_read(node: ir.Node, arrays: Sequence[Array], shape: Sequence[int]) -> Array | None:
    """(parts, rows, inputs) float32 that an op multiplies with its weight, from a sample of positions; deterministic.

    Args:
        arrays: what the op reads, of each batch.
        shape: of the weight.

    Returns:
        None of an op that this cannot take apart: a ConvTranspose, padding by a rule, a transposed input.
    """
    if node.op_type in ("Gemm", "MatMul"):
        if len(shape) != 2 or _integer(node, "transA", 0):
            return None
        rows = np.concatenate([array.reshape(-1, array.shape[-1]) for array in arrays])
        return _thin_rows(rows, _ROWS)[None].astype(np.float32)
    if node.op_type != "Conv" or _text(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    parts = _integer(node, "group", 1)
    each = max(1, _ROWS // max(1, sum(len(array) for array in arrays)))
    random = np.random.RandomState(0)
    patches = [_patches(node, array, list(shape[2:]), each, random) for array in arrays]
    rows = np.concatenate(patches)  # (rows, channels, kernel)
    grouped = rows.reshape(len(rows), parts, -1)
    return np.ascontiguousarray(np.moveaxis(grouped, 1, 0), np.float32)


def _patches(node: ir.Node, array: Array, kernel: list[int], each: int, random: np.random.RandomState) -> Array:
    """(rows, channels, kernel) windows at some positions of each sample."""
    axes = len(kernel)
    pads, strides, steps = (
        _integers(node, name, default)
        for name, default in (("pads", [0] * 2 * axes), ("strides", [1] * axes), ("dilations", [1] * axes))
    )
    padded = np.pad(array, [(0, 0), (0, 0), *((pads[i], pads[i + axes]) for i in range(axes))])
    wide = [(size - 1) * step + 1 for size, step in zip(kernel, steps, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, wide, axis=tuple(range(2, 2 + axes)))
    index: list[Any] = [slice(None), slice(None), *(slice(None, None, stride) for stride in strides)]
    index += [slice(None, None, step) for step in steps]
    windows = windows[tuple(index)]
    places = windows.shape[2 : 2 + axes]
    total = math.prod(places)
    chosen = np.sort(random.permutation(total)[:each]) if total > each else np.arange(total)
    where: tuple[Any, ...] = (slice(None), slice(None), *np.unravel_index(chosen, places))
    taken = windows[where]  # (samples, channels, places, …)
    return np.asarray(np.moveaxis(taken, 2, 1).reshape(-1, array.shape[1], math.prod(kernel)))


def _thin_rows(rows: Array, most: int) -> Array:
    return rows if len(rows) <= most else rows[np.sort(np.random.RandomState(0).permutation(len(rows))[:most])]


def moments(rows: Array, mean: Array) -> Floats:
    """(parts, inputs, inputs) second moments of (parts, rows, inputs) about a mean of (parts, inputs)."""
    centred = rows - mean[:, None].astype(np.float32)
    return np.asarray(np.matmul(np.moveaxis(centred, 1, 2), centred) / rows.shape[1], np.float64)


def round_by_moments(weights: Floats, nearest: Floats, second: Floats, steps: Floats | None = None) -> Floats:
    """Codes whose products with rows are near to those of the weights, though single codes are not the nearest.

    The method of E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
    Transformers" (ICLR 2023, https://arxiv.org/abs/2210.17323), algorithm 1: input by input, what rounding one loses is
    made up for by those that come after it, by the Cholesky factor of the inverse second moments. Here no code goes
    further than one from the nearest.

    Args:
        weights: (parts, outputs, inputs) in units of one code where there are no `steps`.
        nearest: the codes nearest to them; what is nan stays.
        second: (parts, inputs, inputs) second moments of the inputs.
        steps: (parts, outputs, inputs) that one code is worth, where it is not the same along the inputs.

    Returns:
        (parts, outputs, inputs) codes.

    Raises:
        numpy.linalg.LinAlgError: the moments are not positive definite in spite of damping.
    """
    upper = _inverse_factor(second)
    left, codes = weights.copy(), nearest.copy()
    count = weights.shape[2]
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        lost = np.zeros((*weights.shape[:2], end - start))
        for i in range(start, end):
            step = 1.0 if steps is None else steps[:, :, i]
            wanted = np.clip(np.rint(left[:, :, i] / step), nearest[:, :, i] - 1, nearest[:, :, i] + 1)
            codes[:, :, i] = wanted
            error = (left[:, :, i] - wanted * step) / upper[:, None, i, i]
            lost[:, :, i - start] = error
            left[:, :, i + 1 : end] -= error[:, :, None] * upper[:, None, i, i + 1 : end]
        left[:, :, end:] -= lost @ upper[:, start:end, end:]
    return np.asarray(codes)


def _inverse_factor(second: Floats) -> Floats:
    """Upper Cholesky factor of the inverse of damped second moments."""
    damped = second.copy()
    diagonal = np.einsum("pii->pi", damped)
    diagonal += _DAMPING * diagonal.mean(axis=1, keepdims=True) + np.finfo(np.float64).tiny
    dead = diagonal <= 0
    diagonal[dead] = 1.0
    lower = np.linalg.cholesky(np.linalg.inv(damped))
    return np.asarray(np.moveaxis(lower, 1, 2))


def product_error(differences: Floats, second: Floats) -> float:
    """Mean square of what differences of weights make of rows with such second moments, summed over outputs."""
    return float(np.einsum("pok,pok->", differences @ second, differences))


def _integer(node: ir.Node, name: str, default: int) -> int:
    attribute = node.attributes.get(name)
    return default if attribute is None else int(attribute.as_int())


def _integers(node: ir.Node, name: str, default: list[int]) -> list[int]:
    attribute = node.attributes.get(name)
    return default if attribute is None else [int(value) for value in attribute.as_ints()]


def _text(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None else str(attribute.as_string())
