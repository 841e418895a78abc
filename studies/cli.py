"""The command line. Only this module and the `cli_` modules beside it print and exit.

Exit codes: 0 done, 2 refused before anything was made, 1 a run that could not go on, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from search.errors import ConfigError
from studies import __version__, cli_analyses, cli_workers, commands, show_text, tables_text, targets
from studies.cli_base import (
    AccuracyLimit,
    Backend,
    Batch,
    Budget,
    Calibration,
    ConfigFile,
    Csv,
    DataPath,
    Device,
    Drop,
    Gpus,
    Granularity,
    Json,
    Keep,
    Lease,
    Many,
    Memory,
    ModelPath,
    MoreTrials,
    NewTarget,
    Patience,
    QuietFlag,
    SensitivityTime,
    Shape,
    Storage,
    Study,
    Tf32,
    Threads,
    TimeLimit,
    Trial,
    Trials,
    Typing,
    WhichTarget,
    Workers,
    given_options,
    option,
    out,
    print_csv,
    print_finished,
    print_front,
    print_json,
    print_table,
    progress_for,
    resumable,
    verb,
)
from studies.config import from_options
from studies.records import TargetRecord
from studies.units import format_metric

app = typer.Typer(
    name="bitfront",
    help="Find the INT8/FP16/FP32 mix, layer by layer, that makes an ONNX model fast and keeps it accurate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Find the INT8/FP16/FP32 mix, layer by layer, that makes an ONNX model fast and keeps it accurate."""
    if version:
        out.print(f"bitfront {__version__}")
        raise typer.Exit


