"""The workers of a target."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class WorkerRecord:
    """A process that worked or works on one target of a study. `host` is for people and goes no further.

    Attributes:
        state: `starting`, `calibrating`, `searching`, `waiting` for others, `finishing`, `measuring` what is stored
            already, `ended`, or `failed`.
        heartbeat_age_s: by the database's clock.
        evaluations: that it has finished.
        evaluation_id, trial: what it is at now.
    """

    id: int
    study_target_id: int
    name: str
    host: str
    device: str
    pid: int
    state: str
    started_at: datetime
    ended_at: datetime | None
    heartbeat_age_s: float
    evaluations: int
    evaluation_id: int | None
    trial: int | None

    def live(self, lease_s: float) -> bool:
        """Whether it has not ended and was heard of within a lease."""
        return self.ended_at is None and self.heartbeat_age_s <= lease_s


@dataclass(frozen=True)
class TaskRecord:
    """Something that one worker of a target does for all; `heartbeat_age_s` by the database's clock."""

    name: str
    worker: str
    heartbeat_age_s: float
