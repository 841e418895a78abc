"""The command line: which verb is in which module. Only this package prints and exits.

Exit codes: 0 done, 2 refused before anything was made, 1 a run that could not go on or a gate that fails, 3 a gate that
was not judged, 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Annotated

import typer

from evaluators.late_imports import import_late
from search.errors import BitfrontError, ConfigError
from studies import __version__, outputs
from studies.cli.parameters import with_options
from studies.options.limits import add_installed_limits
from studies.run_clock import note_command

GROUP = "bitfront.verbs"  # of entry points, by which other packages add theirs: `verb = "package.module:verb"`
# Each verb with the module that has it, as `--help` lists them. A process imports that of its own verb alone.
VERBS = {
    "search": "studies.cli.search",
    "resume": "studies.cli.search",
    "worker": "studies.cli.search",
    "status": "studies.cli.reading",
    "front": "studies.cli.reading",
    "show": "studies.cli.reading",
    "recover": "studies.cli.recover",
    "export": "studies.cli.results",
    "report": "studies.cli.results",
    "layers": "studies.cli.analyses",
    "profile": "studies.cli.analyses",
    "remeasure": "studies.cli.analyses",
    "compare": "studies.cli.analyses",
    "sensitivity": "studies.cli.analyses",
    "evaluate": "studies.cli.analyses",
    "inspect": "studies.cli.engine_files",
    "gate": "studies.cli.engine_files",
    "drift": "studies.cli.fresh_data",
    "renew": "studies.cli.fresh_data",
    "studies": "studies.cli.reading",
    "delete": "studies.cli.results",
    "doctor": "studies.cli.results",
    "demo": "studies.cli.results",
    "dashboard": "studies.cli.results",
}


def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Find the INT8/FP16/FP32 mix, layer by layer, that makes an ONNX model fast and keeps it accurate."""
    if version:
        typer.echo(f"bitfront {__version__}")
        raise typer.Exit


def register_verb(name: str, module: str) -> None:
    """Add a verb: a function of this name in a module, made by `studies.cli.base.verb`.

    Raises:
        ConfigError: there is a verb of this name.
    """
    if name in VERBS:
        raise ConfigError(f"registering the verb {name}: expected a new name, got one of {VERBS[name]}; choose another")
    VERBS[name] = module


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
        app.command(verb)(with_options(_load(verb)))
    return app


def _load(verb: str) -> Callable[..., None]:
    """The function of a verb.

    Raises:
        ConfigError: it is one of another package, whose module cannot be imported or has no such function.
    """
    module = VERBS[verb]
    try:
        return getattr(importlib.import_module(module), verb)  # type: ignore[no-any-return]
    except Exception as error:
        if module.startswith("studies."):
            raise
        raise ConfigError(
            f"adding the verb {verb} of another package: importing {verb} from {module} failed with "
            f"{type(error).__name__}: {error}. Mend or remove that package."
        ) from error


def program_for(words: Sequence[str]) -> typer.Typer:
    """The command line with the verb that these words begin with; with all where it is none of them."""
    if list(words) == ["--version"]:
        return program(())
    add_installed_limits()
    if not words or words[0] not in VERBS:
        _add_installed()
    return program([word for word in words[:1] if word in VERBS] or VERBS)


def _add_installed() -> None:
    """Add the verbs that installed packages have; those of this package keep their names."""
    for point in entry_points(group=GROUP):
        VERBS.setdefault(point.name, point.module)


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
    except BitfrontError as error:  # of another package, which adds verbs or limits
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    start()
