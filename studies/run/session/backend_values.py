"""The options that a backend is opened with, checked and settled for this host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evaluators.backends.kind import BackendKind, BackendOption
from evaluators.backends.registry import choose_backend, kind_named
from search.errors import ConfigError
from studies.artifacts.locations import local_folder
from studies.options.backend_options import FINAL, builder_options, read_values
from studies.options.config import SearchConfig, option_table
from studies.run.session.data_caches import absolute_paths, check_folder
from studies.run.session.levels import START_LEVEL


def check_backend_options(config: SearchConfig) -> None:
    """Refuse options that the backend does not have, and files they name that cannot be used; creates nothing.

    Raises:
        ConfigError: naming those options.
        TargetError: the backend is not known or none is installed.
    """
    kind = backend_kind(config)
    backend = kind.name
    table = option_table()
    options = [table[name] for name in config.given if name in table]
    foreign = [option for option in options if option.backend not in ("", backend)]
    if foreign:
        names = ", ".join(option.shown for option in foreign)
        auto = ", which --backend auto stands for here" if config.backend == "auto" else ""
        raise ConfigError(
            f"{names}: expected only with backend {foreign[0].backend}, got backend {backend}{auto}. Leave "
            f"{'it' if len(foreign) == 1 else 'them'} out, or choose --backend {foreign[0].backend}."
        )
    for row, value in _backend_values(config).items():
        for path in value if row.type == "file" else ():
            if not Path(path).is_file():
                raise ConfigError(f"{row.option} {path}: there is no such file. Give the path of one that is there.")
        if row.type == "folder" and value and value != "none":
            check_folder(row.option, Path(value).absolute(), "the backend keeps files there")


def backend_kind(config: SearchConfig) -> BackendKind:
    """The backend that a configuration means on this host.

    Raises:
        TargetError: it is not known, or none is installed.
    """
    return kind_named(choose_backend(config.backend, device_of(config)))


def runs_on_gpu(config: SearchConfig) -> bool:
    """Whether engines of a configuration run on a GPU."""
    return backend_kind(config).runs_on_gpu(device_of(config))


def backend_options(config: SearchConfig) -> dict[str, Any]:
    """Keyword arguments of the backend, as plain JSON values.

    Raises:
        StudyError: the database is on a server and neither a folder for engines nor one for the timing cache was given.
    """
    values = _backend_values(config).items()
    options = {"threads": config.threads, **{row.keyword: _settle_value(row, value, config) for row, value in values}}
    if "optimization_level" in options and options["optimization_level"] is None:
        options["optimization_level"] = START_LEVEL
    return options


def final_options(config: SearchConfig) -> dict[str, Any]:
    """`backend_options` of the engine that is exported: with the values that exports are built with, where given."""
    rows = [row for row in backend_kind(config).options if row.final]
    final = {row.keyword: config.builder_option(FINAL + row.keyword) for row in rows}
    return backend_options(config) | {keyword: value for keyword, value in final.items() if value is not None}


def _backend_values(config: SearchConfig) -> dict[BackendOption, Any]:
    """What was given for each option of the backend, or its default.

    Raises:
        ConfigError: what `--backend-option` names is unknown, or cannot be read.
    """
    kind = backend_kind(config)
    own = {option.key for option in builder_options() if option.backend == kind.name}
    values = read_values(kind, config.backend_options)
    if twice := [row.option for row in kind.options if row.keyword in own & values.keys()]:
        raise ConfigError(f"--backend-option: {', '.join(twice)} has an option of its own. Use that one.")
    return {
        row: config.builder_option(row.keyword) if row.keyword in own else values.get(row.keyword, row.default)
        for row in kind.options
    }


def _settle_value(row: BackendOption, value: Any, config: SearchConfig) -> Any:
    """The value of one option as the backend takes it: paths absolute, and a folder of its own where none is named."""
    if row.type == "file":
        return absolute_paths(value)
    if row.type != "folder":
        return value
    if value == "none":
        return None
    return str((Path(value) if value else local_folder(config) / row.option.lstrip("-")).absolute())


def device_of(config: SearchConfig) -> str | None:
    return None if config.device == "auto" else config.device
