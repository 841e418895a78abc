"""The faults that an output of the user's own program may have, and how much correcting one would help."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST_SAMPLES = 16  # of fewer, chance explains too much
LEAST_DB = 6.0  # of a mended output: two signals of which less is common have little to do with each other
EQUAL_DB = 40.0  # a channel that is so near needs no mending

_VALUES = 2**20  # of an output, about, that are looked at
_AS_GOOD_DB = 3.0  # a simpler explanation counts as good as one that is nearer by no more than this
_EXACT_DB = 100.0  # what is nearer differs by the rounding of float32 alone


class FaultKind(Enum):
    """Kinds of faults, by their names in JSON."""

    SWAPPED = "swapped outputs"
    LAYOUT = "transposed layout"
    PERMUTED = "permuted channels"
    OFFSET = "offset"
    SCALE = "scale"
    AFFINE = "scale and offset"


@dataclass(frozen=True)
class Fault:
    """One fault that explains how an output differs.

    Attributes:
        before_db: SQNR of what the fault touches, against the nearer of evaluation and FP32.
        after_db: the same with the fault mended, on samples that it was not found on where something was fitted.
        whole_db: SQNR of the whole output with the fault mended.
        axis: of a permutation, or of the scales and offsets; None for one number over the whole output.
        size: of that axis; 0 if there is none.
        channels: indices on the axis that are wrong.
        order: of a permutation: what stands at each of `channels` belongs to this index. Of a layout: the axes of the
            expected array, in the order in which the output holds them.
        scales, offsets: the output is scale · expected + offset, at each of `channels`, or over the whole output.
        other: of swapped outputs: the name of the output that stands here.
    """

    kind: FaultKind
    before_db: float
    after_db: float
    whole_db: float
    axis: int | None = None
    size: int = 0
    channels: Sequence[int] = ()
    order: Sequence[int] = ()
    scales: Sequence[float] = ()
    offsets: Sequence[float] = ()
    other: str = ""


@dataclass(frozen=True)
class WrapperOutput:
    """One output of the user's own program.

    Attributes:
        to_evaluation_db, to_float_db: its SQNR against the evaluation's engine and against FP32; minus infinity where
            its shape is another.
        evaluation_to_float_db: SQNR of the engine against FP32, which says what quantization alone does.
        fault: what explains the difference; None if there is none to explain, or nothing does.
    """

    name: str
    to_evaluation_db: float
    to_float_db: float
    evaluation_to_float_db: float
    fault: Fault | None

    @property
    def level_db(self) -> float:
        """Its SQNR against the nearer of the two."""
        return max(self.to_evaluation_db, self.to_float_db)


@dataclass(frozen=True)
class InputFault:
    """What was done to an input of the user's own program, as its outputs say.

    Attributes:
        input: its name.
        cause: in words: `its channels are in the order BGR`.
        before_db, after_db: SQNR of the worst output against the model's on the right input, and on one with the fault.
    """

    input: str
    cause: str
    before_db: float
    after_db: float


@dataclass(frozen=True)
class WrapperComparison:
    """Outputs of the user's own program beside those of an evaluation.

    Attributes:
        samples: that were compared.
        outputs: in the model's order.
        input_fault: what was done to an input, where that explains the outputs better than faults of the outputs do.
    """

    samples: int
    outputs: Sequence[WrapperOutput]
    input_fault: InputFault | None = None


def level_db(values: NDArray[Any], reference: NDArray[Any]) -> float:
    """Power of the reference over that of the difference, in dB; minus infinity for a reference of zeros alone."""
    theirs = reference.astype(np.float64)
    return ratio_db(float(np.square(theirs).sum()), float(np.square(values.astype(np.float64) - theirs).sum()))


def ratio_db(power: float, noise: float) -> float:
    """Power over noise in dB; infinite if there is no noise, minus infinity where it is no number."""
    if noise == 0:
        return math.inf
    return 10 * math.log10(power / noise) if power > 0 and math.isfinite(noise) else -math.inf


def mends(before_db: float, after_db: float, threshold_db: float) -> bool:
    """Whether an output is so much nearer with a fault mended that the fault explains it."""
    return before_db < math.inf and after_db >= max(before_db + threshold_db, LEAST_DB)


def simplest(faults: Sequence[Fault]) -> Fault | None:
    """The first of some faults, the simplest first, that explains as much as the best; None of none."""
    best = min(max((fault.whole_db for fault in faults), default=0.0), _EXACT_DB)
    return next((fault for fault in faults if fault.whole_db >= best - _AS_GOOD_DB), None)


def by_axis(array: NDArray[Any], axis: int) -> NDArray[np.float64]:
    """(samples, …) as (channels of that axis, samples, the rest); of many values the rest is evenly thinned."""
    rows = np.moveaxis(array, axis, 0)
    step = 1 + array.size // _VALUES
    # A step that divides the width of an image would take the same column of every row.
    return rows.reshape(rows.shape[0], rows.shape[1], -1)[:, :, :: step | 1].astype(np.float64)


def channel_powers(values: NDArray[np.float64], reference: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """(channels,) power of the reference and of the difference, both (channels, samples, the rest)."""
    difference = values - reference
    return tuple(np.einsum("cnr,cnr->c", each, each) for each in (reference, difference))
