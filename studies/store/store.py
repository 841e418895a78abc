"""The store of studies. Every write is one transaction, so a killed process loses at most its running evaluation."""

from __future__ import annotations

from types import TracebackType

from studies.store.database import database
from studies.store.database.database import (
    artifact_folder,
    check_usable,
    close_optuna,
    default_url,
    hide_password,
    optuna_reported,
    optuna_storage,
)
from studies.store.database.database_url import is_file
from studies.store.database.transactions import Database
from studies.store.records import FullStudyError, KnownEvaluationError, LostEvaluationError, StudyRecord
from studies.store.repositories.claims import Claims
from studies.store.repositories.engines import Engines
from studies.store.repositories.evaluations import Evaluations
from studies.store.repositories.files import Files
from studies.store.repositories.measurements import Measurements
from studies.store.repositories.spaces import Spaces
from studies.store.repositories.statistics import Statistics
from studies.store.repositories.studies import Studies
from studies.store.repositories.targets import Targets
from studies.store.repositories.trials import Trials
from studies.store.repositories.workers import Tasks, Workers

__all__ = [
    "FullStudyError",
    "KnownEvaluationError",
    "LostEvaluationError",
    "Store",
    "StudyRecord",
    "artifact_folder",
    "check_usable",
    "close_optuna",
    "default_url",
    "hide_password",
    "optuna_reported",
    "optuna_storage",
]


class Store:
    """The studies of one database, read and written by subject. Safe to use from several threads and processes.

    Every method that writes is one transaction: it happens as a whole or, when it raises, not at all. Every method that
    reads is one short transaction, and gives plain values of `records`. Besides what a method names, each may raise
    RunError (disk full, server lost) and, when it writes, StudyError (database read-only). What a server cut off is run
    again.

    Attributes:
        studies: the studies, their options and groups.
        targets: the targets of each study.
        spaces: choices and sensitivities of each target.
        claims: evaluations in flight, from their claim to their result.
        evaluations: what is stored of evaluations.
        measurements: latencies measured again.
        engines: audits and profiles.
        trials: Optuna trials and what answers them.
        workers, tasks: who works on a target, and what one does for all.
        statistics: how a search goes.
        files: the files among the artifacts.
    """

    def __init__(self, database: Database) -> None:
        """`open` is the way to get one."""
        self.database = database
        self.studies = Studies(database)
        self.targets = Targets(database)
        self.spaces = Spaces(database)
        self.claims = Claims(database)
        self.evaluations = Evaluations(database)
        self.measurements = Measurements(database)
        self.engines = Engines(database)
        self.trials = Trials(database)
        self.workers = Workers(database)
        self.tasks = Tasks(database)
        self.statistics = Statistics(database)
        self.files = Files(database)

    @classmethod
    def open(cls, url: str, *, create: bool = False, write: bool = True) -> Store:
        """Open the database at `url`, upgrading tables of an older bitfront.

        Args:
            url: SQLAlchemy URL; SQLite files, PostgreSQL or MySQL.
            create: make the database file and our tables where they are missing.
            write: False for reading verbs: nothing is created, and nothing can be written by mistake.

        Raises:
            StudyError: not there, not ours, made by a newer bitfront, not reachable, or read-only and `write`.
        """
        return cls(Database(database.open_engine(url, create=create, write=write), database.parse_url(url)))

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the studies are, fit for messages and reports: without its password."""
        return self.database.shown_url

    @property
    def is_shared(self) -> bool:
        """Whether several processes may work on one study: on servers, not on SQLite."""
        return not is_file(self.database.url)

    def close(self) -> None:
        """Close all connections; what is read later has a connection for that alone."""
        self.database.close()
