"""Reading and checking all given options, from the command line or a TOML file."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from search.errors import ConfigError
from search.space.range_rules import RangeRule
from search.space.rules import KeepRule
from studies.options.config import SearchConfig, option_rows, option_table, options_of
from studies.options.limits import check_names
from studies.options.option import Option, raise_mistakes
from studies.options.quantities import ShapeSpec
from studies.options.urls import mask_password


def read_config(options: Mapping[str, Any], config_file: Path | None = None) -> SearchConfig:
    """Check what the command line and the configuration file say, as a whole.

    Args:
        options: option name (`latency-budget` or `latency_budget`) → its raw text, a list of texts for repeated
            options, True for flags; None, False and [] mean not given. A list is taken for any option, so that a
            command line that collects them can have a repetition refused.
        config_file: TOML with the same names; the command line goes before it, option by option.
            Paths in it are relative to the working directory, as on the command line.

    Raises:
        ConfigError: one, naming every unknown, repeated, missing or unreadable option.
    """
    problems: list[str] = []
    table = option_table()
    file_options = _find_options(_load(config_file), table, f" in {config_file}", problems) if config_file else {}
    command_options = _find_options(options, table, "", problems)
    values = _read({**file_options, **command_options}, problems)
    problems.extend(
        f"{table[name].shown} is missing: {what}"
        for name, what in (("model", "give the ONNX file to search"), ("data", "give --data with a file or folder"))
        if name not in file_options and name not in command_options
    )
    _check_together(values, problems)
    raise_mistakes(problems)
    overrides, all_names = file_options.keys() & command_options.keys(), file_options.keys() | command_options.keys()
    required = {name: values.pop(name) for name in ("model", "data")}
    made = replace(SearchConfig(**required).with_values(values, tuple(all_names)), overrides=tuple(sorted(overrides)))
    return made if "study" in values else replace(made, study=Path(made.model).stem)


def read_changes(options: Mapping[str, Any], verb: str = "search") -> dict[str, Any]:
    """What a verb was given for a study that is there, as `change_config` takes it.

    Args:
        options: as of `read_config`.
        verb: whose options there are.

    Raises:
        ConfigError: naming every option that the verb does not take or that cannot be read.
    """
    problems: list[str] = []
    values = _read(_find_options(options, {row.name: row for row in options_of(verb)}, "", problems), problems)
    raise_mistakes(problems)
    return values


def change_config(config: SearchConfig, changes: Mapping[str, Any]) -> SearchConfig:
    """A configuration with other values, checked.

    Args:
        changes: by name as `SearchConfig.changed` takes them.

    Raises:
        ConfigError: naming every name that there is none of and every value that cannot be used.
    """
    rows = {row.key: row for row in option_rows()}
    unknown = [name for name in changes if name not in rows]
    problems = [f"{name!r}: there is no such option; " + _advice(name, rows) for name in unknown]
    known = {name: value for name, value in changes.items() if name in rows}
    problems += _value_problems(known, rows)
    raise_mistakes(problems)
    return config.with_values(known, tuple(rows[name].name for name in known))


def check_config(config: SearchConfig, *, needs_data: bool = True) -> SearchConfig:
    """A configuration that was made in Python, checked; `given` names the options that differ from their defaults.

    Args:
        needs_data: False where `data` may be empty.

    Raises:
        ConfigError: naming every value that cannot be used.
    """
    rows = {row.key: row for row in option_rows()}
    check_names(config.limits)
    plain = {each.name: getattr(config, each.name) for each in fields(config) if each.name in rows}
    values = {**plain, **config.limits, **config.builder_options}
    changes = {name: value for name, value in values.items() if name in rows and value != rows[name].default}
    if not needs_data and not config.data:
        del changes["data"]
    problems = [f"{name!r}: no backend has this option" for name in values if name not in rows]
    problems += _value_problems(changes, rows)
    _check_together(values, problems)
    raise_mistakes(problems)
    return config if config.given else replace(config, given=tuple(sorted(rows[name].name for name in changes)))


def _value_problems(values: Mapping[str, Any], rows: Mapping[str, Option]) -> list[str]:
    """Why values that were not read from texts cannot be used: they are written as texts, and these are read."""
    problems: list[str] = []
    for name, value in values.items():
        row = rows[name]
        if value is None or row.flag:
            continue
        for each in value if row.many else (value,):
            _attempt(problems, row.kind.read, row.text_of(each), name)
    return problems


@dataclass(frozen=True)
class _RawOption:
    """One option as it was given: the raw value, and ` in study.toml` when it comes from there."""

    option: Option
    value: Any
    where: str

    @property
    def shown(self) -> str:
        return f"{self.option.shown}{self.where}"


def _load(path: Path) -> dict[str, Any]:
    """The keys of a TOML file; raises ConfigError when it cannot be read."""
    # By name: type checkers would look for the backport, which newer Pythons do not install.
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path}: expected a readable TOML file, got {error.strerror}; check it") from error
    except ValueError as error:
        raise ConfigError(f"--config {path}: expected TOML in UTF-8, got {error}; correct it there") from error
    return data


def _find_options(
    items: Mapping[str, Any], table: Mapping[str, Option], where: str, problems: list[str]
) -> dict[str, _RawOption]:
    """The options that were given, by name; unknown and repeated names go to `problems`."""
    by_name: dict[str, _RawOption] = {}
    for key, value in items.items():
        name = key.replace("_", "-")
        if name not in table:  # said before the value is looked at: None for a misspelt name is a mistake too
            problems.append(f"{key!r}{where}: there is no such option; {_advice(name, table)}")
        elif _is_absent(table[name], value, where):
            continue
        elif name in by_name:
            problems.append(f"{by_name[name].shown} is given twice, with - and with _; keep one")
        else:
            by_name[name] = _RawOption(table[name], value, where)
    return by_name


def _advice(name: str, known: Mapping[str, Option]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def _is_absent(option: Option, value: Any, where: str) -> bool:
    """Whether a value means that the option was not given: a flag's False on the command line is its default."""
    unset = value is False and not where and not option.switch
    return value is None or unset or (isinstance(value, list | tuple) and not value)


