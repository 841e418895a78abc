"""The results of a sensitivity pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from search.values import Precision


@dataclass(frozen=True)
class GroupError:
    """What one group alone in a lower precision adds to the error of the outputs, all others in FP32.

    Attributes:
        group: its id.
        error: noise over power of the outputs; None if they are not finite.
        flipped: share of samples whose class changes; None if it was not measured or outputs are no classes.
        sqnr_db: of the group's own output; None if that is not finite.
        kl, overlap, saturated: of the worst of its activations, `kl` in nats; None if none is rounded.
        samples: that the error was measured on; 0 if it is an estimate.
        mse: mean squared error of the group's own output, in its unit; None if it is not finite.
        shift: share of that error which is one constant per channel; None if it is not finite.
        weight_kl: divergence of its weights from the float ones, in nats; None if it has no constant weight.
        tails: share of values beyond four standard deviations, of the worst of its activations; None if none is
            rounded, as `peak` and `channel_ratio`.
        peak: farthest value from the mean in standard deviations, of the worst of its activations.
        channel_ratio: range of the widest channel over that of the median one, of the worst of its activations.
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
    mse: float | None = None
    shift: float | None = None
    weight_kl: float | None = None
    tails: float | None = None
    peak: float | None = None
    channel_ratio: float | None = None


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
