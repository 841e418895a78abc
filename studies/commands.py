"""Every verb of the command line as a function of the same name. The functions raise; only `cli` prints and exits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import BitfrontError, ConfigError, InputError, RunError, StudyError
from search.forecasts import Predicted
from search.values import Answer, LayerTime, Precision
from studies.compare_trial import DEFAULT_SAMPLES, DEFAULT_THRESHOLD_DB, compare_trial
from studies.comparison import Comparison
from studies.config import Limits, SearchConfig, from_options, limits_for
from studies.profiles import Profiled, profile_trials
from studies.progress import Progress, Quiet
from studies.records import Assignments, EvaluationRecord, GroupRecord, StudyRecord, StudySummary, TargetRecord
from studies.sensitivity_table import Sensitivities, Thresholds
from studies.standing import Standing, front_standing, standing
from studies.store import Store, check_usable, default_url
from studies.targets import choose, config_of, names, remember
from studies.words import mix_text, nearest_text

if TYPE_CHECKING:  # these import Optuna or ONNX, which reading verbs should not wait for
    from optuna.storages import RDBStorage

    from search.model import Model
    from search.space import Space
    from search.values import Target
    from studies.doctor import Check
    from studies.export import Exported
    from studies.proposals import Proposals
    from studies.runner import Work
    from studies.setup import Checked
    from studies.slots import Slot
    from studies.status import StudyStatus

PICKS = ("accurate", "fast", "knee")
LIMITS = ("latency-budget", "max-drop", "accuracy-limit", "max-memory")


@dataclass(frozen=True)
class Mixes(Mapping[int, str]):
    """Evaluation id → its mix in words, made when asked for: of 10,000 evaluations a front shows a handful."""

    assignments: Assignments

    def __getitem__(self, evaluation_id: int) -> str:
        return mix_text(self.assignments[evaluation_id])

    def __iter__(self) -> Iterator[int]:
        return iter(self.assignments)

    def __len__(self) -> int:
        return len(self.assignments)


@dataclass(frozen=True)
class Finished:
    """How a search ended.

    Attributes:
        standing: where the study stands.
        reason: why it stopped.
        mixes: evaluation id → its mix in words.
        obedience: (asked precision, answer) → groups, over every evaluation that was built.
    """

    standing: Standing
    reason: str
    mixes: Mapping[int, str]
    obedience: Mapping[tuple[Precision, Answer], int]


@dataclass(frozen=True)
class Shown:
    """One evaluation with what is needed to name its groups.

    `refused` are the evaluations of its proposal that were refused, where it is a repair.
    `forecast` is what was predicted of it; None where nothing was.
    """

    record: EvaluationRecord
    groups: Mapping[str, GroupRecord]
    standing: Standing
    refused: tuple[EvaluationRecord, ...] = ()
    profile: tuple[LayerTime, ...] = ()
    forecast: Predicted | None = None


@dataclass(frozen=True)
class Layers:
    """A clean model and the space it has on a target."""

    model: Model
    space: Space
    target: Target


@dataclass(frozen=True)
class Demo:
    """What the demo left behind."""

    finished: Finished
    engine: Exported
    report: Path
    storage: str


def search(options: Mapping[str, Any] | SearchConfig, progress: Progress | None = None) -> Finished:
    """Search a model's precisions, as `bitfront search`.

    Args:
        options: option name (`latency-budget`) → text as on the command line; or a checked configuration.
        progress: told what happens.

    Raises:
        InputError: before anything was created.
        RunError: the run could not go on; the study can be resumed.
    """
    from studies.fleet_run import as_in, crew_of
    from studies.joining import target_of
    from studies.places import open_artifacts
    from studies.setup import calibration_cache_of, check_artifacts, check_searchable, checked, create_study
    from studies.shipping import put, ships

    config, slots = crew_of(options if isinstance(options, SearchConfig) else from_options(options))
    _refuse_existing(config)
    check_artifacts(config)
    calibration_cache_of(config)
    shown = progress or Quiet()
    with as_in(slots), checked(config) as good:
        check_searchable(good)
        files = put(open_artifacts(config), config, shown) if ships(config) else ()
        with Store.open(config.storage, create=True) as store:
            study = create_study(store, good, shown, files)
            if not slots:
                return _run(store, good, study, shown)
            mine = target_of(store, study, good)
    return _crewed(config, slots, shown, mine)


def resume(
    name: str,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    *,
    target: str | None = None,
    new_target: bool = False,
) -> Finished:
    """Go on with a study, to its total of trials or a new one, as `bitfront resume`.

    Args:
        options: `trials`, limits, `time-limit`, and `model`, `data` where files have moved; texts as on the command
            line.
        target: whose options the run takes and that it has to be, see `targets.choose`; None for the options of the
            first, and whichever it is.
        new_target: let the study have the target that this is, if it has not.

    Raises:
        StudyError: no such study, or model, data, space or target are not the study's.
    """
    which = _Which(target, new_target)
    return _join(name, options or {}, storage or default_url(), progress or Quiet(), which, moved=True)


def worker(
    name: str,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    *,
    target: str | None = None,
    new_target: bool = False,
) -> Finished:
    """Work on a study, beside others that do, until it is done, as `bitfront worker`.

    Args:
        options: as `resume` takes them; where files lie and which device is meant holds for this worker alone.
        target, new_target: as of `resume`.

    Raises:
        StudyError: no such study, another process works on it on SQLite, or model, data, space or target are not the
            study's.
    """
    which = _Which(target, new_target)
    return _join(name, options or {}, storage or default_url(), progress or Quiet(), which, moved=False)


@dataclass(frozen=True)
class _Which:
    """The target that a run is to work on: named, added, or whichever of the study's it is."""

    target: str | None = None
    new: bool = False

    def of(self, store: Store, study: StudyRecord) -> TargetRecord | None:
        """Whose options the run starts from; None where the study has no target yet."""
        if self.new and self.target is not None:
            raise ConfigError("joining a study: give --target, for one that it has, or --new-target, not both.")
        found = store.targets(study.id)
        return choose(found, self.target, study.name) if found else None


