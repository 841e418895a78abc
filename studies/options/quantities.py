"""Reading and writing quantities: times, sizes, drops and shapes.

Every `parse_*` takes the text and the name of the option it came from, returns base units and raises `ConfigError`
that starts with that name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from search.errors import ConfigError

LATENCY_UNITS_MS: Mapping[str, float] = MappingProxyType(
    {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ms": 1.0, "s": 1e3}
)
DURATION_UNITS_S: Mapping[str, float] = MappingProxyType(
    {"d": 86400.0, "h": 3600.0, "min": 60.0, "m": 60.0, "s": 1.0, "ms": 1e-3}
)
SIZE_UNITS_BYTES: Mapping[str, int] = MappingProxyType(
    {"b": 1}
    | {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)}
    | {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)}
)

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_LONGEST_DURATION = 200
_QUANTITY = re.compile(rf"([+-]?{_NUMBER})\s*([^\W\d_]*|%)")
_AMOUNT = re.compile(rf"([+-]?{_NUMBER})\s*(%|[^\W\d_][^,;]*|[^\w\s.,;:+%-][^,;]*)?")  # `3 EUR`, `3€`, `3 m/s`
_PART = re.compile(rf"({_NUMBER})\s*([^\W\d_]+)\s*")
_SIZES = re.compile(r"[1-9][0-9]{0,11}(?:x[1-9][0-9]{0,11})*")


@dataclass(frozen=True)
class Amount:
    """A difference or a value of a metric as it was written; what it means is known only with the metric.

    Attributes:
        value: `1%` is 0.01, `0.5dB` is 0.5.
        percent: whether it was written as a percentage.
        unit: `dB` or another unit as it was written, or empty.
    """

    value: float
    percent: bool = False
    unit: str = ""

    def __str__(self) -> str:
        if self.percent:
            return f"{_short(self.value * 100, 12)}%"
        return f"{self.value!r}{self.unit}"


@dataclass(frozen=True)
class ShapeSpec:
    """Shapes of one model input, batch first; the three are equal for an input of fixed shape."""

    name: str
    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        return self.minimum == self.maximum


def refusal(option: str, expected: str, text: str, advice: str) -> ConfigError:
    """The one form of all refusals: option, what was expected, what came, what to do."""
    shown = repr(text if len(text) <= 60 else f"{text[:57]}…")
    return ConfigError(f"{option}: expected {expected}, got {shown}; {advice}")


def parse_latency_ms(text: str, option: str = "--latency-budget") -> float:
    """Read `2.5ms`, `800us` or `1.2s` as milliseconds, more than zero; raises ConfigError."""
    expected = "a time with its unit"
    number, unit = _split(text, option, expected, "write it like 2.5ms or 800us")
    _positive(number, text, option)
    if not unit:
        raise refusal(option, expected, text, f"write {_short(number, 12)}ms or {_short(number * 1000, 12)}us")
    if unit not in LATENCY_UNITS_MS:
        raise refusal(option, "a time in ns, us, ms or s", text, f"for milliseconds write {_short(number, 12)}ms")
    return _positive(number * LATENCY_UNITS_MS[unit], text, option)


def parse_rate_ms(text: str, option: str = "--min-fps") -> float:
    """Read `400` or `400fps`, samples a second, as milliseconds of one, more than zero; raises ConfigError."""
    expected = "samples a second"
    number, unit = _split(text, option, expected, "write it like 400 or 400fps")
    if unit not in ("", "fps"):
        raise refusal(option, expected, text, f"write {_short(_positive(number, text, option), 12)}fps")
    return _positive(1000 / _positive(number, text, option), text, option)


def parse_duration_s(text: str, option: str = "--time-limit") -> float:
    """Read `90s`, `30m` or `1h30m` as seconds, more than zero; larger units come first; raises ConfigError."""
    if len(text) > _LONGEST_DURATION:  # finding the parts of a text takes the square of its length
        raise refusal(option, f"a time in at most {_LONGEST_DURATION} characters", text, "write it like 1h30m")
    stripped = text.strip().removeprefix("+")
    parts = [(float(number), unit.lower()) for number, unit in _PART.findall(stripped)]
    factors = [DURATION_UNITS_S.get(unit, math.nan) for _, unit in parts]
    if stripped.startswith("-"):
        raise refusal(option, "a time of more than zero", text, "write it like 90s, 30m or 1h30m")
    if re.fullmatch(_NUMBER, stripped):
        raise refusal(option, "a time with its unit", text, f"write {stripped}s or {stripped}m")
    # What is left over, not one pattern for the whole: nested repetition would take exponential time to fail.
    if not parts or _PART.sub("", stripped) or any(math.isnan(factor) for factor in factors):
        raise refusal(option, "a time in d, h, m, s or ms", text, "write it like 90s, 30m or 1h30m")
    if any(later >= earlier for earlier, later in pairwise(factors)):
        raise refusal(option, "each unit once, the larger first", text, "write it like 1h30m")
    return _positive(sum(number * factor for (number, _), factor in zip(parts, factors, strict=True)), text, option)


def parse_size_bytes(text: str, option: str = "--max-memory") -> int:
    """Read `512MB` (10⁶) or `2GiB` (2³⁰) as bytes, at least one; raises ConfigError."""
    expected = "a size with its unit"
    number, unit = _split(text, option, expected, "write it like 512MB or 2GiB")
    _positive(number, text, option)
    if not unit:
        raise refusal(option, expected, text, f"write {_short(number, 12)}MB or {_short(number, 12)}MiB")
    if unit not in SIZE_UNITS_BYTES:
        raise refusal(option, "a size in B, kB, MB, GB, TB, KiB, MiB, GiB or TiB", text, "write it like 512MB or 2GiB")
    size = round(_positive(number * SIZE_UNITS_BYTES[unit], text, option))
    if size < 1:
        raise refusal(option, "at least one byte", text, "write it like 512MB or 2GiB")
    return size


def parse_amount(text: str, option: str = "--accuracy-limit") -> Amount:
    """Read `75%`, `0.75`, `-3`, `0.5dB` or `3EUR`; any finite number, with any unit; raises ConfigError."""
    return _read_amount(
        text, option, "a number, maybe with % or the unit of the metric", "write it like 0.75, 75% or 30dB"
    )


def parse_drop(text: str, option: str = "--max-drop") -> Amount:
    """Read `1%`, `0.01`, `0.5dB` or `3EUR`, zero (no worse than FP32) or more; raises ConfigError."""
    expected = "a drop as number, maybe with % or the unit of the metric"
    amount = _read_amount(text, option, expected, "write it like 1%, 0.01 or 0.5dB")
    if amount.value < 0:
        raise refusal(option, "a drop of zero or more", text, "a drop is how much worse than FP32; write it without -")
    return amount


def _read_amount(text: str, option: str, expected: str, advice: str) -> Amount:
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise refusal(option, expected, text, advice)
    number, unit = float(match[1]), match[2] or ""
    if not math.isfinite(number):
        raise refusal(option, "a number that a computer can hold", text, advice)
    if unit == "%":
        return Amount(number / 100, percent=True)
    return Amount(number, unit="dB" if unit.lower() == "db" else unit)


def parse_tolerance(text: str, option: str) -> float:
    """Read `5%` or `0.05` as a share, more than zero and at most one; raises ConfigError."""
    expected, advice = "a share from above 0 % to 100 %", "write it like 5%"
    number, unit = _split(text, option, expected, advice)
    share = number / 100 if unit == "%" else number
    if unit not in ("", "%") or not 0 < share <= 1:
        raise refusal(option, expected, text, advice)
    return share


def parse_count(text: str, option: str, least: int = 1, most: int = 2**31 - 1) -> int:
    """Read a whole number within bounds; raises ConfigError."""
    stripped = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,18}", stripped) and least <= int(stripped) <= most:
        return int(stripped)
    raise refusal(option, f"a whole number from {least} to {most}", text, f"write it like {min(max(least, 10), most)}")


def parse_shape(text: str, option: str = "--shape") -> ShapeSpec:
    """Read `NAME:32x3x224x224` or `NAME:MIN:OPT:MAX`; the name may itself hold colons; raises ConfigError."""
    advice = "write NAME:32x3x224x224, or NAME:MIN:OPT:MAX for an input of changing shape"
    parts = text.strip().split(":")
    count = _shapes_at_end(parts)
    name = ":".join(parts[: len(parts) - count])
    if not count or not name:
        raise refusal(option, "an input name and sizes from 1 up", text, advice)
    shapes = [tuple(int(size) for size in part.split("x")) for part in parts[len(parts) - count :]]
    if count == 2:
        raise refusal(option, "one shape, or three: smallest, usual, largest", text, advice)
    if len({len(shape) for shape in shapes}) > 1:
        raise refusal(option, "MIN, OPT and MAX with the same number of sizes", text, advice)
    minimum, optimum, maximum = shapes * 3 if count == 1 else shapes
    if any(not low <= usual <= high for low, usual, high in zip(minimum, optimum, maximum, strict=True)):
        raise refusal(option, "MIN ≤ OPT ≤ MAX in every size", text, advice)
    return ShapeSpec(name, minimum, optimum, maximum)


def format_ms(value_ms: float) -> str:
    """`0.3243 ms`: milliseconds with four significant digits."""
    return f"{_short(value_ms, 4)} ms"


def format_bytes(size_bytes: float) -> str:
    """`512 MB`: decimal units with three significant digits."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        # 999.5 of a unit would be written as 1000 of it.
        if abs(size_bytes) >= 999.5 * 1000 ** (power - 1):
            return f"{_short(size_bytes / 1000**power, 3)} {unit}"
    return f"{_short(size_bytes, 3)} B"


