"""The result of a gate: its verdict and its checks, also as JSON, as a table and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.values import Target
from studies import __version__
from studies.gate.check import LEVEL, GateCheck, GateVerdict, combine_verdicts
from studies.gate.side import Side
from studies.options.limits import MetricScale
from studies.options.quantities import format_ms, format_percent

COLUMNS = ("check", "verdict", "estimate", "bounds", "limit", "smallest_detectable", "test")


@dataclass(frozen=True)
class GateReport:
    """A candidate held against a baseline.

    Attributes:
        target: what both were measured on.
        metric: of the loss; None where only latency was checked.
        values: `candidate` and `baseline` → the metric over all samples.
        data: digest of the data; empty where only latency was checked.
        notes: what is noteworthy, one sentence each: how the metric was chosen, how many measurements are doubtful.
        doubts: what is doubtful in each of them.
    """

    candidate: Side
    baseline: Side
    target: Target
    metric: MetricScale | None
    values: Mapping[str, float]
    data: str
    checks: tuple[GateCheck, ...]
    notes: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    @property
    def verdict(self) -> GateVerdict:
        """The verdict of the gate as a whole."""
        return combine_verdicts(self.checks)

    def show(self, check: GateCheck, value: float | None) -> str:
        """A drop in the unit of the metric, a slowdown in percent; a dash where there is none."""
        if value is None:
            return "–"
        return self.metric.text(value) if check.name == "loss" and self.metric else format_percent(value)

    def headline(self) -> str:
        """The verdict in one line."""
        return f"{self.verdict.value}: {self.candidate.name} against {self.baseline.name}"

    def rows(self) -> list[dict[str, str]]:
        """A row of texts per check, by the names of `COLUMNS`."""
        return [self._row(check) for check in self.checks]

    def _row(self, check: GateCheck) -> dict[str, str]:
        bounds = "–" if check.low is None else f"{self.show(check, check.low)} to {self.show(check, check.high)}"
        return {
            "check": self.label(check),
            "verdict": check.verdict.value,
            "estimate": self.show(check, check.estimate),
            "bounds": bounds,
            "limit": self.show(check, check.limit),
            "smallest_detectable": self.show(check, check.smallest),
            "test": f"{check.test}, {check.units}",
        }

    def label(self, check: GateCheck) -> str:
        """What a check is about: `loss of top1`."""
        return f"loss of {self.metric.name}" if check.name == "loss" and self.metric else check.name

    def sentences(self) -> list[str]:
        """What every check says, what both engines measured, and what is noteworthy."""
        verdicts = [f"{self.label(c)}: {c.verdict.value}, {c.reason} ({c.units})" for c in self.checks]
        figures = []
        if self.metric is not None and {"candidate", "baseline"} <= self.values.keys():
            mine, theirs = (self.metric.text(self.values[side]) for side in ("candidate", "baseline"))
            figures.append(f"{self.metric.name}: {mine} with the candidate, {theirs} with the baseline")
        for check in self.checks:
            if check.name == "latency" and "tie_band" in check.details:
                mine, theirs = (format_ms(check.details[key]) for key in ("candidate_ms", "baseline_ms"))
                band = format_percent(check.details["tie_band"])
                figures.append(f"latency: {mine} with the candidate, {theirs} with the baseline; tie band {band}")
        return [*verdicts, *figures, *(f"note: {note}" for note in self.notes), level_text(self.checks)]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "bitfront": __version__,
            "verdict": self.verdict.value,
            "candidate": self.candidate.to_json(),
            "baseline": self.baseline.to_json(),
            "target": self.target.to_json(),
            "metric": None if self.metric is None else vars(self.metric),
            "values": dict(self.values),
            "data": self.data or None,
            "level": LEVEL,
            "checks": [check.to_json() for check in self.checks],
            "notes": list(self.notes),
            "doubts": list(self.doubts),
        }


def level_text(checks: tuple[GateCheck, ...]) -> str:
    """How the probability of a wrong verdict is divided."""
    each = format_percent(checks[0].level)
    return (
        f"level: a wrong verdict has a probability of at most {format_percent(LEVEL)} over all checks together, "
        f"{each} for each bound of {'each' if len(checks) > 1 else 'the'} check"
    )
