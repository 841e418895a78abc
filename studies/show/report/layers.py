"""The precision of each layer along the front, and why some layers stay in a higher precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evaluators.diagnose.group_error import GroupError
from search.values import RECOVERED_FIRST, Assignment, Precision
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.judging.points import Point
from studies.options.quantities import format_percent
from studies.show.plots import colour_of
from studies.show.report.rows import LayerReason, ReportData
from studies.store.records import ChoiceRecord, GroupRecord

_SMALL = 0.1


@dataclass(frozen=True)
class MapCell:
    """What one layer runs in, in one evaluation."""

    label: str
    colour: str
    opaque: bool


@dataclass(frozen=True)
class MapColumn:
    """One evaluation: `title` names its picks, or its trial where it is none, or the precision of a baseline."""

    title: str
    number: int | None
    trial: int
    latency_ms: float


@dataclass(frozen=True)
class MapRow:
    """One layer: `alone` is its error alone in the coarsest precision, over that of an average layer, in words."""

    name: str
    op: str
    alone: str
    cells: tuple[MapCell, ...]


@dataclass(frozen=True)
class PrecisionMap:
    """Layers in graph order against evaluations: picks, then the coarsest baseline, then the rest of the front.

    Attributes:
        alone_in: the precision of `alone` in the rows; empty where that was not measured.
    """

    columns: tuple[MapColumn, ...]
    rows: tuple[MapRow, ...]
    alone_in: str = ""


def precision_map(data: ReportData) -> PrecisionMap:
    """The map of what is on the front or picked, and of the coarsest baseline.

    Raises:
        ValueError: an evaluation whose precisions do not match the groups one to one.
    """
    columns = tuple(_columns(data))
    for column in columns:
        if len(data.precisions[column.trial]) != len(data.groups):
            raise ValueError(f"report: trial {column.trial} has precisions of other groups than the study")
    alone_in, alone = _costs(data.diagnosis)
    rows = tuple(
        MapRow(
            group.name or group.id,
            group.op,
            alone.get(group.id, ""),
            tuple(_cell(data, column.trial, place) for column in columns),
        )
        for place, group in enumerate(data.groups)
    )
    return PrecisionMap(columns, rows, alone_in)


def _costs(sensitivities: Sensitivities | None) -> tuple[str, dict[str, str]]:
    """The coarsest precision that groups were alone in, and the error of each there over the mean, in words."""
    if sensitivities is None:
        return "", {}
    coarsest = min((row.precision for row in sensitivities.rows), key=RECOVERED_FIRST.index)
    mean = sensitivities.means.get(coarsest)
    rows = [row for row in sensitivities.rows if row.precision is coarsest]
    texts = {row.group: "not finite" if row.error is None or not mean else f"{row.error / mean:.2g} ×" for row in rows}
    return coarsest.label, texts


def _columns(data: ReportData) -> Iterator[MapColumn]:
    numbers = {pick.trial: pick for pick in data.numbered_picks}
    shown = [row for row in data.shown if row.trial in data.precisions]
    fine = [precision.label for precision in sorted(Precision)]
    plain = [row for row in data.evaluations if row.trial in data.precisions and row.baseline in fine[1:]]
    coarsest = [min(plain, key=lambda row: RECOVERED_FIRST.index(Precision.parse(row.baseline)))] if plain else []

    def place(row: Point) -> int:
        return numbers[row.trial].number if row.trial in numbers else len(numbers) + 1 + (not row.baseline)

    for row in sorted([*(row for row in coarsest if row not in shown), *shown], key=place):
        pick = numbers.get(row.trial)
        title = " · ".join(pick.names) if pick is not None else row.baseline.upper() or f"#{row.trial}"
        yield MapColumn(title, pick.number if pick is not None else None, row.trial, row.latency_ms or 0.0)


def _cell(data: ReportData, trial: int, place: int) -> MapCell:
    label = data.precisions[trial][place]
    return MapCell(label, colour_of(label), data.groups[place].id in data.opaque.get(trial, ()))


def labels_of(data: ReportData) -> list[str]:
    """Precisions on the front and in the picks: known ones from fine to coarse, then others by name."""
    used = {label for column in _columns(data) for label in data.precisions[column.trial]}
    known = [precision.label for precision in sorted(Precision)]
    return sorted(used, key=lambda label: (known.index(label) if label in known else len(known), label))


def layer_reasons(
    assignment: Assignment,
    groups: Sequence[GroupRecord],
    choices: Sequence[ChoiceRecord],
    sensitivities: Sensitivities | None,
    *,
    pays: bool = True,
) -> list[LayerReason]:
    """Why layers of a mix are finer than the coarsest precision of the target, in the order of the graph.

    Args:
        choices: what each group may take on the target.
        sensitivities: what groups do alone in lower precisions; None if that was not measured.
        pays: whether everything in the coarsest precision is faster than FP32. Else layers are left out that lose
            nothing unusual there: that is their reason.
    """
    offered = [choice.precision for choice in choices if choice.offered]
    if not offered:
        return []
    coarsest = min(offered, key=RECOVERED_FIRST.index)
    of_group = {choice.group: choice for choice in choices if choice.precision is coarsest}
    alone = (
        {row.group: row for row in sensitivities.rows if row.precision is coarsest} if sensitivities is not None else {}
    )
    finer = [group for group in groups if assignment[group.id] < coarsest]
    reasons = [_reason(group.id, coarsest, of_group, alone, sensitivities, pays) for group in finer]
    return [
        LayerReason(group.name or group.id, assignment[group.id].label, reason)
        for group, reason in zip(finer, reasons, strict=True)
        if reason
    ]


def _reason(
    group: str,
    coarsest: Precision,
    choices: Mapping[str, ChoiceRecord],
    alone: Mapping[str, GroupError],
    sensitivities: Sensitivities | None,
    pays: bool,
) -> str:
    choice, row = choices.get(group), alone.get(group)
    if choice is None:
        return f"It cannot run in {coarsest.label} on this target."
    if not choice.offered:
        return f"It was not tried in {coarsest.label}: {choice.reason}."
    if not choice.buildable:
        return f"The engine's builder refused it in {coarsest.label}."
    if not pays and (row is None or sensitivities is None or not sensitivities.findings(row)):
        return ""
    if row is None or sensitivities is None:
        return f"The search found no better mix with it in {coarsest.label}. Its loss alone was not measured."
    return f"{_alone_text(row, sensitivities)} {_cause_text(row, sensitivities)}"


def _alone_text(row: GroupError, sensitivities: Sensitivities) -> str:
    """What a group does to the outputs where it alone is in a lower precision."""
    name, mean = row.precision.label, sensitivities.means.get(row.precision)
    if row.error is None or not mean:
        return f"Alone in {name} it makes the outputs NaN or infinite."
    flipped = "" if row.flipped is None else f" and changes the class of {format_percent(row.flipped)} of the samples"
    return f"Alone in {name} it causes {_times_text(row.error / mean)} the average layer's error{flipped}."


def _times_text(ratio: float) -> str:
    return f"{ratio:.2g} times" if ratio >= _SMALL else "less than a tenth of"


def _cause_text(row: GroupError, sensitivities: Sensitivities) -> str:
    """The likeliest cause with its evidence, or that the layer is not special."""
    findings = sensitivities.findings(row)
    if not findings:
        mean = sensitivities.means.get(row.precision)
        if row.error is not None and mean and row.error < _SMALL * mean:
            return f"So it hardly changes the loss; no mix with it in {row.precision.label} was measurably faster."
        return f"That is not unusual, but the search found no better mix with it in {row.precision.label}."
    first = findings[0]
    return f"{first.cause.name.capitalize()}: {first.evidence}."
