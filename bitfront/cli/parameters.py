"""The parameters of a command, made from the signature and the docstring of its verb and from the option table."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from bitfront.cli.help_panels import FOLDED, show_all_help
from bitfront.verbs.command import Typed, printers_of
from search.errors import BitfrontError
from studies.options.config import options_of
from studies.options.option import Option
from studies.options.urls import DEFAULT_STORAGE

_OF_STUDIES = ("resume", "worker")  # a study that is there has values of its own
# Single options are lists too, so that one given twice is refused and not silently overridden.
Many = list[str] | None
# Parameters that stand for rows of the option table, and the one for what is told meanwhile.
FROM_TABLE = ("config", "changes", "limits", "thresholds")
EVENTS = "events"
_OBJECTS = ("own_sampler",)  # objects of Python, which cannot be typed
_EMPTY, _KEYWORD = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY


def complete_study(incomplete: str) -> list[str]:
    """Names of studies in the default database that begin so: what a shell offers."""
    from studies.judging.study_lookup import read_studies

    try:
        return [study.name for study in read_studies() if study.name.startswith(incomplete)]
    except BitfrontError:  # there is no database here
        return []


def _own(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(f"--{name}", help=text, metavar=metavar)


# What verbs share, by the name of the parameter.
SHARED: Mapping[str, Any] = {
    "name": typer.Argument(help="Name of the study.", metavar="STUDY", autocompletion=complete_study),
    "trial": typer.Argument(help="Number of the trial.", metavar="TRIAL"),
    "storage": _own("storage", f"URL of the database that keeps the study. [default: {DEFAULT_STORAGE}]", "URL"),
    "picks": _own("pick", "Also recommend by a weighted score, as score:0.6,0.4. Can be repeated.", "PICK"),
    "target": _own(
        "target", "Target of the study: its number, its fingerprint or a part of its name. [default: 1]", "TARGET"
    ),
    "new_target": _own("new-target", "Add this host to the targets of the study."),
}
Quiet = Annotated[bool, _own("quiet", "Print nothing but errors.")]
Json = Annotated[bool, _own("json", "Print JSON.")]
Csv = Annotated[bool, _own("csv", "Print CSV.")]
Yes = Annotated[bool, _own("yes", "Do it without asking.")]
ConfigFile = Annotated[Path | None, _own("config", "TOML file with the names of these options as keys.", "FILE")]
LogFile = Annotated[Path | None, _own("log-file", "Append all messages to this file.", "FILE")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show details too: forecasts, audits and what recovery tried.")
]
HelpAll = Annotated[
    bool,
    typer.Option("--help-all", help="Show the options of backends too.", is_eager=True, callback=show_all_help),
]


def own_parameters(
    function: Callable[..., Any], *, printer: bool = False
) -> Iterator[tuple[inspect.Parameter, Any, Typed | None]]:
    """The parameters that a verb or its printer has options of its own for, each with its type and how it is typed."""
    space = inspect.unwrap(function).__globals__
    for each in inspect.signature(function).parameters.values():
        if each.name not in (*FROM_TABLE, EVENTS, *_OBJECTS) and not (printer and each.kind is not _KEYWORD):
            kind = eval(each.annotation, dict(space)) if isinstance(each.annotation, str) else each.annotation
            kind, *facts = get_args(kind) if get_origin(kind) is Annotated else (kind,)
            yield each, kind, next((fact for fact in facts if isinstance(fact, Typed)), None)


def signature_of(name: str, function: Callable[..., Any]) -> inspect.Signature:
    from_table = any(each in inspect.signature(function).parameters for each in FROM_TABLE)
    rows: list[Option] = list(options_of(name)) if from_table else []
    wanted = {parameter_name(row) for row in rows}
    texts = argument_texts(function)
    own = [_own_parameter(*facts, texts) for facts in own_parameters(function) if facts[0].name not in wanted]
    for printer in printers_of(function):
        texts = argument_texts(printer.text)
        own += [_own_parameter(*facts, texts) for facts in own_parameters(printer.text, printer=True)]
    common = [
        inspect.Parameter(key, _KEYWORD, default=default, annotation=annotation)
        for key, annotation, default in _common(name, function)
    ]
    known = {each.name for each in own}
    table = [_parameter(row, name) for row in rows if parameter_name(row) not in known]
    if any(row.panel.startswith(FOLDED) for row in rows):
        common.append(inspect.Parameter("help_all", _KEYWORD, default=False, annotation=HelpAll))
    every = [*table, *own, *common]
    is_argument = {each.name: _is_argument(each) for each in every}
    return inspect.Signature(sorted(every, key=lambda each: not is_argument[each.name]))


def _common(name: str, function: Callable[..., Any]) -> Iterator[tuple[str, Any, Any]]:
    """What verbs take that is no parameter of their functions: name, type, default."""
    printers = printers_of(function)
    if name == "search":
        yield "config", ConfigFile, None
    if "question" in function.__dict__:
        yield "yes", Yes, False
    if any(printer.quiet for printer in printers):
        yield "quiet", Quiet, False
    yield "as_json", Json, False
    if any(printer.csv is not None for printer in printers):
        yield "as_csv", Csv, False
    if EVENTS in inspect.signature(function).parameters:
        yield "verbose", Verbose, False
        yield "log_file", LogFile, None


def _own_parameter(
    each: inspect.Parameter, kind: Any, typed: Typed | None, texts: Mapping[str, str]
) -> inspect.Parameter:
    made = inspect.Parameter(each.name, _KEYWORD, default=None if each.default == () else each.default)
    if typed is None and each.name in SHARED:
        return made.replace(annotation=Annotated[_shell_type(kind), SHARED[each.name]])
    text, typed = texts.get(each.name, ""), typed or Typed()
    shell = str | None if typed.read is not None and each.default is None else _shell_type(kind, typed.read)
    if each.kind is not _KEYWORD and not typed.name:
        return made.replace(annotation=Annotated[shell, typer.Argument(help=text, metavar=typed.metavar or None)])
    info = typer.Option(
        typed.name or f"--{each.name.replace('_', '-')}",
        help=text,
        metavar=typed.metavar or None,
        show_default=each.default is not _EMPTY,
    )
    return made.replace(annotation=Annotated[shell, info])


def _shell_type(kind: Any, read: Callable[..., Any] | None = None) -> Any:
    """What Typer reads for a type: of several the text, of a sequence a list."""
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    plain = [part for part in parts if part in (str, int, float, bool, Path)]
    if read is not None:
        return str
    if not plain:
        return Many
    chosen = str if str in plain else plain[0]
    return chosen | None if types.NoneType in parts else chosen


def argument_texts(function: Callable[..., Any]) -> dict[str, str]:
    """What a docstring says of each argument."""
    part = re.search(r"^Args:\n((?: .*\n?|\n(?= ))*)", inspect.getdoc(function) or "", re.MULTILINE)
    entries = re.findall(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", part[1] if part else "", re.MULTILINE)
    return {name: " ".join(text.split()) for names, text in entries for name in names.split(", ")}


def parameter_name(row: Option) -> str:
    """What Python calls the parameter of an option."""
    return row.name.replace("-", "_")


def _parameter(row: Option, verb: str) -> inspect.Parameter:
    made = inspect.Parameter(parameter_name(row), _KEYWORD, default=False if row.flag else None)
    if verb in row.argument:
        info = typer.Argument(help=row.help, metavar=row.name.upper())
        if verb == "search":  # its file may name it
            return made.replace(annotation=Annotated[str | None, info])
        return made.replace(annotation=Annotated[str, info], default=_EMPTY)
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
    tells = row.shown_default and verb not in _OF_STUDIES
    return f"{row.help} [default: {row.shown_default}]" if tells else row.help


def _is_argument(parameter: inspect.Parameter) -> bool:
    return any("Argument" in type(each).__name__ for each in getattr(parameter.annotation, "__metadata__", ()))
