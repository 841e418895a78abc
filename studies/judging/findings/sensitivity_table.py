"""Which groups are sensitive, and the table that says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from search.errors import ConfigError
from search.values import Precision
from studies.options.quantities import format_percent
from studies.store.records import GroupRecord, SensitivityRecord

SENSITIVE = "sensitive"
COLUMNS = ("group", "node", "op", "precision", "error", "flipped", "sqnr_db", "kl", "overlap", "saturated", "verdict")


@dataclass(frozen=True)
class Thresholds:
    """Beyond which a group is sensitive in a precision.

    Attributes:
        max_kl: nats.
        min_overlap: 0 to 1.
        max_error_ratio: of the error to its mean over the groups in that precision.
    """

    max_kl: float = 0.3
    min_overlap: float = 0.7
    max_error_ratio: float = 2.0

    def check(self) -> None:
        """Raises ConfigError naming what is out of range."""
        for option, value in (("--max-kl", self.max_kl), ("--max-error-ratio", self.max_error_ratio)):
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{option} {value:g}: expected a number of at least 0. The defaults are 0.3 and 2.")
        if not 0 <= self.min_overlap <= 1:
            raise ConfigError(f"--min-overlap {self.min_overlap:g}: expected a number from 0 to 1. The default is 0.7.")


@dataclass(frozen=True)
class Sensitivities:
    """What every group does alone in every lower precision.

    Attributes:
        of: the study or the model.
        rows: in the order of the graph.
        groups: by id.
        notes: what is noteworthy of a pass that was run just now.
    """

    of: str
    rows: tuple[SensitivityRecord, ...]
    groups: Mapping[str, GroupRecord]
    thresholds: Thresholds
    notes: tuple[str, ...] = ()

    @cached_property
    def means(self) -> dict[Precision, float]:
        """Mean error over the groups whose outputs are finite, per precision."""
        errors: dict[Precision, list[float]] = {}
        for row in self.rows:
            if row.error is not None:
                errors.setdefault(row.precision, []).append(row.error)
        return {precision: sum(some) / len(some) for precision, some in errors.items()}

    def reasons(self, row: SensitivityRecord) -> tuple[str, ...]:
        """Why a group is sensitive in a precision; empty where it is not."""
        limits, found = self.thresholds, []
        if row.error is None or row.sqnr_db is None:
            found.append("not finite")
        if row.overlap is not None and row.overlap < limits.min_overlap:
            found.append(f"overlap < {limits.min_overlap:g}")
        if row.kl is not None and row.kl > limits.max_kl:
            found.append(f"KL > {limits.max_kl:g}")
        if row.error is not None and row.error > limits.max_error_ratio * self.means[row.precision]:
            found.append(f"error > {limits.max_error_ratio:g} × mean")
        return tuple(found)

    def table(self) -> list[dict[str, Any]]:
        """A row per group and precision, the largest error first."""
        ordered = sorted(self.rows, key=lambda row: -math.inf if row.error is None else -row.error)
        return [self.row(row) for row in ordered]

    def row(self, row: SensitivityRecord) -> dict[str, Any]:
        """One row of the table."""
        group, reasons = self.groups[row.group], self.reasons(row)
        numbers = ("error", "flipped", "sqnr_db", "kl", "overlap", "saturated", "samples")
        return {
            "group": row.group,
            "node": group.name,
            "op": group.op,
            "precision": row.precision.label,
            **{name: getattr(row, name) for name in numbers},
            "sensitive": bool(reasons),
            "reasons": list(reasons),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "of": self.of,
            "thresholds": vars(self.thresholds),
            "mean_error": {precision.label: mean for precision, mean in self.means.items()},
            "notes": list(self.notes),
            "groups": self.table(),
        }

    def headline(self) -> str:
        """The table in one sentence."""
        sensitive = sum(bool(self.reasons(row)) for row in self.rows)
        estimated = sum(not row.samples for row in self.rows)
        groups = len({row.group for row in self.rows})
        text = f"{groups} groups, {len(self.rows)} pairs of group and precision: {sensitive} sensitive"
        return f"{text}; {estimated} errors (≈) are estimates" if estimated else text


def text_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table for people."""
    error = "not finite" if row["error"] is None else f"{row['error']:.3g}"
    return {
        **row,
        "error": error if row["samples"] else f"≈ {error}",
        "flipped": "" if row["flipped"] is None else format_percent(row["flipped"]),
        "sqnr_db": "not finite" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f} dB",
        "kl": _number(row["kl"]),
        "overlap": _number(row["overlap"]),
        "saturated": "" if row["saturated"] is None else format_percent(row["saturated"]),
        "verdict": f"{SENSITIVE}: {', '.join(row['reasons'])}" if row["sensitive"] else "",
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
