"""The verbs that look into models and engines: `layers`, `profile`, `compare`, `sensitivity`, `evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitfront.cli.base import progress_for, verb
from bitfront.cli.parameters import Csv, Json, Storage, Study, Trial, WhichTarget
from search.errors import ConfigError, EvaluatorError
from studies.options.config import SearchConfig
from studies.options.diagnosis.thresholds import split_thresholds
from studies.options.read_options import read_changes, read_config

if TYPE_CHECKING:  # these take a while to import
    from studies.inspect import comparison
    from studies.inspect import profile as profiles
    from studies.inspect.mix import report as mix_report
    from studies.judging.findings import sensitivity_table


@verb
def layers(as_json: Json = False, **options: Any) -> None:
    """List the groups of layers of a model, the precisions that each may use on this target, and why not others."""
    from bitfront.cli.printing.output import out, print_json, print_table, say
    from bitfront.verbs import analyses
    from studies.run.session.setup import shape_text
    from studies.show.layer_table import edge_rows, layer_rows, left_out_rows

    given = {"data": "-", **{name: value for name, value in options.items() if value is not None}}
    config = read_config(given)
    found = analyses.layers(config if options["data"] else replace(config, data=""))
    rows, edges, left_out = layer_rows(found), edge_rows(found), left_out_rows(found)
    unknown = shape_text(found.model)
    if as_json:
        told = {"groups": rows, "edges": edges, "left_out": left_out, "notes": [unknown] if unknown else []}
        print_json("layers", {"target": found.target.to_json(), **told})
        return
    cells = [{**row, "why_not": "; ".join(f"no {p}: {why}" for p, why in row["why_not"].items())} for row in rows]
    print_table(cells, ["group", "node", "op", "block", "shape", "may", "why_not"], notes=["why_not"])
    out.print()
    print_table(edges, ["source", "target", "tensor", "elements"])
    out.print()
    for each in left_out:
        say(f"{each['name']} ({each['op']}) has weights and stays as it is: {each['why']}")
    if unknown:
        say(f"note: {unknown}")
    say(
        f"{len(rows)} groups, {len(edges)} edges, {len(found.space.variables)} decisions, "
        f"{found.space.size:.3g} assignments on {found.target.backend} ({found.target.device})"
    )


Sort = Annotated[
    str,
    typer.Option(
        "--sort", help="Sort layers by their order in the graph (order) or by their time (time).", metavar="ORDER"
    ),
]


@verb
def profile(
    study: Study,
    trial: Trial,
    count: Annotated[int, typer.Option("--count", help="How many inferences are profiled.", metavar="N")] = 50,
    sort: Sort = "order",
    against: Annotated[
        int | None, typer.Option("--against", help="Number of another trial to show beside it.", metavar="TRIAL")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again, even where a stored result exists.")] = False,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
    **options: Any,
) -> None:
    """Show how long each layer of an engine takes, by group; copies and other operations are listed apart."""
    from bitfront.cli.printing.output import print_csv, print_json
    from bitfront.verbs import analyses
    from studies.inspect import profile as profiles

    if as_json and as_csv:
        raise ConfigError("printing the profile: --json and --csv were both given. Give one of them.")
    if sort not in profiles.ORDERS:
        raise ConfigError(f"--sort {sort}: expected {' or '.join(profiles.ORDERS)}.")
    changes = read_changes(options, "profile")
    with progress_for(False) as events:
        found = analyses.profile(
            study,
            trial,
            count=count,
            again=again,
            against=against,
            changes=changes,
            storage=storage,
            target=target,
            events=events,
        )
    delta = profiles.delta_rows(found[0], found[1], sort) if len(found) > 1 else []
    if as_json:
        rows = [one.to_json(sort) for one in found]
        print_json("profile", {**rows[0], **({"against": rows[1], "delta": delta} if delta else {})})
    elif as_csv:
        print_csv(delta or found[0].layer_rows(sort))
    elif delta:
        _print_delta(found, delta)
    else:
        _print_profile(found[0], sort)


@verb
def remeasure(
    study: Study,
    trial: Annotated[
        list[int] | None,
        typer.Option("--trial", help="Number of a trial to measure again. Can be repeated.", metavar="TRIAL"),
    ] = None,
    every: Annotated[
        bool,
        typer.Option("--all", help="Measure all doubtful latencies again, not only those that matter for the front."),
    ] = False,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Measure doubtful latencies again, side by side with the baseline."""
    from bitfront.cli.printing.output import print_json, say
    from bitfront.verbs import analyses
    from studies.run.noise.remeasurement import change_text

    changes = read_changes(options, "remeasure")
    with progress_for(False) as events:
        found = analyses.remeasure(
            study,
            trial or (),
            every=every,
            changes=changes,
            storage=storage,
            target=target,
            events=events,
        )
    if as_json:
        print_json("remeasure", {"measured": [one.to_json() for one in found]})
        return
    for one in found:
        name = "an engine built again for an export" if one.trial is None else f"trial {one.trial}"
        say(change_text(name, one))
    if not found:
        say(f"No latency{'' if every else ' that matters'} is doubtful; nothing was measured.")


