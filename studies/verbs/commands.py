"""Every verb of the command line as a function of the same name. The functions raise; only `cli` prints and exits."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import BitfrontError, ConfigError, InputError, RunError, StudyError
from studies.events import Quiet
from studies.judging.findings.optimization_levels import find_final_levels
from studies.judging.point_lists import table_rows
from studies.judging.search_events import SearchEvents
from studies.judging.standing import Standing
from studies.judging.study_lookup import standing_of
from studies.options.config import SearchConfig, from_options
from studies.run.search_result import Mixes, SearchResult
from studies.run_clock import clocked_run
from studies.show.trial_details import TrialDetails
from studies.store.records import StudySummary, TargetRecord
from studies.store.store import Store, check_usable, default_url
from studies.store.target_options import config_of
from studies.verbs.analyses import compare, layers, profile, remeasure, sensitivity
from studies.verbs.results import Demo

if TYPE_CHECKING:  # these import Optuna or ONNX, or belong to other verbs, which reading verbs should not wait for
    from evaluators.backends.kind import Check
    from studies.export.export import Export
    from studies.judging.status.study_status import StudyStatus
    from studies.run.session.setup import Checked

__all__ = [
    "compare",
    "dashboard",
    "dashboard_command",
    "delete",
    "demo",
    "doctor",
    "example_files",
    "exists",
    "export",
    "front",
    "layers",
    "profile",
    "remeasure",
    "report",
    "resume",
    "search",
    "sensitivity",
    "show",
    "status",
    "studies",
    "targets",
    "watch",
    "worker",
]


@clocked_run()
def search(options: Mapping[str, Any] | SearchConfig, progress: SearchEvents | None = None) -> SearchResult:
    """Search a model's precisions, as `bitfront search`.

    Args:
        options: option name (`latency-budget`) → text as on the command line; or a checked configuration.
        progress: told what happens.

    Raises:
        InputError: before anything was created; or calibration refused the inputs, and the study was taken back.
        RunError: the run could not go on; the study can be resumed.
    """
    from studies.artifacts.locations import open_artifacts
    from studies.artifacts.shipping import put, put_again, ships
    from studies.fleet.fleet_run import as_in, crew_of
    from studies.fleet.join import run_crew
    from studies.run.local_run import run_here
    from studies.run.session.join import target_of
    from studies.run.session.setup import calibration_cache_of, check_artifacts, check_searchable, checked, create_study

    config, slots = crew_of(options if isinstance(options, SearchConfig) else from_options(options))
    more = [partial(check, config) for check in (_refuse_existing, check_artifacts, calibration_cache_of)]
    shown = progress or Quiet()
    with as_in(slots), _nothing_to_resume(checked(config, more=more)) as good:
        check_searchable(good)
        files = put(open_artifacts(config), config, shown) if ships(config) else ()
        with Store.open(config.storage, create=True) as store:
            study = create_study(store, good, shown, files)
            put_again(open_artifacts(config), config, files, shown)
            mine = target_of(store, study, good)
            if not slots:
                with _taken_back(config):
                    return run_here(store, good, study, mine, shown)
    with _taken_back(config):
        return run_crew(config, slots, shown, mine)


@clocked_run()
def resume(
    name: str,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: SearchEvents | None = None,
    *,
    target: str | None = None,
    new_target: bool = False,
) -> SearchResult:
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
    from studies.fleet.join import Wanted, join

    which = Wanted(target, new_target)
    return join(name, options or {}, storage or default_url(), progress or Quiet(), which, moved=True)


@clocked_run()
def worker(
    name: str,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: SearchEvents | None = None,
    *,
    target: str | None = None,
    new_target: bool = False,
) -> SearchResult:
    """Work on a study, beside others that do, until it is done, as `bitfront worker`.

    Args:
        options: as `resume` takes them; where files lie and which device is meant holds for this worker alone.
        target, new_target: as of `resume`.

    Raises:
        StudyError: no such study, another process works on it on SQLite, or model, data, space or target are not the
            study's.
    """
    from studies.fleet.join import Wanted, join

    which = Wanted(target, new_target)
    return join(name, options or {}, storage or default_url(), progress or Quiet(), which, moved=False)


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
        whole: False leaves the mixes of evaluations out that a table of the front does not name.

    Returns:
        The standing, and evaluation id → its mix in words.
    """
    with Store.open(storage or default_url(), write=False) as store:
        now = standing_of(store, name, options, target)
        ids = None if whole else [int(now.table.id[row]) for row in table_rows(now)]
        return now, Mixes(store.evaluations.assignments(now.target.id, ids))