def _read(items: Mapping[str, _RawOption], problems: list[str]) -> dict[str, Any]:
    """Values by key of the configuration; what cannot be read goes to `problems` and is left out."""
    return {item.option.key: value for item in items.values() for value in _attempt(problems, _read_one, item)}


def _attempt(problems: list[str], read: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The one value that `read(*arguments)` gives, or none with its refusal added to `problems`."""
    try:
        return [read(*arguments)]
    except ConfigError as error:
        problems.append(str(error))
        return []


def _read_one(item: _RawOption) -> Any:
    """The value of one option; raises ConfigError, naming every bad part of a repeated one."""
    option = item.option
    if option.flag:
        if isinstance(item.value, bool):
            return item.value
        raise ConfigError(f"{item.shown}: expected true or false, got {item.value!r}; write true without quotes")
    if option.switch and isinstance(item.value, bool):
        return item.value
    texts = _texts(item)
    if option.many:
        return _read_many(item, texts)
    if len(texts) > 1:
        shown = ", ".join(repr(mask_password(text)) for text in texts)
        raise ConfigError(f"{item.shown}: expected one value, got {shown}; give it once")
    if option.clearable and texts[0] == "none":
        return None
    return option.kind.read(texts[0], item.shown)


def _read_many(item: _RawOption, texts: Sequence[str]) -> tuple[Any, ...]:
    problems: list[str] = []
    values = [value for text in texts for value in _attempt(problems, item.option.kind.read, text, item.shown)]
    keys = [_key_of(value) for value in values]
    problems.extend(
        f"{item.shown}: {key!r} is given twice; keep one" for key in sorted(set(keys)) if keys.count(key) > 1
    )
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(values)


def _key_of(value: ShapeSpec | KeepRule | RangeRule | str) -> str:
    """What two values of a repeated option may not share."""
    if isinstance(value, ShapeSpec):
        return value.name
    return value.pattern if isinstance(value, KeepRule | RangeRule) else value


def _texts(item: _RawOption) -> list[str]:
    """Raw values as texts: TOML may give numbers and lists; raises ConfigError for tables, dates and booleans."""
    raw = list(item.value) if isinstance(item.value, list | tuple) else [item.value]
    for value in raw:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            kind = "a table" if isinstance(value, Mapping) else str(value).lower() if isinstance(value, bool) else value
            raise ConfigError(f"{item.shown}: expected a text or a number, got {kind}; write it in quotes")
    return [str(value) for value in raw]


def _check_together(values: Mapping[str, Any], problems: list[str]) -> None:
    """What no option shows alone: two of them that cannot both hold."""
    batch = values.get("batch")
    problems.extend(
        f"--batch {batch} and --shape {shape.name}:{'x'.join(map(str, shape.optimum))} name different batches; "
        "leave one out, or make the first size of the shape the batch"
        for shape in values.get("shapes", ())
        if batch is not None and shape.optimum[0] != batch
    )
