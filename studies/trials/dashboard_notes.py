"""What Optuna's own tools show: the layers of parameters and of mixes, and why a trial is on the front.

They are kept as optuna-dashboard keeps them, among the system attributes of the study, so that package is not needed
here. A note that a user has written is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from search.space.choices import Space
from search.values import Assignment, Precision
from studies.judging.points import Point
from studies.judging.rounding import latency_text, score_name, shown_score_text
from studies.judging.sentences.evaluations import mix_text
from studies.judging.standing import Standing

if TYPE_CHECKING:
    import optuna


_SIGNATURE = "_Written by bitfront._"
_MOST_CHARACTERS = 2045  # of one attribute, as optuna-dashboard splits its notes


class StudyNotes:
    """The notes of one Optuna study, as they were when this was made and with what is written until `save`."""

    def __init__(self, study: optuna.Study) -> None:
        self.study = study
        self._attributes: Mapping[str, Any] = study._storage.get_study_system_attrs(study._study_id)
        self._changes: dict[str, str | int] = {}

    def write(self, body: str, trial_id: int | None = None) -> None:
        """Write the note of a trial, or of the study, on `save`; nothing happens where it is there, or is a user's."""
        whole, current_text = f"{body}\n\n{_SIGNATURE}", self._read(trial_id)
        if self.has(trial_id) and (whole == current_text or not current_text.endswith(_SIGNATURE)):
            return
        pieces = [whole[at : at + _MOST_CHARACTERS] for at in range(0, len(whole), _MOST_CHARACTERS)]
        blank = range(len(pieces), self._count(trial_id))
        # In an order in which the note ends with the signature whenever this is cut off.
        for place in [*reversed(range(len(pieces))), *blank]:
            self._changes[f"{_piece_key(trial_id)}{place}"] = pieces[place] if place < len(pieces) else ""
        self._changes[_version_key(trial_id)] = int(self._attributes.get(_version_key(trial_id), 0)) + 1

    def save(self) -> None:
        """Store what was written, in one transaction of our own storage."""
        storage: Any = self.study._storage
        together = getattr(getattr(storage, "_backend", None), "set_study_system_attrs", None)
        if together is not None and self._changes:
            together(self.study._study_id, self._changes)
            return
        for key, value in self._changes.items():
            storage.set_study_system_attr(self.study._study_id, key, value)

    def has(self, trial_id: int | None = None) -> bool:
        """Whether there is a note of a trial, or of the study."""
        return _version_key(trial_id) in self._attributes

    def _read(self, trial_id: int | None) -> str:
        places = range(self._count(trial_id))
        return "".join(str(self._attributes.get(f"{_piece_key(trial_id)}{place}", "")) for place in places)

    def _count(self, trial_id: int | None) -> int:
        return sum(key.startswith(_piece_key(trial_id)) for key in self._attributes)


def _version_key(trial_id: int | None) -> str:
    return "dashboard:note_ver" if trial_id is None else f"dashboard:{trial_id}:note_ver"


def _piece_key(trial_id: int | None) -> str:
    return "dashboard:note_str:" if trial_id is None else f"dashboard:{trial_id}:note_str:"


def write_study_note(notes: StudyNotes, space: Space, names: Mapping[str, str], front: Iterable[Point] = ()) -> None:
    """Write the study's note: what its parameters and their values stand for, and its front.

    Args:
        names: group id → name of its layer.
        front: points of the front and picks; none while a search has not ended.
    """
    rows = [
        f"| {variable.id} | {_cell(', '.join(names.get(group, group) for group in variable.groups))} | "
        f"{', '.join(f'{place} is {p.label.upper()}' for place, p in enumerate(variable.precisions))} |"
        for variable in space.variables
    ]
    table = "\n".join(["| parameter | layers | values |", "|---|---|---|", *rows])
    best = [f"- trial {point.trial}{_picked_text(point)}: {point.latency_ms:.4g} ms" for point in front]
    front_lines = ["The front when the search ended:", "\n".join(best)] if best else []
    notes.write("\n\n".join([*front_lines, "What the parameters of a trial stand for:", table]))


def write_front_notes(
    notes: StudyNotes,
    now: Standing,
    points: Iterable[Point],
    mixes: Mapping[int, Assignment],
    names: Mapping[str, str],
) -> None:
    """Write a note for every trial of the front, and correct those of trials that have left it.

    Args:
        points: front and picks.
        mixes: evaluation id → assignment, of these points at least.
        names: group id → name of its layer.
    """
    shown = {point.trial: point for point in points if point.trial >= 0}
    for trial in notes.study.get_trials(deepcopy=False):
        point = shown.get(trial.number)
        if point is not None:
            notes.write(_trial_text(now, point, mixes[point.id], names), trial._trial_id)
        elif notes.has(trial._trial_id):
            notes.write("This trial was on bitfront's front in an earlier run, but is no longer.", trial._trial_id)


def _scores_text(now: Standing, point: Point) -> str:
    score = shown_score_text(point.loss_interval, now.metric)
    return f"{latency_text(point.latency_ms, now.target.band)}, {score_name(now.metric)} {score}"


def _trial_text(now: Standing, point: Point, mix: Assignment, names: Mapping[str, str]) -> str:
    place = "On bitfront's front" if point.on_front else "Picked by bitfront"
    head = f"**{place}{_picked_text(point)}**: {_scores_text(now, point)}."
    rows = [f"| {_cell(names.get(group, group))} | {precision.label.upper()} |" for group, precision in mix.items()]
    return "\n".join([head, "", "| layer | precision |", "|---|---|", *rows])


def _picked_text(point: Point) -> str:
    return f" ({', '.join(point.picks)})" if point.picks else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", r"\|").split())


MIX, LAYERS = "mix", "layers"
_MOST_OF_LAYERS = 4_000  # of one attribute: Optuna reads those of all trials whenever it is asked for trials


def trial_labels(assignment: Assignment, names: Mapping[str, str]) -> dict[str, str]:
    """User attributes of a trial.

    Args:
        names: group id → name of its layer.

    Returns:
        `mix`, as `5 int8, 2 fp32`, and `layers`, as `INT8: conv1, conv2; FP32: fc`; without the latter where it is
        longer than 4,000 characters.
    """
    layers = layers_text(assignment, names)
    return {MIX: mix_text(assignment)} | ({LAYERS: layers} if len(layers) <= _MOST_OF_LAYERS else {})


def layers_text(assignment: Assignment, names: Mapping[str, str]) -> str:
    """Every layer by its precision, the coarsest precision first."""
    by_precision: dict[Precision, list[str]] = {}
    for group, precision in assignment.items():
        by_precision.setdefault(precision, []).append(names.get(group, group))
    parts = (f"{precision.label.upper()}: {', '.join(by_precision[precision])}" for precision in sorted(by_precision))
    return "; ".join(reversed(list(parts)))
