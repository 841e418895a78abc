"""The events of a search, beside the notes and steps of every command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from studies.events import Events
from studies.judging.standing import Standing
from studies.judging.status.study_status import StudyStatus
from studies.store.records import FinishedEvaluation, StoredEvaluation


@dataclass(frozen=True)
class RunTime:
    """The time of a run, in seconds by the clock of `time.monotonic`.

    Attributes:
        began: when its time limit began to count.
        limit_s: its time limit; None for none.
        ends: when it is expected to end; None while nobody can say.
        may_end: whether it ends sooner where it finds that nothing more is to be had.
    """

    began: float
    limit_s: float | None = None
    ends: float | None = None
    may_end: bool = False


class SearchEvents(Events, Protocol):
    """Told what a search is doing. Its methods must not raise and must return at once."""

    def stage(self, trial: int, stage: str) -> None:
        """A candidate reaches a stage, as `build` or `accuracy`."""

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:
        """An evaluation is stored, which leaves the study at `standing`; `total` evaluations are wanted."""

    def report_time(self, run: RunTime) -> None:
        """How long the run has gone on, and how long it is expected to; told at its start and after evaluations."""

    def overview(self, status: StudyStatus, new: Sequence[FinishedEvaluation]) -> None:
        """Where a study of many workers stands, and which evaluations ended since the last call."""

    def wants_end(self) -> bool:
        """Whether whoever listens wants no further evaluation to begin; what was measured is confirmed as usual."""
