"""Remedies for each cause, and what they won on the study's own target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from search.values import RecoveryRecord, StepRecord
from studies.judging.findings.causes import Cause
from studies.judging.findings.rescue_table import rescue_rows
from studies.options.quantities import format_percent

# What is said of layers whose INT8 is that of a quantized file.
OWN_SCALES = (
    "The scales are those of the quantized file, which no recovery step changes; `bitfront recover FILE --data DATA "
    "--out DIR` writes the float model, of which INT8 is calibrated and recovered, and may lose far less"
)


@dataclass(frozen=True)
class StepResult:
    """What one recovery step did on a target.

    Attributes:
        step: its name.
        kept: whether it is part of the INT8 that the study mixes.
        won_back: share of plain INT8's loss on the final samples that it alone won back, on top of the steps before it;
            None where plain INT8 shows no loss, or it was not scored.
        text: the same in words.
    """

    step: str
    kept: bool
    won_back: float | None
    text: str


@dataclass(frozen=True)
class Remedy:
    """What to do about one cause.

    Attributes:
        groups: ids of the groups in which it shows, in the order of the graph.
        own: whether all of them have the scales of a quantized file.
        results: what those of its recovery steps did that were tried on the target.
    """

    cause: Cause
    groups: tuple[str, ...]
    results: tuple[StepResult, ...] = ()
    own: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        """The recovery steps that do it; none where no step changes anything."""
        return () if self.own else self.cause.steps

    @property
    def text(self) -> str:
        """What goes on, what to do, and what that did here, in sentences."""
        cause = self.cause
        advice = f"{cause.words} {cause.remedy} "
        advice += f"{OWN_SCALES}." if self.own else f"Recovery steps for this: {', '.join(self.steps)}."
        return f"{advice} Here {'; '.join(result.text for result in self.results)}." if self.results else advice

    def to_json(self) -> dict[str, Any]:
        cause = self.cause
        fields = {"cause": cause.name, "groups": list(self.groups), "explanation": cause.words, "remedy": cause.remedy}
        return {**fields, "steps": list(self.steps), "results": [vars(result) for result in self.results]}


def results_of(cause: Cause, record: RecoveryRecord | None) -> tuple[StepResult, ...]:
    """What the steps that do a cause's remedy did on a target, in the order of the cause.

    Args:
        record: what was tried there; None if nothing was.
    """
    tried = {} if record is None else {step.name: step for step in record.steps}
    shares = {} if record is None else _shares(record)
    return tuple(_result(tried[name], shares.get(name)) for name in cause.steps if name in tried)


def _shares(record: RecoveryRecord) -> dict[str, float]:
    """Kept step → share of plain INT8's loss that it won back on top of those before it; empty without such a loss."""
    if record.plain is None or not record.plain.shows:
        return {}
    return {
        row.step: (row.before.loss - row.after.loss) / record.plain.loss
        for row in rescue_rows(record)
        if row.before is not None and row.after is not None
    }


def _result(step: StepRecord, share: float | None) -> StepResult:
    if not step.kept:
        return StepResult(step.name, False, None, f"{step.name} was tried and not kept, because {step.reason}")
    if share is None:
        return StepResult(step.name, True, None, f"{step.name} is applied: {step.reason}")
    return StepResult(
        step.name, True, share, f"{step.name} is applied and won back {format_percent(share)} of the loss"
    )