def format_duration_s(value_s: float) -> str:
    """`1h30m`, `12s`, `0.25s`: seconds below a minute with three digits, whole seconds above."""
    if value_s < 59.5:
        return f"{_short(value_s, 3)}s"
    left, parts = round(value_s), []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_elapsed_s(value_s: float) -> str:
    """A time that something took: `8 ms`, `250 ms`, `4.5s`, `1h30m`."""
    if 0 < value_s < 0.9995:
        return f"{_short(value_s * 1000, 3 if value_s >= 0.1 else 2)} ms"
    return format_duration_s(value_s)


def format_percent(share: float, digits: int = 3) -> str:
    """`0.42 %`: a share of one as percentage with so many significant digits at most."""
    return f"{_short(share * 100, digits)} %"


def format_metric(value: float, unit: str, ratio: bool, digits: int = 4) -> str:
    """A metric's value or loss in its own unit: `76.31 %` for ratios, `31.2 dB`, `0.01532`."""
    if ratio:
        return f"{_short(value * 100, digits)} %"
    return f"{_short(value, digits)} {unit}".rstrip()


def shown_number(value: float) -> float:
    """The number that `format_ms` and `format_metric` show of a value."""
    return float(_short(value, 4))


def _short(value: float, digits: int) -> str:
    """At most `digits` significant digits, no trailing zeros; exponents only beyond 10⁻⁹ and 10¹⁵."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}".removeprefix("-") if value == 0 else f"{value:g}"
    exponent = math.floor(math.log10(abs(value)))
    if not -9 <= exponent < 15:
        return f"{value:.{digits}g}"
    text = f"{value:.{max(0, digits - 1 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _split(text: str, option: str, expected: str, advice: str) -> tuple[float, str]:
    """Number and lower-case unit (maybe empty) of `2.5 ms`; raises ConfigError for anything else."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise refusal(option, expected, text, advice)
    number = float(match[1])
    if not math.isfinite(number):
        raise refusal(option, "a number that a computer can hold", text, advice)
    return number, match[2].lower()


def _positive(value: float, text: str, option: str) -> float:
    if not 0 < value < math.inf:
        raise refusal(option, "more than zero and finite", text, "give a value above zero, or leave the option out")
    return value


def _shapes_at_end(parts: list[str]) -> int:
    """How many of the last parts are shapes: at most three, and the first part is always name."""
    count = 0
    while count < min(3, len(parts) - 1) and _SIZES.fullmatch(parts[-1 - count]):
        count += 1
    # `input:1:32x3` is the input `input:1`, not a pair of shapes.
    if count == 2 and "x" not in parts[-2] and "x" in parts[-1]:
        return 1
    return count
