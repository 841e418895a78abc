"""The progress of a search: messages to the logger `bitfront`, a display and callbacks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console

from bitfront.study import Study
from bitfront.trial import Trial
from bitfront.wording import in_python
from search.errors import ConfigError
from studies.events import Quiet
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.standing import Standing
from studies.judging.status.study_status import StudyStatus
from studies.options.urls import default_url, mask_password
from studies.show.progress_display import Display, Lines, StepPace, TimePace
from studies.show.terminal.progress_table import ended_text
from studies.show.terminal.run_text import clock_text, left_text, step_text
from studies.store.records import FinishedEvaluation, StoredEvaluation

Callback = Callable[[Study, Trial], object]
LOG = logging.getLogger("bitfront")
CHOICES = ("auto", True, False)


class RunningStudy(Study):
    """The study that a callback receives. The callback may stop the search through it."""

    stopped = False
    sampler_is_object = False  # which the study does not store

    def stop(self) -> None:
        """End the search after the current evaluation."""
        self.stopped = True

    def resume_arguments(self) -> dict[str, str]:
        """What `bitfront.resume` has to be given to continue this study, as written in Python.

        This is the metric, the sampler, the database and the target where the study does not store them or they are
        not the default.
        """
        arguments = {}
        if self.metric is not None:
            name = self.metric.short_name
            arguments["metric"] = name if name.isidentifier() else "…"
        if self.sampler_is_object:
            arguments["sampler"] = "…"
        if self.storage != default_url():
            arguments["storage"] = repr(mask_password(self.storage))
        if self.target is not None:
            arguments["target"] = repr(self.target)
        return arguments


class Listener:
    """Passes the events of a search on. An error in a callback ends the search, which can then be resumed.

    Args:
        study: the study that callbacks receive.
        shown: the display of the progress.
        callbacks: called after each finished trial with the study and the trial.
    """

    def __init__(self, study: RunningStudy, shown: SearchEvents, callbacks: Sequence[Callback]) -> None:
        self._study = study
        self._shown = shown
        self._callbacks = tuple(callbacks)
        self._steps = StepPace()
        self._times = TimePace()

    def note(self, text: str) -> None:
        text = in_python(text, self._study.resume_arguments())
        # Without a handler `logging` prints warnings itself, beside a display that shows them.
        may_warn = LOG.hasHandlers() or isinstance(self._shown, Quiet)
        LOG.log(logging.WARNING if may_warn and text.startswith("WARNING") else logging.INFO, "%s", text)
        self._shown.note(text)

    def detail(self, text: str) -> None:
        LOG.debug("%s", text)
        self._shown.detail(text)

    def step(self, text: str, done: int, total: int) -> None:
        if self._steps.is_due(done, total):
            LOG.info("%s", step_text(text, done, total))
        self._shown.step(text, done, total)

    def announce(self, text: str) -> None:
        LOG.debug("%s", text)
        self._shown.announce(text)

    def stage(self, trial: int, stage: str) -> None:
        self._shown.stage(trial, stage)

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:
        done = standing.measures.finished_count
        LOG.info("%d/%d trial %d: %s", done, total, record.trial, ended_text(record, standing))
        self._shown.evaluation(record, standing, total)
        if not self._callbacks:
            return
        self._study.refresh()
        trial = Trial(now=standing, row=int(np.flatnonzero(standing.table.id == record.id)[0]))
        for callback in self._callbacks:
            callback(self._study, trial)

    def report_time(self, run: RunTime) -> None:
        if self._times.is_due(run):
            LOG.info("%s", ", ".join(filter(None, (clock_text(run), left_text(run)))))
        self._shown.report_time(run)

    def overview(self, status: StudyStatus, new: Sequence[FinishedEvaluation]) -> None:
        self._shown.overview(status, new)

    def wants_end(self) -> bool:
        return self._study.stopped


@contextmanager
def listen(study: RunningStudy, callbacks: Sequence[Callback], progress: object) -> Iterator[Listener]:
    """Make the listener for the events of a search.

    Args:
        progress: True for a display on a terminal, and lines in a notebook, a pipe or a file; `auto` for the same, but
            no lines in a pipe or a file where the logger `bitfront` tells them; False for neither.

    Raises:
        ConfigError: `progress` is something else, or a callback cannot be called.
    """
    if progress not in CHOICES:
        raise ConfigError(f"progress: expected 'auto', True or False, got {progress!r}.")
    for callback in callbacks:
        if not callable(callback):
            raise ConfigError(f"callbacks: expected functions of a study and a trial, got {callback!r}.")
    console = Console(stderr=True, soft_wrap=True, highlight=False, emoji=False)
    screen = console.is_terminal and console.file.isatty()  # FORCE_COLOR makes no screen of a pipe
    log_suffices = progress == "auto" and not screen and not _in_notebook() and _is_logged()
    if progress is False or log_suffices:
        yield Listener(study, Quiet(), callbacks)
    elif screen and not _in_notebook():
        with Display(console) as display:
            yield Listener(study, display, callbacks)
    else:
        with Lines(console) as lines:
            yield Listener(study, lines, callbacks)


def _is_logged() -> bool:
    """Whether the program has set up `logging` so that the messages of the logger go somewhere."""
    return LOG.isEnabledFor(logging.INFO) and LOG.hasHandlers()


def _in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
