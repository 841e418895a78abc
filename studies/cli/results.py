"""The verbs for what comes of studies, and around them: `export`, `report`, `delete`, `doctor`, `demo`, `dashboard`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from search.errors import ConfigError
from studies.cli.base import err, out, print_finished, print_json, progress_for, verb
from studies.cli.parameters import Json, Picks, Quiet, Storage, Study, WhichTarget
from studies.judging.findings.optimization_levels import compared_levels_text
from studies.judging.sentences.unrelated_outputs import MARK
from studies.options.quantities import format_metric, parse_tolerance
from studies.options.read_options import read_changes

Tolerance = typer.Option(
    "--latency-tolerance",
    help="How far the export's latency may be from that of the measured engine: 5%. [default: the study's tie band]",
    metavar="SHARE",
)
Pick = typer.Option(
    "--pick", help="Which pick: best, accurate, fast, knee or score:0.6,0.4. [default: best]", metavar="PICK"
)
Tools = typer.Option(
    "--for",
    help="Also write the mix for other tools: nncf, polygraphy, modelopt, qat; repeat it or use commas.",
    metavar="TOOL",
)


@verb
def export(
    study: Study,
    folder: Annotated[Path, typer.Option("--out", help="New or empty folder.", metavar="DIR")],
    pick: Annotated[str | None, Pick] = None,
    trial: Annotated[int | None, typer.Option("--trial", help="Export this trial instead.", metavar="N")] = None,
    triton: Annotated[
        str | None, typer.Option("--triton", help="Also write a Triton model of this name.", metavar="NAME")
    ] = None,
    tools: Annotated[list[str] | None, Tools] = None,
    latency_tolerance: Annotated[str | None, Tolerance] = None,
    target: WhichTarget = None,
    storage: Storage = None,
    quiet: Quiet = False,
    **options: Any,
) -> None:
    """Write the chosen engine with its manifest, checked in a fresh process."""
    from studies.export.export import Extras
    from studies.verbs import deliveries

    changes = read_changes(options, "export")
    tolerance = None if latency_tolerance is None else parse_tolerance(latency_tolerance, "--latency-tolerance")
    with progress_for(quiet) as events:
        done = deliveries.export(
            study,
            folder,
            changes,
            pick=pick,
            trial=trial,
            extras=Extras(triton, tuple(dict.fromkeys(name for text in tools or () for name in text.split(",")))),
            latency_tolerance=tolerance,
            storage=storage,
            target=target,
            events=events,
        )
    _print_warnings(done)
    if not quiet:
        _print_exported(done)


@verb
def report(
    study: Study,
    file: Annotated[Path, typer.Option("--out", help="The HTML file.", metavar="FILE")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="Show this target; repeat it to show several side by side. [default: all]",
            metavar="TARGET",
        ),
    ] = None,
    pick: Picks = None,
    storage: Storage = None,
    **options: Any,
) -> None:
    """Write one self-contained HTML file about a study."""
    from studies.verbs import deliveries

    limits = read_changes(options, "report")
    written = deliveries.report(study, file, limits, storage=storage, targets=target or (), picks=pick or ())
    out.print(f"wrote {written}", markup=False)


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
    from studies.verbs import deletion

    deletion.delete(study, storage)
    out.print(f"deleted study {study!r}", markup=False)


@verb
def doctor(
    backend: Annotated[
        str | None, typer.Option("--backend", help="Look at this backend only, for example tensorrt.", metavar="NAME")
    ] = None,
    as_json: Json = False,
) -> None:
    """What is installed, what can run here, and what is missing."""
    from studies.verbs import host_check

    checks = host_check.doctor(backend)
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
    trials: Annotated[int, typer.Option("--trials", help="How many mixes are evaluated.", metavar="N")] = 24,
    quiet: Quiet = False,
) -> None:
    """Search the shipped example, export the best and write the report."""
    from studies.verbs import example

    with progress_for(quiet) as events:
        done = example.demo(folder, trials=trials, events=events)
    if quiet:
        return
    print_finished(done.finished, done.storage)
    _print_warnings(done.engine)
    _print_exported(done.engine)
    out.print(f"report: {done.report}", markup=False)


@verb
def dashboard(
    storage: Storage = None,
    port: Annotated[int, typer.Option("--port", help="Port on this machine.", metavar="N")] = 8080,
) -> None:
    """Start optuna-dashboard on a database."""
    if not 1 <= port <= 65535:
        raise ConfigError(f"--port {port}: expected a port from 1 to 65535. Give another.")
    from studies.verbs import dashboard_server

    command, environment = dashboard_server.dashboard_command(storage, port)
    # It becomes the server: as its parent it would leave it behind when a signal ends it, with the port taken.
    os.execve(command[0], command, environment)


def _print_warnings(done: Any) -> None:
    """On stderr, even where nothing else is printed."""
    for text in (*done.manifest["warnings"], done.warning):
        if text:
            err.print(f"WARNING: {text}", markup=False, soft_wrap=True)


def _print_exported(done: Any) -> None:
    final, limits = done.manifest["final"], {True: "the limits hold", False: "the limits do NOT hold", None: ""}
    sure = {"holds surely": " surely", "holds": ", not surely"}.get(final["verdict"], "")
    tried = f"; {final['tried']} were tried" if final["tried"] > 1 else ""
    out.print(f"exported trial {done.trial} to {done.folder}", markup=False)
    if text := compared_levels_text(done.manifest):
        out.print(text, markup=False, soft_wrap=True)
    ratio = done.manifest["metric"]["ratio"]
    unit = done.manifest["metric"]["unit"]
    low, high = (format_metric(final[key], unit, ratio) for key in ("loss_low", "loss_high"))
    text = f"on the final split: loss {format_metric(final['loss'], unit, ratio)} [{low}, {high}]"
    broken = f"; {MARK}, see the warning" if done.manifest["unrelated_to_fp32"] else ""
    said = f"{limits[done.holds]}{sure}"
    out.print(f"{text}{tried}{'; ' if said else ''}{said}{broken}", markup=False)
    if final["disagreement"] is not None:
        out.print(f"{final['disagreement']['text']}.", markup=False)
