"""Causes of a group's loss in a lower precision, with remedies, as one table in plain words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evaluators.diagnose.group_error import GroupError
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.quantities import format_percent


@dataclass(frozen=True)
class Cause:
    """One row of the table.

    Attributes:
        name: a few words, for tables.
        evidence: the numbers that show it, in words; empty if the cause does not show in a row.
        words: what goes on, one sentence.
        remedy: what to do about it, one sentence.
        steps: names of the recovery steps that do it, the likeliest first.
        symptom: whether it says what is seen and not why, and is told only where nothing says why.
    """

    name: str
    evidence: Callable[[GroupError, Thresholds], str]
    words: str
    remedy: str
    steps: tuple[str, ...]
    symptom: bool = False


@dataclass(frozen=True)
class Finding:
    """A cause that shows in one group in one precision."""

    cause: Cause
    evidence: str


def find_causes(row: GroupError, thresholds: Thresholds) -> tuple[Finding, ...]:
    """The causes that show in a row, the likeliest first; the symptoms where none does. Never empty."""
    shown = [(cause, cause.evidence(row, thresholds)) for cause in CAUSES]
    findings = [Finding(cause, evidence) for cause, evidence in shown if evidence]
    return tuple(each for each in findings if not each.cause.symptom) or tuple(findings[:1])


def _overflow(row: GroupError, limits: Thresholds) -> str:
    if not row.precision.quantized and row.saturated:
        held = f"{row.precision.largest:.6g}, the largest of {row.precision.name}"
        return f"{format_percent(row.saturated)} of the values are beyond {held}"
    return "outputs hold NaN or infinity" if row.error is None or row.sqnr_db is None else ""


def _cut_off(row: GroupError, limits: Thresholds) -> str:
    if row.saturated is None or row.saturated <= limits.max_saturated or not row.precision.quantized:
        return ""
    return f"{format_percent(row.saturated)} of the values lie outside of the range"


def _uneven_channels(row: GroupError, limits: Thresholds) -> str:
    if row.channel_ratio is None or row.channel_ratio <= limits.max_channel_ratio:
        return ""
    return f"the widest channel is {row.channel_ratio:.3g} × as wide as the median one"


def _far_values(row: GroupError, limits: Thresholds) -> str:
    if row.tails is None or row.peak is None:
        return ""
    if row.tails <= limits.max_tails and row.peak <= limits.max_peak:
        return ""
    return f"the farthest value is {row.peak:.3g} sigma from the mean, {format_percent(row.tails)} are beyond 4 sigma"


def _lost_weights(row: GroupError, limits: Thresholds) -> str:
    if row.weight_kl is None or row.weight_kl <= limits.max_weight_kl:
        return ""
    return f"the rounded weights diverge by {row.weight_kl:.3g} nats from the float ones"


def _shift_text(row: GroupError, limits: Thresholds) -> str:
    if row.shift is None or row.shift <= limits.max_shift:
        return ""
    return f"{format_percent(row.shift)} of its error is one constant per channel"


def _truncation_text(row: GroupError, limits: Thresholds) -> str:
    if row.overlap is None or row.overlap >= limits.full_overlap:
        return ""
    return f"float and rounded activations share {format_percent(row.overlap)} of their histograms"


def _coarse(row: GroupError, limits: Thresholds) -> str:
    if row.sqnr_db is None or row.sqnr_db >= limits.min_sqnr_db:
        return ""
    return f"its own output has an SQNR of {row.sqnr_db:.1f} dB"


def _amplification_text(row: GroupError, limits: Thresholds) -> str:
    own = "" if row.sqnr_db is None else f", of its own output alone {row.sqnr_db:.1f} dB"
    return f"error of the network's outputs {0.0 if row.error is None else row.error:.3g}{own}"


CAUSES = (
    Cause(
        "overflow",
        _overflow,
        "Values are larger than the precision can hold.",
        "Keep the layer in FP32 with --keep, or scale its channels down in the float model.",
        ("equalize",),
    ),
    Cause(
        "cut-off values",
        _cut_off,
        "The calibrated range cuts off values that the network needs.",
        "Calibrate the tensor with a wider range: use --calibration minmax, another method, or more representative "
        "samples.",
        ("ranges", "samples"),
    ),
    Cause(
        "uneven channels",
        _uneven_channels,
        "Channels with very different ranges share one scale, so the narrow ones keep few levels or none.",
        "Equalize the channels: scale each by a power of two where that is exact, otherwise move the scale into the "
        "weights.",
        ("equalize", "smooth"),
    ),
    Cause(
        "far values",
        _far_values,
        "A few values far from all others widen the range, so the others keep few levels.",
        "Clip the range where that costs least, or calibrate on samples without such values.",
        ("ranges", "smooth", "samples"),
    ),
    Cause(
        "lost weights",
        _lost_weights,
        "Small weights vanish beside far larger ones that share their scale.",
        "Equalize the channels that these weights read or write, or choose the rounding of the weights by its effect "
        "on the output.",
        ("equalize", "round"),
    ),
    Cause(
        "constant shift",
        _shift_text,
        "Rounding shifts the mean of the layer's output, and the layers behind it take that for signal.",
        "Correct the bias by the mean difference.",
        ("bias",),
    ),
    Cause(
        "truncated activations",
        _truncation_text,
        "The levels are too coarse for the values that most activations have.",
        "Choose the range by its effect on the layer's output.",
        ("ranges", "bias"),
        symptom=True,
    ),
    Cause(
        "coarse rounding",
        _coarse,
        "The layer's own output is mostly right but noisy, and no single property of its tensors explains it.",
        "Choose the rounding of the weights by its effect on the output, then correct the bias. If that is not enough, "
        "keep the layer in a higher precision.",
        ("round", "bias"),
        symptom=True,
    ),
    Cause(
        "amplified error",
        _amplification_text,
        "The layer's rounding error is like that of others, but the layers behind it amplify it.",
        "Correct the bias and choose the rounding of the weights by its effect on the output. If that is not enough, "
        "keep the layer in a higher precision.",
        ("bias", "round"),
        symptom=True,
    ),
)