def _join(
    name: str, options: Mapping[str, Any], url: str, progress: Progress, which: _Which, *, moved: bool
) -> Finished:
    """Work on a study that is there; `moved`: its files are from now on where the options say."""
    from studies import shipping
    from studies.fleet_run import as_in, crew_of
    from studies.joining import target_of
    from studies.setup import add_target, check_artifacts, check_unchanged, checked, complete_study

    with Store.open(url) as store:
        study = store.study(name)
        meant = which.of(store, study)
        config, slots = crew_of(config_of(study, meant, url).with_options(options))
        check_artifacts(config)
        config = shipping.here(store, study, config)
        with as_in(slots), checked(config) as good:
            check_unchanged(good, study, None if which.target is None else meant)
            complete_study(store, good, study.id)
            if which.new:
                add_target(store, study, good, progress)
            mine = target_of(store, study, good)
            shipping.keep(store, study, config, progress)
            if not slots:
                return _run(store, good, study, progress, moved=moved)
            remember(store, study, mine, config, moved=moved)
    return _crewed(config, slots, progress, mine)


def _crewed(config: SearchConfig, slots: Sequence[Slot], progress: Progress, target: TargetRecord) -> Finished:
    """Work on a study that is there with a process per slot."""
    from studies.fleet_run import run_fleet

    fingerprint = target.target.fingerprint
    reason = run_fleet(config.study, config.storage, slots, progress, fingerprint)
    with Store.open(config.storage, write=False) as store:
        now = _standing(store, config.study, None, fingerprint)
        obedience = store.obedience(now.target.id)
        return Finished(now, reason, Mixes(store.assignments(now.target.id)), obedience)


