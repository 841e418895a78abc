"""Every verb of the command line as a function of the same name. The functions raise; only `cli` prints and exits."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
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
from studies.standing import Standing, standing
from studies.store import Store, check_usable, default_url
from studies.words import mix_text, nearest_text

if TYPE_CHECKING:  # these import Optuna or ONNX, which reading verbs should not wait for
    from search.model import Model
    from search.space import Space
    from search.values import Target
    from studies.doctor import Check
    from studies.export import Exported
    from studies.runner import Runner, Work
    from studies.setup import Checked

_CONFIRMATIONS = 3
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
    from studies.setup import calibration_cache_of, check_artifacts, check_searchable, checked, create_study

    config = options if isinstance(options, SearchConfig) else from_options(options)
    _refuse_existing(config)
    check_artifacts(config)
    calibration_cache_of(config)
    with checked(config) as good:
        check_searchable(good)
        with Store.open(config.storage, create=True) as store:
            shown = progress or Quiet()
            return _run(store, good, create_study(store, good, shown), shown)


def resume(
    name: str, options: Mapping[str, Any] | None = None, storage: str | None = None, progress: Progress | None = None
) -> Finished:
    """Go on with a study, to its total of trials or a new one, as `bitfront resume`.

    Args:
        options: `trials`, limits, `time-limit`, and `model`, `data` where files have moved; texts as on the command
            line.

    Raises:
        StudyError: no such study, or model, data, space or target are not the study's.
    """
    from studies.setup import check_artifacts, check_unchanged, checked, complete_study

    url = storage or default_url()
    with Store.open(url) as store:
        study = store.study(name)
        config = SearchConfig.from_json(study.config, url).with_options(options or {})
        check_artifacts(config)
        with checked(config) as good:
            check_unchanged(good, study, next(iter(store.targets(study.id)), None))
            complete_study(store, good, study.id)
            return _run(store, good, study, progress or Quiet())


def _run(store: Store, good: Checked, study: StudyRecord, progress: Progress) -> Finished:
    from studies.guidance import make_guidance
    from studies.proposals import Proposals
    from studies.runner import Runner
    from studies.setup import prepared, resolved
    from studies.store import close_optuna, optuna_reported, optuna_storage

    config = good.config
    with prepared(store, good, study, progress) as work:
        store.update_study(
            study.id, state="running", config=resolved(config), model_path=str(Path(config.model).absolute())
        )
        database = optuna_storage(config.storage)
        state = "interrupted"
        try:
            with optuna_reported(config.storage):
                guidance = make_guidance(work) if config.sampler == "guided" else None
                proposals = Proposals(
                    database, work.target.optuna_study, work.space, config.sampler, config.seed, guidance
                )
                runner = Runner(work, proposals)
                runner.recover()
                runner.settle_reference()
                runner.enqueue_baselines()
                reason = runner.run()
            _confirm_finalists(work, runner)
            state = "done"
        except InputError as error:
            # Inputs were good when the run began: data that can no longer be read, a database made read-only.
            raise RunError(str(error)) from error
        finally:
            close_optuna(database)
            with suppress(BitfrontError):  # the error that brought us here says more
                store.update_study(study.id, state=state)
        obedience = Counter((row.asked, row.answer) for _, row in store.audits(work.target.id))
        return Finished(runner.standing(), reason, Mixes(store.assignments(work.target.id)), obedience)


def _confirm_finalists(work: Work, runner: Runner) -> None:
    """Confirm until every pick is confirmed: a confirmed latency may make another evaluation the best."""
    from studies.finalists import confirm, finalist_rows

    for _ in range(_CONFIRMATIONS):
        now = runner.standing()
        rows = [row for row in finalist_rows(now) if now.final_of(row) is None]
        confirm(work, now, rows)
        if not rows:
            return


def front(
    name: str, options: Mapping[str, Any] | None = None, storage: str | None = None
) -> tuple[Standing, Mapping[int, str]]:
    """Where a study stands, judged by its own limits or those given, as `bitfront front`.

    Returns:
        The standing, and evaluation id → its mix in words.
    """
    with Store.open(storage or default_url(), write=False) as store:
        now = _standing(store, name, options)
        return now, Mixes(store.assignments(now.target.id))


def show(name: str, trial: int, storage: str | None = None) -> Shown:
    """One evaluation, as `bitfront show`."""
    with Store.open(storage or default_url(), write=False) as store:
        now = _standing(store, name, None)
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
) -> Exported:
    """Write the chosen engine to a folder, as `bitfront export`.

    Args:
        pick: `accurate` (the default), `fast` or `knee`; or give a trial.
        triton: name of a Triton model repository entry to write as well.
        options: limits, `optimization-level`, and `model`, `data` where files have moved.

    Raises:
        StudyError: nothing keeps the limits, or no such study, trial or pick.
        ConfigError: the folder is not empty or cannot be written, or the backend has no optimization levels.
        ArtifactError: what was written does not work.
    """
    from studies import export as exports
    from studies.deploy import check_triton_name
    from studies.setup import check_artifacts, check_unchanged, checked, final_options, prepared

    exports.check_folder(out)
    if triton is not None:
        check_triton_name(triton)
    url = storage or default_url()
    with Store.open(url) as store:
        now = _standing(store, name, options)
        row = chosen_row(now, pick, trial)
        config = _for_export(SearchConfig.from_json(now.study.config, url), options or {})
        check_artifacts(config)
        how = f"trial {trial}" if trial is not None else pick or "accurate"
        request = exports.Request(int(now.table.trial[row]), how, final_options(config), triton)
        with checked(config) as good:
            check_unchanged(good, now.study, now.target)
            with prepared(store, good, now.study, progress or Quiet()) as work:
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
        now = _standing(store, name, None)
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
    url = storage or default_url()
    with Store.open(url, write=False) as store:
        study = store.study(name)
        config = SearchConfig.from_json(study.config, url).with_options(options or {})
        return compare_trial(
            store,
            study,
            _first_target(store, study),
            trial,
            config,
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
) -> Sensitivities:
    """What each group adds to the outputs' error alone in a lower precision, as `bitfront sensitivity`.

    Args:
        study_or_model: a study, whose stored pass is read or which is given one; or an ONNX file, of which nothing is
            stored.
        thresholds: beyond which a group is sensitive.
        again: measure anew what is stored.
        options: `sensitivity-time`, `data`, and of a study `model` where files have moved, of a model those of
            `layers`.

    Raises:
        StudyError: no such study, or model, data or target are not the study's.
        ConfigError: a threshold or an option cannot be used.
        EvaluatorError: the model cannot be run.
    """
    from studies import sensitivities

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
    return sensitivities.of_study(url, study_or_model, judged, again=again, options=given, progress=shown)


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


def report(name: str, out: Path, options: Mapping[str, Any] | None = None, storage: str | None = None) -> Path:
    """Write the HTML report, as `bitfront report`."""
    from studies import report as reports
    from studies.report_data import report_data

    with Store.open(storage or default_url(), write=False) as store:
        reports.write(report_data(store, _standing(store, name, options)), out)
    return out


def studies(storage: str | None = None) -> tuple[StudySummary, ...]:
    """Every study of a database, as `bitfront studies`."""
    with Store.open(storage or default_url(), write=False) as store:
        return store.studies()


def delete(name: str, storage: str | None = None) -> None:
    """Remove a study with its evaluations and engines, as `bitfront delete`."""
    import optuna

    from studies.artifacts import Artifacts
    from studies.setup import alone, artifacts_of, check_artifacts
    from studies.store import close_optuna, optuna_storage

    url = storage or default_url()
    with Store.open(url) as store:
        study = store.study(name)
        names = {target.optuna_study for target in store.targets(study.id)}
        config = SearchConfig.from_json(study.config, url)
        check_artifacts(config)
        artifacts = Artifacts(artifacts_of(config))
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with alone(artifacts.folder, name):
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


def _first_target(store: Store, study: StudyRecord) -> TargetRecord:
    targets = store.targets(study.id)
    if not targets:
        raise StudyError(
            f"reading study {study.name!r}: it was interrupted before it began. Go on with it: "
            f"`bitfront resume {study.name}`."
        )
    return targets[0]


def _standing(store: Store, name: str, options: Mapping[str, Any] | None) -> Standing:
    study = store.study(name)
    given = {key: value for key, value in (options or {}).items() if key in LIMITS}
    config = SearchConfig.from_json(study.config).with_options(given)
    return standing(store, study, _first_target(store, study), _limits(config, study))


def _limits(config: SearchConfig, study: StudyRecord) -> Limits:
    metric = study.metric
    return limits_for(config, metric_name=metric["name"], metric_unit=metric["unit"], metric_ratio=metric["ratio"])
