"""Showing the events of a running search: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from studies.judging.failure_summary import count_failures
from studies.judging.sentences.evaluations import failures_text
from studies.judging.standing import Standing
from studies.options.quantities import format_duration_s
from studies.show.terminal.progress_table import progress_table
from studies.show.terminal.progress_text import ended_text
from studies.show.terminal.text_table import TextTable
from studies.show.terminal.wrapping import wrapped
from studies.store.records import EvaluationRecord

if TYPE_CHECKING:  # these import the store
    from studies.judging.status.study_status import StudyStatus
    from studies.store.records import FinishedRow

_LINE_EVERY_S = 5.0
_WORTH_TELLING_S = 30.0  # a search that is over sooner needs no estimate
_FAR_OFF = 1.5  # an estimate that is off by more is corrected
_BAR_WIDTH = 24


class Estimate:
    """How long the trials take that are left, and whether that is news."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._ran = 0
        self._end_s: float | None = None  # when all were to be done, as it was said last

    def update(self, record: EvaluationRecord, count: int) -> tuple[float | None, bool]:
        """Take in an evaluation.

        Args:
            count: trials that are left.

        Returns:
            The seconds that are left if that is worth a line, else None; and whether it is the first estimate.
        """
        now_s = time.monotonic()
        if not self._ran:
            self._begun_s = now_s - (record.evaluation.total_s or 0.0)
        self._ran += 1
        left_s, first = (now_s - self._begun_s) / self._ran * count, self._ran == 1
        said_s = None if self._end_s is None else max(0.0, self._end_s - now_s)
        if said_s is None:
            news = first and left_s >= _WORTH_TELLING_S
        else:
            far = left_s > _FAR_OFF * said_s or said_s > _FAR_OFF * left_s
            news = far and count > 0 and abs(left_s - said_s) >= _WORTH_TELLING_S
        if first or news:
            self._end_s = now_s + left_s
        return (left_s, first) if news else (None, first)


def step_text(text: str, done: int, total: int) -> str:
    """What is being done, and how far it is, where that can be counted."""
    return f"{text} {done}/{total}" if total > 1 else text


class StepPace:
    """Which steps are worth a line: the last of each kind, and others from time to time."""

    def __init__(self) -> None:
        self._last = -math.inf

    def is_due(self, done: int, total: int) -> bool:
        """Whether this step is told; the time counts from the last that was."""
        now_s = time.monotonic()
        if done != total and now_s - self._last <= _LINE_EVERY_S:
            return False
        self._last = now_s
        return True


class Lines:
    """One plain line for each finished candidate, for logs and pipes.

    Args:
        verbose: tell details too.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._steps = StepPace()
        self._estimate = Estimate()

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)

    def step(self, text: str, done: int, total: int) -> None:
        if self._steps.is_due(done, total):
            self.note(step_text(text, done, total))

    def stage(self, trial: int, stage: str) -> None: ...

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        self.note(f"{standing.measures.finished_count}/{total} trial {record.trial}: {ended_text(record, standing)}")
        left_s, first = self._estimate.update(record, total - standing.measures.finished_count)
        if left_s is None:
            return
        about = f"about {format_duration_s(round(left_s))} left for all {total} trials"
        if first:
            self.note(
                f"{about}, if each takes as long as this one; --trials, --time-limit and, in a new search, "
                "--max-samples shorten it"
            )
        else:
            self.note(f"{about}, by what the last ones took")

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
    """A bar with the best so far below it, redrawn in place. A context manager: the terminal is given back at the end.

    Args:
        verbose: tell details above it too.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._start = time.monotonic()
        self._doing = "starting"
        self._step = (0, 0)
        self._step_began = (time.monotonic(), 0)
        self._table: TextTable | None = None
        self._failures = ""
        self._done = (0, 0, "")
        self._ran = 0

    def __enter__(self) -> Display:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def note(self, text: str) -> None:
        style = "yellow" if text.lower().startswith("warning") else ""
        self._print(text, style)

    def detail(self, text: str) -> None:
        if self._verbose:
            self._print(text, "dim")

    def _print(self, text: str, style: str) -> None:
        for line in wrapped(text, self._console.width):
            self._console.print(Text(line, style=style), soft_wrap=True)

    def step(self, text: str, done: int, total: int) -> None:
        if text != self._doing or done <= self._step[0]:
            self._step_began = (time.monotonic(), done)
        self._doing, self._step = text, (done, total)
        self._draw()

    def _step_left(self) -> str:
        """How long the step takes, by what of it is done since it began; empty while nothing is."""
        (done, total), (began_s, first) = self._step, self._step_began
        if not first < done < total:
            return ""
        left_s = (time.monotonic() - began_s) / (done - first) * (total - done)
        return f"about {format_duration_s(round(left_s))} left" if left_s >= 1 else ""

    def stage(self, trial: int, stage: str) -> None:
        self._doing, self._step = f"trial {trial}: {stage}", (0, 0)
        self._draw()

    def evaluation(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        self._ran += 1
        if self._ran == 1:
            self._start = time.monotonic() - (record.evaluation.total_s or 0.0)
        each_s = max(time.monotonic() - self._start, 1e-3) / self._ran
        done = standing.measures.finished_count
        left = f"about {format_duration_s(round(each_s * (total - done)))} left" if done < total else ""
        self._done = (done, total, left)
        self._table = progress_table(standing, record.id)
        failures = count_failures(standing.table)
        self._failures = f"failed: {failures_text(failures)}" if failures else ""
        self._draw()

    def overview(self, status: StudyStatus, new: Sequence[FinishedRow]) -> None:
        from studies.show.status_text import drawing

        self._live.update(drawing(status, self._console.width))

    def wants_end(self) -> bool:
        return False

    def _draw(self) -> None:
        self._live.update(self.drawing())

    def drawing(self) -> RenderableType:
        """What is shown at the moment."""
        done, total, left = self._done
        parts: list[RenderableType] = []
        if total:
            parts.append(_bar(f"{done} of {total} evaluations", done, total, left))
        if self._step[1] > 1:
            parts.append(_bar(f"{self._doing} {self._step[0]} of {self._step[1]}", *self._step, self._step_left()))
        else:
            parts.append(Text(self._doing))
        if self._table is not None:
            fitted = self._table.fit(self._console.width)
            parts += [Text(line, style=style) for line, style in fitted.lines()]
            parts += [Text(text, style="dim") for text in fitted.sentences()]
        if self._failures:
            parts.append(Text(self._failures, style="yellow"))
        return Group(*parts)


def _bar(text: str, done: int, total: int, after: str) -> RenderableType:
    bar = ProgressBar(total, done, _BAR_WIDTH, complete_style="cyan", finished_style="green")
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, f"{text}{f', {after}' if after else ''}")
    return grid