def _run(store: Store, good: Checked, study: StudyRecord, progress: Progress, *, moved: bool = True) -> Finished:
    from studies.joining import prepared
    from studies.runner import Runner
    from studies.store import close_optuna, optuna_reported, optuna_storage

    config = good.config
    with prepared(store, good, study, progress, state="starting") as work:
        remember(store, study, work.target, config, moved=moved)
        store.update_study(study.id, state="running")
        database = optuna_storage(config.storage)
        state: str | None = "interrupted"
        try:
            with optuna_reported(config.storage):
                runner = Runner(work, _proposals(work, database))
                runner.recover()
                runner.settle_reference()
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
        obedience = store.obedience(work.target.id)
        return Finished(_placed(store, runner.standing()), reason, Mixes(store.assignments(work.target.id)), obedience)


def _proposals(work: Work, database: RDBStorage) -> Proposals:
    from studies.guidance import make_guidance
    from studies.proposals import Proposals

    config, shared = work.config, work.store.shared
    return Proposals(
        database,
        work.target.optuna_study,
        work.space,
        config.sampler,
        config.seed,
        make_guidance(work) if config.sampler == "guided" else None,
        worker=work.lease.name if shared else "",
        rank=work.lease.rank() if shared else 0,
    )


def _leave(work: Work, state: str | None) -> None:
    """End the worker and say what becomes of the study: of one that others go on with, nothing."""
    work.lease.end(failed=isinstance(sys.exc_info()[1], Exception))
    store, lease_s = work.store, work.lease.lease_s
    at_it = {target.id for target in store.targets(work.study.id) if store.live_workers(target.id, lease_s)}
    if state == "done":
        at_it.discard(work.target.id)  # those others only have to end
    if state is not None and not at_it:
        store.update_study(work.study.id, state=state)


def front(
    name: str,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    target: str | None = None,
    *,
    whole: bool = True,
) -> tuple[Standing, Mapping[int, str]]:
    """Where a study stands, judged by its own limits or those given, as `bitfront front`.

    Args:
        target: which of the study's, see `targets.choose`; None for the first.
        whole: False reads only what may stand on the front, and the baselines: all that is shown, and quicker where
            there are very many.

    Returns:
        The standing, and evaluation id → its mix in words.
    """
    with Store.open(storage or default_url(), write=False) as store:
        if whole:
            now = _standing(store, name, options, target)
            return now, Mixes(store.assignments(now.target.id))
        study, record, limits = _judged_by(store, name, options, target)
        now = _placed(store, front_standing(store, study, record, limits))
        shown = {*now.front_rows(), *now.baselines()}
        return now, Mixes(store.assignments(now.target.id, [int(now.table.id[row]) for row in shown]))


def show(name: str, trial: int, storage: str | None = None, target: str | None = None) -> Shown:
    """One evaluation on a target, the first if none is named, as `bitfront show`."""
    with Store.open(storage or default_url(), write=False) as store:
        now = _standing(store, name, None, target)
        record = store.evaluation(now.target.id, trial)
        refused = store.refused(now.target.id, record.asked) if record.asked is not None else ()
        groups = {group.id: group for group in store.groups(now.study.id)}
        forecast = store.forecasts(now.target).get(record.id)
        return Shown(record, groups, now, refused, store.profile(record.id), forecast)


