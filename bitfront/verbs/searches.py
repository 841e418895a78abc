"""The verbs that make a study and work on it: `search`, `resume` and `worker`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from bitfront.verbs.deletion import delete, taken_back
from bitfront.verbs.readings import exists
from bitfront.verbs.renewal import renew
from evaluators.backends.registry import choose_backend
from evaluators.data.images import classes_text
from search.errors import ConfigError, RunError, StudyError
from studies.artifacts.locations import open_artifacts
from studies.artifacts.shipping import put, put_again, ships
from studies.events import Quiet
from studies.fleet.fleet_run import as_in, crew_of
from studies.fleet.join import Wanted, join, run_crew
from studies.gate.limits import GateLimits
from studies.gate.renewed.renewal import Renewal
from studies.judging.search_events import RunTime, SearchEvents
from studies.judging.sentences.no_pick import all_failed_text
from studies.judging.study_lookup import standing_of
from studies.monitoring import monitored
from studies.options.config import SearchConfig
from studies.options.quantities import parse_tolerance, refusal
from studies.options.read_options import check_config
from studies.options.slots import Slot
from studies.options.table import option_rows
from studies.run.local_run import run_here
from studies.run.search_result import SearchResult
from studies.run.session.data_caches import forget_samples, study_cache
from studies.run.session.folders import check_artifacts
from studies.run.session.frozen_batch import frozen_batch_text
from studies.run.session.join import target_of
from studies.run.session.setup import Checked, calibration_cache_of, check_searchable, checked
from studies.run.session.study_rows import create_study
from studies.run_clock import clocked_run, limit_start
from studies.show.front_rows import front_json
from studies.store import suggestions
from studies.store.store import Store, check_usable, default_url

if TYPE_CHECKING:  # it belongs to one mode of one verb
    from optuna.samplers import BaseSampler

    from studies.run.noise.remeasurement import Remeasured

NOTHING: Mapping[str, Any] = MappingProxyType({})


@clocked_run()
def search(config: SearchConfig, events: SearchEvents | None = None, *, replace: bool = False) -> SearchResult:
    """Search for the fastest mix of precisions of a model within your limits of latency and accuracy.

    Args:
        config: what to search; its values are checked first.
        events: told what happens.
        replace: If there is a study of this name, delete it first.

    Raises:
        InputError: before anything was created; or calibration refused the inputs, and the study was taken back.
        RunError: the run could not go on; the study can be resumed.
    """
    (events or Quiet()).note(f"checking inputs for backend {choose_backend(config.backend)}")
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


def _read_which(text: str, option: str) -> str | tuple[int, ...]:
    """Which latencies are measured again: `doubtful`, `all` or numbers of trials."""
    if text in ("doubtful", "all"):
        return text
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        raise refusal(option, "doubtful, all or numbers of trials", text, "write it like 3,7") from None


@clocked_run()
def resume(
    name: str,
    changes: Mapping[str, Any] = NOTHING,
    *,
    storage: str | None = None,
    target: str | None = None,
    new_target: bool = False,
    remeasure: Annotated[str | Sequence[int] | None, Typed("WHICH", read=_read_which)] = None,
    fresh: Annotated[str | None, Typed("NAME", "--as")] = None,
    max_slowdown: Annotated[float | None, Typed("SHARE", read=parse_tolerance)] = None,
    out: Annotated[Path | None, Typed("DIR")] = None,
    own_sampler: BaseSampler | None = None,
    events: SearchEvents | None = None,
) -> SearchResult | Renewal | tuple[Remeasured, ...]:
    """Continue a study until it has its number of trials, or a new number of them; or measure or calibrate it again.

    Args:
        changes: `trials`, limits, `time_limit_s`, and `model`, `data` where files have moved: by the names and with the
            types that `SearchConfig` and the table of limits have. A limit of None is taken away.
        storage: URL of the database; None for the default one.
        target: whose options the run takes and that it has to be, see `targets.choose`; None for the options of the
            first, and whichever it is.
        new_target: let the study have the target that this is, if it has not.
        remeasure: Search no further, but measure latencies again: doubtful (those that are and matter), all (all that
            are), or the numbers of trials as 3,7.
        fresh: Name of a new study. The mixes of this one are calibrated for it on the fresh samples of --data, and
            judged against the old engines: --max-drop, by default 0, then says how much more they may lose.
        max_slowdown: With --as: largest allowed increase of the latency against the old engine, for example 3%.
        own_sampler: the sampler of a study that was searched with one that is an object of Python.
        out: With --as: new or empty folder for the new best engine. It is written if the engine passes.
        events: told what happens.

    Returns:
        How the search ended; with `remeasure` what changed, in order of the evaluations; with `fresh` the new study
        beside the old one.

    Raises:
        StudyError: no such study, or model, data, space or target are not the study's.
        ConfigError: a change names nothing that there is, or cannot be used.
    """
    if fresh is not None:
        _refuse_others(changes, ("model", "data", "trust_functions", "max_drop"), "--as", remeasure=remeasure)
        rest = {key: value for key, value in changes.items() if key != "max_drop"}
        limits = GateLimits(changes.get("max_drop", 0.0), max_slowdown)
        return renew(name, fresh, rest, limits=limits, out=out, storage=storage, target=target, events=events)
    if max_slowdown is not None or out is not None:
        given = "--out" if max_slowdown is None else "--max-slowdown"
        raise ConfigError(f"{given}: this option goes with --as, which calibrates a study again. Leave it out.")
    if remeasure is not None:
        _refuse_others(changes, ("model", "data", "trust_functions"), "--remeasure")
        return _measure_again(name, remeasure, changes, storage, target, events or Quiet())
    which = Wanted(target, new_target)
    with monitored(events or Quiet(), changes.get("metrics_port")) as shown:
        return join(name, changes, storage or default_url(), shown, which, moved=True, own_sampler=own_sampler)


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
    """Work on a study from this host, beside other processes, until it is done.

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


