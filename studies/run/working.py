"""Working on a study that is there, from joining it to leaving it: in this process, or with a process per slot."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.errors import BitfrontError, ConfigError, InputError, RunError
from search.sampler.registry import sampler_named
from studies.artifacts import shipping
from studies.crew.deletion import reported_deletion
from studies.crew.lease_length import at_work, change_lease
from studies.fleet.fleet_run import as_in, crew_of, run_fleet
from studies.judging.search_events import SearchEvents
from studies.judging.study_lookup import placed, standing_of
from studies.options.config import SearchConfig
from studies.options.slots import Slot
from studies.run.pace import Pace
from studies.run.reaching import refuse_late
from studies.run.runner import Runner
from studies.run.search_result import Mixes, SearchResult
from studies.run.session.joining import prepared, target_of
from studies.run.session.levels import check_level, settle_level
from studies.run.session.setup import (
    Checked,
    add_target,
    check_artifacts,
    check_unchanged,
    checked,
    complete_study,
    given_options,
)
from studies.run.work import Work
from studies.run_clock import begin_search, limit_start
from studies.store.database.retries import known_server
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store, close_optuna, optuna_reported, optuna_storage
from studies.store.target_names import choose
from studies.store.target_options import config_of, remember
from studies.trials.proposals import Proposals

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


@dataclass(frozen=True)
class Wanted:
    """The target that a run is to work on: named, added, or whichever of the study's it is."""

    target: str | None = None
    new: bool = False

    def of(self, store: Store, study: StudyRecord) -> TargetRecord | None:
        """Whose options the run starts from; None where the study has no target yet."""
        if self.new and self.target is not None:
            raise ConfigError("joining a study: give --target, for one that it has, or --new-target, not both.")
        found = store.targets.of_study(study.id)
        return choose(found, self.target, study.name) if found else None


def join(
    name: str, options: Mapping[str, Any], url: str, progress: SearchEvents, which: Wanted, *, moved: bool
) -> SearchResult:
    """Work on a study that is there; `moved`: its files are from now on where the options say."""
    with Store.open(url) as store:
        study = store.studies.load(name)
        meant = which.of(store, study)
        stored = config_of(study, meant, url)
        config, slots = crew_of(stored.with_options(options))
        _check_split_seed(config, stored)
        if meant is not None and not which.new and len(store.targets.of_study(study.id)) == 1:
            _check_total(store, config, meant)  # before the inputs are opened, which takes a while
        check_artifacts(config)
        config = shipping.here(store, study, config)
        with as_in(slots), checked(config) as good, reported_deletion(store, study):
            check_unchanged(good, study, None if which.target is None else meant)
            complete_study(store, good, study.id)
            if which.new:
                add_target(store, study, good, progress)
            mine = target_of(store, study, good)
            check_level(study.name, mine, config)
            _check_total(store, config, mine)
            change_lease(store, study, mine, config)
            shipping.keep(store, study, config, progress)
            if not slots:
                return run_here(store, good, study, mine, progress, moved=moved)
            remember(store, study, mine, given_options(config), moved=moved)
    return run_crew(config, slots, progress, mine)


def _check_split_seed(config: SearchConfig, stored: SearchConfig) -> None:
    """Refuse another division of the data: what was scored so far was scored on the samples of this one.

    Raises:
        ConfigError: naming both seeds.
    """
    if config.split_seed != stored.split_seed:
        raise ConfigError(
            f"--split-seed {config.split_seed}: expected {stored.split_seed}, with which the study divided its data. "
            "Leave it out to go on, or start a new study with the other one."
        )


def _check_total(store: Store, config: SearchConfig, target: TargetRecord) -> None:
    """Refuse a new total below what is finished already: nothing that was evaluated is taken back.

    Raises:
        ConfigError: naming how many evaluations of the target are finished.
    """
    finished = store.statistics.counts(target.id).finished if "trials" in config.given else 0
    if config.trials < finished:
        raise ConfigError(
            f"--trials {config.trials}: expected the study's new total of evaluations, and {finished} are finished "
            f"already. Give more than {finished} to evaluate more, or leave it out."
        )


def run_crew(config: SearchConfig, slots: Sequence[Slot], progress: SearchEvents, target: TargetRecord) -> SearchResult:
    """Work on a study that is there with a process per slot."""
    fingerprint = target.target.fingerprint
    reason = run_fleet(config.study, config.storage, slots, progress, fingerprint)
    with known_server(), Store.open(config.storage, write=False) as store:
        now = standing_of(store, config.study, None, fingerprint)
        obedience = store.statistics.obedience(now.target.id)
        deaths = store.statistics.deaths(now.target.id)
        return SearchResult(now, reason, Mixes(store.evaluations.assignments(now.target.id)), obedience, deaths)


def run_here(
    store: Store, good: Checked, study: StudyRecord, target: TargetRecord, progress: SearchEvents, *, moved: bool = True
) -> SearchResult:
    """Work on a study that is there in this process, until it is done.

    Args:
        study, target: as they were read when the run began.
        moved: as of `join`.
    """
    config = good.config
    pace = Pace(config.time_limit_s, limit_start(), good.data)
    if not store.statistics.counts(target.id).finished:
        refuse_late(pace, study.name, config.storage)
    with prepared(store, good, study, progress, state="starting") as work:
        work.pace = pace
        remember(store, study, target, given_options(config), moved=moved)
        store.studies.update(study.id, state="running")
        database = optuna_storage(config.storage)
        state: str | None = "interrupted"
        try:
            with optuna_reported(config.storage), closing(Runner(work, _proposals(work, database))) as runner:
                begin_search()
                settle_level(work)
                runner.recover()
                runner.enqueue_baselines()
                reason = runner.run()
                state = "done" if runner.finish() else None
        except InputError as error:
            # Inputs were good when the run began: data that can no longer be read, a database made read-only.
            raise RunError(str(error)) from error
        finally:
            close_optuna(database)
            with suppress(BitfrontError):  # the error that brought us here says more
                _leave(work, state)
        obedience = store.statistics.obedience(work.ledger.target.id)
        mixes, deaths = (
            Mixes(store.evaluations.assignments(work.ledger.target.id)),
            store.statistics.deaths(work.ledger.target.id),
        )
        return SearchResult(placed(store, runner.standing()), reason, mixes, obedience, deaths)


def _proposals(work: Work, database: RDBStorage) -> Proposals:
    from studies.run.guidance.guidance import make_guidance  # takes a while, and other samplers do without

    config, shared = work.problem.config, work.ledger.store.shared
    return Proposals(
        database,
        work.ledger.target.optuna_study,
        work.problem.space,
        config.sampler,
        config.seed,
        make_guidance(work) if sampler_named(config.sampler).guided else None,
        worker=work.crew.name if shared else "",
        rank=work.crew.rank() if shared else 0,
        note=work.progress.note,
    )


def _leave(work: Work, state: str | None) -> None:
    """End the worker and say what becomes of the study: of one that others go on with, nothing."""
    work.crew.end(sys.exc_info()[1])
    at_it = {live.target_id for live in at_work(work.ledger.store, work.ledger.study)}
    if state == "done":
        at_it.discard(work.ledger.target.id)  # those others only have to end
    if state is not None and not at_it:
        work.ledger.store.studies.update(work.ledger.study.id, state=state)