def export(
    name: str,
    out: Path,
    *,
    pick: str | None = None,
    trial: int | None = None,
    triton: str | None = None,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    target: str | None = None,
) -> Exported:
    """Write the chosen engine to a folder, as `bitfront export`.

    Args:
        pick: `accurate` (the default), `fast` or `knee`; or give a trial.
        triton: name of a Triton model repository entry to write as well.
        options: limits, `optimization-level`, and `model`, `data` where files have moved.
        target: which of the study's; None for the first. It is exported where it was measured.

    Raises:
        StudyError: nothing keeps the limits, or no such study, target, trial or pick.
        ConfigError: the folder is not empty or cannot be written, or the backend has no optimization levels.
        ArtifactError: what was written does not work.
    """
    from studies import export as exports
    from studies.deploy import check_triton_name
    from studies.joining import prepared
    from studies.setup import check_artifacts, check_unchanged, checked, final_options
    from studies.shipping import here

    exports.check_folder(out)
    if triton is not None:
        check_triton_name(triton)
    url = storage or default_url()
    with Store.open(url) as store:
        now = _standing(store, name, options, target)
        row = chosen_row(now, pick, trial)
        config = _for_export(config_of(now.study, now.target, url), options or {})
        check_artifacts(config)
        config = here(store, now.study, config)
        how = f"trial {trial}" if trial is not None else pick or "accurate"
        request = exports.Request(int(now.table.trial[row]), how, final_options(config), triton)
        with checked(config) as good:
            check_unchanged(good, now.study, now.target)
            # No worker may throw away the engine meanwhile.
            with prepared(store, good, now.study, progress or Quiet()) as work, work.lease.hold("prune"):
                return exports.write(work, now, row, request, out)


def _for_export(config: SearchConfig, options: Mapping[str, Any]) -> SearchConfig:
    """The configuration of an export, whose `optimization-level` is that of the exported engine, not the search's."""
    level = options.get("optimization-level")
    config = config.with_options({key: value for key, value in options.items() if key != "optimization-level"})
    if level is None:
        return config
    if config.backend != "tensorrt":
        raise ConfigError(
            f"--optimization-level: this study ran on backend {config.backend}, which has no such levels. Leave it out."
        )
    asked = config.with_options({"optimization-level": level}).optimization_level
    return replace(config, final_optimization_level=asked)


def profile(
    name: str,
    trial: int,
    *,
    count: int = 50,
    again: bool = False,
    against: int | None = None,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    target: str | None = None,
) -> tuple[Profiled, ...]:
    """What each layer of a trial's engine takes, as `bitfront profile`; measured and stored where it was not.

    Args:
        count: inferences of a profiled run.
        again: measure anew what is stored.
        against: another trial of the study, which is profiled too.
        options: `model`, `data` where files have moved.

    Returns:
        The trial's profile and, if asked for, that of the other; `profiles.delta_rows` puts them side by side.

    Raises:
        StudyError: no such study or trial, a trial without an engine, or model, data or target are not the study's.
        EvaluatorError: an engine cannot be loaded or run here.
    """
    url = storage or default_url()
    with Store.open(url, write=False) as store:
        now = _standing(store, name, None, target)
    trials = (trial,) if against is None else (trial, against)
    return profile_trials(
        url, now, trials, count=count, again=again, options=options or {}, progress=progress or Quiet()
    )


def compare(
    name: str,
    trial: int,
    *,
    groups: bool = False,
    samples: int = DEFAULT_SAMPLES,
    threshold_db: float = DEFAULT_THRESHOLD_DB,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    target: str | None = None,
) -> Comparison:
    """How far a trial's engine is from ONNX Runtime on the same data, and why, as `bitfront compare`.

    Args:
        groups: compare group by group too.
        samples: of the final split, at most.
        threshold_db: fall of a group's SQNR below its inputs' from which on it is marked.
        options: `model`, `data` where files have moved.

    Raises:
        StudyError: no such study or trial, a trial of which no engine was built, or another model.
        EvaluatorError: the engine cannot be loaded or run here.
    """
    from studies.shipping import here

    url = storage or default_url()
    with Store.open(url, write=False) as store:
        study = store.study(name)
        meant = _target(store, study, target)
        config = config_of(study, meant, url).with_options(options or {})
        return compare_trial(
            store,
            study,
            meant,
            trial,
            here(store, study, config),
            groups=groups,
            samples=samples,
            threshold_db=threshold_db,
            progress=progress or Quiet(),
        )


