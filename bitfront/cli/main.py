"""The program: the modules of all verbs, and the exit codes.

Exit codes: 0 done, 2 refused before anything was made, 1 a run that could not go on or a gate that fails, 3 a gate that
was not judged, 130 interrupted.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Annotated

import typer

from bitfront.cli.help_panels import WIDEST, PanelCommand, PanelGroup
from search.errors import BitfrontError, ConfigError
from studies import __version__, outputs

COMPLETE = "_BITFRONT_COMPLETE"  # set where a shell asks how a line may go on
GROUP = "bitfront.verbs"  # of entry points, by which other packages add theirs: `verb = "package.module:verb"`
SEARCH, LOOK, DELIVER, DIAGNOSE, KEEP = (
    "Search",
    "Look at a study",
    "Deliver and watch engines",
    "Look into models and engines",
    "Housekeeping",
)


@dataclass(frozen=True)
class VerbRow:
    """A verb as `--help` lists it.

    Attributes:
        module: that has its function, in `bitfront.verbs` for a verb with a panel; a process imports that of its own
            verb alone.
        panel: the heading that it stands under; empty for a verb of another package.
        summary: one line; empty for that of its function.
    """

    module: str
    panel: str = ""
    summary: str = ""


VERBS: dict[str, VerbRow] = {
    "search": VerbRow("searches", SEARCH, "Search for the fastest mix of precisions within your limits."),
    "resume": VerbRow("searches", SEARCH, "Continue, extend, measure or calibrate a study again."),
    "worker": VerbRow("searches", SEARCH, "Work on a study together with other processes and hosts."),
    "demo": VerbRow("example", SEARCH, "Search an example, export the best mix, write the report."),
    "front": VerbRow("readings", LOOK, "Show the best evaluations of a study beside FP32 and INT8."),
    "show": VerbRow("readings", LOOK, "Show one evaluation, layer by layer, or its layers' times."),
    "status": VerbRow("readings", LOOK, "Show the progress of a study, or list the studies."),
    "report": VerbRow("deliveries", LOOK, "Write a report about a study as one HTML file."),
    "export": VerbRow("deliveries", DELIVER, "Write the chosen engine to a folder and check it."),
    "gate": VerbRow("engine_files", DELIVER, "Judge a new engine against a baseline, for example in CI."),
    "drift": VerbRow("analyses", DELIVER, "Test whether fresh data still resemble the calibration data."),
    "recover": VerbRow("deliveries", DIAGNOSE, "Reduce the loss of INT8 at no cost in latency."),
    "evaluate": VerbRow("analyses", DIAGNOSE, "Measure one given mix of precisions beside FP32."),
    "sensitivity": VerbRow("analyses", DIAGNOSE, "Show how much each layer alone loses in INT8, and why."),
    "compare": VerbRow("analyses", DIAGNOSE, "Compare the outputs of an engine with ONNX Runtime's."),
    "inspect": VerbRow("engine_files", DIAGNOSE, "Show the layers of an engine, or those of a float model."),
    "delete": VerbRow("searches", KEEP, "Delete a study with its engines."),
    "doctor": VerbRow("host_check", KEEP, "Show what is installed and what is missing."),
    "dashboard": VerbRow("dashboard_server", KEEP, "Start optuna-dashboard on the studies of a database."),
}


_MOVED = {  # verbs of earlier versions, and what does their work
    "trials": "front STUDY --all",
    "studies": "status",
    "remeasure": "resume STUDY --remeasure doubtful",
    "layers": "inspect MODEL",
    "profile": "show STUDY TRIAL --profile",
    "renew": "resume STUDY --as NAME --data DATA",
}


def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Find the number format of each layer, from INT4 to FP32, that makes an ONNX model fast and keeps it accurate."""
    if version:
        typer.echo(f"bitfront {__version__}")
        raise typer.Exit


def register_verb(name: str, module: str) -> None:
    """Add a verb: a function of this name in a module, with a printer, see `bitfront.verbs.command`.

    Raises:
        ConfigError: there is a verb of this name.
    """
    if name in VERBS:
        raise ConfigError(
            f"registering the verb {name}: expected a new name, got that of a verb of {VERBS[name].module}; choose "
            "another"
        )
    VERBS[name] = VerbRow(module)


def program(verbs: Iterable[str] | None = None) -> typer.Typer:
    """The command line.

    Args:
        verbs: those that are loaded; None for all. Of the others, which take longer to load than a study takes to read,
            there is what `--help` lists.
    """
    app = typer.Typer(
        name="bitfront",
        cls=PanelGroup,
        help=top.__doc__,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"max_content_width": WIDEST},
    )
    app.callback(invoke_without_command=True)(top)
    loaded = set(VERBS if verbs is None else verbs)
    for name, row in VERBS.items():
        whole = name in loaded or not row.summary
        app.command(
            name,
            cls=PanelCommand,
            help=None if whole else row.summary,
            short_help=row.summary or None,
            rich_help_panel=row.panel or None,
            context_settings={"max_content_width": WIDEST},
        )(_function_of(name) if whole else _not_loaded)
    return app


def _function_of(verb: str) -> Callable[..., None]:
    """What runs a verb, with its options."""
    from bitfront.cli.calling import make_command  # it imports NumPy, which the list of verbs does without
    from studies.options.limits import add_installed_limits

    add_installed_limits()
    return make_command(verb, _load(verb))


def _not_loaded() -> None:
    """Stands for a verb that is only listed."""


def _load(verb: str) -> Callable[..., None]:
    """The function of a verb.

    Raises:
        ConfigError: it is one of another package, whose module cannot be imported or has no such function.
    """
    module = VERBS[verb].module
    if VERBS[verb].panel:
        return getattr(importlib.import_module(f"bitfront.verbs.{module}"), verb)  # type: ignore[no-any-return]
    try:
        return getattr(importlib.import_module(module), verb)  # type: ignore[no-any-return]
    except Exception as error:
        raise ConfigError(
            f"adding the verb {verb} of another package: importing {verb} from {module} failed with "
            f"{type(error).__name__}: {error}. Correct or remove that package."
        ) from error


def program_for(words: Sequence[str]) -> typer.Typer:
    """The command line with the verb that these words name loaded."""
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in VERBS and list(words) != ["--version"]:
        # Add the verbs that installed packages have; those of this package keep their names.
        for point in entry_points(group=GROUP):
            VERBS.setdefault(point.name, VerbRow(point.module))
    return program([verb] if verb in VERBS else ())


def _words() -> list[str]:
    """What was typed; where a shell asks how to complete a line, that line."""
    if COMPLETE not in os.environ:
        return sys.argv[1:]
    return os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()[1:]


def main() -> None:
    """Entry point of the `bitfront` command."""
    outputs.prepare()
    gc.set_threshold(50_000)  # a graph of 20,000 nodes is a million objects, all of which stay
    words = _words()
    try:
        if words[:1] and words[0] in VERBS and "--help" not in words:
            # What a verb needs before anything else is imported; help does without.
            from evaluators.late_imports import import_late
            from studies.run_clock import note_command

            import_late()
            note_command()
        start = program_for(words)
        if words and words[0] in _MOVED.keys() - VERBS.keys():
            raise ConfigError(f"bitfront {words[0]}: this is bitfront {_MOVED[words[0]]} now.")
    except KeyboardInterrupt:  # while modules are imported, which takes a while
        sys.stderr.write("interrupted\n")
        sys.exit(130)
    except BitfrontError as error:  # also of another package, which adds verbs or limits
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    start()
