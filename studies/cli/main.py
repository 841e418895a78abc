"""The command line: which verb is in which module. Only this package prints and exits.

Exit codes: 0 done, 2 refused before anything was made, 1 a run that could not go on, 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from evaluators.late_imports import import_late
from studies import __version__, outputs
from studies.run_clock import note_command

# Each verb with the module it is in, as `--help` lists them. A process imports that of its own verb alone.
VERBS = {
    "search": "search",
    "resume": "search",
    "worker": "workers",
    "status": "reading",
    "front": "reading",
    "show": "reading",
    "export": "results",
    "report": "results",
    "layers": "analyses",
    "profile": "analyses",
    "remeasure": "analyses",
    "compare": "analyses",
    "sensitivity": "analyses",
    "studies": "reading",
    "delete": "results",
    "doctor": "results",
    "demo": "results",
    "dashboard": "results",
}


def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Find the INT8/FP16/FP32 mix, layer by layer, that makes an ONNX model fast and keeps it accurate."""
    if version:
        typer.echo(f"bitfront {__version__}")
        raise typer.Exit


def program(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """The command line with these verbs: making the options of all takes longer than reading a study."""
    app = typer.Typer(
        name="bitfront",
        help=top.__doc__,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback(invoke_without_command=True)(top)
    for verb in verbs:
        app.command(verb)(getattr(importlib.import_module(f"studies.cli.{VERBS[verb]}"), verb))
    return app


def program_for(words: Sequence[str]) -> typer.Typer:
    """The command line with the verb that these words begin with; with all where it is none of them."""
    if list(words) == ["--version"]:
        return program(())
    return program([word for word in words[:1] if word in VERBS] or VERBS)


def main() -> None:
    """Entry point of the `bitfront` command."""
    outputs.prepare()
    import_late()
    note_command()
    try:
        start = program_for(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are imported, which takes a while
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    start()