def sensitivity(
    study_or_model: str,
    *,
    thresholds: Thresholds | None = None,
    again: bool = False,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: Progress | None = None,
    target: str | None = None,
) -> Sensitivities:
    """What each group adds to the outputs' error alone in a lower precision, as `bitfront sensitivity`.

    Args:
        study_or_model: a study, whose stored pass is read or which is given one; or an ONNX file, of which nothing is
            stored.
        thresholds: beyond which a group is sensitive.
        again: measure anew what is stored.
        options: `sensitivity-time`, `data`, and of a study `model` where files have moved, of a model those of
            `layers`.
        target: which of the study's; None for the first.

    Raises:
        StudyError: no such study, or model, data or target are not the study's.
        ConfigError: a threshold or an option cannot be used.
        EvaluatorError: the model cannot be run.
    """
    from studies import sensitivities

    if target is not None and _is_model_file(study_or_model):
        raise ConfigError(f"--target: it belongs to a study, and {study_or_model} is an ONNX file. Leave it out.")
    judged, given, shown = thresholds or Thresholds(), dict(options or {}), progress or Quiet()
    judged.check()
    if _is_model_file(study_or_model):
        return sensitivities.of_model(_for_model(study_or_model, given, storage), judged, shown)
    foreign = sorted(given.keys() - {"model", "data", "sensitivity-time"})
    if foreign:
        raise ConfigError(
            f"--{foreign[0]}: study {study_or_model!r} has its own, which cannot be changed. Leave it out, or name an "
            "ONNX file instead of a study."
        )
    url = storage or default_url()
    return sensitivities.of_study(
        url, study_or_model, judged, again=again, options=given, progress=shown, wanted=target
    )


def _is_model_file(study_or_model: str) -> bool:
    return study_or_model.endswith(".onnx") or Path(study_or_model).is_file()


def _for_model(model: str, given: Mapping[str, Any], storage: str | None) -> SearchConfig:
    if "model" in given or storage is not None:
        option = "--model" if "model" in given else "--storage"
        raise ConfigError(f"{option}: it belongs to a study, and {model} is an ONNX file. Leave it out.")
    if "data" not in given:
        raise ConfigError(f"measuring the sensitivity of {model}: expected --data to run it on. Add --data DATA.")
    return from_options({**given, "model": model})


def chosen_row(now: Standing, pick: str | None, trial: int | None) -> int:
    """The row that a pick or a trial means; StudyError when there is none."""
    if pick is not None and trial is not None:
        raise StudyError("choosing what to export: give --pick or --trial, not both.")
    if trial is not None:
        return _trial_row(now, trial)
    name = pick or "accurate"
    if name not in PICKS:
        raise StudyError(f"--pick {name}: there is no such pick; there are {', '.join(PICKS)}.")
    row: int | None = getattr(now.picks, name)
    if row is None:
        raise StudyError(f"--pick {name}: no evaluation of study {now.study.name!r} keeps the limits. {_nearest(now)}")
    return row


def _trial_row(now: Standing, trial: int) -> int:
    rows = [row for row, number in enumerate(now.table.trial) if number == trial]
    if not rows:
        known = sorted(int(number) for number in now.table.trial if number >= 0)
        there = f"its trials are {known[0]} to {known[-1]}" if known else "it has no trial yet"
        raise StudyError(f"--trial {trial}: study {now.study.name!r} has no such evaluation; {there}.")
    if now.table.status[rows[0]] != "ok":
        raise StudyError(
            f"--trial {trial}: that evaluation is {now.table.status[rows[0]]}; there is nothing to export."
        )
    return rows[0]


def _nearest(now: Standing) -> str:
    lines = [nearest_text(now, near) for near in now.nearest()]
    return "The nearest: " + "; ".join(lines) if lines else "It has no finished evaluation yet."


