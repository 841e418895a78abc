"""Writing the messages of a command to a log file, with the time of each line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType

from search.errors import ConfigError
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.standing import Standing
from studies.judging.status.study_status import StudyStatus
from studies.show.status_text import finished_lines
from studies.show.terminal.progress_table import ended_text
from studies.show.terminal.run_text import clock_text, left_text
from studies.store.records import FinishedEvaluation, StoredEvaluation


class Logged:
    """Passes on what a command tells, and appends it to a file, details included. A context manager.

    A disk that fills up while the command runs costs the lines that it has no room for, which is said at the end.

    Args:
        shown: what else is told.
        path: the file; it is made where there is none.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, shown: SearchEvents, path: Path) -> None:
        self._shown = shown
        self._path = path
        self._trouble = ""
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(
                f"--log-file {path}: expected a file that can be written, got: {error.strerror}. Give another path."
            ) from error

    def __enter__(self) -> Logged:
        self._write(f"began: {' '.join(['bitfront', *sys.argv[1:]])}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("ended" if kind is None else f"ended: {error or kind.__name__}")
        if self._trouble:
            self._shown.note(f"warning: the log file {self._path} is not complete: {self._trouble}")
        self._file.close()

    def note(self, text: str) -> None:
        self._write(text)
        self._shown.note(text)

    def detail(self, text: str) -> None:
        self._write(text)
        self._shown.detail(text)

    def step(self, text: str, done: int, total: int) -> None:
        if done in (0, total):
            self._write(f"{text} {done}/{total}")
        self._shown.step(text, done, total)

    def announce(self, text: str) -> None:
        self._write(text)
        self._shown.announce(text)

    def stage(self, trial: int, stage: str) -> None:
        self._write(f"trial {trial}: {stage}")
        self._shown.stage(trial, stage)

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:
        self._write(f"{standing.measures.finished_count}/{total} trial {record.trial}: {ended_text(record, standing)}")
        self._shown.evaluation(record, standing, total)

    def report_time(self, run: RunTime) -> None:
        self._write(", ".join(filter(None, (clock_text(run), left_text(run)))))
        self._shown.report_time(run)

    def overview(self, status: StudyStatus, new: Sequence[FinishedEvaluation]) -> None:
        for line in finished_lines(status, new):
            self._write(line)
        self._shown.overview(status, new)

    def wants_end(self) -> bool:
        return self._shown.wants_end()

    def _write(self, text: str) -> None:
        moment = datetime.now(timezone.utc).astimezone().isoformat(timespec="milliseconds")
        try:
            self._file.write(f"{moment} {text}\n")
        except OSError as error:
            self._trouble = error.strerror or str(error)