@verb
def search(
    model: Annotated[str | None, typer.Argument(help="The ONNX model, in float32.", metavar="MODEL")] = None,
    data: Annotated[
        Many, option("data", "Calibration and evaluation data: .npz, folder, module:function.", "DATA")
    ] = None,
    study: Annotated[Many, option("study", "Name of the study. [default: the model's file name]", "NAME")] = None,
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    trials: Trials = None,
    time_limit: TimeLimit = None,
    sensitivity_time: SensitivityTime = None,
    patience: Patience = None,
    storage: Annotated[Many, option("storage", "Study database. [default: sqlite:///bitfront.db]", "URL")] = None,
    artifacts: Annotated[
        Many, option("artifacts", "Folder, s3://… or gs://… of engines. [default: beside the database]", "PLACE")
    ] = None,
    backend: Backend = None,
    device: Device = None,
    gpus: Gpus = None,
    workers: Workers = None,
    lease: Lease = None,
    threads: Threads = None,
    batch: Batch = None,
    shape: Shape = None,
    metric: Annotated[Many, option("metric", "top1 top5 agreement cosine sqnr mse miou module:function")] = None,
    calibration_data: Annotated[Many, option("calibration-data", "Data to calibrate on, apart.", "DATA")] = None,
    final_data: Annotated[Many, option("final-data", "Data for the final score, apart.", "DATA")] = None,
    preprocess: Annotated[Many, option("preprocess", "module:function that reads one image file.")] = None,
    calibration: Calibration = None,
    calibration_cache: Annotated[Many, option("calibration-cache", "Ranges of a TensorRT cache.", "FILE")] = None,
    sampler: Annotated[Many, option("sampler", "guided, tpe, nsga2, gp, random. [default: guided]", "NAME")] = None,
    granularity: Granularity = None,
    keep: Keep = None,
    seed: Annotated[Many, option("seed", "Of the sampler. [default: 0]", "N")] = None,
    keep_engines: Annotated[Many, option("keep-engines", "all, front or none. [default: front]", "WHICH")] = None,
    evaluation_timeout: Annotated[
        Many, option("evaluation-timeout", "Of one evaluation. [default: 10m]", "TIME")
    ] = None,
    evaluation_memory: Annotated[Many, option("evaluation-memory", "Limit of the evaluator process.", "SIZE")] = None,
    repair: Annotated[Many, option("repair", "Repairs of a refused assignment. [default: 0]", "N")] = None,
    typing: Typing = None,
    workspace: Annotated[Many, option("workspace", "Scratch memory of TensorRT. [default: 4GiB]", "SIZE")] = None,
    optimization_level: Annotated[Many, option("optimization-level", "Of TensorRT: 0 to 5. [default: 3]", "N")] = None,
    final_optimization_level: Annotated[
        Many, option("final-optimization-level", "Of exports. [default: the search's]", "N")
    ] = None,
    tf32: Tf32 = None,
    sparsity: Annotated[bool, typer.Option("--sparsity", help="Let TensorRT use sparse weights.")] = False,
    native_instancenorm: Annotated[
        Many, option("native-instancenorm", "TensorRT's own InstanceNormalization: on, off. [default: on]", "SWITCH")
    ] = None,
    plugin: Annotated[Many, option("plugin", "Plugin library of TensorRT; repeatable.", "FILE")] = None,
    timing_cache: Annotated[
        Many, option("timing-cache", "TensorRT's timing cache, or none. [default: beside the engines]", "DIR")
    ] = None,
    config: ConfigFile = None,
    quiet: QuietFlag = False,
) -> None:
    """Search the precisions of a model within a latency budget and an allowed loss."""
    given = given_options(locals())
    parsed = from_options(given, config)
    with progress_for(parsed.quiet) as progress:
        progress.note(f"checking inputs for backend {_resolved(parsed.backend)}")
        with resumable(parsed.study, parsed.storage, more=_crew(vars(parsed))):
            finished = commands.search(parsed, progress)
    if not parsed.quiet:
        print_finished(finished, parsed.storage)


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
    backend: Backend = None,
    device: Device = None,
    threads: Threads = None,
    typing: Typing = None,
    tf32: Tf32 = None,
    gpus: Gpus = None,
    workers: Workers = None,
    lease: Lease = None,
    target: WhichTarget = None,
    new_target: NewTarget = False,
    storage: Storage = None,
    quiet: QuietFlag = False,
) -> None:
    """Go on with a study, to where it was going or to a new total of trials."""
    options = given_options(locals(), "study", "storage", "quiet")
    more = _crew(options) + (f" --target {target}" if target is not None else "")
    with progress_for(quiet) as progress, resumable(study, storage, more=more):
        finished = commands.resume(study, options, storage, progress, target=target, new_target=new_target)
    if not quiet:
        print_finished(finished, storage)


@verb
def front(
    study: Study,
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """The Pareto front of a study, judged by its limits or by those given here."""
    options = given_options(locals(), "study", "storage", "as_json", "as_csv")
    now, mixes = commands.front(study, options, storage, target, whole=False)
    if as_json and as_csv:
        raise ConfigError("printing the front: --json and --csv were both given; give one.")
    if as_json:
        print_json(tables_text.front_json(now, mixes))
    elif as_csv:
        print_csv(tables_text.front_rows(now, mixes))
    else:
        print_front(now, mixes)


@verb
def show(
    study: Study,
    trial: Trial,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """One evaluation: what was asked and got per group, measures, failure."""
    shown = commands.show(study, trial, storage, target)
    if as_json:
        print_json(show_text.shown_json(shown))
        return
    for line in show_text.shown_lines(shown):
        out.print(line, markup=False)
    columns, rows = show_text.group_table(shown)
    print_table(rows, columns)


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
        Many, option("optimization-level", "Build it at this level of TensorRT. [default: the study's final one]", "N")
    ] = None,
    latency_budget: Budget = None,
    max_drop: Drop = None,
    accuracy_limit: AccuracyLimit = None,
    max_memory: Memory = None,
    model: ModelPath = None,
    data: DataPath = None,
    target: WhichTarget = None,
    storage: Storage = None,
    quiet: QuietFlag = False,
) -> None:
    """Write the chosen engine with its manifest, checked in a fresh process."""
    options = given_options(locals(), "study", "folder", "pick", "trial", "triton", "storage", "quiet")
    with progress_for(quiet) as progress:
        done = commands.export(
            study,
            folder,
            pick=pick,
            trial=trial,
            triton=triton,
            options=options,
            storage=storage,
            progress=progress,
            target=target,
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
    target: Annotated[
        list[str] | None,
        typer.Option("--target", help="Show this target; repeated: side by side. [default: all]", metavar="TARGET"),
    ] = None,
    storage: Storage = None,
) -> None:
    """Write one self-contained HTML file about a study."""
    options = given_options(locals(), "study", "file", "storage")
    written = commands.report(study, file, options, storage, target or ())
    out.print(f"wrote {written}", markup=False)


