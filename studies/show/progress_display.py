"""How the events of a running search are shown: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from studies.judging.failure_summary import count_failures
from studies.judging.sentences.evaluations import failures_text, outcome_text
from studies.judging.sentences.picks import best_label, best_text
from studies.judging.standing import Standing
from studies.options.quantities import format_duration_s
from studies.store.records import EvaluationRecord

if TYPE_CHECKING:  # these import the store
    from studies.judging.status.study_status import StudyStatus
    from studies.store.records import FinishedRow

_LINE_EVERY_S = 5.0


def step_text(text: str, done: int, total: int) -> str:
    """What is being done, and how far it is, where that can be counted."""
    return f"{text} {done}/{total}" if total > 1 else text


class Lines:
    """One plain line for each finished candidate, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_step = 0.0

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, text: str, done: int, total: int) -> None:
        if done == total or time.monotonic() - self._last_step > _LINE_EVERY_S:
            self._last_step = time.monotonic()
            self.note(step_text(text, done, total))

    def stage(self, trial: int, stage: str) -> None: ...

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        self.note(
            f"{standing.measures.finished_count}/{total} trial {record.trial}: {outcome_text(record, standing.metric)}"
        )

    def overview(self, status: StudyStatus, new: Sequence[FinishedRow]) -> None:
        from studies.show.status_text import finished_lines

        for line in finished_lines(status, new):
            self.note(line)

    def wants_end(self) -> bool:
        return False


class Notes(Lines):
    """Of a worker whose parent tells of finished candidates: the rest."""

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None: ...


class Display:
    """A table that is redrawn in place. A context manager: the terminal is given back at the end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._start = time.monotonic()
        self._doing = "starting"
        self._facts: list[tuple[str, str]] = []
        self._ran = 0

    def __enter__(self) -> Display:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, text: str, done: int, total: int) -> None:
        self._doing = step_text(text, done, total)
        self._draw()

    def stage(self, trial: int, stage: str) -> None:
        self._doing = f"trial {trial}: {stage}"
        self._draw()

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        self._ran += 1
        if self._ran == 1:
            self._start = time.monotonic() - (record.evaluation.total_s or 0.0)
        rate = self._ran / max(time.monotonic() - self._start, 1e-3)
        done = standing.measures.finished_count
        self._facts = [
            ("evaluations", f"{done} of {total}"),
            ("last", f"trial {record.trial}: {outcome_text(record, standing.metric)}"),
            (best_label(standing), best_text(standing)),
            ("front", f"{int(standing.judgement.front.sum())} points"),
            ("rate", f"{60 * rate:.1f} a minute, {format_duration_s(max(0, total - done) / rate)} left"),
            ("failures", failures_text(count_failures(standing.table))),
        ]
        self._draw()

    def overview(self, status: StudyStatus, new: Sequence[FinishedRow]) -> None:
        from studies.show.status_text import drawing

        self._live.update(drawing(status))

    def wants_end(self) -> bool:
        return False

    def _draw(self) -> None:
        table = Table.grid(padding=(0, 2))
        for name, value in (*self._facts, ("now", self._doing)):
            table.add_row(f"[dim]{name}[/dim]", value)
        self._live.update(table)
