"""Parameters of the command line: those of single verbs, and those of the option table."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bitfront.cli.printing.help_panels import FOLDED, show_all_help
from bitfront.cli.printing.talk import Talk, talking
from search.errors import BitfrontError
from studies.options.option import Option
from studies.options.table import options_of
from studies.options.urls import DEFAULT_STORAGE

_DEFAULTS_OF = ("search", "layers", "evaluate")  # a study that is there has values of its own
# Single options are lists too, so that one given twice is refused and not silently overridden.
Many = list[str] | None


def complete_study(incomplete: str) -> list[str]:
    """Names of studies in the default database that begin so: what a shell offers."""
    from bitfront.verbs import readings

    try:
        return [study.name for study in readings.studies() if study.name.startswith(incomplete)]
    except BitfrontError:  # there is no database here
        return []


def _own(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(f"--{name}", help=text, metavar=metavar)


Storage = Annotated[
    str | None, _own("storage", f"URL of the database that keeps the study. [default: {DEFAULT_STORAGE}]", "URL")
]
Study = Annotated[str, typer.Argument(help="Name of the study.", metavar="STUDY", autocompletion=complete_study)]
Trial = Annotated[int, typer.Argument(help="Number of the trial.", metavar="TRIAL")]
Picks = Annotated[Many, _own("pick", "Also recommend by a weighted score, as score:0.6,0.4. Can be repeated.", "PICK")]
Quiet = Annotated[bool, _own("quiet", "Print nothing but errors.")]
Json = Annotated[bool, _own("json", "Print JSON.")]
Csv = Annotated[bool, _own("csv", "Print CSV.")]
ConfigFile = Annotated[Path | None, _own("config", "TOML file with the names of these options as keys.", "FILE")]
WhichTarget = Annotated[
    str | None,
    _own("target", "Target of the study: its number, its fingerprint or a part of its name. [default: 1]", "TARGET"),
]
NewTarget = Annotated[bool, _own("new-target", "Add this host to the targets of the study.")]


HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show the options of backends too.", is_eager=True, callback=show_all_help),
]
# Verbs that run something, and so take time to tell of.
_RUNNING = (
    *("search", "resume", "worker", "recover", "export", "profile", "remeasure", "compare", "sensitivity"),
    *("evaluate", "gate", "drift", "renew", "demo"),
)
_TALKING = {
    "verbose": (
        (*_RUNNING, "show"),
        Annotated[
            bool, typer.Option("--verbose", "-v", help="Show details too: forecasts, audits and what recovery tried.")
        ],
        False,
    ),
    "log_file": (
        _RUNNING,
        Annotated[Path | None, _own("log-file", "Append all messages to this file.", "FILE")],
        None,
    ),
}


def with_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with a parameter for each row of the option table in the place of its `**options`.

    Arguments come first, then the options of the table, then the verb's own. Verbs that take time also have `--verbose`
    and `--log-file`.
    """

    @functools.wraps(verb)
    def run(**given: Any) -> None:
        given.pop("help_all", None)
        asked = Talk(given.pop("verbose", False), given.pop("log_file", None))
        with talking(asked):
            verb(**given)

    run.__signature__ = _signature_of(verb)  # type: ignore[attr-defined]
    return run


def _signature_of(function: Callable[..., None]) -> inspect.Signature:
    signature = inspect.signature(function, eval_str=True)
    own, verb, keyword = list(signature.parameters.values()), function.__name__, inspect.Parameter.KEYWORD_ONLY
    own += [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (verbs, annotation, default) in _TALKING.items()
        if verb in verbs
    ]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
        return signature.replace(parameters=own)
    named = [each.replace(kind=keyword) for each in own if each.kind is not each.VAR_KEYWORD]
    known = {each.name for each in named}
    rows = [row for row in options_of(verb) if parameter_name(row) not in known]
    if any(row.panel.startswith(FOLDED) for row in rows):
        named.append(inspect.Parameter("help_all", keyword, default=False, annotation=HelpAll))
    table = [_parameter(row, verb) for row in rows]
    is_argument = {each.name: _is_argument(each) for each in (*named, *table)}
    ordered = sorted((*table, *named), key=lambda each: not is_argument[each.name])
    return signature.replace(parameters=ordered)


def parameter_name(row: Option) -> str:
    """What Python calls the parameter of an option."""
    return row.name.replace("-", "_")


def _parameter(row: Option, verb: str) -> inspect.Parameter:
    made = inspect.Parameter(parameter_name(row), inspect.Parameter.KEYWORD_ONLY, default=False if row.flag else None)
    if verb in row.argument:
        info = typer.Argument(help=row.help, metavar=row.name.upper())
        if verb == "search":  # its file may name it
            return made.replace(annotation=Annotated[str | None, info])
        return made.replace(annotation=Annotated[str, info], default=made.empty)
    info = typer.Option(
        f"--{row.name}",
        help=_help(row, verb),
        metavar=None if row.flag else row.metavar,
        show_default=False,
        rich_help_panel=row.panel or None,
    )
    return made.replace(annotation=Annotated[bool if row.flag else Many, info])


def _help(row: Option, verb: str) -> str:
    if verb in row.helps:
        return row.helps[verb]
    tells = row.shown_default and (verb in _DEFAULTS_OF or verb not in ("resume", "worker"))
    return f"{row.help} [default: {row.shown_default}]" if tells else row.help


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any("Argument" in type(each).__name__ for each in getattr(parameter.annotation, "__metadata__", ()))
