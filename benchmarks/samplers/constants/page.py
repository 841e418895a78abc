"""The page docs/development/constants.md: every constant with its value, its reason, and what varying it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from benchmarks.page import table, write_section
from benchmarks.samplers.constants.listing import Constant, constants
from benchmarks.samplers.constants.varied import effects, why_fixed

PAGE = ROOT / "docs" / "development" / "constants.md"
Floats = NDArray[np.float64]

Shares = Mapping[str, Sequence[float]]
"""World, seed and draw, with `|` between, → share over the uniform assignments after 10 trials and after all."""


Results = Mapping[str, Any]
"""`varied`: keys of the constants that were varied, in the order of their coins; `shares`: `Shares`."""


def write(results: Results) -> None:
    """Write both tables into the page."""
    write_section("variation", variation(results), PAGE)
    write_section("constants", listed(results), PAGE)


def variation(results: Results) -> str:
    """Of every world the mean share with all constants as they are, and with each halved or doubled."""
    shares, rows = results["shares"], []
    for world in _worlds(shares):
        for name, draws in (("as they are", [0]), ("each halved or doubled", _draws(shares))):
            runs = np.array([values for key, values in shares.items() if _is(key, world, draws)])
            rows.append([f"`{world}`", name, str(len(runs)), *(_with_error(100 * column) for column in runs.T)])
    return table(["world", "constants", "runs", "share after 10 trials", "after 30"], rows)


def listed(results: Results) -> str:
    """A table for each package."""
    found = dict(zip(results["varied"], _effects(results["shares"], len(results["varied"])), strict=True))
    parts: dict[str, list[list[str]]] = {}
    for constant in constants():
        rows = parts.setdefault(constant.file.rpartition("/")[0], [])
        why = why_fixed(constant) or "it is newer than the measurement"
        effect = found.get(constant.key, f"not varied: {why}")
        rows.append(
            [constant.file.rpartition("/")[2], _names(constant), _values(constant), _sentence(constant.reason), effect]
        )
    heads = ["module", "constant", "value", "reason", "doubled less halved, points"]
    return "\n\n".join(f"### `{package}/`\n\n{table(heads, rows)}" for package, rows in parts.items())


def _effects(shares: Shares, count: int) -> list[str]:
    means = [np.mean([values[1] for key, values in shares.items() if key.endswith(f"|{d}")]) for d in _draws(shares)]
    found, errors = effects(_draws(shares), 100 * np.array(means), count)
    return [f"{value:+.1f} ± {error:.1f}" for value, error in zip(found, errors, strict=True)]


def _worlds(shares: Shares) -> list[str]:
    return list(dict.fromkeys(key.split("|")[0] for key in shares))


def _draws(shares: Shares) -> list[int]:
    return sorted({int(key.split("|")[2]) for key in shares} - {0})


def _is(key: str, world: str, draws: Sequence[int]) -> bool:
    of, _, draw = key.split("|")
    return of == world and int(draw) in draws


def _with_error(values: Floats) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}"


def _sentence(reason: str) -> str:
    return (reason[:1].upper() + reason[1:]).replace("|", "\\|")


def _names(constant: Constant) -> str:
    return ", ".join(f"`{name}`" for name in constant.names)


def _values(constant: Constant) -> str:
    return ", ".join(map(_value, constant.values))


def _value(value: Any) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return "; ".join(f"{field.name} {_value(getattr(value, field.name))}" for field in fields(value))
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))})"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
