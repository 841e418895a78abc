"""The verbs that make a study and go on with it: `search`, `resume`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from studies.cli.base import (
    AccuracyLimit,
    Backend,
    BackendOption,
    Batch,
    Budget,
    Builders,
    Calibration,
    ConfigFile,
    DataPath,
    Device,
    Drop,
    Gpus,
    Granularity,
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
    SplitSeed,
    Storage,
    Study,
    Tf32,
    Threads,
    TimeLimit,
    Trials,
    Typing,
    WhichTarget,
    Workers,
    given_options,
    option,
    print_end,
    progress_for,
    resumable,
    verb,
)
from studies.options.config import from_options
from studies.verbs import commands


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
    backend_option: BackendOption = None,
    device: Device = None,
    gpus: Gpus = None,
    workers: Workers = None,
    builders: Builders = None,
    lease: Lease = None,
    threads: Threads = None,
    batch: Batch = None,
    shape: Shape = None,
    metric: Annotated[Many, option("metric", "top1 top5 agreement cosine sqnr mse miou module:function")] = None,
    calibration_data: Annotated[Many, option("calibration-data", "Data to calibrate on, apart.", "DATA")] = None,
    final_data: Annotated[Many, option("final-data", "Data for the final score, apart.", "DATA")] = None,
    preprocess: Annotated[Many, option("preprocess", "module:function that reads one image file.")] = None,
    split_seed: SplitSeed = None,
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
    optimization_level: Annotated[
        Many,
        option("optimization-level", "Of TensorRT: 0 to 5, or by the first build. [default: auto]", "N"),
    ] = None,
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
    build_threads: Annotated[
        Many, option("build-threads", "Of TensorRT's builder. [default: all it may run on]", "N")
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
    print_end(finished, parsed.storage, quiet=parsed.quiet)


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
    split_seed: SplitSeed = None,
    backend: Backend = None,
    backend_option: BackendOption = None,
    device: Device = None,
    threads: Threads = None,
    typing: Typing = None,
    tf32: Tf32 = None,
    gpus: Gpus = None,
    workers: Workers = None,
    builders: Builders = None,
    lease: Lease = None,
    target: WhichTarget = None,
    new_target: NewTarget = False,
    storage: Storage = None,
    quiet: QuietFlag = False,
) -> None:
    """Go on with a study, to where it was going or to a new total of trials."""
    options = given_options(locals(), "study", "storage", "quiet")
    more = [*_crew(options), *(["--target", shlex.quote(target)] if target is not None else [])]
    with progress_for(quiet) as progress, resumable(study, storage, more=more):
        finished = commands.resume(study, options, storage, progress, target=target, new_target=new_target)
    print_end(finished, storage, quiet=quiet)


def _crew(options: Mapping[str, Any]) -> list[str]:
    """The options that say how many processes work, as they are written in a shell."""
    given = {name: options.get(name) for name in ("gpus", "workers")}
    texts = {name: value[0] if isinstance(value, list) else value for name, value in given.items() if value is not None}
    return [word for name, text in texts.items() for word in (f"--{name}", shlex.quote(str(text)))]


def _resolved(backend: str) -> str:
    from evaluators.backends.registry import choose_backend

    return choose_backend(backend)
