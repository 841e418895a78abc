"""The time of a study: seconds by kind of work over all its workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from studies.options.quantities import format_duration_s
from studies.run_clock import KINDS
from studies.store.records import WorkerTime
from studies.store.store import Store


@dataclass(frozen=True)
class TimeTable:
    """What the workers of one target spent their time on.

    Attributes:
        seconds: by kind of work, in the order of `run_clock.KINDS`, summed over workers; kinds that took none are
            absent. Their sum is the busy time.
        wall_s: seconds in which at least one worker was at it, from the start of its command to its last word.
        workers: how many there were.
        began: of the first one's command, by the database's clock; None if there was none.
    """

    seconds: Mapping[str, float]
    wall_s: float
    workers: int
    began: datetime | None

    @property
    def busy_s(self) -> float:
        return sum(self.seconds.values())

    def share(self, kind: str) -> float:
        """Part of the busy time that a kind took."""
        return self.seconds.get(kind, 0.0) / self.busy_s if self.busy_s else 0.0

    def to_json(self) -> dict[str, Any]:
        """Plain values, in seconds."""
        return {
            "seconds": dict(self.seconds),
            "busy_s": self.busy_s,
            "wall_s": self.wall_s,
            "workers": self.workers,
            "began": None if self.began is None else self.began.isoformat(),
        }


def time_table(store: Store, study_target_id: int) -> TimeTable:
    """Where the time of a target's workers went until each last said so; those that run say it every few seconds."""
    return table_of(store.statistics.worker_times(study_target_id))


def table_of(workers: Iterable[WorkerTime]) -> TimeTable:
    """Add workers up."""
    worker_times = list(workers)
    kinds = dict.fromkeys([*KINDS, *(kind for worker in worker_times for kind in worker.seconds)])
    seconds = {kind: sum(worker.seconds.get(kind, 0.0) for worker in worker_times) for kind in kinds}
    spans = sorted((worker.until - timedelta(seconds=worker.total_s), worker.until) for worker in worker_times)
    return TimeTable(
        {kind: each for kind, each in seconds.items() if each > 0},
        sum((end - start).total_seconds() for start, end in _merge_spans(spans)),
        len(worker_times),
        spans[0][0] if spans else None,
    )


def _merge_spans(spans: Iterable[tuple[datetime, datetime]]) -> Iterator[tuple[datetime, datetime]]:
    """Merge stretches of time that overlap; they come in order of their starts."""
    current: tuple[datetime, datetime] | None = None
    for start, end in spans:
        if current is None or start > current[1]:
            if current is not None:
                yield current
            current = (start, end)
        else:
            current = (current[0], max(current[1], end))
    if current is not None:
        yield current


def times_text(times: TimeTable) -> str:
    """How long a target was worked on, and by how many workers."""
    many = f"{times.workers} worker{'s' * (times.workers != 1)}"
    busy = "" if times.workers < 2 else f", {format_duration_s(times.busy_s)} added up"
    return f"where the time of {many} went, {format_duration_s(times.wall_s)} in all{busy}:"


def time_rows(times: TimeTable) -> list[tuple[str, str, str]]:
    """Seconds, share of the busy time, and what they were spent on; the most first, and no kind below 0.05 s."""
    shown = sorted(((s, kind) for kind, s in times.seconds.items() if s >= 0.05), reverse=True)
    return [(f"{s:.1f}", f"{times.share(kind):.1%}", KINDS.get(kind, kind)) for s, kind in shown]