SampleCount = Annotated[
    int | None,
    typer.Option("--samples", help="Largest number of final samples to compare. [default: 64]", metavar="N"),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="Mark groups of layers whose SQNR falls by more than this, in dB. [default: 10]",
        metavar="DB",
    ),
]


@verb
def compare(
    study: Study,
    trial: Trial,
    groups: Annotated[
        bool,
        typer.Option("--groups", help="Compare the output of every group of layers, and name the first that differs."),
    ] = False,
    samples: SampleCount = None,
    threshold: Threshold = None,
    outputs: Annotated[
        Path | None,
        typer.Option(
            "--outputs", help="File with the outputs of your own program, which are compared too.", metavar="FILE"
        ),
    ] = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Run an engine and ONNX Runtime on the same data, and show how far their outputs differ, and where."""
    from bitfront.cli.printing.output import print_json
    from bitfront.verbs import analyses
    from studies.inspect import comparison

    changes = read_changes(options, "compare")
    with progress_for(False) as events:
        found = analyses.compare(
            study,
            trial,
            groups=groups,
            samples=comparison.DEFAULT_SAMPLES if samples is None else samples,
            threshold_db=comparison.DEFAULT_THRESHOLD_DB if threshold is None else threshold,
            outputs=outputs,
            changes=changes,
            storage=storage,
            target=target,
            events=events,
        )
    if as_json:
        print_json("compare", found.to_json())
        return
    _print_comparison(found)


@verb
def sensitivity(
    study_or_model: Annotated[str, typer.Argument(help="Name of a study, or an ONNX file.", metavar="STUDY_OR_MODEL")],
    again: Annotated[bool, typer.Option("--again", help="Measure again, even where a stored result exists.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", help="HTML file to write a figure to.", metavar="FILE")] = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    as_csv: Csv = False,
    **options: Any,
) -> None:
    """Show how much error each layer alone adds in a lower precision, and why. No engine is built."""
    from bitfront.cli.printing.output import print_csv, print_json
    from bitfront.verbs import analyses
    from studies.show import sensitivity_plot

    if as_json and as_csv:
        raise ConfigError("printing sensitivities: --json and --csv were both given. Give one of them.")
    thresholds, others = split_thresholds(options)
    if plot is not None:
        sensitivity_plot.check_path(plot)
    measure = partial(analyses.sensitivity, thresholds=thresholds, again=again)
    with progress_for(as_json or as_csv) as events:
        if study_or_model.endswith(".onnx") or Path(study_or_model).is_file():
            config = _without_study(study_or_model, others, target=target, storage=storage)
            found = measure(config, events=events)
        else:
            changes = read_changes(others, "sensitivity")
            found = measure(study_or_model, changes=changes, storage=storage, target=target, events=events)
    if plot is not None:
        sensitivity_plot.write_plot(found, plot)
    if as_json:
        print_json("sensitivity", found.to_json())
    elif as_csv:
        print_csv(found.table())
    else:
        _print_sensitivities(found)


def _print_sensitivities(found: sensitivity_table.Sensitivities) -> None:
    from bitfront.cli.printing.output import out, print_table, print_texts, say
    from studies.judging.findings import sensitivity_table

    print_texts(sensitivity_table, found.table(), sensitivity_table.COLUMNS)
    say(found.headline())
    if rows := found.cause_rows():
        out.print()
        print_table(rows, sensitivity_table.CAUSE_COLUMNS)
    for remedy in found.remedies():
        count = len(remedy.groups)
        out.print()
        say(f"{remedy.cause.name}, {count} group{'s' * (count > 1)}: {remedy.text}")


@verb
def evaluate(
    assign: Annotated[
        str,
        typer.Option(
            "--assign", help="The precisions to use: all=int8, 'REGEX=fp16,REGEX=int8' or a JSON file.", metavar="MIX"
        ),
    ],
    keep_sensitive: Annotated[
        bool, typer.Option("--keep-sensitive", help="Keep layers in FP16 or FP32 that are sensitive in the given mix.")
    ] = False,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Find the smallest set of layers that explains the loss.")
    ] = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Build and measure one given mix of precisions beside FP32, and show what is lost, and where."""
    from bitfront.cli.printing.output import print_json, warn
    from bitfront.verbs import analyses

    thresholds, others = split_thresholds(options)
    config = read_config(others)
    measure = partial(analyses.evaluate, thresholds=thresholds)
    with progress_for(as_json) as events:
        found = measure(config, assign, keep_sensitive=keep_sensitive, bisect=bisect, events=events)
    if as_json:
        print_json("evaluate", found.to_json())
    else:
        _print_mix(found)
    for text in found.warnings():
        warn(text)
    if found.failure is not None:
        raise EvaluatorError(f"evaluating the mix: it failed at {found.failure.stage.value}: {found.failure.message}")


def _without_study(model: str, options: Mapping[str, Any], *, target: str | None, storage: str | None) -> SearchConfig:
    """What to measure of an ONNX file.

    Raises:
        ConfigError: an option is given that belongs to a study, or there are no data.
    """
    of_study = {"--target": target, "--model": options["model"], "--storage": storage}
    for name, value in of_study.items():
        if value:
            raise ConfigError(f"{name}: this option is for a study, but {model} is an ONNX file. Leave the option out.")
    if not options["data"]:
        raise ConfigError(f"measuring the sensitivity of {model}: expected --data to run it on. Add --data DATA.")
    return read_config({**options, "model": model})


def _print_profile(found: profiles.Profile, sort: str) -> None:
    from bitfront.cli.printing.output import print_texts, say
    from studies.inspect import profile as profiles

    for line in profiles.headline(found):
        say(line)
    times = ["ms", "scaled_ms", "share"]
    print_texts(profiles, found.layer_rows(sort), ["position", "layer", "kind", "group", "part", *times])
    print_texts(profiles, found.group_rows(sort), ["group", "node", "op", "asked", "got", "kernels", *times])
    print_texts(profiles, found.part_rows(), ["part", "layers", *times])


def _print_delta(found: Sequence[profiles.Profile], rows: Sequence[dict[str, Any]]) -> None:
    from bitfront.cli.printing.output import print_texts, say
    from studies.inspect import profile as profiles

    for one in found:
        for line in profiles.headline(one):
            say(line)
    names = ["group", "node", "got", "got_against", "changed", "ms", "ms_against", "delta_ms"]
    print_texts(profiles, rows, names)


def _print_comparison(found: comparison.Comparison) -> None:
    from bitfront.cli.printing.output import out, print_texts, say
    from studies.inspect import comparison

    say(f"trial {found.trial}: {found.mix}, on {found.samples} samples of the final split")
    names = ["output", "compared", "max_abs", "mean_abs", "relative", "cosine", "sqnr_db", "agreement", "non_finite"]
    print_texts(comparison, found.output_rows(), names)
    if found.groups is not None:
        levels = ["sqnr_db", "inputs_db", "fall_db", "to_float_db", "emulation_to_float_db"]
        print_texts(comparison, found.group_rows(), ["group", "node", "op", "precision", *levels, "parts"])
    out.print()
    for line in found.verdicts():
        say(line)


def _print_mix(found: mix_report.MixReport) -> None:
    from bitfront.cli.printing.output import out, print_cells, print_table, say
    from studies.inspect.mix import report as mix_report
    from studies.judging.findings import rescue_table

    say(found.headline())
    print_table(found.engine_texts(), mix_report.ENGINE_COLUMNS)
    if cells := found.rescue_cells():
        out.print()
        print_cells(rescue_table.HEADER, cells)
    out.print()
    print_table(found.group_texts(), mix_report.GROUP_COLUMNS)
    if trials := found.trial_texts():
        out.print()
        print_table(trials, mix_report.TRIAL_COLUMNS)
    out.print()
    for line in found.verdicts():
        say(line)
