"""The verbs that make a study, work on it and delete it: `search`, `resume`, `worker` and `delete`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, asks, prints
from bitfront.verbs.deliveries import (
    DELIVERED,
    Delivery,
    deliver_best,
    delivery_json,
    print_delivery,
    warn_of_delivery,
)
from search.errors import ConfigError, RunError
from studies.events import Quiet
from studies.options.config import SearchConfig, option_rows
from studies.options.quantities import parse_tolerance, refusal
from studies.run_clock import clocked_run

if TYPE_CHECKING:  # help is made of the signatures alone, so what the verbs work with is imported inside them
    from optuna.samplers import BaseSampler

    from studies.gate.renewed.renewal import Renewal
    from studies.judging.search_events import SearchEvents
    from studies.run.noise.remeasurement import Remeasured
    from studies.run.search_result import SearchResult


NOTHING: Mapping[str, Any] = MappingProxyType({})
_OF_FILES = ("model", "data", "trust_functions")


@clocked_run()
def search(
    config: SearchConfig,
    events: SearchEvents | None = None,
    *,
    replace: bool = False,
    deliver: Annotated[Path | None, Typed("DIR")] = None,
    skip: Annotated[Sequence[str], Typed("STEP", "--skip")] = (),
) -> SearchResult | Delivery:
    """Search for the fastest mix of precisions of a model within your limits of latency and accuracy.

    Args:
        config: what to search; its values are checked first.
        events: told what happens.
        replace: If there is a study of this name, delete it first.
        deliver: New or empty folder. After the search, say why layers lose, export the best and FP32 into it, check
            them, write the report, and say how both engines go behind a guard and a gate.
        skip: With --deliver: leave this out, diagnosis, engine, safe or report. Can be repeated.

    Raises:
        InputError: before anything was created; or calibration refused the inputs, and the study was taken back.
        RunError: the run could not go on; the study can be resumed.
    """
    from studies.lifecycle.new_study import search_new_study

    _check_delivery(deliver, skip, events or Quiet())
    search_result = search_new_study(config, events or Quiet(), replace=replace)
    return search_result if deliver is None else deliver_best(search_result, deliver, events, skip)


def _check_delivery(folder: Path | None, skip: Sequence[str], events: SearchEvents) -> None:
    """Before anything takes time, refuse what cannot be delivered, and say that a delivery follows."""
    for step in skip:
        if step not in DELIVERED:
            raise refusal("--skip", " or ".join(DELIVERED), step, "leave out one of these")
    if skip and folder is None:
        raise ConfigError("--skip: it leaves out a part of what --deliver writes. Add --deliver DIR, or leave it out.")
    if folder is not None:
        from studies.export import check_folder

        check_folder(folder, "--deliver")
        events.note("the time limit and the time left are those of the search; what --deliver writes follows it")


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
    deliver: Annotated[Path | None, Typed("DIR")] = None,
    skip: Annotated[Sequence[str], Typed("STEP", "--skip")] = (),
    own_sampler: BaseSampler | None = None,
    events: SearchEvents | None = None,
) -> SearchResult | Delivery | Renewal | tuple[Remeasured, ...]:
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
        deliver: New or empty folder for the best, FP32 and the report, as of `search`.
        skip: With --deliver: leave this out, as of `search`.
        events: told what happens.

    Returns:
        How the search ended; with `remeasure` what changed, in order of the evaluations; with `fresh` the new study
        beside the old one.

    Raises:
        StudyError: no such study, or model, data, space or target are not the study's.
        ConfigError: a change names nothing that there is, or cannot be used.
    """
    if fresh is not None:
        taken = (*_OF_FILES, "max_drop")
        _refuse_others(changes, taken, "--as", remeasure=remeasure, deliver=deliver, skip=skip or None)
        from studies.gate.check import GateLimits
        from studies.lifecycle.renewal import renew_study
        from studies.store.store import default_url

        rest = {key: value for key, value in changes.items() if key != "max_drop"}
        limits = GateLimits(changes.get("max_drop", 0.0), max_slowdown)
        url, listener = storage or default_url(), events or Quiet()
        return renew_study(url, name, fresh, rest, limits=limits, out=out, target=target, events=listener)
    if max_slowdown is not None or out is not None:
        option = "--out" if max_slowdown is None else "--max-slowdown"
        raise ConfigError(f"{option}: this option goes with --as, which calibrates a study again. Leave it out.")
    if remeasure is not None:
        _refuse_others(changes, _OF_FILES, "--remeasure", deliver=deliver, skip=skip or None)
        return _measure_again(name, remeasure, changes, storage, target, events or Quiet())
    _check_delivery(deliver, skip, events or Quiet())
    where = (storage, target, new_target)
    search_result = _join(name, changes, events, where, moved=True, own_sampler=own_sampler)
    return search_result if deliver is None else deliver_best(search_result, deliver, events, skip, new=False)


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
    return _join(name, changes, events, (storage, target, new_target), moved=False)


