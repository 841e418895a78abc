"""What one search was asked to do: options and configuration file, checked as a whole."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from evaluators.backends.registry import names as backend_names
from search.errors import ConfigError
from search.space.rules import KeepRule
from search.values import Precision
from studies.artifacts.buckets import parse
from studies.options import quantities as units
from studies.options.backend_options import check_form
from studies.options.limits import LIMITS, Bound
from studies.options.mistakes import raise_mistakes
from studies.options.quantities import Amount, ShapeSpec
from studies.options.slots import check_gpus

DEFAULT_STORAGE = "sqlite:///bitfront.db"
CALIBRATIONS = ("minmax", "percentile", "entropy", "mse")
SAMPLERS = ("guided", "tpe", "nsga2", "gp", "random")
GRANULARITIES = ("group", "block")
KEEP_ENGINES = ("all", "front", "none")
TYPINGS = ("auto", "weak", "strong")
LEAST_LEASE_S = 2.0
MOST_LEASE_S = 7 * 86400.0


@dataclass(frozen=True)
class SearchConfig:
    """Every option of `bitfront search`; build it with `from_options`, which checks.

    `storage` may hold a password: it is left out of `repr` and `to_json`.
    `overrides` names the options of the configuration file that the command line replaced, `given` all that were given
    by one of the two.

    Attributes:
        limits: name of a limit → its bound, as it was written; see `studies.options.limits`.
        optimization_level: of TensorRT's builder; None: chosen by what the first build of a target takes.
        final_optimization_level: what exports are built with; None for `optimization_level`.
        timing_cache: a folder, `none`, or None for the one beside the engines.
        sensitivity_time_s: for the sensitivity pass; None for a share of the study.
        repair: how many repairs a proposal gets whose build is refused.
        lease_s: without a sign of life for so long a worker counts as lost, and others do its work.
        builders: processes that only build, beside the one that measures; with none that one builds too.
        gpus, workers: worker processes to start on this host, see `slots`; None: this process works itself.
    """

    model: str
    data: str
    study: str
    storage: str = field(default=DEFAULT_STORAGE, repr=False)
    limits: Mapping[str, Bound] = field(default_factory=dict)
    trials: int = 60
    time_limit_s: float | None = None
    sensitivity_time_s: float | None = None
    patience: int | None = None
    backend: str = "auto"
    backend_options: tuple[str, ...] = ()
    device: str = "auto"
    batch: int | None = None
    shapes: tuple[ShapeSpec, ...] = ()
    metric: str | None = None
    calibration_data: str | None = None
    final_data: str | None = None
    preprocess: str | None = None
    split_seed: int = 0
    calibration: str = "minmax"
    calibration_cache: str | None = None
    sampler: str = "guided"
    granularity: str = "group"
    keep: tuple[KeepRule, ...] = ()
    seed: int = 0
    threads: int = 1
    keep_engines: str = "front"
    artifacts: str | None = None
    evaluation_timeout_s: float = 600.0
    evaluation_memory_bytes: int | None = None
    quiet: bool = False
    typing: str = "auto"
    workspace_bytes: int = 4 << 30
    optimization_level: int | None = None
    final_optimization_level: int | None = None
    tf32: bool = True
    sparsity: bool = False
    native_instancenorm: bool = True
    plugins: tuple[str, ...] = ()
    timing_cache: str | None = None
    build_threads: int | None = None
    repair: int = 0
    lease_s: float = 60.0
    builders: int = 0
    gpus: str | None = None
    workers: int | None = None
    overrides: tuple[str, ...] = field(default=(), compare=False)
    given: tuple[str, ...] = field(default=(), compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of all that belongs to the study, not to one run of it: `_NOT_STORED` says what is not."""
        data = asdict(self)
        for name in _NOT_STORED:
            del data[name]
        data |= {name: data["limits"].get(name) for name in LIMITS}
        del data["limits"]
        data["keep"] = [{"pattern": rule.pattern, "precision": rule.precision.label} for rule in self.keep]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], storage: str = DEFAULT_STORAGE) -> SearchConfig:
        """The inverse of `to_json`; keys that it lacks take their defaults.

        Raises:
            ConfigError: an option or limit is not known here, `model`, `data` or `study` is missing, or a value has
                another form than `to_json` gives.
        """
        known = {f.name for f in fields(cls)} - {*_NOT_STORED, "limits"}
        if unknown := sorted(data.keys() - known - LIMITS.keys()):
            raise ConfigError(
                "reading a stored configuration: expected options and limits that are known here, got "
                f"{', '.join(unknown)}; use the program that made the study, or register those limits"
            )
        values = {name: data[name] for name in known & data.keys()}
        try:
            bounds = {name: data[name] for name in LIMITS if data.get(name) is not None}
            values["limits"] = {
                name: Amount(**bound) if isinstance(bound, Mapping) else bound for name, bound in bounds.items()
            }
            values["shapes"] = tuple(_shape_from_json(shape) for shape in values.get("shapes", ()))
            values["keep"] = tuple(
                KeepRule(k["pattern"], Precision.parse(str(k["precision"]))) for k in values.get("keep", ())
            )
            for name in ("plugins", "backend_options"):
                values[name] = tuple(values.get(name, ()))
            return cls(**values, storage=storage)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"reading a stored configuration: expected what SearchConfig.to_json writes, got {error}; "
                "the database row is damaged or was written by another program"
            ) from error

    def with_options(self, options: Mapping[str, Any]) -> SearchConfig:
        """This configuration with some options given anew, as `resume`, `front` and `export` take them.

        Raises:
            ConfigError: naming every option that is unknown or cannot be read.
        """
        problems: list[str] = []
        given = _named(options, "", problems)
        changes = _by_field(_read(given, problems), self.limits)
        raise_mistakes(problems)
        return replace(self, **changes, given=tuple(sorted({*self.given, *given})))