def exists(name: str, storage: str | None = None) -> bool:
    """Whether there is a study of this name to go on with."""
    try:
        with Store.open(storage or default_url(), write=False) as store:
            return any(summary.name == name for summary in store.studies())
    except StudyError:
        return False


def report(
    name: str,
    out: Path,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    targets: Sequence[str] = (),
) -> Path:
    """Write the HTML report, as `bitfront report`.

    Args:
        targets: of the study, to lay side by side; empty for all. The first of them is shown in full.
    """
    from studies import report as reports
    from studies.report_data import report_data

    with Store.open(storage or default_url(), write=False) as store:
        study = store.study(name)
        every = [record.target.fingerprint for record in store.targets(study.id)]
        wanted: Sequence[str | None] = targets or every or [None]
        found = [_standing(store, name, options, one) for one in wanted]
        reports.write(report_data(store, found[0], found[1:]), out)
    return out


def status(name: str, storage: str | None = None) -> StudyStatus:
    """Who works on a study, how fast, what failed, and where its front stands, as `bitfront status`."""
    from studies.status import study_status

    with Store.open(storage or default_url(), write=False) as store:
        return study_status(store, name)


def watch(name: str, storage: str | None = None, every_s: float = 2.0) -> Iterator[StudyStatus]:
    """The same again and again, until the study is done and nobody works on it any more."""
    from studies.status import study_status

    with Store.open(storage or default_url(), write=False) as store:
        while True:
            now = study_status(store, name)
            yield now
            if now.over:
                return
            time.sleep(every_s)


def studies(storage: str | None = None) -> tuple[StudySummary, ...]:
    """Every study of a database, as `bitfront studies`."""
    with Store.open(storage or default_url(), write=False) as store:
        return store.studies()


def targets(storage: str | None = None) -> dict[str, tuple[TargetRecord, ...]]:
    """The targets of every study of a database, by the study's name."""
    with Store.open(storage or default_url(), write=False) as store:
        return {summary.name: store.targets(summary.id) for summary in store.studies()}


def delete(name: str, storage: str | None = None) -> None:
    """Remove a study with its evaluations and engines, as `bitfront delete`."""
    import optuna

    from studies.joining import unused
    from studies.places import open_artifacts
    from studies.setup import check_artifacts
    from studies.store import close_optuna, optuna_storage

    url = storage or default_url()
    with Store.open(url) as store:
        study = store.study(name)
        names = {target.optuna_study for target in store.targets(study.id)}
        config = SearchConfig.from_json(study.config, url)
        check_artifacts(config)
        artifacts = open_artifacts(config)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with unused(store, study, config):
            # Our rows go last: until then the study is listed, and deleting it again finishes what was cut off.
            database = optuna_storage(url)
            for optuna_name in names & {s.study_name for s in database.get_all_studies()}:
                optuna.delete_study(study_name=optuna_name, storage=database)
            close_optuna(database)
            for digest in store.delete_study(name):
                artifacts.remove(digest)


def dashboard(storage: str | None = None, port: int = 8080) -> int:
    """Run optuna-dashboard on a database until it ends, as `bitfront dashboard`; its exit code.

    Raises:
        StudyError: there is no such database, or optuna-dashboard is not installed.
    """
    url = storage or default_url()
    Store.open(url, write=False).close()
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise StudyError("starting the dashboard: it is not installed: pip install 'bitfront[dashboard]'.")
    # Not on the command line, where every user of the machine could read a password in it.
    environment = {**os.environ, "BITFRONT_STORAGE": url}
    start = f"import os, optuna_dashboard as d; d.run_server(os.environ['BITFRONT_STORAGE'], port={port})"
    return subprocess.run([sys.executable, "-c", start], env=environment).returncode