def _join(
    name: str,
    changes: Mapping[str, Any],
    events: SearchEvents | None,
    where: tuple[str | None, str | None, bool],
    *,
    moved: bool,
    own_sampler: BaseSampler | None = None,
) -> SearchResult:
    """Work on a study.

    Args:
        where: `storage`, `target` and `new_target` of the verb.
        moved: as of `join`.
    """
    from studies.fleet.join import Wanted, join
    from studies.monitoring import serve_metrics
    from studies.store.store import default_url

    storage, target, new_target = where
    which = Wanted(target, new_target)
    with serve_metrics(events or Quiet(), changes.get("metrics_port")) as shown:
        return join(name, changes, storage or default_url(), shown, which, moved=moved, own_sampler=own_sampler)


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
    from studies.judging.study_lookup import standing_of
    from studies.run.noise.remeasurement import remeasure_study
    from studies.store.store import Store, default_url

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
    from studies.judging.sentences.no_pick import all_failed_text

    if talk().verb == "worker":
        return
    print_warnings(finished.standing)
    if finished.standing.details.failures is not None:
        raise RunError(all_failed_text(finished.standing))


def _result_json(finished: SearchResult) -> Mapping[str, Any]:
    from studies.show.front_rows import front_json

    return {"reason": finished.reason, **front_json(finished.standing, finished.mixes)}


@prints(search, resume, worker, kind="SearchResult", json=_result_json, warn=_warn_of_end, quiet=True, tells=True)
def _print_finished(finished: SearchResult) -> None:
    from bitfront.printing.study_results import print_finished

    print_finished(finished)


def _delivered_json(done: Delivery) -> Mapping[str, Any]:
    return {**_result_json(done.finished), "delivered": delivery_json(done)}


def _warn_of_delivered(done: Delivery) -> None:
    warn_of_delivery(done)
    _warn_of_end(done.finished)


@prints(search, resume, kind="Delivery", json=_delivered_json, warn=_warn_of_delivered, quiet=True, tells=True)
def _print_delivered(done: Delivery) -> None:
    print_delivery(done)


def _remeasured_json(changes: Sequence[Remeasured]) -> Mapping[str, Any]:
    return {"measured": [one.to_json() for one in changes]}


@prints(resume, kind="tuple", json=_remeasured_json)
def _print_remeasured(changes: Sequence[Remeasured]) -> None:
    from bitfront.printing.output import say
    from studies.run.noise.remeasurement import change_text

    for one in changes:
        name = "an engine built again for an export" if one.trial is None else f"trial {one.trial}"
        say(change_text(name, one))
    if not changes:
        say("No latency that was asked for is doubtful; nothing was measured.")


@prints(
    resume,
    kind="Renewal",
    exit_code=lambda renewal: {"holds": 0, "fails": 1, "not judged": 3}[renewal.verdict.value],
)
def _print_renewal(renewal: Renewal) -> None:
    from bitfront.printing.output import out, print_table, say
    from studies.gate.renewed.renewal import COLUMNS

    print_table(renewal.cells(), COLUMNS)
    out.print()
    for line in renewal.lines():
        say(line)
    if renewal.folder is not None:
        say(f"exported trial {renewal.best} to {renewal.folder}")


@asks("Delete study {name!r} with all its evaluations and engines?")
def delete(name: str, storage: str | None = None) -> str:
    """Delete a study with its evaluations and engines.

    Returns:
        The name of the study.
    """
    from studies.lifecycle.deletion import delete_study
    from studies.store.store import default_url

    delete_study(name, storage or default_url())
    return name


@prints(delete, json=lambda name: {"deleted": name})
def _print_deleted(name: str) -> None:
    from bitfront.printing.output import say

    say(f"Deleted study {name!r}.")
