"""Calling a verb with what was typed, and showing its result."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import typer

from bitfront.cli.base import progress_for, resumable, verb
from bitfront.cli.parameters import EVENTS, own_parameters, signature_of
from bitfront.printing.talk import Talk, set_talk
from bitfront.verbs.command import Printer, printers_of
from search.errors import ConfigError
from studies.options.config import options_of
from studies.options.diagnosis.thresholds import split_thresholds
from studies.options.read_options import read_changes, read_config

_GOES_ON = {"search": "resume", "resume": "resume", "worker": "worker"}  # the verb by which an interrupted one goes on


def make_command(name: str, function: Callable[..., Any]) -> Callable[..., None]:
    """The command of a verb: arguments first, then rows of the option table, then the verb's own options."""

    def run(**values: Any) -> None:
        values.pop("help_all", None)
        call_verb(name, function, values)

    command, signature = verb(run), signature_of(name, function)
    command.__doc__ = (inspect.getdoc(function) or "").partition("\n\n")[0]
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def call_verb(name: str, function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Call a verb as it was typed, and show what it gives.

    Args:
        values: option → value as typed, without what was not typed or with its default.
    """
    _confirm(function, values)
    talk = Talk(name, values.pop("verbose", False), values.pop("log_file", None))
    forms = {form: values.pop(form, False) for form in ("quiet", "as_json", "as_csv")}
    if forms["as_json"] and forms["as_csv"]:
        raise ConfigError(f"bitfront {name}: --json and --csv were both given. Give one of them.")
    printers = printers_of(function)
    texts = [printer.text for printer in printers]
    printed = {
        key: value
        for text in texts
        for key, value in _own_values(own_parameters(text, printer=True), values, none=True)
    }
    arguments = _read(name, function, values, quiet=forms["quiet"])
    forms["quiet"] = forms["quiet"] or getattr(arguments.get("config"), "quiet", False)
    if name == "worker" and _has_parent():
        _tell_parent(function, arguments)
        return
    with set_talk(talk):
        outcome = _call(name, function, arguments, forms, printers)
        printer = next(each for each in printers if each.kind in ("", type(outcome).__name__))
        own = {key: value for key, value in printed.items() if key in inspect.signature(printer.text).parameters}
        _show(name, outcome, printer, forms, own)


def _confirm(function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Ask on a terminal, unless `--yes` was typed."""
    question = function.__dict__.get("question")
    if question is None or values.pop("yes"):
        return
    question = question.format(**values)
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Expected a terminal to ask on. Add --yes to do it without asking.")
    typer.confirm(question, abort=True)


def _read(name: str, function: Callable[..., Any], values: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """The arguments of a verb from what was typed."""
    names = inspect.signature(function).parameters
    arguments = dict(_own_values(own_parameters(function), values))
    rows = {key: values[key] for key in (row.name.replace("-", "_") for row in options_of(name)) if key in values}
    if "thresholds" in names:
        arguments["thresholds"], rows = split_thresholds(rows)
    if "config" in names:
        arguments["config"] = read_config({**rows, "quiet": quiet}, values.get("config"))
    for each in ("changes", "limits"):
        if each in names:
            arguments[each] = read_changes(rows, name)
            if "data" in names:
                arguments["data"] = arguments[each].pop("data", "")
    return arguments


def _own_values(parameters: Iterable[Any], values: Mapping[str, Any], *, none: bool = False) -> Iterator[Any]:
    """What was typed of some parameters, by name.

    Args:
        none: give those too that were not typed and have no default.
    """
    for each, _, typed in parameters:
        value = values.get(each.name)
        if value is not None and typed is not None and typed.read is not None:
            value = typed.read(value, typed.name or f"--{each.name.replace('_', '-')}")
        if value is not None or none:
            yield each.name, tuple(value) if isinstance(value, list) else value


def _call(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], forms: Mapping[str, bool], printers: Any
) -> Any:
    """What a verb gives, while it tells what happens."""
    if EVENTS not in inspect.signature(function).parameters:
        return function(**arguments)
    silent = forms["quiet"] or ((forms["as_json"] or forms["as_csv"]) and not printers[0].tells)
    with ExitStack() as stack:
        events = stack.enter_context(progress_for(silent))
        if name in _GOES_ON:
            stack.enter_context(_say_how_to_go_on(name, arguments))
        return function(**arguments, events=events)


@contextmanager
def _say_how_to_go_on(name: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Say how to go on with a search that is interrupted or cannot go on."""
    config = arguments.get("config")
    study, storage = (arguments["name"], arguments.get("storage")) if config is None else (config.study, config.storage)
    counts = vars(config) if config is not None else arguments["changes"] if name == "resume" else {}
    words = {
        **{key: counts.get(key) for key in ("gpus", "workers")},
        "target": arguments.get("target"),
        "deliver": arguments.get("deliver"),
    }
    more = [word for key, value in words.items() if value is not None for word in (f"--{key}", shlex.quote(str(value)))]
    with resumable(study, storage, _GOES_ON[name], more):
        yield


def _has_parent() -> bool:
    from studies.fleet import processes  # reading verbs do without it

    return processes.follow()


def _tell_parent(work: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Work for the process that started this one, and tell it why that ended."""
    from bitfront.printing.output import err
    from studies.fleet import processes
    from studies.run.stop import UnreachableLimitError
    from studies.show.progress_display import Notes
    from studies.store.database.retries import known_server

    try:
        with _say_how_to_go_on("worker", arguments), known_server():  # to its parent, which has made the study there
            sys.stdout.write(f"{processes.DONE}{work(**arguments, events=Notes(err)).reason}\n")
    except UnreachableLimitError as error:
        sys.stdout.write(f"{processes.UNREACHABLE}{error}\n")
        raise typer.Exit(1) from None


def _show(name: str, outcome: Any, printer: Printer, forms: Mapping[str, bool], own: Mapping[str, Any]) -> None:
    from bitfront.printing.output import print_csv, print_json, print_json_line

    if forms["as_json"] and isinstance(outcome, Iterator):
        for each in outcome:
            print_json_line(name, each.to_json())
            sys.stdout.flush()
    elif forms["as_json"]:
        print_json(name, outcome.to_json() if printer.json is None else printer.json(outcome, **own))
    elif forms["as_csv"]:
        if printer.csv is None:
            raise ConfigError(f"bitfront {name}: this has no rows for --csv. Leave it out, or give --json.")
        print_csv(printer.csv(outcome, **own))
    elif not forms["quiet"]:
        printer.text(outcome, **own)
    if printer.warn is not None:
        printer.warn(outcome)
    if printer.write is not None:
        printer.write(outcome, **own)
    if printer.exit_code is not None:
        raise typer.Exit(printer.exit_code(outcome))
