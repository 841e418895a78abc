"""Statistics of a search: counts and times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from search.values import Failure


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
class FinishedRow:
    """An evaluation that was finished lately; None for what was not reached."""

    id: int
    trial: int | None
    worker: str
    status: str
    stage: str | None
    kind: str | None
    role: str
    loss: float | None
    samples: int | None
    total_samples: int | None
    not_obeyed: int
    latency_ms: float | None


@dataclass(frozen=True)
class FinishRecord:
    """When one evaluation ran; `ok` says whether it went well."""

    evaluation_id: int
    role: str
    ok: bool
    started_at: datetime
    finished_at: datetime


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
