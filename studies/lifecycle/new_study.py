"""Making a study and searching it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from evaluators.backends.registry import choice_text
from search.errors import ConfigError, RunError, StudyError
from studies.artifacts.locations import open_artifacts
from studies.artifacts.shipping import put, put_again, ships
from studies.fleet.fleet_run import as_in, crew_of
from studies.fleet.join import run_crew
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.study_lookup import exists
from studies.lifecycle.deletion import delete_study, taken_back
from studies.monitoring import serve_metrics
from studies.options.config import SearchConfig
from studies.options.read_options import check_config
from studies.options.slots import Slot
from studies.run.local_run import run_here
from studies.run.search_result import SearchResult
from studies.run.session.backend_values import device_of
from studies.run.session.data_caches import check_artifacts, forget_samples, study_cache
from studies.run.session.data_shapes import frozen_batch_text
from studies.run.session.join import target_of
from studies.run.session.setup import Checked, calibration_cache_of, check_inputs, check_searchable
from studies.run.session.study_rows import create_study
from studies.run_clock import limit_start
from studies.store import suggestions
from studies.store.store import Store, check_usable


def search_new_study(config: SearchConfig, events: SearchEvents, *, replace: bool) -> SearchResult:
    """Make a study and search it; see `bitfront.verbs.search`."""
    events.note(f"checking inputs for backend {choice_text(config.backend, device_of(config))}")
    config, slots = crew_of(check_config(config))
    with serve_metrics(events, config.metrics_port) as shown:
        shown.report_time(RunTime(limit_start(), config.time_limit_s))
        return _search(config, slots, shown, replace=replace)


def check_new_study(config: SearchConfig) -> None:
    """Check everything that `search_new_study` checks before it makes a study; creates nothing.

    Raises:
        InputError: naming what cannot be used.
        EvaluatorError: the evaluator process does not start.
    """
    config, _ = crew_of(check_config(config))
    _check_all(config, [partial(check, config) for check in (check_artifacts, calibration_cache_of)])


def _check_all(config: SearchConfig, more: Sequence[Callable[[], object]]) -> None:
    with check_inputs(config, more=more) as good:
        check_searchable(good)


def _search(config: SearchConfig, slots: Sequence[Slot], shown: SearchEvents, *, replace: bool) -> SearchResult:
    more: list[Callable[[], object]] = [partial(check, config) for check in (check_artifacts, calibration_cache_of)]
    if replace and exists(config.study, storage=config.storage):
        _check_all(config, more)  # a mistake in the command costs no study
        delete_study(config.study, config.storage)
    more.append(partial(_refuse_existing, config))
    cache = study_cache(config)
    more.append(partial(_forget_killed, config))
    inputs = check_inputs(config, builds=not slots, more=more, events=shown, cache=cache)
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
    if not config.preprocess or not Path(config.data).is_dir():
        return ""
    from evaluators.data.images import classes_text

    return classes_text(Path(config.data))


@contextmanager
def _nothing_to_resume(inputs: AbstractContextManager[Checked]) -> Iterator[Checked]:
    """Inputs of a study that is yet to be made: where they cannot even be tried, there is no run to continue."""
    with ExitStack() as stack:
        try:
            good = stack.enter_context(inputs)
        except RunError as error:
            raise ConfigError(str(error)) from error
        yield good


def _forget_killed(config: SearchConfig) -> None:
    """Remove samples that a run left which was killed before there was a study: their function may have changed."""
    cache = study_cache(config)
    if cache is not None and cache.is_dir() and not exists(config.study, storage=config.storage):
        forget_samples(cache)


@contextmanager
def _samples_taken_back(config: SearchConfig) -> Iterator[None]:
    """Remove the samples of a study that is not made after all."""
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
