"""Showing the events of a running search: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from studies.judging.details import count_failures
from studies.judging.search_events import RunTime
from studies.judging.sentences.evaluations import failures_text
from studies.judging.standing import Standing
from studies.judging.status.study_status import StudyStatus
from studies.options.quantities import format_duration_s
from studies.show.terminal.progress_table import ended_text, progress_table
from studies.show.terminal.run_text import Doing, clock_text, left_text, step_text
from studies.show.terminal.text_table import wrap_text
from studies.store.records import FinishedEvaluation, StoredEvaluation

_LINE_EVERY_S = 5.0
_WORTH_TELLING_S = 30.0  # a search that is over sooner needs no estimate
_FAR_OFF = 1.5  # an estimate that is off by more is corrected
_BAR_WIDTH = 24
_PER_SECOND = 2  # drawings: on a small machine more would disturb what is measured
_SILENT_S = 60.0  # without a line, after which one says what is being done
_LOOK_S = 1.0


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


class TimePace:
    """Which estimates of the end are worth a line: the first, those that differ much, and others ever more rarely."""

    def __init__(self) -> None:
        self._told: RunTime | None = None
        self._told_at = 0.0

    def is_due(self, run: RunTime) -> bool:
        """Whether this estimate is told; the next are measured by it if it is."""
        now_s = time.monotonic()
        if run.ends is None:
            return False
        if self._told is None or self._told.ends is None:
            due = run.ends - now_s >= _WORTH_TELLING_S
        else:
            said_s, left_s = self._told.ends - now_s, run.ends - now_s
            far = max(said_s, left_s) > _FAR_OFF * max(min(said_s, left_s), 0.0)
            due = far and abs(said_s - left_s) >= _WORTH_TELLING_S
            due = due or now_s - self._told_at >= max(_WORTH_TELLING_S, (now_s - run.began) / 4)
        if due:
            self._told, self._told_at = run, now_s
        return due


class Lines:
    """One plain line for each finished candidate, for logs and pipes.

    As a context manager it also says what is going on where nothing else was told for a while.

    Args:
        verbose: tell details too.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._steps = StepPace()
        self._times = TimePace()
        self._doing = Doing()
        self._run: RunTime | None = None
        self._counts = ""
        self._told_at = time.monotonic()
        self._over = threading.Event()

    def __enter__(self) -> Lines:
        threading.Thread(target=self._tell_silence, name="bitfront-silence", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def note(self, text: str) -> None:
        self._told_at = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)

    def step(self, text: str, done: int, total: int) -> None:
        self._doing.note_step(text, done, total)
        if self._steps.is_due(done, total):
            self.note(step_text(text, done, total))

    def announce(self, text: str) -> None:
        self._doing.note_step(text, 0, 0)

    def stage(self, trial: int, stage: str) -> None:
        self._doing.note_stage(trial, stage)

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:
        self._doing.note_end(record.trials)
        done = standing.measures.finished_count
        self._counts = f"{done} of {total} evaluations"
        self.note(f"{done}/{total} trial {record.trial}: {ended_text(record, standing)}")

    def report_time(self, run: RunTime) -> None:
        first, self._run = self._run is None or self._run.ends is None, run
        if not self._times.is_due(run):
            return
        shorten = "; --trials, --time-limit and, in a new search, --max-samples shorten it"
        self.note(f"{self._time_text()}{shorten if first and run.limit_s is None else ''}")

    def overview(self, status: StudyStatus, new: Sequence[FinishedEvaluation]) -> None:
        from studies.show.status_text import finished_lines

        for line in finished_lines(status, new):
            self.note(line)

    def wants_end(self) -> bool:
        return False

    def _time_text(self) -> str:
        """`1:05 of 4:00, 3 of 24 evaluations, about 2m10s left`."""
        times = [] if self._run is None else [clock_text(self._run), self._counts, left_text(self._run)]
        return ", ".join(filter(None, times))

    def _tell_silence(self) -> None:
        """Say what is being done where nothing was told for a minute, then for twice as long, and so on."""
        wait_s, told_at = _SILENT_S, self._told_at
        while not self._over.wait(_LOOK_S):
            if self._told_at != told_at:
                wait_s, told_at = _SILENT_S, self._told_at
            elif time.monotonic() - told_at >= wait_s:
                wait_s *= 2
                self.note("; ".join(filter(None, (self._time_text(), *self._doing.texts()))))
                told_at = self._told_at


class Notes(Lines):
    """Lines of a worker whose parent prints finished candidates: everything else."""

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None: ...

    def report_time(self, run: RunTime) -> None: ...


class Display:
    """A bar with the best so far below it, redrawn in place. A context manager: the terminal is given back at the end.

    Args:
        verbose: tell details above it too.
    """

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._console = console
        self._verbose = verbose
        self._doing = Doing()
        self._run = RunTime(time.monotonic())
        self._done = (0, 0)
        self._below: list[Text] = []
        self._status: StudyStatus | None = None
        self._live = Live(get_renderable=self.draw, console=console, refresh_per_second=_PER_SECOND, transient=True)

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
        for line in wrap_text(text, self._console.width):
            self._console.print(Text(line, style=style), soft_wrap=True)

    def step(self, text: str, done: int, total: int) -> None:
        self._doing.note_step(text, done, total)

    def announce(self, text: str) -> None:
        self._doing.note_step(text, 0, 0)

    def stage(self, trial: int, stage: str) -> None:
        self._doing.note_stage(trial, stage)

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:
        self._doing.note_end(record.trials)
        self._done = standing.measures.finished_count, total
        fitted = progress_table(standing, record.id).fit(self._console.width)
        below = [Text(line, style=style) for line, style in fitted.lines()]
        below += [Text(text, style="dim") for text in fitted.sentences()]
        if failures := count_failures(standing.table):
            below.append(Text(f"failed: {failures_text(failures)}", style="yellow"))
        self._below = below

    def report_time(self, run: RunTime) -> None:
        self._run = run

    def overview(self, status: StudyStatus, new: Sequence[FinishedEvaluation]) -> None:
        self._status = status

    def wants_end(self) -> bool:
        return False

    def draw(self) -> RenderableType:
        """What is shown at the moment; asked for several times a second."""
        if self._status is not None:
            from studies.show.status_text import draw_status

            return Group(Text(self._time_text()), draw_status(self._status, self._console.width))
        done, total = self._done
        parts: list[RenderableType] = []
        if total:
            parts.append(_bar(f"{done} of {total} evaluations, {self._time_text()}", done, total))
        else:
            parts.append(Text(self._time_text()))
        (_, step_done, step_total), step = self._doing.step, self._doing.step_text()
        if step and step_done < step_total > 1:  # no bar stands full while what follows the last one is waited for
            left_s = self._doing.step_left_s()
            left = f", about {format_duration_s(round(left_s))} left" if left_s >= 1 else ""
            parts.append(_bar(f"{step}{left}", step_done, step_total))
        elif step:
            parts.append(Text(step))
        return Group(*parts, *map(Text, self._doing.trial_texts()), *self._below)

    def _time_text(self) -> str:
        return ", ".join(filter(None, (clock_text(self._run), left_text(self._run))))


def _bar(text: str, done: int, total: int) -> RenderableType:
    bar = ProgressBar(total, done, _BAR_WIDTH, complete_style="cyan", finished_style="green")
    grid = Table.grid(padding=(0, 1))
    grid.add_row(bar, text)
    return grid