def layers(options: Mapping[str, Any]) -> Layers:
    """Groups and edges of a model and what each may run in on a target, as `bitfront layers`.

    Args:
        options: `model`, and if wanted `data` (ranges decide on FP16), `backend`, `device`, `batch`, `shape`, `keep`,
            `granularity`, `calibration`, `threads`, `typing`.

    Raises:
        InputError: the model, a rule or the target cannot be used.
    """
    from studies.setup import look_at_layers

    config = from_options({"data": "-", **options})
    model, space, target = look_at_layers(config, calibrated="data" in options)
    return Layers(model, space, target)


def doctor(backend: str | None = None) -> list[Check]:
    """What is installed here, what can run, and what is missing with the command that installs it.

    Args:
        backend: the only one to look at: `tensorrt` or `onnxruntime`.

    Raises:
        ConfigError: there is no such backend.
    """
    from studies.doctor import checks

    return checks(backend)


def demo(folder: Path, progress: Progress | None = None, trials: int = 40) -> Demo:
    """Search the shipped example, export the most accurate pick and write the report, all into `folder`."""
    folder = folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"running the demo: {folder} is not empty. Remove it, or name another with --out.")
    model, data = example_files()
    folder.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{folder / 'demo.db'}"
    options = {
        "model": str(model),
        "data": str(data),
        "study": "digits",
        "storage": storage,
        "batch": "16",
        "max-drop": "1%",
        "trials": str(trials),
    }
    finished = search(options, progress)
    engine = export("digits", folder / "engine", storage=storage, progress=progress)
    return Demo(finished, engine, report("digits", folder / "report.html", storage=storage), storage)


def example_files() -> tuple[Path, Path]:
    """Model and data of the shipped example, in the source tree or in the installed package."""
    here = Path(__file__).resolve().parent
    for folder in (here.parent / "examples" / "digits", here / "example"):
        if (folder / "digits.onnx").is_file():
            return folder / "digits.onnx", folder / "digits.npz"
    raise ConfigError("running the demo: the example's files are not in this installation. Install bitfront again.")


def _refuse_existing(config: SearchConfig) -> None:
    if not check_usable(config.storage):
        return
    with Store.open(config.storage, write=False) as store:
        if any(summary.name == config.study for summary in store.studies()):
            raise StudyError(
                f"searching as study {config.study!r}: there is one of this name in {store.url}. Go on with it: "
                f"`bitfront resume {config.study}`; or name another with --study, or `bitfront delete {config.study}`."
            )


def _target(store: Store, study: StudyRecord, wanted: str | None) -> TargetRecord:
    targets = store.targets(study.id)
    if not targets:
        raise StudyError(
            f"reading study {study.name!r}: it was interrupted before it began. Go on with it: "
            f"`bitfront resume {study.name}`."
        )
    return choose(targets, wanted, study.name)


def _standing(store: Store, name: str, options: Mapping[str, Any] | None, wanted: str | None) -> Standing:
    return _placed(store, standing(store, *_judged_by(store, name, options, wanted)))


def _judged_by(
    store: Store, name: str, options: Mapping[str, Any] | None, wanted: str | None
) -> tuple[StudyRecord, TargetRecord, Limits]:
    """A study, the target of it that is meant, and the limits that it is judged by."""
    study = store.study(name)
    target = _target(store, study, wanted)
    given = {key: value for key, value in (options or {}).items() if key in LIMITS}
    return study, target, _limits(config_of(study, target).with_options(given), study)


def _placed(store: Store, now: Standing) -> Standing:
    """With the place of its target among those of the study."""
    known = store.targets(now.study.id)
    place = [record.id for record in known].index(now.target.id)
    name = names([record.target for record in known])[place] if len(known) > 1 else ""
    return replace(now, number=place + 1, target_name=name)


def _limits(config: SearchConfig, study: StudyRecord) -> Limits:
    metric = study.metric
    return limits_for(config, metric_name=metric["name"], metric_unit=metric["unit"], metric_ratio=metric["ratio"])
