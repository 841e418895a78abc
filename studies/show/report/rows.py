"""The content of a report as plain records, independent of the database."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evaluators.backends.registry import known_kind
from studies.judging.findings.rescue_table import RescueRow
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.judging.points import Point
from studies.judging.standing import Standing
from studies.judging.status.early_end import EarlyEnd
from studies.options.limits import Limits, MetricScale
from studies.show.report.story import Story
from studies.show.report.target_figures import SideBySide
from studies.store import suggestions
from studies.store.records import GroupRecord
from studies.trials.forecasts import Forecasts

_FOLDER = "engine"


@dataclass(frozen=True)
class Deployment:
    """A command for a shell, and a program in Python; `code` is empty where the backend has none."""

    command: str
    code: str = ""
    shared: bool = False


def build_deployment(now: Standing, url: str, *, shared: bool) -> Deployment:
    """What exports and runs the recommended mix.

    Args:
        url: of the study's database.
        shared: whether that is a server, whose address and user do not belong into a report.
    """
    words = ("--out", _FOLDER, *now.details.target_option)
    command = suggestions.command("export", now.study.name, *words, storage=None if shared else url)
    return Deployment(command, _code(now), shared)


def _code(now: Standing) -> str:
    target = now.target.target
    kind = known_kind(target.backend)
    return "" if kind is None else kind.deployment_code(target, now.study.model.get("inputs", ()), _FOLDER)


@dataclass(frozen=True)
class ReportMetric(MetricScale):
    """What the loss is measured by; values of a `ratio` are shares of one and shown as percentages."""

    @property
    def axis_title(self) -> str:
        unit = "percentage points" if self.ratio else self.unit
        return f"loss of {self.name}" + (f" ({unit})" if unit else "")

    @property
    def axis_factor(self) -> float:
        """What a loss is multiplied by on an axis: those of a ratio are shown in percentage points."""
        return 100.0 if self.ratio else 1.0

    def axis_value(self, loss: float | None) -> float | None:
        """Where a loss lies on an axis; None if it is missing or not finite."""
        return None if loss is None or not math.isfinite(loss) else self.axis_factor * loss


@dataclass(frozen=True)
class PickRow:
    """One pick: an evaluation under one of its names.

    Attributes:
        final_text: the loss on the final split with the bound that is judged, or the value of a metric that compares
            with FP32; empty if it was not scored.
        ties: what it beats by noise alone, in words.
        flips: which samples of the final split have another class than in FP32, one sentence each; empty where outputs
            are no classes.
    """

    name: str
    point: Point
    final_text: str = ""
    ties: str = ""
    flips: Sequence[str] = ()

    @property
    def trial(self) -> int:
        return self.point.trial


@dataclass(frozen=True)
class NumberedPick:
    """An evaluation that is picked, by the number that figures and tables know it by.

    Attributes:
        picks: the same evaluation under each of its names; at least one.
    """

    number: int
    picks: tuple[PickRow, ...]

    @property
    def trial(self) -> int:
        return self.point.trial

    @property
    def point(self) -> Point:
        return self.picks[0].point

    @property
    def names(self) -> list[str]:
        return [pick.name for pick in self.picks]

    @property
    def notes(self) -> list[str]:
        """What is to be said of it in sentences: what it ties with, and how sure it is."""
        point, tries = self.point, self.point.final.tries if self.point.final.scored else 0
        ties: dict[str, list[str]] = {}
        for pick in self.picks:
            if pick.ties:
                ties.setdefault(pick.ties, []).append(pick.name)
        sentences = [f"As {' and '.join(names)} it {text}." for text, names in ties.items()]
        sentences += [f"{tries} candidates were tried on the final data before it was taken."] * (tries > 1)
        sentences += ["On the search data alone it is not certain that it keeps the limits."] * point.not_sure
        sentences += [f"The precision of {point.opaque} of its layers cannot be read from its engine."] * (
            point.opaque > 0
        )
        return sentences + ["Its outputs are unrelated to FP32's."] * point.is_unrelated


@dataclass(frozen=True)
class LayerReason:
    """Why one layer of the recommended mix is in a higher precision than others."""

    name: str
    precision: str
    reason: str


@dataclass(frozen=True)
class Mismatch:
    """One group of one evaluation that runs in another precision than was asked for."""

    trial: int
    group: str
    name: str
    asked: str
    got: str
    kernel: str


@dataclass(frozen=True)
class FailureRow:
    """One failed evaluation."""

    trial: int
    stage: str
    kind: str
    message: str


@dataclass(frozen=True)
class ReportData:
    """Everything that a report shows.

    Attributes:
        target: the target in words, for example `onnxruntime 1.31 on AMD EPYC, 1 thread, 20th percentile`.
        samples: how many calibrate, are searched on and are final, with their clusters.
        evaluations: in order of trial; failed ones included.
        remarks: trial → what is noteworthy of what is shown: doubts about its latency, notes of the builder.
        moves: trial → layers of its engine that only change format or type, and what they take, in words.
        groups: in the order of the graph.
        precisions: trial of each front evaluation → precision label per group, in the order of `groups`;
            evaluations that no trial asked for are left out.
        opaque: trial → ids of the groups whose precision its engine does not tell, of each front evaluation.
        unbuildable: (group id, name, precision label) that the engine's builder refused on this target.
        audited: (obeyed, not obeyed, opaque) groups, summed over all audited evaluations.
        hypervolume: (trial, volume) after each finished evaluation, in order.
        forecasts: predicted against measured; None if nothing was predicted.
        environment: name → value, flat.
        notes: further sentences about the study.
        beside: this target beside others of the study; None if it is shown alone.
        diagnosis: what groups do alone in lower precisions, and why; None if it was not measured.
        rescue: plain INT8, each recovery step that was kept, and the best mix; empty where recovery tried nothing.
        rescue_notes: what goes with it, one sentence each.
        story: what was found, at a glance.
        ended_early: how the search ended before it was complete, if it did.
        warnings: what a reader has to know before all else, one sentence each.
        reasons: why layers of the recommended mix are in a higher precision than others, in the order of the graph.
        slower: that the coarsest uniform baseline is no faster than FP32, where it is not.
        deployment: how the recommended mix is exported and run; None if there is none.
        time_spent: seconds, share and what they were spent on, in words, the most first.
        time_text: whose time that is, in words.
        seconds: kind of work → seconds, the most first; for the figure.
    """

    study: str
    target: str
    metric: ReportMetric
    limits: Limits = field(default_factory=Limits)
    model: str = ""
    created: str = ""
    samples: str = ""
    evaluations: Sequence[Point] = ()
    remarks: Mapping[int, Sequence[str]] = field(default_factory=dict)
    moves: Mapping[int, str] = field(default_factory=dict)
    picks: Sequence[PickRow] = ()
    groups: Sequence[GroupRecord] = ()
    precisions: Mapping[int, Sequence[str]] = field(default_factory=dict)
    opaque: Mapping[int, frozenset[str]] = field(default_factory=dict)
    unbuildable: Sequence[tuple[str, str, str]] = ()
    mismatches: Sequence[Mismatch] = ()
    audited: tuple[int, int, int] = (0, 0, 0)
    failures: Sequence[FailureRow] = ()
    hypervolume: Sequence[tuple[int, float]] = ()
    forecasts: Forecasts | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    beside: SideBySide | None = None
    diagnosis: Sensitivities | None = None
    rescue: Sequence[RescueRow] = ()
    rescue_notes: Sequence[str] = ()
    story: Story = field(default_factory=Story)
    ended_early: EarlyEnd | None = None
    warnings: Sequence[str] = ()
    reasons: Sequence[LayerReason] = ()
    slower: str = ""
    deployment: Deployment | None = None
    time_spent: Sequence[tuple[str, str, str]] = ()
    time_text: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def front(self) -> list[Point]:
        """The evaluations on the front, fastest first."""
        return [row for row in self.shown if row.on_front]

    @property
    def shown(self) -> list[Point]:
        """The evaluations on the front and the picks, fastest first."""
        rows = [row for row in self.evaluations if (row.on_front or row.picks) and row.is_measured]
        return sorted(rows, key=lambda row: (row.latency_ms or 0.0, row.loss or 0.0, row.trial))

    @property
    def numbered_picks(self) -> list[NumberedPick]:
        """The picks in their order, those of one evaluation together, numbered from 1."""
        by_trial: dict[int, list[PickRow]] = {}
        for pick in self.picks:
            by_trial.setdefault(pick.trial, []).append(pick)
        return [NumberedPick(number, tuple(picks)) for number, picks in enumerate(by_trial.values(), 1)]
