"""The types of option values: texts, names, counts, switches, choices, quantities with units."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evaluators.backends.kind import BackendOption
from evaluators.backends.registry import BACKENDS
from search.errors import ConfigError
from search.extensions import registered_names
from search.references import NESTED_REFERENCE
from search.sampler.shipped import GROUP, SHIPPED
from search.space.capability_file import read_capability_file, read_capability_rules
from search.space.capability_rules import CapabilityRules
from search.space.range_rules import RangeRule
from search.space.rules import KeepRule, SampleChoice
from search.values import Precision, Score
from studies.options import quantities
from studies.options.option import ValueKind
from studies.options.quantities import refusal
from studies.options.urls import mask_password, parse_place

AUTO = "auto"
LEAST_LEASE_S = 2.0
MOST_LEASE_S = 7 * 86400.0


def read_text(text: str, option: str) -> str:
    """Any text of printable characters."""
    if not text.strip() or not text.isprintable():
        raise refusal(option, "a text of printable characters", text, "give a value or leave the option out")
    return text


def _read_study(text: str, option: str) -> str:
    if len(text) > 200:
        raise refusal(option, "a name of at most 200 characters", text, "give a shorter one")
    return read_text(text, option)


def _read_storage(text: str, option: str) -> str:
    # Messages never echo the password of a URL, not even of a refused one.
    if not re.match(r"(sqlite|postgresql|mysql)(\+\w+)?://", text):
        advice = "write it like sqlite:///study.db or postgresql://user@host/name"
        raise refusal(option, "a database URL of SQLite, PostgreSQL or MySQL", mask_password(text), advice)
    return text


def _read_place(text: str, option: str) -> str:
    parse_place(read_text(text, option))
    return text


def _read_function(text: str, option: str) -> str:
    if not NESTED_REFERENCE.fullmatch(text):
        wanted = "package.module:function or file.py:function"
        raise refusal(option, wanted, text, "write it like mypackage.images:prepare or images.py:prepare")
    return text


def _read_preprocess(text: str, option: str) -> str:
    """Whether there is a preset of this name is found when the data are opened."""
    return text if re.fullmatch(r"[a-z0-9]+(\?\S*)?", text) else _read_function(text, option)


def _read_metric(text: str, option: str) -> str:
    return _read_function(text, option) if ":" in text else read_text(text, option)


def _read_backend(text: str, option: str) -> str:
    """Whether a backend of this name can be imported is found when it is opened."""
    return _read_function(text, option) if ":" in text else one_of("auto", *BACKENDS.names()).read(text, option)


def _read_sampler(text: str, option: str) -> str:
    """Whether a sampler of this name can be imported is found when it is made."""
    if text in SHIPPED:
        return text
    names = tuple(registered_names(SHIPPED, GROUP))
    return _read_function(text, option) if ":" in text else one_of(*names).read(text, option)


def _read_selection(text: str, option: str) -> str:
    SampleChoice.parse(text)
    return text


def _read_steps(text: str, option: str) -> str:
    """Which steps there are is known when they are made."""
    names = [name.strip() for name in text.split(",")]
    if not all(re.fullmatch(r"[\w.:-]+", name) for name in names):
        raise refusal(option, "auto, none, or names of steps with commas between them", text, "write equalize,bias")
    if len(names) > 1 and {"auto", "none"} & set(names):
        raise refusal(option, "auto or none alone, or names of steps", text, "leave out either the word or the names")
    return ",".join(names)


def _read_named_value(text: str, option: str) -> str:
    """Which names there are is known with the backend."""
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise refusal(option, "NAME=VALUE", text, "write it like seed=3; docs/backends.md lists them")
    return text


def _read_weights(text: str, option: str) -> tuple[float, float]:
    try:
        score = Score.parse(text)
    except ValueError:
        wanted = "two weights of at least 0, of accuracy and of latency, not both 0"
        raise refusal(option, wanted, text, "write it like 0.6,0.4") from None
    return score.accuracy, score.latency


def _read_lease(text: str, option: str) -> float:
    seconds = quantities.parse_duration_s(text, option)
    if seconds < LEAST_LEASE_S:
        raise refusal(
            option,
            f"at least {LEAST_LEASE_S:g}s",
            text,
            "with a shorter lease a busy machine would lose its own workers",
        )
    if seconds > MOST_LEASE_S:
        most = quantities.format_duration_s(MOST_LEASE_S)
        raise refusal(
            option,
            f"at most {most}",
            text,
            "with a longer lease the evaluations of a lost worker would hardly be taken over",
        )
    return seconds


def read_gpus(text: str, option: str = "--gpus") -> str:
    """`all`, how many GPUs (`2`), or which (`0,2`)."""
    if not re.fullmatch(r"all|[1-9]\d{0,3}|\d{1,4}(,\d{1,4})+", text):
        raise ConfigError(
            f"{option}: expected all, how many, or which, got {text!r}; write all, 2 or 0,2. For a single one write "
            "--device cuda:1 instead."
        )
    numbers = [] if text == "all" else [int(number) for number in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{option}: {text} names a GPU twice; name each once")
    return text


def one_of(*allowed: str) -> ValueKind:
    """One of some words; the first is what messages call the default."""

    def read(text: str, option: str) -> str:
        if text in allowed:
            return text
        near = difflib.get_close_matches(text.lower(), allowed, 1)
        advice = f"did you mean {near[0]}?" if near else f"the default is {allowed[0]}"
        raise refusal(option, f"one of {', '.join(allowed)}", text, advice)

    return ValueKind(read, choices=allowed)


def whole(least: int = 1, most: int = 2**31 - 1) -> ValueKind:
    """A whole number within bounds."""
    return ValueKind(lambda text, option: quantities.parse_count(text, option, least, most))


def _read_patience(text: str, option: str) -> int | str:
    if text == AUTO:
        return AUTO
    try:
        return quantities.parse_count(text, option, 1, 2**31 - 1)
    except ConfigError as error:
        raise ConfigError(str(error).replace("expected a", "expected auto, none, or a")) from None


def or_auto(kind: ValueKind) -> ValueKind:
    """A kind of value that also takes the word `auto`, which is None."""

    def read(text: str, option: str) -> Any:
        if text == "auto":
            return None
        try:
            return kind.read(text, option)
        except ConfigError as error:
            raise ConfigError(str(error).replace("expected a", "expected auto, or a")) from None

    return ValueKind(read, lambda value: "auto" if value is None else kind.write(value))


def write_bytes(size: int) -> str:
    """`4GiB` where that is exact, else bytes."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return f"{size}B"


