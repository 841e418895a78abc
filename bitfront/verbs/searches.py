"""Searching: the verbs `search`, `resume` and `worker` as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bitfront.verbs.deletion import delete
from bitfront.verbs.readings import exists, studies
from evaluators.data.images import classes_text
from search.errors import BitfrontError, ConfigError, InputError, RunError, StudyError
from studies.artifacts.locations import open_artifacts
from studies.artifacts.shipping import put, put_again, ships
from studies.events import Quiet
from studies.fleet.fleet_run import as_in, crew_of
from studies.fleet.join import Wanted, join, run_crew
from studies.judging.search_events import RunTime, SearchEvents
from studies.monitoring import monitored
from studies.options.config import SearchConfig
from studies.options.read_options import check_config
from studies.options.slots import Slot
from studies.run.local_run import run_here
from studies.run.search_result import SearchResult
from studies.run.session.data_caches import forget_samples, study_cache
from studies.run.session.folders import check_artifacts
from studies.run.session.frozen_batch import frozen_batch_text
from studies.run.session.join import target_of
from studies.run.session.setup import Checked, calibration_cache_of, check_searchable, checked
from studies.run.session.study_rows import create_study
from studies.run_clock import clocked_run, limit_start
from studies.store import suggestions
from studies.store.store import Store, check_usable, default_url

NOTHING: Mapping[str, Any] = MappingProxyType({})


@clocked_run()
def search(config: SearchConfig, events: SearchEvents | None = None, *, replace: bool = False) -> SearchResult:
    """Search for the best mixes of precisions of a model, as `bitfront search` does.

    Args:
        config: what to search; its values are checked first.
        events: told what happens.
        replace: delete the study of this name first, if there is one, where options, model and files can be used.

    Raises:
        InputError: before anything was created; or calibration refused the inputs, and the study was taken back.
        RunError: the run could not go on; the study can be resumed.
    """
    config, slots = crew_of(check_config(config))
    with monitored(events or Quiet(), config.metrics_port) as shown:
        shown.timing(RunTime(limit_start(), config.time_limit_s))
        return _search(config, slots, shown, replace=replace)


def check_search(config: SearchConfig) -> None:
    """Check everything that `search` checks before it makes a study; creates nothing.

    Raises:
        InputError: naming what cannot be used.
        EvaluatorError: the evaluator process does not start.
    """
    config, _ = crew_of(check_config(config))
    _check_all(config, [partial(check, config) for check in (check_artifacts, calibration_cache_of)])


def _check_all(config: SearchConfig, more: Sequence[Callable[[], object]]) -> None:
    with checked(config, more=more) as good:
        check_searchable(good)


def _search(config: SearchConfig, slots: Sequence[Slot], shown: SearchEvents, *, replace: bool) -> SearchResult:
    more: list[Callable[[], object]] = [partial(check, config) for check in (check_artifacts, calibration_cache_of)]
    if replace and exists(config.study, storage=config.storage):
        _check_all(config, more)  # a mistake in the command costs no study
        delete(config.study, config.storage)
    more.append(partial(_refuse_existing, config))
    cache = study_cache(config)
    inputs = checked(config, more=[*more, partial(_forget_killed, config)], events=shown, cache=cache)
    with as_in(slots), _samples_taken_back(config), _nothing_to_resume(inputs) as good:
        check_searchable(good)
        for text in (frozen_batch_text(good.model, good.config), _classes_text(good.config)):
            if text:
                shown.note(text)
        files = put(open_artifacts(config), config, shown) if ships(config) else ()
        with Store.open(config.storage, create=True) as store:
            study = create_study(store, good, shown, files)
            put_again(open_artifacts(config), config, files, shown)
            mine = target_of(store, study, good)
            if not slots:
                with taken_back(config):
                    return run_here(store, good, study, mine, shown)
    with taken_back(config):
        return run_crew(config, slots, shown, mine)


def _classes_text(config: SearchConfig) -> str:
    """Which class each sub-folder of an image folder is; empty for other data."""
    return classes_text(Path(config.data)) if config.preprocess and Path(config.data).is_dir() else ""


@clocked_run()
def resume(
    name: str,
    changes: Mapping[str, Any] = NOTHING,
    *,
    storage: str | None = None,
    target: str | None = None,
    new_target: bool = False,
    events: SearchEvents | None = None,
) -> SearchResult:
    """Continue a study to its total of trials or a new one, as `bitfront resume` does.

    Args:
        changes: `trials`, limits, `time_limit_s`, and `model`, `data` where files have moved: by the names and with the
            types that `SearchConfig` and the table of limits have. A limit of None is taken away.
        storage: URL of the database; None for the default one.
        target: whose options the run takes and that it has to be, see `targets.choose`; None for the options of the
            first, and whichever it is.
        new_target: let the study have the target that this is, if it has not.
        events: told what happens.

    Raises:
        StudyError: no such study, or model, data, space or target are not the study's.
        ConfigError: a change names nothing that there is, or cannot be used.
    """
    which = Wanted(target, new_target)
    with monitored(events or Quiet(), changes.get("metrics_port")) as shown:
        return join(name, changes, storage or default_url(), shown, which, moved=True)


@clocked_run()
def worker(
    name: str,
    changes: Mapping[str, Any] = NOTHING,
    *,
    storage: str | None = None,
    target: str | None = None,
    new_target: bool = False,
    events: SearchEvents | None = None,
) -> SearchResult:
    """Work on a study beside other workers until it is done, as `bitfront worker` does.

    Args:
        changes: as `resume` takes them; where files lie and which device is meant holds for this worker alone.
        storage, target, new_target, events: as of `resume`.

    Raises:
        StudyError: no such study, another process works on it on SQLite, or model, data, space or target are not the
            study's.
    """
    which = Wanted(target, new_target)
    with monitored(events or Quiet(), changes.get("metrics_port")) as shown:
        return join(name, changes, storage or default_url(), shown, which, moved=False)


@contextmanager
def _nothing_to_resume(inputs: AbstractContextManager[Checked]) -> Iterator[Checked]:
    """Inputs of a study that is yet to be made: where they cannot even be tried, there is no run to continue."""
    with ExitStack() as stack:
        try:
            good = stack.enter_context(inputs)
        except RunError as error:
            raise ConfigError(str(error)) from error
        yield good


@contextmanager
def taken_back(config: SearchConfig) -> Iterator[None]:
    """A study that is new, where its inputs are refused after all, say by calibration: there is nothing to resume."""
    try:
        yield
    except InputError:
        with suppress(BitfrontError):  # the first error says more; and a study that others work on is theirs
            made = [study for study in studies(config.storage) if study.name == config.study]
            if made and not made[0].ok + made[0].failed + made[0].running:
                delete(config.study, config.storage)
        raise


def _forget_killed(config: SearchConfig) -> None:
    """Remove samples that a run left which was killed before there was a study: their function may have changed."""
    cache = study_cache(config)
    if cache is not None and cache.is_dir() and not exists(config.study, storage=config.storage):
        forget_samples(cache)


@contextmanager
def _samples_taken_back(config: SearchConfig) -> Iterator[None]:
    """Of a study that is not made after all no samples are kept."""
    try:
        yield
    except BaseException:
        _forget_killed(config)
        raise


def _refuse_existing(config: SearchConfig) -> None:
    if not check_usable(config.storage):
        return
    with Store.open(config.storage, write=False) as store:
        if any(summary.name == config.study for summary in store.studies.summaries()):
            way = suggestions.command("resume", config.study, storage=store.url)
            raise StudyError(
                f"searching as study {config.study!r}: there is already a study of this name in {store.url}. Continue "
                "it: "
                f"`{way}`; give another name with --study; or start again with "
                "--replace, which deletes the old study."
            )