_NOT_STORED = ("storage", "gpus", "workers", "overrides", "given")


def from_options(options: Mapping[str, Any], config_file: Path | None = None) -> SearchConfig:
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
    filed = _named(_load(config_file), f" in {config_file}", problems) if config_file else {}
    given = _named(options, "", problems)
    read = _read({**filed, **given}, problems)
    values = _by_field(read, {})
    problems.extend(
        f"{option_table()[name].shown} is missing: {what}"
        for name, what in (("model", "give the ONNX file to search"), ("data", "give --data with a file or folder"))
        if name not in filed and name not in given
    )
    _check_together(values, problems)
    raise_mistakes(problems)
    values.setdefault("study", Path(values["model"]).stem)
    values.setdefault("storage", default_url())
    overrides, all_given = filed.keys() & given.keys(), filed.keys() | given.keys()
    return SearchConfig(**values, overrides=tuple(sorted(overrides)), given=tuple(sorted(all_given)))


def _by_field(read: Mapping[str, Any], limits: Mapping[str, Bound]) -> dict[str, Any]:
    """Values by field of the configuration: the limits among them join those there are, or take them away."""
    table = option_table()
    bounds = {table[name].limit: value for name, value in read.items() if table[name].limit}
    values = {table[name].field: value for name, value in read.items() if not table[name].limit}
    merged = {**limits, **bounds}
    return {**values, "limits": {name: bound for name, bound in merged.items() if bound is not None}}


def default_url() -> str:
    """The database used when none is named: that of BITFRONT_STORAGE, where no other user of the machine can read its
    password, else a file in the current folder.
    """
    return os.environ.get("BITFRONT_STORAGE") or DEFAULT_STORAGE


def mask_password(url: str) -> str:
    """The database URL with its password replaced by `***`, fit for messages and reports."""
    url = re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1:***@", url)
    return re.sub(r"((?:password|passwd|pwd)=)[^&\s]*", r"\1***", url, flags=re.IGNORECASE)


# Readers: (text, shown option) → value; each raises ConfigError.


def _text(text: str, option: str) -> str:
    if not text.strip() or not text.isprintable():
        raise units.refusal(option, "a text of printable characters", text, "give a value or leave the option out")
    return text


def _study_name(text: str, option: str) -> str:
    if len(text) > 200:
        raise units.refusal(option, "a name of at most 200 characters", text, "give a shorter one")
    return _text(text, option)


def _storage(text: str, option: str) -> str:
    # Messages never echo the password of a URL, not even of a refused one.
    if not re.match(r"(sqlite|postgresql|mysql)(\+\w+)?://", text):
        advice = "write it like sqlite:///study.db or postgresql://user@host/name"
        raise units.refusal(option, "a database URL of SQLite, PostgreSQL or MySQL", mask_password(text), advice)
    return text


def _artifacts(text: str, option: str) -> str:
    parse(_text(text, option))
    return text


