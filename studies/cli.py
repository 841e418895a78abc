"""The command line. The only module that prints and exits.

Exit codes: 0 done, 2 refused before anything was made, 1 a run that could not go on, 130 interrupted.
"""

from __future__ import annotations

import csv
import functools
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from search.errors import BitfrontError, ConfigError, InputError, RunError
from studies import (
    __version__,
    commands,
    compare_trial,
    comparison,
    profiles,
    sensitivity_plot,
    sensitivity_table,
    show_text,
    tables_text,
)
from studies.config import OPTIONS, from_options
from studies.progress import Display, Lines, Progress, Quiet
from studies.standing import Standing
from studies.store import default_url, hide_password
from studies.units import format_metric
from studies.words import best_text, nearest_text, obedience_text

app = typer.Typer(
    name="bitfront",
    help="Find the INT8/FP16/FP32 mix, layer by layer, that makes an ONNX model fast and keeps it accurate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)
Verb = TypeVar("Verb", bound=Callable[..., None])


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Find the INT8/FP16/FP32 mix, layer by layer, that makes an ONNX model fast and keeps it accurate."""
    if version:
        out.print(f"bitfront {__version__}")
        raise typer.Exit


# Single options are lists too, so that one given twice is refused and not silently overridden.
Many = list[str] | None


def _option(name: str, text: str, metavar: str = "TEXT") -> Any:
    return typer.Option(f"--{name}", help=text, metavar=metavar, show_default=False)


Storage = Annotated[
    str | None, typer.Option("--storage", help="Study database. [default: sqlite:///bitfront.db]", metavar="URL")
]
Study = Annotated[str, typer.Argument(help="Name of the study.", metavar="STUDY")]
Trial = Annotated[int, typer.Argument(help="Number of the trial.", metavar="TRIAL")]
Budget = Annotated[Many, _option("latency-budget", "Most time of one inference: 2.5ms, 800us.", "TIME")]
Drop = Annotated[Many, _option("max-drop", "Most loss against FP32, in the metric's unit: 1%, 0.01.", "LOSS")]
AccuracyLimit = Annotated[Many, _option("accuracy-limit", "Bound on the metric itself: 30dB for sqnr.", "VALUE")]
Memory = Annotated[Many, _option("max-memory", "Most memory of an engine: 512MB, 2GiB.", "SIZE")]
ModelPath = Annotated[Many, _option("model", "Where the model file is now, if it has moved.", "FILE")]
DataPath = Annotated[Many, _option("data", "Where the data are now, if they have moved.", "DATA")]
Trials = Annotated[Many, _option("trials", "Distinct evaluations in total, baselines included. [default: 60]", "N")]
MoreTrials = Annotated[Many, _option("trials", "New total of evaluations. [default: the study's own]", "N")]
SensitivityTime = Annotated[
    Many, _option("sensitivity-time", "Of the sensitivity pass. [default: 5 % of the study, 60s at most]", "TIME")
]
TimeLimit = Annotated[Many, _option("time-limit", "Stop after so long: 30m, 1h30m.", "TIME")]
Patience = Annotated[Many, _option("patience", "Stop after N evaluations without hypervolume gain.", "N")]
QuietFlag = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with the same keys as these options.", metavar="FILE")
]
Backend = Annotated[Many, _option("backend", "auto, tensorrt or onnxruntime. [default: auto]", "NAME")]
Device = Annotated[Many, _option("device", "cpu, cuda, cuda:1. [default: the backend's own]", "NAME")]
Batch = Annotated[Many, _option("batch", "Leading dimension of dynamic inputs.", "N")]
Shape = Annotated[Many, _option("shape", "NAME:32x3x224x224, or NAME:MIN:OPT:MAX; repeatable.", "SHAPE")]
Threads = Annotated[Many, _option("threads", "Processor threads of one inference. [default: 1]", "N")]
Keep = Annotated[Many, _option("keep", "Keep layers whose name matches: 'REGEX=fp32'; repeatable.", "RULE")]
Granularity = Annotated[Many, _option("granularity", "One choice per group or per block. [default: group]", "KIND")]
Typing = Annotated[Many, _option("typing", "Of TensorRT: auto, weak, strong. [default: auto]", "KIND")]
Calibration = Annotated[Many, _option("calibration", "minmax, percentile, entropy, mse. [default: minmax]", "METHOD")]


def verb(function: Verb) -> Verb:
    """Make a function a verb: its errors become one message and an exit code."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except KeyboardInterrupt:
            err.print("interrupted")
            raise typer.Exit(130) from None
        except InputError as error:
            err.print(f"error: {error}", markup=False)
            raise typer.Exit(2) from None
        except BitfrontError as error:
            err.print(f"error: {error}", markup=False)
            raise typer.Exit(1) from None

    app.command(name=function.__name__.rstrip("_"))(run)
    return function


@verb
def search(
    model: Annotated[str | None, typer.Argument(help="The ONNX model, in float32.", metavar="MODEL")] = None,
    data: Annotated[
        Many, _option("data", "Calibration and evaluation data: .npz, folder, module:function.", "DATA")
    ] = None,
    study: Annotated[Many, _option("study", "Name of the study. [default: the model's file name]", "NAME")] = None,
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    trials: Trials = None,
    time_limit: TimeLimit = None,
    sensitivity_time: SensitivityTime = None,
    patience: Patience = None,
    storage: Annotated[Many, _option("storage", "Study database. [default: sqlite:///bitfront.db]", "URL")] = None,
    artifacts: Annotated[Many, _option("artifacts", "Folder of engines. [default: beside the database]", "DIR")] = None,
    backend: Backend = None,
    device: Device = None,
    threads: Threads = None,
    batch: Batch = None,
    shape: Shape = None,
    metric: Annotated[Many, _option("metric", "top1 top5 agreement cosine sqnr mse miou module:function")] = None,
    calibration_data: Annotated[Many, _option("calibration-data", "Data to calibrate on, apart.", "DATA")] = None,
    final_data: Annotated[Many, _option("final-data", "Data for the final score, apart.", "DATA")] = None,
    preprocess: Annotated[Many, _option("preprocess", "module:function that reads one image file.")] = None,
    calibration: Calibration = None,
    calibration_cache: Annotated[Many, _option("calibration-cache", "Ranges of a TensorRT cache.", "FILE")] = None,
    sampler: Annotated[Many, _option("sampler", "guided, tpe, nsga2, gp, random. [default: guided]", "NAME")] = None,
    granularity: Granularity = None,
    keep: Keep = None,
    seed: Annotated[Many, _option("seed", "Of the sampler. [default: 0]", "N")] = None,
    keep_engines: Annotated[Many, _option("keep-engines", "all, front or none. [default: front]", "WHICH")] = None,
    evaluation_timeout: Annotated[
        Many, _option("evaluation-timeout", "Of one evaluation. [default: 10m]", "TIME")
    ] = None,
    evaluation_memory: Annotated[Many, _option("evaluation-memory", "Limit of the evaluator process.", "SIZE")] = None,
    repair: Annotated[Many, _option("repair", "Repairs of a refused assignment. [default: 0]", "N")] = None,
    typing: Typing = None,
    workspace: Annotated[Many, _option("workspace", "Scratch memory of TensorRT. [default: 4GiB]", "SIZE")] = None,
    optimization_level: Annotated[Many, _option("optimization-level", "Of TensorRT: 0 to 5. [default: 3]", "N")] = None,
    final_optimization_level: Annotated[
        Many, _option("final-optimization-level", "Of exports. [default: the search's]", "N")
    ] = None,
    tf32: Annotated[Many, _option("tf32", "TF32 for FP32 in TensorRT: on, off. [default: on]", "SWITCH")] = None,
    sparsity: Annotated[bool, typer.Option("--sparsity", help="Let TensorRT use sparse weights.")] = False,
    native_instancenorm: Annotated[
        Many, _option("native-instancenorm", "TensorRT's own InstanceNormalization: on, off. [default: on]", "SWITCH")
    ] = None,
    plugin: Annotated[Many, _option("plugin", "Plugin library of TensorRT; repeatable.", "FILE")] = None,
    timing_cache: Annotated[
        Many, _option("timing-cache", "TensorRT's timing cache, or none. [default: beside the engines]", "DIR")
    ] = None,
    config: ConfigFile = None,
    quiet: QuietFlag = False,
) -> None:
    """Search the precisions of a model within a latency budget and an allowed loss."""
    given = _given(locals())
    parsed = from_options(given, config)
    with _progress(parsed.quiet) as progress:
        progress.note(f"checking inputs for backend {_resolved(parsed.backend)}")
        with _resumable(parsed.study, parsed.storage):
            finished = commands.search(parsed, progress)
    if not parsed.quiet:
        _print_finished(finished, parsed.storage)


@verb
def resume(
    study: Study,
    trials: MoreTrials = None,
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    time_limit: TimeLimit = None,
    patience: Patience = None,
    model: ModelPath = None,
    data: DataPath = None,
    storage: Storage = None,
    quiet: QuietFlag = False,
) -> None:
    """Go on with a study, to where it was going or to a new total of trials."""
    options = _given(locals(), "study", "storage", "quiet")
    with _progress(quiet) as progress, _resumable(study, storage):
        finished = commands.resume(study, options, storage, progress)
    if not quiet:
        _print_finished(finished, storage)


@verb
def front(
    study: Study,
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """The Pareto front of a study, judged by its limits or by those given here."""
    now, mixes = commands.front(study, _given(locals(), "study", "storage", "as_json", "as_csv"), storage)
    if as_json and as_csv:
        raise ConfigError("printing the front: --json and --csv were both given; give one.")
    if as_json:
        _print_json(tables_text.front_json(now, mixes))
    elif as_csv:
        _print_csv(tables_text.front_rows(now, mixes))
    else:
        _print_front(now, mixes)


@verb
def show(
    study: Study,
    trial: Trial,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """One evaluation: what was asked and got per group, measures, failure."""
    shown = commands.show(study, trial, storage)
    if as_json:
        _print_json(show_text.shown_json(shown))
        return
    for line in show_text.shown_lines(shown):
        out.print(line, markup=False)
    columns, rows = show_text.group_table(shown)
    _print_table(rows, columns)


@verb
def export(
    study: Study,
    folder: Annotated[Path, typer.Option("--out", help="New or empty folder.", metavar="DIR")],
    pick: Annotated[str | None, typer.Option("--pick", help="accurate, fast or knee.", metavar="PICK")] = None,
    trial: Annotated[int | None, typer.Option("--trial", help="Export this trial instead.", metavar="N")] = None,
    triton: Annotated[
        str | None, typer.Option("--triton", help="Write a Triton model of this name too.", metavar="NAME")
    ] = None,
    optimization_level: Annotated[
        Many, _option("optimization-level", "Build it at this level of TensorRT. [default: the study's final one]", "N")
    ] = None,
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    model: ModelPath = None,
    data: DataPath = None,
    storage: Storage = None,
    quiet: QuietFlag = False,
) -> None:
    """Write the chosen engine with its manifest, checked in a fresh process."""
    options = _given(locals(), "study", "folder", "pick", "trial", "triton", "storage", "quiet")
    with _progress(quiet) as progress:
        done = commands.export(
            study, folder, pick=pick, trial=trial, triton=triton, options=options, storage=storage, progress=progress
        )
    if not quiet:
        _print_exported(done)


@verb
def report(
    study: Study,
    file: Annotated[Path, typer.Option("--out", help="The HTML file.", metavar="FILE")],
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    storage: Storage = None,
) -> None:
    """Write one self-contained HTML file about a study."""
    written = commands.report(study, file, _given(locals(), "study", "file", "storage"), storage)
    out.print(f"wrote {written}", markup=False)


@verb
def layers(
    model: Annotated[str, typer.Argument(help="The ONNX model.", metavar="MODEL")],
    data: Annotated[Many, _option("data", "Calibrate too: ranges decide on FP16.", "DATA")] = None,
    backend: Backend = None,
    device: Device = None,
    threads: Threads = None,
    batch: Batch = None,
    shape: Shape = None,
    keep: Keep = None,
    granularity: Granularity = None,
    calibration: Calibration = None,
    typing: Typing = None,
    as_json: Json = False,
) -> None:
    """Groups and edges of a model, what each may run in on this target, and why not."""
    found = commands.layers(_given(locals(), "as_json"))
    rows, edges = tables_text.layer_rows(found), tables_text.edge_rows(found)
    if as_json:
        _print_json({"target": found.target.to_json(), "groups": rows, "edges": edges})
        return
    cells = [{**row, "why_not": "; ".join(f"{p}: {why}" for p, why in row["why_not"].items())} for row in rows]
    _print_table(cells, ["group", "node", "op", "block", "shape", "may", "why_not"])
    _print_table(edges, ["source", "target", "tensor", "elements"])
    out.print(
        f"{len(rows)} groups, {len(edges)} edges, {len(found.space.variables)} decisions, "
        f"{found.space.size:.3g} assignments on {found.target.backend} ({found.target.device})"
    )


@verb
def profile(
    study: Study,
    trial: Trial,
    count: Annotated[int, typer.Option("--count", help="Inferences of a profiled run.", metavar="N")] = 50,
    sort: Annotated[str, typer.Option("--sort", help="order or time.", metavar="ORDER")] = "order",
    against: Annotated[int | None, typer.Option("--against", help="Another trial beside it.", metavar="TRIAL")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is stored.")] = False,
    model: ModelPath = None,
    data: DataPath = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """What each layer of an engine takes, by group; moves and the rest apart."""
    if as_json and as_csv:
        raise ConfigError("printing the profile: --json and --csv were both given; give one.")
    if sort not in profiles.ORDERS:
        raise ConfigError(f"--sort {sort}: expected {' or '.join(profiles.ORDERS)}.")
    options = _given({"model": model, "data": data})
    with _progress(False) as progress:
        found = commands.profile(
            study, trial, count=count, again=again, against=against, options=options, storage=storage, progress=progress
        )
    delta = profiles.delta_rows(found[0], found[1], sort) if len(found) > 1 else []
    if as_json:
        rows = [one.to_json(sort) for one in found]
        _print_json({**rows[0], **({"against": rows[1], "delta": delta} if delta else {})})
    elif as_csv:
        _print_csv(delta or found[0].layer_rows(sort))
    elif delta:
        _print_delta(found, delta)
    else:
        _print_profile(found[0], sort)


@verb
def compare(
    study: Study,
    trial: Trial,
    groups: Annotated[bool, typer.Option("--groups", help="Group by group: where do they part?")] = False,
    samples: Annotated[
        int, typer.Option("--samples", help="Samples of the final split, at most.", metavar="N")
    ] = compare_trial.DEFAULT_SAMPLES,
    threshold: Annotated[
        float, typer.Option("--threshold", help="Fall of a group's SQNR that is marked, in dB.", metavar="DB")
    ] = compare_trial.DEFAULT_THRESHOLD_DB,
    model: ModelPath = None,
    data: DataPath = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Run an engine beside ONNX Runtime on the same data and say how far they differ, and where."""
    options = _given({"model": model, "data": data})
    with _progress(False) as progress:
        found = commands.compare(
            study,
            trial,
            groups=groups,
            samples=samples,
            threshold_db=threshold,
            options=options,
            storage=storage,
            progress=progress,
        )
    if as_json:
        _print_json(found.to_json())
        return
    _print_comparison(found)


@verb
def sensitivity(
    study_or_model: Annotated[str, typer.Argument(help="Name of a study, or an ONNX file.", metavar="STUDY_OR_MODEL")],
    data: Annotated[Many, _option("data", "Of a model: its data. Of a study: where they are now.", "DATA")] = None,
    model: ModelPath = None,
    sensitivity_time: SensitivityTime = None,
    again: Annotated[bool, typer.Option("--again", help="Measure anew what is stored.")] = False,
    max_kl: Annotated[float, typer.Option("--max-kl", help="Sensitive above, in nats.", metavar="NATS")] = 0.3,
    min_overlap: Annotated[
        float, typer.Option("--min-overlap", help="Of histograms; sensitive below.", metavar="SHARE")
    ] = 0.7,
    max_error_ratio: Annotated[
        float, typer.Option("--max-error-ratio", help="Error over its mean; sensitive above.", metavar="RATIO")
    ] = 2.0,
    plot: Annotated[Path | None, typer.Option("--plot", help="Write a picture as HTML.", metavar="FILE")] = None,
    backend: Backend = None,
    device: Device = None,
    threads: Threads = None,
    batch: Batch = None,
    shape: Shape = None,
    keep: Keep = None,
    calibration: Calibration = None,
    typing: Typing = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """What each layer alone adds to the error in a lower precision; no engine is built."""
    if as_json and as_csv:
        raise ConfigError("printing sensitivities: --json and --csv were both given; give one.")
    options = _given(locals(), "storage")
    if plot is not None:
        sensitivity_plot.check(plot)
    with _progress(as_json or as_csv) as progress:
        found = commands.sensitivity(
            study_or_model,
            thresholds=sensitivity_table.Thresholds(max_kl, min_overlap, max_error_ratio),
            again=again,
            options=options,
            storage=storage,
            progress=progress,
        )
    if plot is not None:
        sensitivity_plot.write(found, plot)
    if as_json:
        _print_json(found.to_json())
    elif as_csv:
        _print_csv(found.table())
    else:
        _print_texts(sensitivity_table, found.table(), sensitivity_table.COLUMNS)
        out.print(found.headline(), markup=False)


@verb
def studies(storage: Storage = None, as_json: Json = False) -> None:
    """The studies of a database."""
    names = ("name", "state", "ok", "failed", "running", "created_at", "model_path")
    rows = [{name: getattr(row, name) for name in names} for row in commands.studies(storage)]
    if as_json:
        _print_json([{**row, "created_at": row["created_at"].isoformat()} for row in rows])
    elif rows:
        _print_table([{**row, "created_at": f"{row['created_at']:%Y-%m-%d %H:%M}"} for row in rows], names)
    else:
        out.print("no study yet")


@verb
def delete(
    study: Study,
    storage: Storage = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove a study with its evaluations and engines."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"deleting study {study!r}: nobody is here to be asked. Add --yes.")
        typer.confirm(f"Delete study {study!r} with all its evaluations and engines?", abort=True)
    commands.delete(study, storage)
    out.print(f"deleted study {study!r}", markup=False)


@verb
def doctor(
    backend: Annotated[
        str | None, typer.Option("--backend", help="Look at this one alone: tensorrt, onnxruntime.", metavar="NAME")
    ] = None,
    as_json: Json = False,
) -> None:
    """What is installed, what can run here, and what is missing."""
    checks = commands.doctor(backend)
    if as_json:
        _print_json([vars(check) for check in checks])
    else:
        for check in checks:
            mark = "[green]ok[/green]     " if check.good else "[red]missing[/red]"
            out.print(mark, end=" ")
            out.print(f"{check.name}: {check.found}" + (f". {check.advice}" if check.advice else ""), markup=False)
    if not any(check.good and check.name.startswith("backend") for check in checks):
        raise typer.Exit(1)


@verb
def demo(
    folder: Annotated[Path, typer.Option("--out", help="New or empty folder.", metavar="DIR")] = Path("demo"),
    trials: Annotated[int, typer.Option("--trials", help="Evaluations.", metavar="N")] = 40,
    quiet: QuietFlag = False,
) -> None:
    """Search the shipped example, export the best and write the report."""
    with _progress(quiet) as progress:
        done = commands.demo(folder, progress, trials)
    if quiet:
        return
    _print_finished(done.finished, done.storage)
    _print_exported(done.engine)
    out.print(f"report: {done.report}", markup=False)


@verb
def dashboard(
    storage: Storage = None,
    port: Annotated[int, typer.Option("--port", help="Port on this machine.", metavar="N")] = 8080,
) -> None:
    """Start optuna-dashboard on a database."""
    raise typer.Exit(commands.dashboard(storage, port))


# -- options -----------------------------------------------------------------------------------------------------------


def _given(values: dict[str, Any], *without: str) -> dict[str, Any]:
    """The options that were given, by their names on the command line."""
    known = {name.replace("-", "_"): name for name in OPTIONS}
    left = {known[name]: value for name, value in values.items() if name in known and name not in without}
    return {name: value for name, value in left.items() if value is not None and value is not False}


def _resolved(backend: str) -> str:
    from evaluators.backends.registry import resolve

    return resolve(backend)


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    if quiet:
        yield Quiet()
    elif err.is_terminal:
        with Display(err) as display:
            yield display
    else:
        yield Lines(err)


@contextmanager
def _resumable(study: str, storage: str | None) -> Iterator[None]:
    """Say how to go on with a run that is interrupted or cannot go on; SIGTERM is taken as Ctrl-C."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    where = f" --storage '{hide_password(storage)}'" if storage and storage != default_url() else ""
    way = f"go on with: bitfront resume {study}{where}"
    try:
        yield
    except KeyboardInterrupt:
        if commands.exists(study, storage):
            err.print(way, markup=False)
        raise
    except RunError as error:
        raise RunError(f"{error}\n{way}") if commands.exists(study, storage) else error from error
    finally:
        signal.signal(signal.SIGTERM, before)


# -- printing ----------------------------------------------------------------------------------------------------------


def _print_finished(finished: commands.Finished, storage: str | None) -> None:
    now = finished.standing
    out.print(f"{finished.reason}.", markup=False)
    out.print(f"audit of every engine built: {obedience_text(finished.obedience)}", markup=False)
    _print_front(now, finished.mixes)
    where = f" --storage '{hide_password(storage)}'" if storage and storage != default_url() else ""
    if now.picks.accurate is not None:
        out.print(f"best within the limits: {best_text(now)}", markup=False)
        out.print(f"export it with: bitfront export {now.study.name} --out engine/{where}", markup=False)


def _print_front(now: Standing, mixes: Mapping[int, str]) -> None:
    header, cells = tables_text.front_table(now, mixes)
    _print_cells(header, cells)
    if now.picks.accurate is None and len(now.table):
        out.print("no evaluation keeps the limits; the nearest:")
        for near in now.nearest():
            out.print(f"  {nearest_text(now, near)}", markup=False)


def _print_exported(done: Any) -> None:
    final, limits = done.manifest["final"], {True: "the limits hold", False: "the limits do NOT hold", None: ""}
    out.print(f"exported trial {done.trial} to {done.folder}", markup=False)
    ratio = done.manifest["metric"]["ratio"]
    unit = done.manifest["metric"]["unit"]
    low, high = (format_metric(final[key], unit, ratio) for key in ("loss_low", "loss_high"))
    text = f"on the final split: loss {format_metric(final['loss'], unit, ratio)} [{low}, {high}]"
    out.print(f"{text}{'; ' if done.holds is not None else ''}{limits[done.holds]}", markup=False)


def _print_profile(found: profiles.Profiled, sort: str) -> None:
    for line in profiles.headline(found):
        out.print(line, markup=False)
    times = ["ms", "scaled_ms", "share"]
    _print_texts(profiles, found.layer_rows(sort), ["position", "layer", "kind", "group", "part", *times])
    _print_texts(profiles, found.group_rows(sort), ["group", "node", "op", "asked", "got", "kernels", *times])
    _print_texts(profiles, found.part_rows(), ["part", "layers", *times])


def _print_delta(found: Sequence[profiles.Profiled], rows: Sequence[dict[str, Any]]) -> None:
    for one in found:
        for line in profiles.headline(one):
            out.print(line, markup=False)
    names = ["group", "node", "got", "got_against", "changed", "ms", "ms_against", "delta_ms"]
    _print_texts(profiles, rows, names)


def _print_comparison(found: comparison.Comparison) -> None:
    out.print(f"trial {found.trial}: {found.mix}, on {found.samples} samples of the final split", markup=False)
    names = ["output", "compared", "max_abs", "mean_abs", "relative", "cosine", "sqnr_db", "agreement", "non_finite"]
    _print_texts(comparison, found.output_rows(), names)
    if found.groups is not None:
        levels = ["sqnr_db", "inputs_db", "fall_db", "to_float_db", "emulation_to_float_db"]
        _print_texts(comparison, found.group_rows(), ["group", "node", "op", "precision", *levels, "parts"])
    out.print()
    for line in found.verdicts():
        out.print(line, markup=False)


def _print_texts(kind: Any, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    out.print()
    _print_table([kind.text_of(row) for row in rows], names)


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def _print_csv(rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        writer = csv.DictWriter(sys.stdout, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows({k: " ".join(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)


def _print_table(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    _print_cells([name.replace("_", " ") for name in names], [[_cell(row[name]) for name in names] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return (", " if value and isinstance(value[0], str) else "×").join(map(str, value))
    return "" if value is None else str(value)


def _print_cells(header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in cells:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    # A pipe has no width of its own: do not cut what a script may want to read.
    (out if out.is_terminal else Console(width=200, highlight=False)).print(table)


def main() -> None:
    """Entry point of the `bitfront` command."""
    app()


if __name__ == "__main__":
    main()
