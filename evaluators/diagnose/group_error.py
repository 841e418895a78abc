"""What a sensitivity pass finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.values import Precision


@dataclass(frozen=True)
class GroupError:
    """What one group alone in a lower precision adds to the error of the outputs, all others in FP32.

    Attributes:
        group: its id.
        error: noise over power of the outputs; None where they are not finite.
        flipped: share of samples whose class changes; None where it was not measured or outputs are no classes.
        sqnr_db: of the group's own output; None where that is not finite.
        kl, overlap, saturated: of the worst of its activations, `kl` in nats; None where none is rounded.
        samples: that the error was measured on; 0 where it is an estimate.
    """

    group: str
    precision: Precision
    error: float | None
    flipped: float | None
    sqnr_db: float | None
    kl: float | None
    overlap: float | None
    saturated: float | None
    samples: int


@dataclass(frozen=True)
class SensitivityPass:
    """What a pass over a network found.

    Attributes:
        rows: one per pair of group and precision, in the order of the network.
        notes: what is noteworthy, one sentence each.
        not_finite: indices of samples on which the float model itself gives NaN or infinity.
        device: that it ran on.
    """

    rows: Sequence[GroupError]
    notes: Sequence[str]
    not_finite: Sequence[int]
    device: str