def _number(unit: str) -> Callable[[float], str]:
    """Writes a number with its unit, exactly."""
    return lambda value: f"{value!r}{unit}"


def _write_duration(seconds: float) -> str:
    text = quantities.format_duration_s(seconds)
    return text if quantities.parse_duration_s(text) == seconds else f"{seconds!r}s"


def _write_shape(shape: quantities.ShapeSpec) -> str:
    parts = (shape.optimum,) if shape.is_fixed else (shape.minimum, shape.optimum, shape.maximum)
    return ":".join([shape.name, *("x".join(map(str, part)) for part in parts)])


def keep_from_json(rules: Any) -> tuple[KeepRule, ...]:
    """Rules as a stored configuration has them."""
    return tuple(KeepRule(rule["pattern"], Precision.parse(str(rule["precision"]))) for rule in rules)


def ranges_from_json(rules: Any) -> tuple[RangeRule, ...]:
    """Ranges set by hand as a stored configuration has them."""
    return tuple(RangeRule(rule["pattern"], float(rule["low"]), float(rule["high"])) for rule in rules)


def capabilities_from_json(stored: Any) -> CapabilityRules | None:
    """A capabilities file as a stored configuration has it: its content, as the file may be elsewhere by then."""
    return None if stored is None else CapabilityRules.from_json(stored)


def _read_capabilities(text: str, option: str) -> CapabilityRules:
    """The file of a path, or the JSON that `_write_capabilities` gives."""
    if text.lstrip().startswith("{"):
        return read_capability_rules(text, "given", option)
    return read_capability_file(Path(text), option)


def _write_capabilities(rules: CapabilityRules) -> str:
    return json.dumps({"name": rules.name, **rules.tables})


def shapes_from_json(shapes: Any) -> tuple[quantities.ShapeSpec, ...]:
    """Shapes as a stored configuration has them."""
    sizes = ("minimum", "optimum", "maximum")
    return tuple(quantities.ShapeSpec(shape["name"], *(tuple(shape[size]) for size in sizes)) for shape in shapes)


TEXT = ValueKind(read_text)
STUDY = ValueKind(_read_study)
STORAGE = ValueKind(_read_storage)
PLACE = ValueKind(_read_place)
PREPROCESS = ValueKind(_read_preprocess)
METRIC = ValueKind(_read_metric)
BACKEND = ValueKind(_read_backend)
SAMPLER = ValueKind(_read_sampler, choices=tuple(SHIPPED))
STEPS = ValueKind(_read_steps)
SELECTION = ValueKind(_read_selection)
WEIGHTS = ValueKind(_read_weights, lambda weights: str(Score(*weights)))
NAMED_VALUE = ValueKind(_read_named_value)
GPUS = ValueKind(read_gpus)
PORT = whole(least=1, most=65535)
KEEP = ValueKind(lambda text, _: KeepRule.parse(text), lambda rule: f"{rule.pattern}={rule.precision.label}")
RANGE = ValueKind(lambda text, _: RangeRule.parse(text))
CAPABILITIES = ValueKind(_read_capabilities, _write_capabilities)
SHAPE = ValueKind(quantities.parse_shape, _write_shape)
DURATION = ValueKind(quantities.parse_duration_s, _write_duration)
LEASE = ValueKind(_read_lease, _write_duration)
PATIENCE = ValueKind(_read_patience)
SIZE = ValueKind(quantities.parse_size_bytes, write_bytes)
LATENCY = ValueKind(quantities.parse_latency_ms, _number("ms"))
RATE = ValueKind(quantities.parse_rate_ms, lambda ms: f"{1000 / ms:.12g}fps")
DROP = ValueKind(quantities.parse_drop)
AMOUNT = ValueKind(quantities.parse_amount)
_SWITCHES = one_of("on", "off")
SWITCH = ValueKind(
    lambda text, option: _SWITCHES.read(text, option) == "on", lambda on: "on" if on else "off", ("on", "off")
)


def kind_of(row: BackendOption) -> ValueKind:
    """The kind of an option that a backend declares."""
    kinds = {"duration": DURATION, "size": SIZE, "switch": SWITCH}
    if row.type == "choice":
        kind = one_of(*row.choices)
    elif row.type == "count":
        kind = whole(row.least, row.most)
    else:
        kind = kinds.get(row.type, TEXT)
    return or_auto(kind) if row.auto else kind