def show(name: str, trial: int, storage: str | None = None, target: str | None = None) -> TrialDetails:
    """One evaluation on a target, the first if none is named, as `bitfront show`."""
    with Store.open(storage or default_url(), write=False) as store:
        now = standing_of(store, name, None, target)
        record = store.trials.load(now.target.id, trial)
        refused = store.evaluations.refused(now.target.id, record.asked) if record.asked is not None else ()
        groups = {group.id: group for group in store.studies.groups(now.study.id)}
        forecast = store.trials.forecasts(now.target).get(record.id)
        levels = find_final_levels(store, now.target, now.table.reference_ms, [record.id]).get(record.id, ())
        return TrialDetails(record, groups, now, refused, store.engines.profile(record.id), forecast, levels)


def export(
    name: str,
    out: Path,
    *,
    pick: str | None = None,
    trial: int | None = None,
    triton: str | None = None,
    options: Mapping[str, Any] | None = None,
    storage: str | None = None,
    progress: SearchEvents | None = None,
    target: str | None = None,
    latency_tolerance: float | None = None,
) -> Export:
    """Write the chosen engine to a folder, as `bitfront export`.

    Args:
        pick: `best` (the default), `accurate`, `fast` or `knee`; or give a trial. A pick that was not scored on the
            final split is scored first, and where it fails the limits there, the pick that takes its place.
        triton: name of a Triton model repository entry to write as well.
        options: limits, `optimization-level`, and `model`, `data` where files have moved.
        target: which of the study's; None for the first. It is exported where it was measured.
        latency_tolerance: how far the exported engine's latency may be from that of the engine that was measured,
            relative: 0.05 is 5 %; None for the study's tie band. Beyond it the export is kept and
            `Export.warning` says so.

    Raises:
        StudyError: nothing keeps the limits, or no such study, target, trial or pick.
        ConfigError: the folder is not empty or cannot be written, or the backend has no optimization levels.
        ArtifactError: what was written does not work.
    """
    from studies.artifacts.shipping import here
    from studies.export import export as exports
    from studies.export.selection import find_row
    from studies.export.triton import check_triton_name, check_triton_platform
    from studies.run.session.join import join_study
    from studies.run.session.setup import check_artifacts, check_unchanged, checked, final_options

    exports.check_folder(out)
    if triton is not None:
        check_triton_name(triton)
    url = storage or default_url()
    with Store.open(url) as store:
        now = standing_of(store, name, options, target)
        row = find_row(now, pick, trial)  # refuses what cannot be exported, before anything starts
        config = _for_export(config_of(now.study, now.target, url), options or {})
        check_artifacts(config)
        if triton is not None:
            check_triton_platform(config.backend)
        config = here(store, now.study, config)
        with checked(config) as good:
            check_unchanged(good, now.study, now.target)
            # No worker may throw away the engine meanwhile.
            with join_study(store, good, now.study, progress or Quiet()) as work, work.crew.hold("prune"):
                how = f"trial {trial}" if trial is not None else pick or "best"
                if trial is None:
                    now, row = exports.confirm_pick(work, now, how)
                request = exports.Request(
                    int(now.table.trial[row]), how, final_options(config), triton, latency_tolerance
                )
                return exports.export_evaluation(work, now, row, request, out)


def _for_export(config: SearchConfig, options: Mapping[str, Any]) -> SearchConfig:
    """The configuration of an export, whose `optimization-level` is that of the exported engine, not the search's."""
    from evaluators.backends.registry import kind_named

    level = options.get("optimization-level")
    config = config.with_options({key: value for key, value in options.items() if key != "optimization-level"})
    if level is None:
        return config
    if not any(row.final for row in kind_named(config.backend).options):
        raise ConfigError(
            f"--optimization-level: this study ran on backend {config.backend}, which has no such levels. Leave it out."
        )
    asked = config.with_options({"optimization-level": level}).optimization_level
    return replace(config, final_optimization_level=asked)


def exists(name: str, storage: str | None = None) -> bool:
    """Whether there is a study of this name to go on with."""
    try:
        with Store.open(storage or default_url(), write=False) as store:
            return any(summary.name == name for summary in store.studies.summaries())
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
    from studies.show.report.builder import build_report
    from studies.show.report.page import write_report

    with Store.open(storage or default_url(), write=False) as store:
        study = store.studies.load(name)
        every = [record.target.fingerprint for record in store.targets.of_study(study.id)]
        wanted: Sequence[str | None] = targets or every or [None]
        found = [standing_of(store, name, options, one) for one in wanted]
        write_report(build_report(store, found[0], found[1:]), out)
    return out


def status(name: str, storage: str | None = None) -> StudyStatus:
    """Who works on a study, how fast, what failed, and where its front stands, as `bitfront status`."""
    from studies.judging.status.study_status import study_status

    with Store.open(storage or default_url(), write=False) as store:
        return study_status(store, name)


