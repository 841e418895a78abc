"""The events of a search, beside the notes and steps of every command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from studies.events import Events
from studies.judging.standing import Standing
from studies.judging.status.study_status import StudyStatus
from studies.store.records import EvaluationRecord, FinishedRow


class SearchEvents(Events, Protocol):
    """Told what a search is doing. Its methods must not raise and must return at once."""

    def stage(self, trial: int, stage: str) -> None:
        """A candidate reaches a stage, as `build` or `accuracy`."""

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        """An evaluation is stored, which leaves the study at `standing`; `total` evaluations are wanted."""

    def overview(self, status: StudyStatus, new: Sequence[FinishedRow]) -> None:
        """Of many workers: where they and the study stand, and which evaluations ended since the last time."""

    def wants_end(self) -> bool:
        """Whether whoever listens wants no further evaluation to begin; what was measured is confirmed as usual."""
