"""Joining an existing study, in this process or with one process per slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from search.errors import ConfigError
from studies.artifacts import shipping
from studies.crew.crew import reported_deletion
from studies.crew.lease_length import change_lease
from studies.fleet.fleet_run import as_in, crew_of, run_fleet
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.study_lookup import standing_of
from studies.options.config import SearchConfig
from studies.options.read_options import change_config
from studies.options.slots import Slot
from studies.run.local_run import result_of, run_here
from studies.run.search_result import SearchResult
from studies.run.session.data_caches import check_artifacts, study_cache
from studies.run.session.join import target_of
from studies.run.session.levels import check_level
from studies.run.session.setup import check_inputs
from studies.run.session.study_rows import add_target, check_unchanged, explicit_options
from studies.run.session.trusted_functions import check_trusted, remember_functions, take_names_again
from studies.run_clock import limit_start
from studies.store.database.retries import known_server
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store
from studies.store.target_names import choose
from studies.store.target_options import config_of, remember

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


@dataclass(frozen=True)
class Wanted:
    """The target that a run is to work on: named, added, or whichever of the study's it is."""

    target: str | None = None
    new: bool = False

    def of(self, store: Store, study: StudyRecord) -> TargetRecord:
        """Whose options the run starts from."""
        if self.new and self.target is not None:
            raise ConfigError(
                "joining a study: --target and --new-target were both given. Give --target to work for a target that "
                "the study has, or --new-target to add this host."
            )
        return choose(store.targets.of_study(study.id), self.target, study.name)


def join(
    name: str,
    changes: Mapping[str, Any],
    url: str,
    progress: SearchEvents,
    which: Wanted,
    *,
    moved: bool,
    own_sampler: BaseSampler | None = None,
) -> SearchResult:
    """Work on a study that is there; `moved`: its files are from now on where the changes say."""
    with Store.open(url) as store:
        study = store.studies.load(name)
        meant = which.of(store, study)
        stored = config_of(study, meant, url)
        config = take_names_again(change_config(stored, changes), stored, str(study.metric["name"]))
        config = replace(config, own_sampler=own_sampler)
        check_trusted(config)
        config, slots = crew_of(config)
        progress.report_time(RunTime(limit_start(), config.time_limit_s))
        _check_split_seed(config, stored)
        _check_recover(config, stored)
        if not which.new and len(store.targets.of_study(study.id)) == 1:
            _check_total(store, config, meant)  # before the inputs are opened, which takes a while
        check_artifacts(config)
        config = shipping.here(store, study, config, progress)
        inputs = check_inputs(config, builds=not slots, events=progress, cache=study_cache(config))
        with as_in(slots), inputs as good, reported_deletion(store, study):
            check_unchanged(good, study, None if which.target is None else meant)
            remember_functions(config, progress)
            if which.new:
                add_target(store, study, good, progress)
            mine = target_of(store, study, good)
            check_level(study.name, mine, config)
            _check_total(store, config, mine)
            change_lease(store, study, mine, config)
            shipping.keep(store, study, config, progress)
            if not slots:
                return run_here(store, good, study, mine, progress, moved=moved)
            remember(store, study, mine, explicit_options(config), moved=moved)
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


def _check_recover(config: SearchConfig, stored: SearchConfig) -> None:
    """Refuse other recovery steps: what was evaluated so far has the ranges that these gave.

    Raises:
        ConfigError: naming both.
    """
    if config.recover != stored.recover:
        raise ConfigError(
            f"--recover {config.recover}: expected {stored.recover}, with which the study was made: INT8 would be "
            "another one. Leave it out to go on, or start a new study."
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
        return result_of(store, standing_of(store, config.study, wanted=fingerprint), reason)
