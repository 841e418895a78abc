"""Working on an existing study in this process, from joining it to leaving it."""

from __future__ import annotations

import sys
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from search.errors import BitfrontError, InputError, RunError
from studies.crew.lease_length import at_work
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.standing import Standing, read_standing
from studies.run.hooks.announcements import tell_resolution
from studies.run.pace import Pace
from studies.run.search import Search
from studies.run.search_result import Mixes, SearchResult
from studies.run.session.backend_values import backend_kind
from studies.run.session.join import join_study
from studies.run.session.levels import settle_level
from studies.run.session.setup import Checked
from studies.run.session.study_rows import explicit_options
from studies.run.stop import refuse_late
from studies.run.work import Work
from studies.run_clock import begin_search, limit_start
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store, close_optuna, optuna_reported, optuna_storage
from studies.store.target_options import remember
from studies.trials.dashboard_notes import StudyNotes, trial_labels, write_study_note
from studies.trials.proposals import Proposals

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


def run_here(
    store: Store, good: Checked, study: StudyRecord, target: TargetRecord, progress: SearchEvents, *, moved: bool = True
) -> SearchResult:
    """Work on a study that is there in this process, until it is done.

    Args:
        study, target: as they were read when the run began.
        moved: whether the files of the study are from now on where the configuration says.
    """
    config = good.config
    kind = backend_kind(config)
    pace = Pace(config.time_limit_s, limit_start(), good.data, kind.later_builds)
    progress.report_time(RunTime(pace.began, pace.limit_s))
    now = read_standing(store, study, target, good.limits)
    if not now.measures.finished_count:
        refuse_late(pace, study.name, config.storage)
    tell_resolution(store, now, progress)
    try:
        with join_study(store, good, study, progress, target, state="starting") as work:
            work.pace = pace
            pace.cuts_builds = bool(work.bench.builders)
            remember(store, study, target, explicit_options(config), moved=moved)
            return _search(store, study, work)
    except BaseException:
        with suppress(BitfrontError):  # the error that brought us here says more
            _give_up(store, study)
        raise


def _search(store: Store, study: StudyRecord, work: Work) -> SearchResult:
    config = work.problem.config
    store.studies.update(study.id, state="running")
    database = optuna_storage(config.storage)
    state: str | None = "interrupted"
    try:
        with optuna_reported(config.storage), closing(Search(work, _proposals(work, database))) as search:
            begin_search()
            work.pace.start_s = work.pace.passed_s
            settle_level(work)
            reason = search.run()
            state = "done" if search.finish() else None
            if work.ledger.reload_target().details.get("stopped_by", "") != search.stopped_by:
                store.targets.add_details(work.ledger.target.id, stopped_by=search.stopped_by)
                work.ledger.reload_target()
    except InputError as error:
        # Inputs were good when the run began: data that can no longer be read, a database made read-only.
        raise RunError(str(error)) from error
    finally:
        close_optuna(database)
        with suppress(BitfrontError):  # the error that brought us here says more
            _leave(work, state)
    # The states of the study and of the target as they are now, which say whether it ended early.
    now = replace(search.read_standing(), study=store.studies.load(study.name))
    return result_of(store, now, reason)


def _give_up(store: Store, study: StudyRecord) -> None:
    """Mark a study as interrupted whose last worker ended before it had begun to search.

    Workers that searched left this to the last one, because it was still running.
    """
    if store.studies.load(study.name).state == "running" and not at_work(store, study):
        store.studies.update(study.id, state="interrupted")


def _proposals(work: Work, database: RDBStorage) -> Proposals:
    from studies.run.guidance.guidance import make_guidance  # takes a while, and other samplers do without

    config, alone, names = work.problem.config, work.crew.alone, work.problem.layer_names
    sampler = config.sampler_kind()
    proposals = Proposals(
        database,
        work.ledger.target.optuna_study,
        work.problem.space,
        sampler,
        config.seed,
        make_guidance(work) if sampler.guided else None,
        worker="" if alone else work.crew.name,
        rank=work.crew.rank(),
        note=work.events.note,
        labels=partial(trial_labels, names=names),
    )
    notes = StudyNotes(proposals.study)
    if not notes.has():
        write_study_note(notes, work.problem.space, names)
        notes.save()
    return proposals


def _leave(work: Work, state: str | None) -> None:
    """End the worker and say what becomes of the study: of one that others continue, nothing."""
    work.crew.end(sys.exc_info()[1])
    at_it = {live.target_id for live in at_work(work.ledger.store, work.ledger.study)}
    if state == "done":
        at_it.discard(work.ledger.target.id)  # those others only have to end
    if state is not None and not at_it:
        work.ledger.store.studies.update(work.ledger.study.id, state=state)


def result_of(store: Store, now: Standing, reason: str) -> SearchResult:
    """How a search ended that left a target where it stands."""
    target = now.target.id
    mixes = Mixes(store.evaluations.assignments(target))
    return SearchResult(now, reason, mixes, store.statistics.obedience(target), store.statistics.deaths(target))
