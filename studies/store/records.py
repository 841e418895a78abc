"""What the store gives and takes: rows of its tables, and plain frozen values that follow from several rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from search.errors import BitfrontError
from search.values import Accuracy, Assignment, Evaluation, Failure, Latency, RecoveryRecord
from studies.store.database.tables import (
    AS_GIVEN,
    CLOSING,
    ArtifactRecord,
    ChoiceRecord,
    EvaluationRecord,
    FileRecord,
    GroupRecord,
    RepeatRecord,
    StudyRecord,
    TargetRecord,
    TaskRecord,
    WorkerRecord,
)

__all__ = [
    "AS_GIVEN",
    "CLOSING",
    "EXPORT",
    "FAILED",
    "NO_PROSPECT",
    "OF_FINAL",
    "OF_PROFILE",
    "OK",
    "PROCESS",
    "REBUILD",
    "REOPEN",
    "REQUEST",
    "RUNNING",
    "TIME_LIMIT",
    "ArtifactRecord",
    "Assignments",
    "CalibrationRecord",
    "ChoiceRecord",
    "Counts",
    "DeathRecord",
    "EvaluationRecord",
    "FileRecord",
    "FinalLevel",
    "FinishedEvaluation",
    "FullStudyError",
    "GroupRecord",
    "KnownEvaluationError",
    "LostEvaluationError",
    "RepeatRecord",
    "Round",
    "RunningRecord",
    "StoredEvaluation",
    "StudyRecord",
    "StudySummary",
    "TakenOver",
    "Tally",
    "TargetRecord",
    "TaskRecord",
    "WorkerRecord",
    "WorkerTime",
]

RUNNING, OK, FAILED = "running", "ok", "failed"
EXPORT = "export"  # the role of an evaluation that an export built again
OF_PROFILE = "profile: "  # begins the note of an evaluation that is about its stored profile
OF_FINAL = "final: "  # and of the one that says why it could not be scored on the final split
REBUILD, PROCESS, REOPEN = "rebuild", "process", "reopen"  # kinds of a repetition
# What may end a search before it is complete; the last is that no better mix is expected.
TIME_LIMIT, REQUEST, NO_PROSPECT = "time_limit", "request", "no_prospect"


class KnownEvaluationError(BitfrontError):
    """Internal: this digest is already running or finished on this target; use `trials.link`."""

    def __init__(self, evaluation_id: int, status: str) -> None:
        super().__init__(f"evaluation {evaluation_id} has this digest already; it is {status}")
        self.evaluation_id = evaluation_id
        self.status = status


class LostEvaluationError(BitfrontError):
    """Internal: the running row is gone or finished; another worker took it for abandoned."""


class FullStudyError(BitfrontError):
    """Internal: there are as many evaluations as are wanted, those that are running included."""


class StudySummary(StudyRecord):
    """A study with the number of its targets and evaluations; counts are over all its targets."""

    targets: int
    ok: int
    failed: int
    running: int


@dataclass(frozen=True)
class CalibrationRecord:
    """What a target is calibrated with.

    Attributes:
        ranges_digest: of the artifact with the ranges.
        recovery: as in `TargetRecord`.
        recovery_key: names what recovery came from by content, for other studies; None if there was none.
        statistics_digest: as in `TargetRecord`.
    """

    ranges_digest: str
    recovery: RecoveryRecord | None = None
    recovery_key: str | None = None
    statistics_digest: str | None = None


@dataclass(frozen=True)
class Round:
    """One measurement of an engine: round 0 in the search, rounds from 1 on are measured again."""

    number: int
    latency: Latency


class StoredEvaluation(EvaluationRecord):
    """The row of an evaluation with what all other tables hold of it.

    Attributes:
        trial: lowest Optuna trial number that it answers; None when no trial asked for it.
        trials: all trial numbers that it answers.
        evaluation: what was measured; empty of measures while `status` is running, when its `ok` means nothing.
            `evaluation.artifact` is None, `evaluation.profile` empty (`engines.profile` reads it), and scores and
            samples have passed through float32.
        rounds: every measurement; round 0 is `evaluation.latency`.
        final: accuracy on the final split; None if it was not scored, or could not be.
        final_failure: why it could not be scored there; empty if it was, or was not tried.
    """

    trial: int | None
    trials: tuple[int, ...]
    evaluation: Evaluation
    rounds: tuple[Round, ...]
    final: Accuracy | None
    final_failure: str


class FinishedEvaluation(EvaluationRecord):
    """The row of an evaluation that was finished lately, with its lowest trial and its latency in ms; None for none."""

    trial: int | None
    latency_ms: float | None


@dataclass(frozen=True)
class FinalLevel:
    """What an assignment takes at another optimization level than the search's, by an export at that level."""

    evaluation_id: int
    level: int
    latency_ms: float
    build_s: float | None
    not_obeyed: int = 0

    def to_json(self) -> dict[str, Any]:
        """`obeyed` tells whether all groups run in what was asked, as far as the engine tells."""
        figures = {"level": self.level, "latency_ms": self.latency_ms, "build_s": self.build_s}
        return {**figures, "obeyed": self.not_obeyed == 0}


@dataclass(frozen=True)
class RunningRecord:
    """An evaluation in flight.

    Attributes:
        heartbeat_age_s: of its lease, by the database's clock; None when that is gone.
        takeovers: how many workers have taken it over from one that was lost.
    """

    id: int
    digest: str
    trial: int | None
    worker: str
    heartbeat_age_s: float | None
    takeovers: int = 0


@dataclass(frozen=True)
class TakenOver:
    """A running evaluation that was taken over just now.

    Attributes:
        worker: who had it and was lost with it.
        takeovers: of this evaluation until now, this one included.
    """

    id: int
    worker: str
    takeovers: int


@dataclass(frozen=True)
class Assignments(Mapping[int, Assignment]):
    """Evaluation id → assignment, parsed when asked for; in order of id."""

    texts: Mapping[int, str] = field(repr=False)

    def __getitem__(self, evaluation_id: int) -> Assignment:
        return Assignment.from_json(json.loads(self.texts[evaluation_id]))

    def __iter__(self) -> Iterator[int]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Counts:
    """Evaluations of one target; those that exports built again are not among them."""

    finished: int
    running: int


@dataclass(frozen=True)
class Tally:
    """What is finished on one target, exports left out; times by the database's clock.

    Attributes:
        finished, running: how many.
        failures: (stage, kind) → how many.
        recent: finished since the moment that was asked for.
        first_started, last_finished: of any evaluation; None if there is none.
        now: when this was counted.
    """

    finished: int
    running: int
    failures: dict[tuple[str, str], int]
    recent: int
    first_started: datetime | None
    last_finished: datetime | None
    now: datetime


@dataclass(frozen=True)
class DeathRecord:
    """An evaluator process that ended in the middle of an evaluation: at which stage, how and why.

    Attributes:
        trial: lowest Optuna trial number that the evaluation answers; None when no trial asked for it.
    """

    evaluation_id: int
    trial: int | None
    death: Failure


@dataclass(frozen=True)
class WorkerTime:
    """What one worker spent its time on, from the start of its command.

    Attributes:
        until: when it last said so, by the database's clock.
        seconds: by the kinds of `run_clock.KINDS`.
    """

    name: str
    until: datetime
    seconds: Mapping[str, float]

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())
