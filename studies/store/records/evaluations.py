"""Single evaluations: running, finished, refused or built again by an export."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from search.errors import BitfrontError
from search.values import Accuracy, Assignment, Correction, Evaluation, Latency, MixBias

RUNNING, OK, FAILED = "running", "ok", "failed"
EXPORT = "export"  # the role of an evaluation that an export built again
OF_PROFILE = "profile: "  # begins the note of an evaluation that is about its stored profile
OF_FINAL = "final: "  # and of the one that says why it could not be scored on the final split


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


@dataclass(frozen=True)
class Round:
    """One measurement of an engine: round 0 in the search, rounds from 1 on are measured again."""

    number: int
    latency: Latency


@dataclass(frozen=True)
class EvaluationRecord:
    """All that is stored of one evaluation.

    Attributes:
        trial: lowest Optuna trial number that it answers; None when no trial asked for it.
        trials: all trial numbers that it answers.
        role: `baseline:fp32` and the like, `export` for one that an export built again, empty for a candidate.
        asked: what was proposed, where `evaluation.assignment` is its repair; else None. Of a record that was looked
            up by a trial, what that trial proposed.
        artifact: digest of the kept engine.
        evaluation: what was measured; empty of measures while `status` is running, when its `ok` means nothing.
            `evaluation.artifact` is None, `evaluation.profile` empty (`engines.profile` reads it), and scores and
            samples have passed through float32.
        rounds: every measurement; round 0 is `evaluation.latency`.
        final: accuracy on the final split; None if it was not scored, or could not be.
        final_failure: why it could not be scored there; empty if it was, or was not tried.
        mix_bias: what came of correcting its biases for this mix; None if that was not tried.
    """

    id: int
    study_target_id: int
    digest: str
    status: str
    trial: int | None
    trials: tuple[int, ...]
    role: str
    worker: str
    asked: Assignment | None
    artifact: str | None
    started_at: datetime
    finished_at: datetime | None
    evaluation: Evaluation
    rounds: tuple[Round, ...]
    final: Accuracy | None
    final_failure: str = ""
    mix_bias: MixBias | None = None


@dataclass(frozen=True)
class MixBiasRecord:
    """What came of correcting the biases of one evaluation for its own mix.

    Attributes:
        means: scales and offsets by op that its engine has in place of those of all INT8; None if it has those.
    """

    evaluation_id: int
    assignment: Assignment
    bias: MixBias
    means: Mapping[str, Correction] | None


@dataclass(frozen=True)
class ExportRecord:
    """An evaluation that an export built again, and that went well.

    Attributes:
        level: TensorRT's optimization level of its build; None on other backends.
        doubts: how many things are doubtful in its first measurement.
        not_obeyed: how many groups do not run in what was asked.
    """

    id: int
    assignment: Assignment
    level: int | None
    raw_ms: float | None
    baseline_ms: float | None
    doubts: int
    build_s: float | None
    not_obeyed: int


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
class Taken:
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
