"""Ranges that the user sets by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from search.errors import ConfigError
from search.values import Ranges, TensorRange


@dataclass(frozen=True)
class RangeRule:
    """A rule `REGEX=LOW:HIGH`: tensors whose name matches have that range in INT8."""

    pattern: str
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.pattern}={self.low:g}:{self.high:g}"

    @classmethod
    def parse(cls, text: str) -> RangeRule:
        """Read `REGEX=-1:6`; raises ConfigError for another form, a wrong pattern, or ends in the wrong order."""
        pattern, equals, ends = text.rpartition("=")
        low, colon, high = ends.partition(":")
        if not equals or not pattern or not colon:
            raise ConfigError(f"--range: expected REGEX=LOW:HIGH, got {text!r}; write it like 'conv1.*=0:6'")
        try:
            re.compile(pattern)
            rule = cls(pattern, float(low), float(high))
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(
                f"--range: expected a regular expression, got {pattern!r}; correct it: {error}"
            ) from error
        except ValueError as error:
            raise ConfigError(f"--range: expected numbers in LOW:HIGH, got {ends!r}; write it like 0:6") from error
        if not (math.isfinite(rule.low) and math.isfinite(rule.high)):
            raise ConfigError(f"--range {text}: expected finite ends, got {ends}; give the largest value to represent")
        if rule.low >= rule.high:
            raise ConfigError(f"--range {text}: expected LOW < HIGH, got {ends}; swap the ends")
        return rule

    def matches(self, names: Iterable[str]) -> list[str]:
        """The names that the pattern matches."""
        return [name for name in names if re.search(self.pattern, name)]


def check_matches(rules: Sequence[RangeRule], names: Iterable[str]) -> None:
    """Refuse rules that match nothing.

    Raises:
        ConfigError: a rule matches nothing; the message names the first.
    """
    known = list(names)
    for rule in rules:
        if not rule.matches(known):
            shown = ", ".join(known[:3])
            raise ConfigError(
                f"--range {rule}: expected a pattern for float tensors of the model, but none of {len(known)} matches; "
                f"names are like {shown}. `bitfront inspect` shows the layers"
            )


def set_ranges(ranges: Ranges, rules: Sequence[RangeRule]) -> Ranges:
    """Set the ranges of the rules, and mark them as `fixed`. If several rules match a tensor, the last one counts.

    Raises:
        ConfigError: a rule matches no tensor.
    """
    check_matches(rules, ranges.tensors)
    tensors = dict(ranges.tensors)
    fixed = set(ranges.fixed)
    for rule in rules:
        for name in rule.matches(ranges.tensors):
            tensors[name] = TensorRange(rule.low, rule.high)
            fixed.add(name)
    return replace(ranges, tensors=tensors, fixed=tuple(sorted(fixed))) if rules else ranges
