"""The verbs for engine files: `inspect` and `gate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitfront.cli.base import progress_for, verb
from bitfront.cli.parameters import Csv, Json, Storage, WhichTarget
from search.errors import ConfigError
from studies.gate.limits import PROCESSES, GateLimits
from studies.options.quantities import parse_drop, parse_tolerance
from studies.options.read_options import read_changes
from studies.outputs import check_file

if TYPE_CHECKING:  # these take a while to import
    from studies.gate.report import GateReport
    from studies.inspect import engine_report

EXIT_CODES = {"holds": 0, "fails": 1, "not judged": 3}

File = Annotated[
    Path,
    typer.Argument(
        help="A TensorRT plan, trtexec's JSON of layers, an ONNX file or an exported folder.", metavar="FILE"
    ),
]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile", help="File with the time of each layer, as trtexec --exportProfile writes it.", metavar="FILE"
    ),
]
Against = Annotated[Path | None, typer.Option("--against", help="Another engine to show beside it.", metavar="OTHER")]
AgainstProfile = Annotated[
    Path | None,
    typer.Option("--against-profile", help="File with the time of each layer of the other engine.", metavar="FILE"),
]


@verb
def inspect(
    file: File,
    profile: Profile = None,
    against: Against = None,
    against_profile: AgainstProfile = None,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Show what an engine file runs, layer by layer, and why layers are not in INT8."""
    from bitfront.cli.printing.output import print_csv, print_json
    from bitfront.verbs import engine_files

    if as_json and as_csv:
        raise ConfigError("printing the layers: --json and --csv were both given. Give one of them.")
    if against_profile is not None and against is None:
        raise ConfigError(
            "--against-profile was given without --against. Give --against with the engine of that profile."
        )
    found = engine_files.inspect(file, profile=profile, against=against, against_profile=against_profile)
    if as_json:
        print_json("inspect", found.to_json())
    elif as_csv:
        print_csv(_rows(found))
    else:
        _print(found)


Candidate = Annotated[
    str,
    typer.Argument(
        help="The engine to judge: a study, an exported folder, an ONNX file or a TensorRT plan.", metavar="CANDIDATE"
    ),
]
Baseline = Annotated[
    str,
    typer.Option(
        "--against",
        help="The engine to compare with: a study, an exported folder, an ONNX file or a TensorRT plan.",
        metavar="BASELINE",
        show_default=False,
    ),
]
MaxDrop = Annotated[
    str | None,
    typer.Option(
        "--max-drop",
        help="Largest allowed loss of accuracy against the baseline, for example 1% or 0.01.",
        metavar="LOSS",
    ),
]
MaxSlowdown = Annotated[
    str | None,
    typer.Option(
        "--max-slowdown",
        help="Largest allowed increase of the latency against the baseline, for example 3%.",
        metavar="SHARE",
    ),
]
TrialOf = Annotated[
    int | None,
    typer.Option(
        "--trial", help="Number of the trial, if the candidate is a study. [default: its best]", metavar="TRIAL"
    ),
]
BaselineTrial = Annotated[
    int | None,
    typer.Option("--against-trial", help="Number of the trial, if the baseline is a study.", metavar="TRIAL"),
]
Reference = Annotated[
    Path | None,
    typer.Option(
        "--reference",
        help="Engine of the float model. Metrics that compare outputs with it need this option.",
        metavar="FILE",
    ),
]
Processes = Annotated[
    int, typer.Option("--processes", help="How many fresh processes measure the latencies.", metavar="N")
]
Junit = Annotated[
    Path | None, typer.Option("--junit", help="File to write the result to as JUnit XML.", metavar="FILE")
]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", help="File to write a summary to, in Markdown.", metavar="FILE")
]