@verb
def studies(storage: Storage = None, as_json: Json = False) -> None:
    """The studies of a database."""
    names = ("name", "state", "ok", "failed", "running", "targets", "created_at", "model_path")
    known = commands.targets(storage)
    rows = [vars(row) | {"targets": known.get(row.name, ())} for row in commands.studies(storage)]
    found = [{name: row[name] for name in names} for row in rows]
    if as_json:
        made = [{"created_at": row["created_at"].isoformat(), "targets": targets.rows(row["targets"])} for row in found]
        print_json([{**row, **more} for row, more in zip(found, made, strict=True)])
    elif found:
        texts = [
            {"created_at": f"{row['created_at']:%Y-%m-%d %H:%M}", "targets": _named(row["targets"])} for row in found
        ]
        print_table([{**row, **text} for row, text in zip(found, texts, strict=True)], names)
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
        print_json([vars(check) for check in checks])
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
    with progress_for(quiet) as progress:
        done = commands.demo(folder, progress, trials)
    if quiet:
        return
    print_finished(done.finished, done.storage)
    _print_exported(done.engine)
    out.print(f"report: {done.report}", markup=False)


@verb
def dashboard(
    storage: Storage = None,
    port: Annotated[int, typer.Option("--port", help="Port on this machine.", metavar="N")] = 8080,
) -> None:
    """Start optuna-dashboard on a database."""
    raise typer.Exit(commands.dashboard(storage, port))


def _named(known: Sequence[TargetRecord]) -> str:
    """By name, each but the only one with its number."""
    shown = targets.names([record.target for record in known])
    return "; ".join(shown if len(shown) < 2 else [f"{number}: {name}" for number, name in enumerate(shown, 1)])


def _crew(options: Mapping[str, Any]) -> str:
    """The options that say how many processes work, as they are written on the command line."""
    given = {name: options.get(name) for name in ("gpus", "workers")}
    texts = {name: value[0] if isinstance(value, list) else value for name, value in given.items() if value is not None}
    return "".join(f" --{name} {text}" for name, text in texts.items())


def _resolved(backend: str) -> str:
    from evaluators.backends.registry import resolve

    return resolve(backend)


def _print_exported(done: Any) -> None:
    final, limits = done.manifest["final"], {True: "the limits hold", False: "the limits do NOT hold", None: ""}
    out.print(f"exported trial {done.trial} to {done.folder}", markup=False)
    ratio = done.manifest["metric"]["ratio"]
    unit = done.manifest["metric"]["unit"]
    low, high = (format_metric(final[key], unit, ratio) for key in ("loss_low", "loss_high"))
    text = f"on the final split: loss {format_metric(final['loss'], unit, ratio)} [{low}, {high}]"
    out.print(f"{text}{'; ' if done.holds is not None else ''}{limits[done.holds]}", markup=False)


for function in (
    search,
    resume,
    cli_workers.worker,
    cli_workers.status,
    front,
    show,
    export,
    report,
    cli_analyses.layers,
    cli_analyses.profile,
    cli_analyses.compare,
    cli_analyses.sensitivity,
    studies,
    delete,
    doctor,
    demo,
    dashboard,
):
    app.command()(function)


def main() -> None:
    """Entry point of the `bitfront` command."""
    app()


if __name__ == "__main__":
    main()
