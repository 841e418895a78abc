"""The verbs for results and for housekeeping: `export`, `report`, `delete`, `doctor`, `demo`, `dashboard`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bitfront.cli.base import progress_for, verb
from bitfront.cli.parameters import Json, Picks, Quiet, Storage, Study, WhichTarget
from search.errors import ConfigError
from studies.options.quantities import parse_tolerance
from studies.options.read_options import read_changes

if TYPE_CHECKING:  # it takes a while to import
    from bitfront.verbs.results import Demo
    from studies.export.export import Export

Tolerance = typer.Option(
    "--latency-tolerance",
    help="Largest allowed difference between the latencies of the exported and the measured engine, for example 5%. "
    "[default: the study's tie band]",
    metavar="SHARE",
)
Pick = typer.Option(
    "--pick",
    help="The recommendation to export: best, accurate, fast, knee or score:0.6,0.4. [default: best]",
    metavar="PICK",
)
Tools = typer.Option(
    "--for",
    help="Also write files for other tools: nncf, polygraphy, modelopt, qat. Can be repeated; commas work too.",
    metavar="TOOL",
)


@verb
def export(
    study: Study,
    folder: Annotated[Path, typer.Option("--out", help="New or empty folder.", metavar="DIR")],
    pick: Annotated[str | None, Pick] = None,
    trial: Annotated[
        int | None,
        typer.Option("--trial", help="Number of the trial to export instead of a recommendation.", metavar="N"),
    ] = None,
    triton: Annotated[
        str | None,
        typer.Option("--triton", help="Also write a model of this name for the Triton server.", metavar="NAME"),
    ] = None,
    tools: Annotated[list[str] | None, Tools] = None,
    latency_tolerance: Annotated[str | None, Tolerance] = None,
    target: WhichTarget = None,
    storage: Storage = None,
    quiet: Quiet = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Write the chosen engine to a folder, with a description and a program that runs it, and check it."""
    from bitfront.cli.printing.output import print_json
    from bitfront.verbs import deliveries
    from studies.export.export import Extras

    changes = read_changes(options, "export")
    tolerance = None if latency_tolerance is None else parse_tolerance(latency_tolerance, "--latency-tolerance")
    with progress_for(quiet or as_json) as events:
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
    if as_json:
        print_json("export", {"folder": str(done.folder), "trial": done.trial, "manifest": done.manifest})
    elif not quiet:
        _print_exported(done)


@verb
def report(
    study: Study,
    file: Annotated[Path, typer.Option("--out", help="The HTML file to write.", metavar="FILE")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="Target to show. Can be repeated, to show several side by side. [default: all]",
            metavar="TARGET",
        ),
    ] = None,
    pick: Picks = None,
    storage: Storage = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Write a report about a study as one HTML file that needs no network."""
    from bitfront.cli.printing.output import print_json, say
    from bitfront.verbs import deliveries

    limits = read_changes(options, "report")
    written = deliveries.report(study, file, limits, storage=storage, targets=target or (), picks=pick or ())
    if as_json:
        print_json("report", {"file": str(written)})
    else:
        say(f"Wrote {written}.")


@verb
def delete(
    study: Study,
    storage: Storage = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a study with its evaluations and engines."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(
                f"deleting study {study!r}: expected a terminal to ask for confirmation. Add --yes to delete without "
                "asking."
            )
        typer.confirm(f"Delete study {study!r} with all its evaluations and engines?", abort=True)
    from bitfront.cli.printing.output import print_json, say
    from bitfront.verbs import deletion

    deletion.delete(study, storage)
    if as_json:
        print_json("delete", {"deleted": study})
    else:
        say(f"Deleted study {study!r}.")


@verb
def doctor(
    backend: Annotated[
        str | None, typer.Option("--backend", help="Check this backend only, for example tensorrt.", metavar="NAME")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what is installed, what can run here, and what is missing."""
    from rich.text import Text

    from bitfront.cli.printing.output import out, print_json, terminal_width
    from bitfront.verbs import host_check
    from studies.show.terminal.wrapping import wrapped

    checks = host_check.doctor(backend)
    if as_json:
        print_json("doctor", {"checks": [vars(check) for check in checks]})
    else:
        for check in checks:
            mark = ("ok      ", "green") if check.good else ("missing ", "red")
            said = f"{check.name}: {check.found}" + (f". {check.advice}" if check.advice else "")
            first, *others = wrapped(said, None if (width := terminal_width()) is None else width - 8)
            out.print(Text.assemble(mark, first), soft_wrap=True)
            for line in others:
                out.print(Text(" " * 8 + line), soft_wrap=True)
    if not any(check.good and check.name.startswith("backend") for check in checks):
        raise typer.Exit(1)