@verb
def gate(
    candidate: Candidate,
    baseline: Baseline,
    max_drop: MaxDrop = None,
    max_slowdown: MaxSlowdown = None,
    trial: TrialOf = None,
    against_trial: BaselineTrial = None,
    reference: Reference = None,
    processes: Processes = PROCESSES,
    junit: Junit = None,
    markdown: Markdown = None,
    target: WhichTarget = None,
    storage: Storage = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Judge a new engine against a baseline. The exit code is 0 if it passes, 1 if it fails, 3 if it was not judged."""
    from bitfront.cli.printing.output import print_json
    from bitfront.verbs import engine_files

    changes = read_changes(options, "gate")
    data = _take_data(changes)
    limits = GateLimits(
        None if max_drop is None else parse_drop(max_drop),
        None if max_slowdown is None else parse_tolerance(max_slowdown, "--max-slowdown"),
        processes,
    )
    for file, doing in ((junit, "writing JUnit XML to"), (markdown, "writing a summary to")):
        if file is not None:
            check_file(file, doing)
    with progress_for(as_json) as events:
        found = engine_files.gate(
            candidate,
            baseline,
            data,
            limits,
            trials=(trial, against_trial),
            reference=reference,
            changes=changes,
            storage=storage,
            target=target,
            events=events,
        )
    if as_json:
        print_json("gate", found.to_json())
    else:
        _print_gate(found)
    _write_gate(found, junit, markdown)  # last: a disk that is full by now does not hide the verdict
    raise typer.Exit(EXIT_CODES[found.verdict.value])


def _take_data(changes: dict[str, Any]) -> str:
    """Take the data out of the given options.

    Raises:
        ConfigError: they were not given.
    """
    data: str | None = changes.pop("data", None)
    if data is None:
        raise ConfigError(
            "gating: expected --data with samples to score both engines on, but it is missing. Add --data DATA."
        )
    return data


def _write_gate(found: GateReport, junit: Path | None, markdown: Path | None) -> None:
    from studies.gate.files import junit_text, markdown_text

    for file, text in ((junit, junit_text), (markdown, markdown_text)):
        if file is not None:
            file.write_text(text(found), encoding="utf-8")


def _print_gate(found: GateReport) -> None:
    from bitfront.cli.printing.output import out, print_table, say

    say(found.headline())
    out.print()
    print_table(list(found.rows()), ("check", "verdict", "estimate", "bounds", "limit", "smallest_detectable"))
    out.print()
    for line in found.sentences():
        say(line)


def _rows(found: engine_report.EngineReport) -> list[dict[str, Any]]:
    from studies.inspect import engine_report

    if found.other is not None:
        return engine_report.node_rows(found.engine, found.other)
    return engine_report.layer_rows(found.engine.layers)


def _print(found: engine_report.EngineReport) -> None:
    from bitfront.cli.printing.output import out, say
    from studies.inspect import engine_report

    for engine in (found.engine, found.other):
        if engine is not None:
            say(f"{engine.path}: {engine.kind}, {len(engine.layers)} layers")
            for note in engine.notes:
                say(f"note: {note}")
    layers = found.engine.layers
    rows = [_with_texts(row) for row in _rows(found)]
    if found.other is None:
        _print_rows(rows, ("layer", "kind", "precision", "inputs", "outputs", "details", "ms"))
    else:
        _print_rows(rows, ("node", "precision", "other_precision", "formats", "other_formats", "ms", "other_ms"))
    _print_rows([_with_texts(row) for row in engine_report.precision_rows(layers)])
    if bottlenecks := engine_report.bottleneck_rows(layers):
        out.print()
        say("Not in INT8, the costliest first:")
        _print_rows(
            [_with_texts(row) for row in bottlenecks], ("layer", "kind", "precision", "ms", "macs", "why_not_int8")
        )


def _print_rows(rows: list[dict[str, Any]], names: tuple[str, ...] | None = None) -> None:
    from bitfront.cli.printing.output import out, print_table

    if rows:
        out.print()
        shown = [name for name in names or rows[0] if any(row[name] not in (None, "", []) for row in rows)]
        print_table(rows, shown)


def _with_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds to a microsecond, shares in percent, numbers of MACs with a unit."""
    texts = dict(row)
    for name, value in row.items():
        if value is None:
            continue
        if name.endswith("share"):
            texts[name] = f"{value:.1%}"
        elif name.endswith("ms"):
            texts[name] = f"{value:.4g}"
        elif name == "macs":
            texts[name] = f"{value / 1e6:.3g} M"
        elif isinstance(value, list):
            texts[name] = "; ".join(value)
    return texts