def _function(text: str, option: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*", text):
        raise units.refusal(option, "package.module:function", text, "write it like mypackage.images:prepare")
    return text


def _metric(text: str, option: str) -> str:
    return _function(text, option) if ":" in text else _text(text, option)


def _keep(text: str, option: str) -> KeepRule:
    return KeepRule.parse(text)


def _choice(*allowed: str) -> Callable[[str, str], str]:
    def read(text: str, option: str) -> str:
        if text in allowed:
            return text
        near = difflib.get_close_matches(text.lower(), allowed, 1)
        advice = f"did you mean {near[0]}?" if near else f"the default is {allowed[0]}"
        raise units.refusal(option, f"one of {', '.join(allowed)}", text, advice)

    return read


def _backend(text: str, option: str) -> str:
    """Whether a backend of this name is there and can be imported is found when it is opened."""
    return text if ":" in text and _function(text, option) else _choice("auto", *backend_names())(text, option)


def _switch(text: str, option: str) -> bool:
    return _choice("on", "off")(text, option) == "on"


def _lease(text: str, option: str) -> float:
    seconds = units.parse_duration_s(text, option)
    if seconds < LEAST_LEASE_S:
        raise units.refusal(option, f"at least {LEAST_LEASE_S:g}s", text, "a busy machine would lose its own workers")
    if seconds > MOST_LEASE_S:
        most = units.format_duration_s(MOST_LEASE_S)
        raise units.refusal(option, f"at most {most}", text, "what a lost worker was at would never be taken over")
    return seconds


def _level(text: str, option: str) -> int | None:
    """TensorRT's optimization level; None for `auto`."""
    if text == "auto":
        return None
    try:
        return units.parse_count(text, option, 0, 5)
    except ConfigError as error:
        raise ConfigError(str(error).replace("from 0 to 5", "auto, or a whole number from 0 to 5")) from None


def _whole(least: int = 1, most: int = 2**31 - 1) -> Callable[[str, str], int]:
    return lambda text, option: units.parse_count(text, option, least, most)


@dataclass(frozen=True)
class Option:
    """One option: its name on the command line, the field it fills and how its text is read.

    `many`: may be repeated. `flag`: takes no value. `switch`: `on` or `off`; a file may say true or false.
    `clearable`: the word `none` takes the limit away. `backend`: the only one that has this option; empty for all.
    `limit`: the limit that it sets; empty for none.
    """

    name: str
    field: str
    read: Callable[[str, str], Any]
    many: bool = False
    flag: bool = False
    switch: bool = False
    clearable: bool = False
    backend: str = ""
    limit: str = ""

    @property
    def key(self) -> str:
        """The key of its value in a stored configuration."""
        return self.limit or self.field

    @property
    def shown(self) -> str:
        return "MODEL" if self.name == "model" else f"--{self.name}"


_OWN: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option("model", "model", _text),
        Option("data", "data", _text),
        Option("study", "study", _study_name),
        Option("storage", "storage", _storage),
        Option("trials", "trials", _whole()),
        Option("time-limit", "time_limit_s", units.parse_duration_s, clearable=True),
        Option("sensitivity-time", "sensitivity_time_s", units.parse_duration_s),
        Option("patience", "patience", _whole(), clearable=True),
        Option("backend", "backend", _backend),
        Option("backend-option", "backend_options", check_form, many=True),
        Option("device", "device", _text),
        Option("batch", "batch", _whole()),
        Option("shape", "shapes", units.parse_shape, many=True),
        Option("metric", "metric", _metric),
        Option("calibration-data", "calibration_data", _text),
        Option("final-data", "final_data", _text),
        Option("preprocess", "preprocess", _function),
        Option("split-seed", "split_seed", _whole(least=0, most=2**32 - 1)),
        Option("calibration", "calibration", _choice(*CALIBRATIONS)),
        Option("calibration-cache", "calibration_cache", _text),
        Option("sampler", "sampler", _choice(*SAMPLERS)),
        Option("granularity", "granularity", _choice(*GRANULARITIES)),
        Option("keep", "keep", _keep, many=True),
        Option("seed", "seed", _whole(least=0, most=2**32 - 1)),
        Option("threads", "threads", _whole(most=4096)),
        Option("keep-engines", "keep_engines", _choice(*KEEP_ENGINES)),
        Option("artifacts", "artifacts", _artifacts),
        Option("evaluation-timeout", "evaluation_timeout_s", units.parse_duration_s),
        Option("evaluation-memory", "evaluation_memory_bytes", units.parse_size_bytes, clearable=True),
        Option("quiet", "quiet", _text, flag=True),
        Option("typing", "typing", _choice(*TYPINGS), backend="tensorrt"),
        Option("workspace", "workspace_bytes", units.parse_size_bytes, backend="tensorrt"),
        Option("optimization-level", "optimization_level", _level, backend="tensorrt"),
        Option("final-optimization-level", "final_optimization_level", _whole(least=0, most=5), backend="tensorrt"),
        Option("tf32", "tf32", _switch, switch=True, backend="tensorrt"),
        Option("sparsity", "sparsity", _text, flag=True, backend="tensorrt"),
        Option("native-instancenorm", "native_instancenorm", _switch, switch=True, backend="tensorrt"),
        Option("plugin", "plugins", _text, many=True, backend="tensorrt"),
        Option("timing-cache", "timing_cache", _text, backend="tensorrt"),
        Option("build-threads", "build_threads", _whole(most=4096), backend="tensorrt"),
        Option("repair", "repair", _whole(least=0, most=1000)),
        Option("builders", "builders", _whole(least=0, most=64)),
        Option("lease", "lease_s", _lease),
        Option("gpus", "gpus", check_gpus),
        Option("workers", "workers", _whole(most=1024)),
    )
}