def watch(name: str, storage: str | None = None, every_s: float = 2.0) -> Iterator[StudyStatus]:
    """The same again and again, until the study is done and nobody works on it any more."""
    from studies.judging.status.study_status import study_status

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
        return store.studies.summaries()


def targets(storage: str | None = None) -> dict[str, tuple[TargetRecord, ...]]:
    """The targets of every study of a database, by the study's name."""
    with Store.open(storage or default_url(), write=False) as store:
        return {summary.name: store.targets.of_study(summary.id) for summary in store.studies.summaries()}


def delete(name: str, storage: str | None = None) -> None:
    """Remove a study with its evaluations and engines, as `bitfront delete`."""
    import optuna

    from studies.artifacts.leftovers import clear, drop
    from studies.artifacts.locations import open_artifacts
    from studies.run.session.join import unused
    from studies.run.session.setup import check_artifacts
    from studies.store.store import close_optuna, optuna_storage

    url = storage or default_url()
    with Store.open(url) as store:
        study = store.studies.load(name)
        names = {target.optuna_study for target in store.targets.of_study(study.id)}
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
            drop(store, artifacts, store.files.release_study(study.id))
            clear(store, artifacts, own=config.artifacts is None)
            drop(store, artifacts, store.studies.delete(name))


def dashboard(storage: str | None = None, port: int = 8080) -> int:
    """Run optuna-dashboard on a database until it ends, in a process of its own; its exit code.

    Raises:
        StudyError: there is no such database, or optuna-dashboard is not installed.
    """
    command, environment = dashboard_command(storage, port)
    return subprocess.run(command, env=environment).returncode


def dashboard_command(storage: str | None = None, port: int = 8080) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of optuna-dashboard on a database, for what `bitfront dashboard` becomes.

    Raises:
        StudyError: there is no such database, or optuna-dashboard is not installed.
    """
    url = storage or default_url()
    Store.open(url, write=False).close()
    if importlib.util.find_spec("optuna_dashboard") is None:
        raise StudyError("starting the dashboard: it is not installed: pip install 'bitfront[dashboard]'.")
    # Not on the command line, where every user of the machine could read a password in it.
    environment = {**os.environ, "BITFRONT_STORAGE": url}
    # wsgiref answers a Ctrl-C that comes within a request with "server error" and serves on, so nobody may catch it.
    start = (
        "import os, signal\n"
        "if signal.getsignal(signal.SIGINT) is signal.default_int_handler:\n"
        "    signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "import optuna_dashboard\n"
        f"optuna_dashboard.run_server(os.environ['BITFRONT_STORAGE'], port={port})\n"
    )
    return [sys.executable, "-c", start], environment


def doctor(backend: str | None = None) -> list[Check]:
    """What is installed here, what can run, and what is missing with the command that installs it.

    Args:
        backend: the only one to look at: `tensorrt` or `onnxruntime`.

    Raises:
        ConfigError: there is no such backend.
    """
    from studies.verbs.doctor import checks

    return checks(backend)


def demo(folder: Path, progress: SearchEvents | None = None, trials: int = 40) -> Demo:
    """Search the shipped example, export the best pick and write the report, all into `folder`."""
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
    here = Path(__file__).resolve().parents[1]
    for folder in (here.parent / "examples" / "digits", here / "example"):
        if (folder / "digits.onnx").is_file():
            return folder / "digits.onnx", folder / "digits.npz"
    raise ConfigError("running the demo: the example's files are not in this installation. Install bitfront again.")


@contextmanager
def _nothing_to_resume(inputs: AbstractContextManager[Checked]) -> Iterator[Checked]:
    """Inputs of a study that is yet to be made: where they cannot even be tried, there is no run to go on with."""
    with ExitStack() as stack:
        try:
            good = stack.enter_context(inputs)
        except RunError as error:
            raise ConfigError(str(error)) from error
        yield good


@contextmanager
def _taken_back(config: SearchConfig) -> Iterator[None]:
    """A study that is new, where its inputs are refused after all, say by calibration: there is nothing to resume."""
    try:
        yield
    except InputError:
        with suppress(BitfrontError):  # the first error says more; and a study that others work on is theirs
            made = [study for study in studies(config.storage) if study.name == config.study]
            if made and not made[0].ok + made[0].failed + made[0].running:
                delete(config.study, config.storage)
        raise


def _refuse_existing(config: SearchConfig) -> None:
    if not check_usable(config.storage):
        return
    with Store.open(config.storage, write=False) as store:
        if any(summary.name == config.study for summary in store.studies.summaries()):
            name = shlex.quote(config.study)
            raise StudyError(
                f"searching as study {config.study!r}: there is one of this name in {store.url}. Go on with it: "
                f"`bitfront resume {name}`; or name another with --study, or `bitfront delete {name}`."
            )
