"""Functions that a study names in its database: they run only where this machine's user has allowed them.

Whoever can write a database can name any function in it. What the command itself was given is the user's own; anything
else has to be in a list of this user, which has every function that was named here when a study was made or continued.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from platformdirs import user_state_path

from evaluators.backends.registry import shipped_kinds
from evaluators.metrics.own.handed_metric import is_handed
from search.errors import ConfigError
from search.references import absolute_reference, names_function
from studies.events import Events
from studies.options.config import SearchConfig, option_rows
from studies.options.option import raise_mistakes
from studies.store.database.database_url import hide_password, parse_url

_SOURCES = ("data", "calibration_data", "final_data")  # each may also be a file or a folder
NAMED_AGAIN = ("metric", "decode", "preprocess", "sampler")  # what resume, worker and export take to allow it
_NAMES = ("metric", "decode", "preprocess", "sampler", "backend")
_LENT_SAMPLER = "bitfront.samplers:Given"  # stands for an object of the calling process, and runs nothing else

Function = tuple[str, str]  # the field of the configuration, and the name of the function


def take_names_again(config: SearchConfig, stored: SearchConfig, metric: str) -> SearchConfig:
    """A configuration in which what was named again is written as the study has it, and still counts as given.

    Args:
        config: the stored one with what this command was given.
        metric: the name of the study's, which its data may have chosen.

    Raises:
        ConfigError: the study has another metric, decoding, preprocessing or sampler.
    """
    options = {row.key: row for row in option_rows()}
    problems = []
    for field in NAMED_AGAIN:
        value, known = getattr(config, field), getattr(stored, field) or (metric if field == "metric" else None)
        if options[field].name in config.given and absolute_reference(value) != absolute_reference(known or ""):
            problems.append(
                f"{options[field].shown} {value}: study {config.study!r} was made with {known or 'none'}, which cannot "
                "change. Give the same or leave the option out; start a new study for another."
            )
    raise_mistakes(problems)
    return replace(config, **{field: getattr(stored, field) for field in NAMED_AGAIN})


def check_trusted(config: SearchConfig) -> None:
    """Refuse functions that only the database names, where this user has not allowed them; imports nothing.

    Args:
        config: `study` and `storage` say which study it is; what `given` names was given just now.

    Raises:
        ConfigError: naming each function with its option.
    """
    if config.trust_functions:
        return
    options = {row.key: row for row in option_rows()}
    foreign = [(field, name) for field, name in named_functions(config) if options[field].name not in config.given]
    unknown = sorted({*foreign} - _read_allowed(config))
    if unknown:
        named = "\n".join(f"  - {options[field].shown} {name}" for field, name in unknown)
        again = "If you trust it, name it again with the same options, which resume, worker and export take. "
        again = again if {*dict(unknown)} <= {*NAMED_AGAIN} else ""
        raise ConfigError(
            f"opening study {config.study!r}: its database {_shown_url(config)} names code that would run here, and "
            f"this user has not allowed it:\n{named}\n{again}If you trust "
            "everyone who can write this database, add --trust-functions."
        )


def remember_functions(config: SearchConfig, events: Events) -> None:
    """Allow the functions that this command was given, or was told to trust, from now on.

    Args:
        events: told where that cannot be remembered.
    """
    options = {row.key: row for row in option_rows()}
    named = [
        (field, name)
        for field, name in named_functions(config)
        if config.trust_functions or options[field].name in config.given
    ]
    lines = [json.dumps([*_key(config), *each]) for each in sorted({*named} - _read_allowed(config))]
    if not lines:
        return
    try:
        path = _list_path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))  # one write, so that lines of two processes stay whole
    except (OSError, RuntimeError) as error:
        events.note(
            f"this study's functions could not be remembered as allowed ({error}). Other commands need "
            "--trust-functions, or set XDG_STATE_HOME to a folder that can be written"
        )


def named_functions(config: SearchConfig) -> Iterator[Function]:
    """Everything in a configuration that is imported or loaded as code, with paths from the root."""
    for field in _SOURCES:
        source = getattr(config, field)
        if source and names_function(source) and not Path(source).exists():
            yield field, absolute_reference(source)
    for field in _NAMES:
        name = getattr(config, field)
        if name and ":" in name and not is_handed(name) and name != _LENT_SAMPLER:
            yield field, absolute_reference(name)
    for name in map(str.strip, config.recover.split(",")):
        if ":" in name:
            yield "recover", name
    for keyword in {row.keyword for kind in shipped_kinds() for row in kind.options if row.type == "file"}:
        for path in config.builder_option(keyword) or ():  # libraries of plugins
            yield keyword, str(Path(path).absolute())


def _read_allowed(config: SearchConfig) -> set[Function]:
    """What this user has allowed of a study."""
    try:
        lines = _list_path().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError, RuntimeError):
        return set()
    return {(field, name) for *key, field, name in map(_parse, lines) if key == _key(config)}


def _parse(line: str) -> list[str]:
    """One line of the list; what is none allows nothing."""
    try:
        parts = json.loads(line)
    except ValueError:
        parts = None
    whole = isinstance(parts, list) and len(parts) == 4 and all(isinstance(each, str) for each in parts)
    return parts if whole else ["", "", "", ""]


def _key(config: SearchConfig) -> list[str]:
    return [_shown_url(config), config.study]


def _shown_url(config: SearchConfig) -> str:
    return hide_password(parse_url(config.storage))


def _list_path() -> Path:
    """The list, in this user's folder for state: ~/.local/state on Linux; RuntimeError where the user has no home."""
    return user_state_path("bitfront", appauthor=False) / "allowed-functions.jsonl"
