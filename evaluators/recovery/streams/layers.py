"""The INT8 error of one weighted op as a function of the factors of its inputs. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.calibration.channels import ChannelValues
from evaluators.recovery.streams.result import Exponents, Reader
from evaluators.recovery.streams.slots import Slot
from evaluators.recovery.streams.tracker import integer

Floats = NDArray[np.float64]

_DEAD = 1e-30  # power of an output that does not count


@dataclass(frozen=True)
class RoundedTensor:
    """An activation that INT8 rounds with one scale.

    Attributes:
        name: of the tensor.
        slots: of its elements that can differ in their factor, in one dimension.
        low, high: (2, elements) least and largest value of each in two halves of the samples.
        elements: values of each in a half.
        symmetric: whether zero is the middle of its codes.
    """

    name: str
    slots: NDArray[np.int64]
    low: Floats
    high: Floats
    elements: float
    symmetric: bool

    def magnitude(self, half: int | None) -> Floats:
        """(elements,) largest value of each in one half of the samples, or in both."""
        largest: Floats = np.maximum(np.abs(self.low), np.abs(self.high))
        return np.asarray(largest.max(axis=0) if half is None else largest[half])

    def errors(self, exponents: Exponents, half: int) -> Floats:
        """(elements,) mean squares of what rounding and clipping do once powers of two are divided out.

        Args:
            half: of the samples, that gives the range. The other half is what may exceed it.
        """
        factors = np.ldexp(1.0, exponents[self.slots])
        low, high = self.low / factors, self.high / factors
        bottom, top = min(float(low[half].min()), 0.0), max(float(high[half].max()), 0.0)
        if self.symmetric:
            top = max(-bottom, top)
            bottom = -top
        # Rounding errors are uniform in one step; that but one value of a channel is clipped is likeliest.
        beyond = np.maximum(high[1 - half] - top, 0) + np.maximum(bottom - low[1 - half], 0)
        clipping: Floats = np.square(beyond) / self.elements
        return (top - bottom) ** 2 / 255**2 / 12 + clipping


@dataclass(frozen=True)
class RoundedLayer:
    """A weighted op as rounding sees it. Each output counts by its own power, whatever its unit is.

    Attributes:
        node, tensor: its name, and that of what it reads.
        slots: (channels,) of what it reads.
        square: (channels,) mean square of what it reads.
        gain: (channels,) mean over the outputs of squared weights over the output's power.
        peaks: (outputs, inputs) largest weight of each pair over the root of the output's power.
        inputs: (outputs or 1, inputs) channel of each pair.
        kernel: weights of each pair.
        weight_levels: largest code of a weight.
    """

    node: str
    tensor: str
    slots: NDArray[np.int64]
    square: Floats
    gain: Floats
    peaks: NDArray[np.float32]
    inputs: NDArray[np.int64]
    kernel: int
    weight_levels: int

    def noise(self, exponents: Exponents, errors: Floats) -> float:
        """Noise over power of the op's output when its input is divided by powers of two, and rounded.

        Args:
            errors: (slots of the model,) sum of the mean squared errors of what was rounded before the op reads it.
        """
        factors = np.ldexp(1.0, exponents[self.slots])
        by_pair = factors.astype(np.float32)[self.inputs]
        steps = (self.peaks * by_pair).max(axis=1, initial=0).astype(np.float64) / self.weight_levels
        powers = (self.square / np.square(factors))[self.inputs].sum(axis=1)
        of_weights = float(np.mean(np.square(steps) * powers * self.kernel)) / 12
        return float((errors[self.slots] * np.square(factors)) @ self.gain) + of_weights


def describe_layer(node: ir.Node, reader: Reader, values: ChannelValues, weight_bits: int) -> RoundedLayer:
    """What the noise of a weighted op depends on.

    Args:
        node: in the float model, with its weight.
        values: of the tensor that it reads, told apart along the axis of its channels.
    """
    matrix, inputs = _pairs(node)
    square = np.broadcast_to(values.square.reshape(-1), reader.slots.shape).astype(np.float64)
    energy = np.square(matrix, dtype=np.float32).sum(axis=2)
    power = (energy * square.astype(np.float32)[inputs]).sum(axis=1, dtype=np.float64)
    weight = np.where(power > _DEAD, 1 / np.maximum(power, _DEAD), 0.0)
    shares = energy * (weight / len(power)).astype(np.float32)[:, np.newaxis]
    gain = np.zeros(len(reader.slots))
    if len(inputs) == 1:
        gain[inputs[0]] = shares.sum(axis=0, dtype=np.float64)
    else:
        np.add.at(gain, inputs, shares)
    return RoundedLayer(
        node=reader.node,
        tensor=reader.tensor,
        slots=reader.slots,
        square=square,
        gain=gain,
        peaks=np.abs(matrix).max(axis=2) * np.sqrt(weight)[:, np.newaxis].astype(np.float32),
        inputs=inputs,
        kernel=matrix.shape[2],
        weight_levels=2 ** (weight_bits - 1) - 1,
    )


def _pairs(node: ir.Node) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The weight as (outputs, inputs, kernel), and (outputs or 1, inputs) the channel that each pair reads."""
    value = node.inputs[1]
    assert value is not None
    assert value.const_value is not None
    array = value.const_value.numpy()
    if node.op_type in ("Gemm", "MatMul"):
        transposed = node.op_type == "Gemm" and integer(node, "transB", 0)
        matrix = array if transposed else np.moveaxis(array, -1, -2).reshape(-1, array.shape[-2])
        return matrix[:, :, np.newaxis], np.arange(matrix.shape[1])[np.newaxis]
    groups = integer(node, "group", 1)
    if node.op_type == "ConvTranspose":
        inputs, width = array.shape[:2]
        parts = array.reshape(groups, inputs // groups, width, -1)
        array = np.moveaxis(parts, 2, 1).reshape(groups * width, inputs // groups, -1)
    outputs, width = array.shape[:2]
    if groups == 1:
        return array.reshape(outputs, width, -1), np.arange(width)[np.newaxis]
    first = np.arange(outputs) // (outputs // groups) * width
    return array.reshape(outputs, width, -1), first[:, np.newaxis] + np.arange(width)


def describe_tensor(name: str, slots: Slot, values: ChannelValues, *, symmetric: bool) -> RoundedTensor:
    """A tensor with these slots as INT8 rounds it."""
    shape = (2, *slots.shape)
    low, high = (np.broadcast_to(array, shape).reshape(2, -1).astype(np.float64) for array in (values.low, values.high))
    return RoundedTensor(name, slots.reshape(-1), low, high, values.elements, symmetric)
