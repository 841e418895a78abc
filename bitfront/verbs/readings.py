"""Reading studies: the verbs `front`, `trials`, `show`, `status` and `studies` as functions. They start quickly."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from bitfront.verbs.results import Front
from search.errors import StudyError
from studies.judging.findings.optimization_levels import find_final_levels
from studies.judging.point_lists import table_rows
from studies.judging.selection import find_row
from studies.judging.status.study_status import StudyStatus, study_status
from studies.judging.study_lookup import NO_LIMITS, LimitChanges, standing_of
from studies.run.search_result import Mixes
from studies.show.trial_details import TrialDetails
from studies.store.records import StudySummary, TargetRecord
from studies.store.store import Store, default_url


def front(
    name: str,
    limits: LimitChanges = NO_LIMITS,
    *,
    storage: str | None = None,
    target: str | None = None,
    whole: bool = True,
    picks: Sequence[str] = (),
) -> Front:
    """Read the front of a study, judged by its own limits or the given ones, as `bitfront front` does.

    Args:
        limits: name of a limit → its bound, over the study's own: `{"max_drop": 0.02}`; None takes one away.
        storage: URL of the database; None for the default one.
        target: which of the study's, see `targets.choose`; None for the first.
        picks: beside the usual ones: `score:0.6,0.4`.
        whole: False leaves the mixes of evaluations out that a table of the front does not name.

    Raises:
        StudyError: no such database, study, target or pick.
        ConfigError: a limit is none, or means nothing for the study's metric.
    """
    with Store.open(storage or default_url(), write=False) as store:
        now = standing_of(store, name, limits, target, picks)
        ids = None if whole else [int(now.table.id[row]) for row in table_rows(now)]
        assignments = store.evaluations.assignments(now.target.id, ids)
        return Front(now, Mixes(assignments), assignments)


def trials(
    name: str, limits: LimitChanges = NO_LIMITS, *, storage: str | None = None, target: str | None = None
) -> Front:
    """Read all evaluations of a study, judged by its own limits or the given ones, as `bitfront trials` does.

    Args:
        limits, storage, target: as of `front`.

    Raises:
        StudyError, ConfigError: as of `front`.
    """
    return front(name, limits, storage=storage, target=target)


def show(
    name: str,
    trial: int | None = None,
    *,
    pick: str | None = None,
    storage: str | None = None,
    target: str | None = None,
) -> TrialDetails:
    """Read one evaluation on a target, by default the first one, as `bitfront show` does.

    Args:
        trial: its number; or give a pick, as `export` takes it.

    Raises:
        StudyError: no such study, target, trial or pick; neither trial nor pick was given, or both were.
    """
    if (trial is None) == (pick is None):
        raise StudyError("choosing what to show: give a TRIAL or --pick, one of the two.")
    with Store.open(storage or default_url(), write=False) as store:
        now = standing_of(store, name, NO_LIMITS, target, () if pick is None else (pick,))
        number = int(now.table.trial[find_row(now, pick, None)]) if trial is None else trial
        record = store.trials.load(now.target.id, number)
        refused = store.evaluations.refused(now.target.id, record.asked) if record.asked is not None else ()
        groups = {group.id: group for group in store.studies.groups(now.study.id)}
        forecast = store.trials.forecasts(now.target).get(record.id)
        levels = find_final_levels(store, now.target, now.table.reference_ms, [record.id]).get(record.id, ())
        return TrialDetails(record, groups, now, refused, store.engines.profile(record.id), forecast, levels)


def exists(name: str, *, storage: str | None = None) -> bool:
    """Whether there is a study of this name to continue."""
    try:
        with Store.open(storage or default_url(), write=False) as store:
            return any(summary.name == name for summary in store.studies.summaries())
    except StudyError:
        return False


def status(name: str, *, storage: str | None = None) -> StudyStatus:
    """Read the workers of a study, their speed, the failures and the front, as `bitfront status` does."""
    with Store.open(storage or default_url(), write=False) as store:
        return study_status(store, name)


def watch(name: str, *, storage: str | None = None, every_s: float = 2.0) -> Iterator[StudyStatus]:
    """Read the status again and again, until the study is done and no worker is left."""
    with Store.open(storage or default_url(), write=False) as store:
        while True:
            now = study_status(store, name)
            yield now
            if now.over:
                return
            time.sleep(every_s)


def studies(storage: str | None = None) -> tuple[StudySummary, ...]:
    """Read all studies of a database, as `bitfront studies` does."""
    with Store.open(storage or default_url(), write=False) as store:
        return store.studies.summaries()


def targets(storage: str | None = None) -> dict[str, tuple[TargetRecord, ...]]:
    """The targets of every study of a database, by the study's name."""
    with Store.open(storage or default_url(), write=False) as store:
        return {summary.name: store.targets.of_study(summary.id) for summary in store.studies.summaries()}