def option_table() -> Mapping[str, Option]:
    """Every option by name: those of the configuration's own fields, and one for each limit that is registered."""
    limits = (Option(limit.option, "limits", limit.read, clearable=True, limit=limit.name) for limit in LIMITS.values())
    return {**_OWN, **{option.name: option for option in limits}}


@dataclass(frozen=True)
class _Given:
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
        raise ConfigError(f"--config {path}: expected TOML in UTF-8, got {error}; mend that place") from error
    return data


def _named(items: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, _Given]:
    """What was given by option name; unknown and repeated names go to `problems`."""
    found: dict[str, _Given] = {}
    for key, value in items.items():
        name = key.replace("_", "-")
        if _is_absent(name, value, where):
            continue
        if name not in option_table():
            near = difflib.get_close_matches(name, option_table(), 1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(option_table())}"
            problems.append(f"{key!r}{where}: there is no such option; {advice}")
        elif name in found:
            problems.append(f"{found[name].shown} is given twice, with - and with _; keep one")
        else:
            found[name] = _Given(option_table()[name], value, where)
    return found


def _is_absent(name: str, value: Any, where: str) -> bool:
    """Whether a value means that the option was not given: a flag's False on the command line is its default."""
    switch = name in option_table() and option_table()[name].switch
    unset = value is False and not where and not switch
    return value is None or unset or (isinstance(value, list | tuple) and not value)


def _read(given: Mapping[str, _Given], problems: list[str]) -> dict[str, Any]:
    """Read values by option name; what cannot be read goes to `problems` and is left out."""
    return {name: value for name, item in given.items() for value in _attempt(problems, _read_one, item)}


def _attempt(problems: list[str], read: Callable[..., Any], *arguments: Any) -> list[Any]:
    """The one value that `read(*arguments)` gives, or none with its refusal added to `problems`."""
    try:
        return [read(*arguments)]
    except ConfigError as error:
        problems.append(str(error))
        return []


def _read_one(item: _Given) -> Any:
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
    return option.read(texts[0], item.shown)


def _read_many(item: _Given, texts: Sequence[str]) -> tuple[Any, ...]:
    problems: list[str] = []
    values = [value for text in texts for value in _attempt(problems, item.option.read, text, item.shown)]
    keys = [_key_of(value) for value in values]
    problems.extend(
        f"{item.shown}: {key!r} is given twice; keep one" for key in sorted(set(keys)) if keys.count(key) > 1
    )
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(values)


def _key_of(value: ShapeSpec | KeepRule | str) -> str:
    """What two values of a repeated option may not share."""
    if isinstance(value, ShapeSpec):
        return value.name
    return value.pattern if isinstance(value, KeepRule) else value


def _texts(item: _Given) -> list[str]:
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


def _shape_from_json(data: Mapping[str, Any]) -> ShapeSpec:
    return ShapeSpec(data["name"], tuple(data["minimum"]), tuple(data["optimum"]), tuple(data["maximum"]))