@verb
def demo(
    folder: Annotated[Path, typer.Option("--out", help="New or empty folder.", metavar="DIR")] = Path("demo"),
    trials: Annotated[
        int,
        typer.Option(
            "--trials",
            help="How many mixes of precisions are evaluated, at most: the search ends after 4 minutes.",
            metavar="N",
        ),
    ] = 24,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Search the example that comes with bitfront, export the best mix and write the report."""
    from bitfront.cli.printing.output import print_json, warn
    from bitfront.verbs import example

    with progress_for(quiet or as_json) as events:
        done = example.demo(folder, trials=trials, events=events)
    if as_json:
        found: dict[str, Any] = {"folder": None, "trial": None}
        if done.engine is not None:
            found = {"folder": str(done.engine.folder), "trial": done.engine.trial}
        places = {"storage": done.storage, "report": str(done.report)}
        print_json("demo", {**places, **found, "missed_point": done.missed_point or None})
    elif not quiet:
        _print_demo(done)
    if done.missed_point:
        warn(f"THE DEMO DID NOT SHOW ITS POINT, which is that a mix beats every single precision: {done.missed_point}.")


@verb
def dashboard(
    storage: Storage = None,
    port: Annotated[
        int, typer.Option("--port", help="Port on this machine where the dashboard is served.", metavar="N")
    ] = 8080,
    as_json: Json = False,
) -> None:
    """Start optuna-dashboard on the studies of a database."""
    if not 1 <= port <= 65535:
        raise ConfigError(f"--port {port}: expected a port from 1 to 65535. Give another.")
    from bitfront.cli.printing.output import json_line
    from bitfront.verbs import dashboard_server

    said = json_line("dashboard", {"url": dashboard_server.dashboard_url(port)}) if as_json else ""
    command, environment = dashboard_server.dashboard_command(storage, port, said)
    # It becomes the server: as its parent it would leave it behind when a signal ends it, with the port taken.
    os.execve(command[0], command, environment)


def _print_demo(done: Demo) -> None:
    """What was found, where it lies, and commands that work from the current folder."""
    from bitfront.cli.printing.output import out, say, say_command
    from bitfront.cli.printing.study_results import print_finished
    from studies.store.suggestions import command

    print_finished(done.finished, exported=True)
    out.print()
    if done.engine is not None:
        _print_warnings(done.engine)
        _print_exported(done.engine)
    say(f"Report: {done.report}")
    say(f"Database: {done.report.parent / 'bitfront.db'}")
    say_command("Judge by another limit:", command("front", "exposures", "--max-drop", "3%", storage=done.storage))


def _print_warnings(done: Export) -> None:
    """On stderr, even where nothing else is printed."""
    from bitfront.cli.printing.output import warn

    for text in (*done.manifest["warnings"], done.warning):
        if text:
            warn(text)


def _print_exported(done: Export) -> None:
    from bitfront.cli.printing.output import say
    from studies.judging.findings.optimization_levels import compared_levels_text

    say(f"exported trial {done.trial} to {done.folder}")
    if text := compared_levels_text(done.manifest):
        say(text)
    say(done.final_text)
    if text := done.manifest["no_gain"]:
        say(f"{text}.")
    if done.manifest["final"]["disagreement"] is not None:
        say(f"{done.manifest['final']['disagreement']['text']}.")
