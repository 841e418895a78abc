"""The status of a study: its workers, its speed, failures and its front. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from studies.judging.points import Point
from studies.judging.standing import pick_points, read_standing
from studies.judging.status.time_table import TimeTable, table_of, time_table
from studies.options.config import SearchConfig
from studies.options.limits import MetricScale
from studies.options.resolve_limits import resolve_limits
from studies.store.records import DeathRecord, RunningRecord, StudyRecord, Tally, TargetRecord, TaskRecord, WorkerRecord
from studies.store.store import Store
from studies.store.target_options import config_of

HOUR_S = 3600.0
# What a worker does that has a task for all, and what else its state does not say.
_TASKS = {
    "calibration": "calibrating",
    "sensitivity": "measuring sensitivities",
    "band": "measuring repeatability",
    "finalists": "confirming finalists",
}
_STATES = {"calibrating": "starting", "finishing": "waiting for finalists"}


@dataclass(frozen=True)
class TargetStatus:
    """One target of a study.

    Attributes:
        wanted: evaluations in total.
        lease_s: a worker that was not heard of for longer is lost.
        window_s: what `tally.recent` counts: an hour, or less where its oldest worker is younger.
        running: evaluations under way, or left by a worker that is lost.
        front: points on the front within the limits.
        picks: by name; absent where nothing keeps the limits.
        limit_left_s: seconds until the time limit of those that work now; None without one.
        may_end: whether the search ends sooner where it finds that nothing more is to be had.
        only_fp32: whether nothing but FP32 was evaluated, so that the picks say nothing yet.
        deaths: evaluator processes that were replaced over an evaluation.
        times: where the time of its workers went.
    """

    target: TargetRecord
    wanted: int
    lease_s: float
    window_s: float
    tally: Tally
    running: tuple[RunningRecord, ...]
    workers: tuple[WorkerRecord, ...]
    tasks: tuple[TaskRecord, ...]
    front: int
    picks: Mapping[str, Point]
    deaths: tuple[DeathRecord, ...] = ()
    times: TimeTable = field(default_factory=lambda: table_of(()))
    only_fp32: bool = False
    limit_left_s: float | None = None
    may_end: bool = False

    @property
    def stopped_by(self) -> str:
        """What ended the last search before it had all evaluations: as in `TargetRecord`; empty for nothing."""
        return self.target.stopped_by if self.tally.finished < self.wanted else ""

    @property
    def alive(self) -> tuple[WorkerRecord, ...]:
        return tuple(worker for worker in self.workers if worker.live(self.lease_s))

    @property
    def lost(self) -> tuple[WorkerRecord, ...]:
        """Workers that were not heard of for a lease and did not say that they end."""
        return tuple(w for w in self.workers if w.ended_at is None and not w.live(self.lease_s))

    @property
    def ended_workers(self) -> tuple[WorkerRecord, ...]:
        return tuple(worker for worker in self.workers if worker.ended_at is not None)

    def stage(self, worker: WorkerRecord) -> str:
        """What a worker is doing or, if it is not alive, did last: its task for all, else its state."""
        held = {task.name for task in self.tasks if task.worker == worker.name}
        doing = next((text for name, text in _TASKS.items() if name in held), None)
        return doing or _STATES.get(worker.state, worker.state)

    @property
    def closing_step(self) -> tuple[str, float] | None:
        """The step at the end of the search that a worker is at, and the seconds to the end; None before that."""
        known, held = self.target.closing_step, {worker.name for worker in self.alive}
        if known is None or not any(task.name == "finalists" and task.worker in held for task in self.tasks):
            return None
        return known[0], max(0.0, (known[1] - self.tally.now).total_seconds())

    @property
    def rate_recent(self) -> float:
        """Evaluations an hour, over the window."""
        return HOUR_S * self.tally.recent / max(self.window_s, 1.0)

    @property
    def rate_overall(self) -> float | None:
        """Evaluations an hour from the start of the first command to the last one's end, pauses included."""
        first, last = self.times.began or self.tally.first_started, self.tally.last_finished
        if first is None or last is None:
            return None
        return HOUR_S * self.tally.finished / max((last - first).total_seconds(), 1.0)

    @property
    def left_s(self) -> float | None:
        """Seconds to the last evaluation at the recent rate, or to the time limit, whichever comes first.

        None if nobody works, or nothing was finished yet and there is no limit.
        """
        left = self.wanted - self.tally.finished
        if not self.alive or left <= 0:
            return None
        ends_s = [HOUR_S * left / self.rate_recent] if self.tally.recent else []
        return min([*ends_s, *([] if self.limit_left_s is None else [self.limit_left_s])], default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values; ages and times in seconds, latencies in milliseconds."""
        described = self.target.target
        return {
            "fingerprint": described.fingerprint,
            "backend": described.backend,
            "device": described.device,
            "evaluations": self.tally.finished,
            "wanted": self.wanted,
            "stopped_by": self.stopped_by or None,
            "failures": [{"stage": s, "kind": k, "count": n} for (s, k), n in sorted(self.tally.failures.items())],
            "replaced": len(self.deaths),
            "an_hour_recently": self.rate_recent,
            "an_hour_overall": self.rate_overall,
            "left_s": self.left_s,
            "closing": None
            if self.closing_step is None
            else {"step": self.closing_step[0], "left_s": self.closing_step[1]},
            "lease_s": self.lease_s,
            "running": [vars(row) for row in self.running],
            "tasks": [vars(task) for task in self.tasks],
            "workers": [self._worker_json(worker) for worker in self.workers],
            "time": self.times.to_json(),
            "front": self.front,
            "picks": {name: _pick_json(point) for name, point in self.picks.items()},
            "recovery": None if self.target.recovery is None else self.target.recovery.to_json(),
        }

    def _worker_json(self, worker: WorkerRecord) -> dict[str, Any]:
        fields = {key: value for key, value in vars(worker).items() if key not in ("id", "study_target_id")}
        times = {key: value.isoformat() for key, value in fields.items() if isinstance(value, datetime)}
        return {**fields, **times, "stage": self.stage(worker), "live": worker.live(self.lease_s)}


@dataclass(frozen=True)
class StudyStatus:
    """A study with all its targets; `url` is its database, without a password, `renews` the study that it renews."""

    study: StudyRecord
    url: str
    targets: tuple[TargetStatus, ...]
    renews: str | None = None

    @property
    def over(self) -> bool:
        """Whether the study is done and nobody works on it any more."""
        return self.study.state == "done" and not any(target.alive for target in self.targets)

    @property
    def stopped_by(self) -> str:
        """What ended the search before it was complete, while nobody works on it; empty where nothing did."""
        if self.study.state != "done":
            return ""
        return next((target.stopped_by for target in self.targets if target.stopped_by), "")

    def to_json(self) -> dict[str, Any]:
        targets = [target.to_json() for target in self.targets]
        data = self.study.data
        return {
            "study": self.study.name,
            "state": self.study.state,
            "storage": self.url,
            "renewed_from": self.renews,
            "samples": {split: data[split] for split in ("calibration", "search", "final") if split in data},
            "clusters": dict(data.get("clusters", {})),
            "targets": targets,
        }


def study_status(store: Store, name: str) -> StudyStatus:
    """Look a study up.

    Raises:
        StudyError: there is no such study.
    """
    study = store.studies.load(name)
    targets = tuple(target_status(store, study, t) for t in store.targets.of_study(study.id))
    return StudyStatus(study, store.url, targets, store.studies.name_renewed(study))


def target_status(store: Store, study: StudyRecord, target: TargetRecord) -> TargetStatus:
    """Count one target of a study."""
    config = config_of(study, target)
    workers = store.workers.of_target(target.id)
    # An hour ago; later where all that work now began later, so that a pause before is no part of their rate.
    hour_ago = store.statistics.now() - timedelta(seconds=HOUR_S)
    since = max(
        hour_ago, min((worker.started_at for worker in workers if worker.live(config.lease_s)), default=hour_ago)
    )
    tally = store.statistics.tally(target.id, since)
    now = read_standing(store, study, target, resolve_limits(config.limits, MetricScale.of(study.metric), study.batch))
    front, picks, only_fp32 = int(now.judgement.front.sum()), pick_points(now), now.only_fp32
    return TargetStatus(
        target=target,
        wanted=config.trials,
        lease_s=config.lease_s,
        window_s=(tally.now - since).total_seconds(),
        tally=tally,
        running=store.claims.find_running(target.id),
        workers=workers,
        tasks=store.tasks.of_target(target.id),
        front=front,
        picks=picks,
        deaths=store.statistics.deaths(target.id),
        times=time_table(store, target.id),
        only_fp32=only_fp32,
        limit_left_s=_limit_left_s(config, workers, tally.now),
        may_end=config.patience is not None,
    )


def _limit_left_s(config: SearchConfig, workers: tuple[WorkerRecord, ...], now: datetime) -> float | None:
    """Until the time limit of the worker that has worked for the longest of those that are alive."""
    began = min((worker.started_at for worker in workers if worker.live(config.lease_s)), default=None)
    if began is None or config.time_limit_s is None:
        return None
    return max(0.0, config.time_limit_s - (now - began).total_seconds())


def _pick_json(point: Point) -> dict[str, Any]:
    return {
        "trial": None if point.trial < 0 else point.trial,
        "latency_ms": point.latency_ms,
        "loss": point.loss,
        "speedup": point.speedup,
        "speedup_doubtful": point.speedup_doubtful,
        "final": point.final.verdict.value,
        "unrelated": point.is_unrelated,
    }
