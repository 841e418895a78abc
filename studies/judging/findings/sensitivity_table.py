"""Sensitive groups and their causes, as tables."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evaluators.diagnose.group_error import GroupError
from search.values import Precision, RecoveryRecord
from studies.judging.findings.causes import Cause, Finding, find_causes
from studies.judging.findings.remedies import Remedy, results_of
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.quantities import format_percent
from studies.store.records import GroupRecord

SENSITIVE, TRUNCATED, COARSE = "sensitive", "truncated", "coarse"
_IDENTITY = ("group", "node", "op", "precision")
_ACTIVATIONS = ("kl", "overlap", "saturated", "peak", "tails", "channel_ratio")
COLUMNS = (*_IDENTITY, "error", "flipped", "sqnr_db", "mse", *_ACTIVATIONS, "weight_kl", "verdict")
NUMBERS = ("error", "flipped", "sqnr_db", "mse", "shift", *_ACTIVATIONS, "weight_kl", "samples")
CAUSE_COLUMNS = ("group", "node", "precision", "cause", "evidence")


@dataclass(frozen=True)
class Sensitivities:
    """What every group does alone in every lower precision.

    Attributes:
        of: the study or the model.
        rows: in the order of the graph.
        groups: by id.
        notes: what is noteworthy of a pass that was run just now.
        recovery: what was tried on the target to make INT8 lose less, which these sensitivities are of; None where
            nothing was.
    """

    of: str
    rows: tuple[GroupError, ...]
    groups: Mapping[str, GroupRecord]
    thresholds: Thresholds
    notes: tuple[str, ...] = ()
    recovery: RecoveryRecord | None = None

    @cached_property
    def means(self) -> dict[Precision, float]:
        """Mean error over the groups whose outputs are finite, per precision."""
        errors: dict[Precision, list[float]] = {}
        for row in self.rows:
            if row.error is not None:
                errors.setdefault(row.precision, []).append(row.error)
        return {precision: sum(some) / len(some) for precision, some in errors.items()}

    def reasons(self, row: GroupError) -> tuple[str, ...]:
        """Why a group is sensitive in a precision; empty if it is not."""
        limits, reasons = self.thresholds, []
        if row.error is None or row.sqnr_db is None:
            return ("not finite",)
        if not self._does_harm(row):
            return ()
        if row.overlap is not None and row.overlap < limits.min_overlap:
            reasons.append(f"overlap < {limits.min_overlap:g}")
        if row.kl is not None and row.kl > limits.max_kl:
            reasons.append(f"KL > {limits.max_kl:g}")
        if row.weight_kl is not None and row.weight_kl > limits.max_weight_kl:
            reasons.append(f"weight KL > {limits.max_weight_kl:g}")
        if row.error > limits.max_error_ratio * self.means[row.precision]:
            reasons.append(f"error > {limits.max_error_ratio:g} × mean")
        return tuple(reasons)

    def _does_harm(self, row: GroupError) -> bool:
        """Whether the outputs of the network are further off than `min_error`, or classes of several samples change.

        Among groups of which none does harm one still has the largest error, and histograms may look odd: there no
        sign counts.
        """
        return row.error is None or row.error >= self.thresholds.min_error or _flips_some(row)

    def is_truncated(self, row: GroupError) -> bool:
        """Whether its activations overlap less than in full, though perhaps not so little that it is sensitive."""
        return row.overlap is not None and row.overlap < self.thresholds.full_overlap

    def is_coarse(self, row: GroupError) -> bool:
        """Whether its own output is noisy, though perhaps no more than that of other groups."""
        return row.sqnr_db is not None and row.sqnr_db < self.thresholds.min_sqnr_db

    def verdict(self, row: GroupError) -> str:
        """`sensitive`, else `truncated`, else `coarse`; empty if a group is none of them, or does no harm."""
        if self.reasons(row):
            return SENSITIVE
        if not self._does_harm(row):
            return ""
        return TRUNCATED if self.is_truncated(row) else COARSE if self.is_coarse(row) else ""

    def findings(self, row: GroupError) -> tuple[Finding, ...]:
        """The causes that show in a group that has a verdict, the likeliest first; empty for others."""
        return find_causes(row, self.thresholds) if self.verdict(row) else ()

    def table(self) -> list[dict[str, Any]]:
        """A row per group and precision, the largest error first."""
        return [self.row(row) for row in self._by_error()]

    def _by_error(self) -> list[GroupError]:
        return sorted(self.rows, key=lambda row: -math.inf if row.error is None else -row.error)

    def row(self, row: GroupError) -> dict[str, Any]:
        """One row of the table."""
        group, reasons = self.groups[row.group], self.reasons(row)
        return {
            "group": row.group,
            "node": group.name,
            "op": group.op,
            "precision": row.precision.label,
            **{name: getattr(row, name) for name in NUMBERS},
            "sensitive": bool(reasons),
            "verdict": self.verdict(row),
            "reasons": list(reasons),
            "causes": [finding.cause.name for finding in self.findings(row)],
        }

    def texts(self, most: int) -> list[dict[str, Any]]:
        """The first rows of the table for people, at most so many."""
        return [text_of(row) for row in self.table()[:most]]

    def cause_rows(self) -> list[dict[str, Any]]:
        """A row per cause that shows in a group and precision, the group with the largest error first."""
        return [
            {
                "group": row.group,
                "node": self.groups[row.group].name,
                "precision": row.precision.label,
                "cause": finding.cause.name,
                "evidence": finding.evidence,
            }
            for row in self._by_error()
            for finding in self.findings(row)
        ]

    def remedies(self) -> list[Remedy]:
        """Every cause that shows somewhere with its remedy, the one that shows in most groups first."""
        groups: dict[Cause, dict[str, None]] = {}
        for row in self.rows:
            for finding in self.findings(row):
                groups.setdefault(finding.cause, {})[row.group] = None
        own = set() if self.recovery is None else {*self.recovery.own}
        remedies = [
            Remedy(cause, tuple(some), results_of(cause, self.recovery), own=some.keys() <= own)
            for cause, some in groups.items()
        ]
        return sorted(remedies, key=lambda remedy: -len(remedy.groups))

    def to_json(self) -> dict[str, Any]:
        return {
            "of": self.of,
            "thresholds": vars(self.thresholds),
            "mean_error": {precision.label: mean for precision, mean in self.means.items()},
            "notes": list(self.notes),
            "groups": self.table(),
            "causes": self.cause_rows(),
            "remedies": [remedy.to_json() for remedy in self.remedies()],
        }

    def headline(self) -> str:
        """The table in one sentence."""
        verdicts = Counter(self.verdict(row) for row in self.rows)
        estimated = sum(not row.samples for row in self.rows)
        groups = len({row.group for row in self.rows})
        shown = [f"{verdicts[word]} {word}" for word in (SENSITIVE, TRUNCATED, COARSE) if verdicts[word]]
        text = f"{groups} groups, {len(self.rows)} pairs of group and precision: {', '.join(shown) or '0 sensitive'}"
        return f"{text}; {estimated} errors (≈) are estimates" if estimated else text


def _flips_some(row: GroupError) -> bool:
    """Whether more than one sample has another class: a single one may have been near it anyway."""
    return row.flipped is not None and row.flipped * row.samples > 1.5


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
        "peak": "" if row["peak"] is None else f"{row['peak']:.1f} σ",
        "tails": "" if row["tails"] is None else format_percent(row["tails"]),
        "mse": "" if row["mse"] is None else f"{row['mse']:.3g}",
        "channel_ratio": "" if row["channel_ratio"] is None else f"{row['channel_ratio']:.1f}",
        "weight_kl": _number(row["weight_kl"]),
        "verdict": ": ".join(part for part in (row["verdict"], ", ".join(row["reasons"])) if part),
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