def _refuse_others(changes: Mapping[str, Any], taken: Sequence[str], mode: str, **also: object) -> None:
    """Refuse options that a mode of `resume` has no use for."""
    rows = {row.key: row.shown for row in option_rows()}
    other = [rows[key] for key in changes if key not in taken]
    other += [f"--{key}" for key, value in also.items() if value is not None]
    if other:
        raise ConfigError(f"{other[0]}: this option does not go with {mode}. Leave one of them out.")


def _measure_again(
    name: str,
    which: str | Sequence[int],
    changes: Mapping[str, Any],
    storage: str | None,
    target: str | None,
    events: SearchEvents,
) -> tuple[Remeasured, ...]:
    """Measure latencies beside the baseline and each other, until nothing is doubtful in them, a few times at most.

    Older measurements stay stored.
    """
    from studies.run.noise.remeasurement import remeasure_study

    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = standing_of(store, name, wanted=target)
    trials = () if isinstance(which, str) else tuple(which)
    return remeasure_study(url, now, trials, every=which == "all", changes=changes, progress=events)


# -- shown -------------------------------------------------------------------------------------------------------------


def _warn_of_end(finished: SearchResult) -> None:
    """What must not be missed of a search; of a worker, whoever searches says it."""
    from bitfront.printing.study_results import print_warnings
    from bitfront.printing.talk import talk

    if talk().verb == "worker":
        return
    print_warnings(finished.standing)
    if finished.standing.details.failures is not None:
        raise RunError(all_failed_text(finished.standing))


def _result_json(finished: SearchResult) -> Mapping[str, Any]:
    return {"reason": finished.reason, **front_json(finished.standing, finished.mixes)}


@prints(search, resume, worker, kind="SearchResult", json=_result_json, warn=_warn_of_end, quiet=True, tells=True)
def _print_finished(finished: SearchResult) -> None:
    from bitfront.printing.study_results import print_finished

    print_finished(finished)


def _remeasured_json(found: Sequence[Remeasured]) -> Mapping[str, Any]:
    return {"measured": [one.to_json() for one in found]}


@prints(resume, kind="tuple", json=_remeasured_json)
def _print_remeasured(found: Sequence[Remeasured]) -> None:
    from bitfront.printing.output import say
    from studies.run.noise.remeasurement import change_text

    for one in found:
        name = "an engine built again for an export" if one.trial is None else f"trial {one.trial}"
        say(change_text(name, one))
    if not found:
        say("No latency that was asked for is doubtful; nothing was measured.")


@prints(
    resume,
    kind="Renewal",
    exit_code=lambda found: {"holds": 0, "fails": 1, "not judged": 3}[found.verdict.value],
)
def _print_renewal(found: Renewal) -> None:
    from bitfront.printing.output import out, print_table, say
    from studies.gate.renewed.renewal import COLUMNS

    print_table(found.cells(), COLUMNS)
    out.print()
    for line in found.lines():
        say(line)
    if found.folder is not None:
        say(f"exported trial {found.best} to {found.folder}")


# -- what is refused or cut off ----------------------------------------------------------------------------------------


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
