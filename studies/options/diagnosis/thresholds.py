"""The thresholds of a diagnosis: which groups are sensitive, and which signs indicate a cause.

The defaults are starting points. Those of divergence, overlap and error ratio are the usual ones; the others were set
between what easy and hard groups of the networks in docs/sensitivity.md show.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.errors import ConfigError
from studies.options.option import Option, ValueKind
from studies.options.quantities import refusal


def _read_number(text: str, option: str) -> float:
    value = _to_float(text)
    if not (math.isfinite(value) and value >= 0):
        raise refusal(option, "a number of at least 0", text, "leave it out for the default")
    return value


def _read_share(text: str, option: str) -> float:
    value = _to_float(text)
    if not 0 <= value <= 1:
        raise refusal(option, "a number from 0 to 1", text, "leave it out for the default")
    return value


def _to_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


_NUMBER, _SHARE = (ValueKind(read, "{:g}".format) for read in (_read_number, _read_share))


def _threshold_field(default: float, help: str, metavar: str, kind: ValueKind = _NUMBER, name: str = "") -> Any:  # noqa: A002
    return dataclasses.field(
        default=default, metadata={"help": help, "metavar": metavar, "kind": kind, "name": name or None}
    )


@dataclass(frozen=True)
class Thresholds:
    """Beyond which a group is sensitive in a precision, and beyond which a sign points to a cause.

    Attributes:
        max_kl, max_weight_kl: nats; of the activations and of the weights.
        min_overlap, full_overlap: 0 to 1; below the second activations are truncated, below the first it is sensitive.
        min_error: of the error; below it a group has no verdict, unless classes of several samples change.
        max_error_ratio: of the error to its mean over the groups in that precision.
        max_saturated: share of the values outside of what the precision can hold.
        max_tails: share of the values beyond four standard deviations.
        max_peak: farthest value from the mean, in standard deviations.
        max_channel_ratio: range of the widest channel over that of the median one.
        max_shift: share of the group's own error that is one constant per channel.
        min_sqnr_db: of the group's own output.
    """

    max_kl: float = _threshold_field(
        0.3, "Mark a layer as sensitive if the divergence of its activations is above this.", "NATS"
    )
    max_weight_kl: float = _threshold_field(
        0.3, "Mark a layer as sensitive if the divergence of its weights is above this.", "NATS"
    )
    min_overlap: float = _threshold_field(
        0.7, "Mark a layer as sensitive if its histograms overlap by less than this.", "SHARE", _SHARE
    )
    full_overlap: float = _threshold_field(
        0.8, "Mark a range as truncated if its histograms overlap by less than this.", "SHARE", _SHARE
    )
    min_error: float = _threshold_field(
        0.001,
        "Give no layer a verdict whose error at the outputs is below this and flips no class.",
        "SHARE",
    )
    max_error_ratio: float = _threshold_field(
        2.0, "Mark a layer as sensitive if its error is above this multiple of the mean error.", "RATIO"
    )
    max_saturated: float = _threshold_field(
        0.001, "Mark a range as clipped if it cuts off more than this share of the values.", "SHARE", _SHARE
    )
    max_tails: float = _threshold_field(
        0.02, "Mark outliers if more than this share of the values lies beyond 4 sigma.", "SHARE", _SHARE
    )
    max_peak: float = _threshold_field(
        20.0, "Mark outliers if the farthest value lies beyond this many sigma.", "SIGMAS"
    )
    max_channel_ratio: float = _threshold_field(
        8.0, "Mark channels as uneven if the widest is above this multiple of the median.", "RATIO"
    )
    max_shift: float = _threshold_field(
        0.3, "Mark an output as shifted if the constant share of its error is above this.", "SHARE", _SHARE
    )
    min_sqnr_db: float = _threshold_field(
        20.0, "Mark a range as coarse if the SQNR of the layer's output is below this.", "DB", name="min-sqnr"
    )

    def check(self) -> None:
        """Raises ConfigError naming the first that is out of range."""
        for row in threshold_options():
            row.kind.read(repr(float(getattr(self, row.item))), row.shown)


def threshold_options() -> tuple[Option, ...]:
    """The rows of the thresholds, in their order; the verbs take them that say which groups are sensitive."""
    return tuple(
        Option(
            name=each.metadata["name"] or each.name.replace("_", "-"),
            field="thresholds",
            item=each.name,
            kind=each.metadata["kind"],
            help=each.metadata["help"],
            metavar=each.metadata["metavar"],
            default=each.default,
            verbs=("sensitivity", "evaluate"),
            panel="Thresholds",
        )
        for each in dataclasses.fields(Thresholds)
    )


def split_thresholds(options: Mapping[str, Any]) -> tuple[Thresholds, dict[str, Any]]:
    """The thresholds among the options of a command line, and the other options.

    Args:
        options: name → list of texts; an empty list or None if it was not given.

    Raises:
        ConfigError: a value cannot be read, or is given twice.
    """
    rows = {row.name.replace("-", "_"): row for row in threshold_options()}
    values = {row.item: _read(row, options[name]) for name, row in rows.items() if options.get(name)}
    return Thresholds(**values), {name: value for name, value in options.items() if name not in rows}


def _read(row: Option, texts: list[str]) -> float:
    if len(texts) > 1:
        raise ConfigError(f"{row.shown}: expected one value, got {', '.join(map(repr, texts))}; give it once")
    value: float = row.kind.read(texts[0], row.shown)
    return value
