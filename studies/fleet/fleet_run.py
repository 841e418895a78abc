"""Running a study with worker processes of this host, and showing its progress from the database."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from evaluators.held_folders import held_folder
from evaluators.metrics.own.handed_metric import is_handed
from search.errors import ConfigError, RunError
from studies.crew.crew import reported_deletion
from studies.fleet.processes import Fleet
from studies.judging.search_events import SearchEvents
from studies.judging.status.study_status import StudyStatus, study_status
from studies.options.config import SearchConfig
from studies.options.slots import Slot, slots_of
from studies.run.session.backend_values import backend_kind
from studies.store.database.database_url import check_shareable
from studies.store.database.retries import known_server
from studies.store.records import FinishedEvaluation
from studies.store.store import Store

_LOOK_S = 0.2  # at the processes
_ASK_S = 1.0  # the database, at most so often
_SHARE = 20  # of the time may be spent asking it, one part in so many
_OVERLAP_S = 30.0  # a result is seen when it is committed, which may be later than what its time says


def run_fleet(name: str, url: str, slots: Sequence[Slot], progress: SearchEvents, target: str = "") -> str:
    """Work on a study with one process per slot until it is done; why it stopped, in words.

    Args:
        name: of the study, which is there already.
        url: of its database.
        target: fingerprint of the one to work on; empty for whichever this host is.

    Raises:
        InputError: all workers were refused before they worked.
        RunError: all workers have ended before it was done.
    """
    with (
        known_server(),
        Store.open(url, write=False) as store,
        held_folder() as folder,
        Fleet(name, url, slots, folder, progress.note, target) as fleet,
    ):
        watch = _StudyWatch(store, name, progress)
        with reported_deletion(store, store.studies.load(name)):
            while fleet.look():
                watch.look()
                time.sleep(_LOOK_S)
            watch.look(now=True)
        return fleet.reason


def crew_of(config: SearchConfig) -> tuple[SearchConfig, tuple[Slot, ...]]:
    """The slots that a configuration asks for, none if this process is to work itself; and what workers are told.

    Raises:
        ConfigError: options do not go together, there are not so many GPUs or cores, or the metric is a function of
            this process.
        StudyError: several processes cannot share the database.
        TargetError: GPUs cannot be counted.
    """
    if config.gpus is None and config.workers is None:
        return config, ()
    _check_metric(config)
    slots = slots_of(config, backend_kind(config))
    if len(slots) > 1:
        check_shareable(config.storage)
    return (config if config.gpus is None else replace(config, device="cuda")), slots


def _check_metric(config: SearchConfig) -> None:
    """Refuse worker processes where the metric is a Python function of this process alone.

    Raises:
        ConfigError: saying what to do instead.
    """
    if is_handed(config.metric):
        raise ConfigError(
            f"searching with --workers or --gpus: expected a metric that every worker process can import, got "
            f"{config.metric}, which is a function of one Python process. Move it to the top of a module of its own, "
            "say metrics.py, and import it from there; or leave workers and gpus out, and choose a GPU by device."
        )


@contextmanager
def as_in(slots: Sequence[Slot]) -> Iterator[None]:
    """What is started meanwhile gets the first slot's variables, so that inputs are checked where a worker will run."""
    variables = slots[0].environment if slots else {}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class _StudyWatch:
    """Asks the database now and then, and passes on where the study stands and what is new."""

    def __init__(self, store: Store, name: str, progress: SearchEvents) -> None:
        self._store = store
        self._name = name
        self._progress = progress
        self._next = 0.0
        self._last_asked_s: float | None = None
        self._seen: set[int] = set()
        self._trouble = ""

    def look(self, *, now: bool = False) -> None:
        """Ask the database for the study's status, if it is time to, or at once."""
        start = time.monotonic()
        if not now and start < self._next:
            return
        try:
            status = study_status(self._store, self._name)
            self._progress.overview(status, self._new(status, start))
        except RunError as error:  # a database that is restarted; workers wait for it too
            trouble = str(error)
            if trouble != self._trouble:
                self._progress.note(trouble)
                self._trouble = trouble
        self._next = start + max(_ASK_S, _SHARE * (time.monotonic() - start))

    def _new(self, status: StudyStatus, start: float) -> list[FinishedEvaluation]:
        """What was finished since the last time; at first nothing."""
        seconds = _OVERLAP_S + (0.0 if self._last_asked_s is None else start - self._last_asked_s)
        rows = [
            row for target in status.targets for row in self._store.statistics.finished_since(target.target.id, seconds)
        ]
        new = [] if self._last_asked_s is None else [row for row in rows if row.id not in self._seen]
        self._last_asked_s, self._seen = start, {row.id for row in rows}
        return new
