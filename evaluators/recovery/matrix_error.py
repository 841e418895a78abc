"""The INT8 error of matrix products on observed inputs, computed from the integer codes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.calibration.scales import activation_scale, weight_scales
from evaluators.data import Batch
from evaluators.lowering.placement import Placement
from search.graph.model import Model, values_by_name
from search.values import TensorRange

Matrix = NDArray[np.float32]

_ROWS = 256  # of each input, over all samples
_FROM_BATCH = 32
_ELEMENTS = 2**26  # fetched in one run


def read_rows(
    emulator: Emulator, model: Model, tensors: Sequence[str], batches: Iterator[Batch]
) -> dict[str, tuple[Matrix, Matrix]]:
    """Up to 256 rows (…, channels) of some tensors of the float model, spread over the samples.

    Returns:
        By name, the rows of every other batch, and those of the batches between: the first ones again where there is
        one batch alone.

    Raises:
        EvaluatorError: the emulation cannot run the model.
    """
    graph = model.graph.clone()
    values = values_by_name(graph)
    known = {output.name for output in graph.graph.outputs}
    graph.graph.outputs.extend(values[name] for name in tensors if name not in known)
    session = emulator.open(graph)
    rows_by_tensor: dict[str, list[Matrix]] = {name: [] for name in tensors}
    for batch in batches:
        for names in _parts(model, tensors):
            for name, array in session.run(batch.inputs, names).items():
                rows = array.reshape(-1, array.shape[-1])
                rows = rows[: len(rows) // model.batch * batch.count]
                chosen = np.unique(np.linspace(0, len(rows) - 1, _FROM_BATCH).astype(np.int64))
                rows_by_tensor[name].append(rows[chosen])
        if all(sum(map(len, parts)) >= _ROWS for parts in rows_by_tensor.values()):
            break
    return {
        name: (np.concatenate(parts[::2]), np.concatenate(parts[1::2] or parts))
        for name, parts in rows_by_tensor.items()
    }


def _parts(model: Model, tensors: Sequence[str]) -> Iterator[list[str]]:
    """Tensors in portions that fit into memory together."""
    part, size = list[str](), 0
    for name in tensors:
        elements = int(np.prod(model.shapes.get(name, (_ELEMENTS,))))
        if part and size + elements > _ELEMENTS:
            yield part
            part, size = [], 0
        part.append(name)
        size += elements
    yield part


@dataclass(frozen=True)
class Product:
    """A matrix product with a constant right factor.

    Attributes:
        rows: (samples, inputs) that it was given in each half of the samples.
        weight: (inputs, outputs).
        low, high: (2, inputs) least and largest value of every channel in each half.
    """

    rows: tuple[Matrix, Matrix]
    weight: Matrix
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def error(self, powers: NDArray[np.int64], half: int, placement: Placement) -> float:
        """Noise over power of the product when both factors are INT8 and channels were divided by powers of two.

        Args:
            half: of the samples, that gives the range of the left factor. The product is of the other's rows.
        """
        factors = np.ldexp(np.float32(1), powers)
        left_rows = self.rows[1 - half]
        bounds = self.low[half] / factors, self.high[half] / factors
        rows = _round_rows(left_rows / factors, TensorRange(float(bounds[0].min()), float(bounds[1].max())), placement)
        weight = self.weight * factors[:, np.newaxis]
        scales = weight_scales(weight, 1, placement.weight_bits, placement.pair_limit)
        limit = 2 ** (placement.weight_bits - 1) - 1
        rounded = np.clip(np.rint(weight / scales), -limit, limit) * scales
        exact = left_rows @ self.weight
        noise = np.square(rows @ rounded - exact, dtype=np.float64)
        # Each output counts by its own power: what reads it may have large weights for a small one.
        power = np.square(exact, dtype=np.float64).mean(axis=0)
        return float(np.mean(noise.mean(axis=0)[power > 0] / power[power > 0])) if (power > 0).any() else 0.0


def _round_rows(rows: Matrix, seen: TensorRange, placement: Placement) -> Matrix:
    symmetric = placement.symmetric
    scale, zero = activation_scale(seen, signed=placement.is_signed, symmetric=symmetric)
    low = -128 if placement.is_signed else 0
    codes = np.clip(np.rint(rows / np.float32(scale)) + zero, low, low + 255)
    return np.asarray((codes - zero) * np.float32(scale), np.float32)


def right_factor(node: ir.Node) -> Matrix | None:
    """(inputs, outputs) constant weight of a Gemm or MatMul; None of other nodes and other shapes."""
    value: Any = node.inputs[1].const_value if node.inputs[1] is not None else None
    if node.op_type not in ("Gemm", "MatMul") or value is None:
        return None
    array: Matrix = value.numpy()
    transposed = node.attributes.get("transB")
    if array.ndim != 2:
        return None
    return array.T if transposed is not None and transposed.as_int() else array
