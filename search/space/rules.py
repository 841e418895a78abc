"""The user's rules about layers, and choice of calibration samples."""

from __future__ import annotations

import re
from dataclasses import dataclass

from search.errors import ConfigError
from search.values import Precision


@dataclass(frozen=True)
class KeepRule:
    """A rule `REGEX=precision`: groups whose ONNX node name matches run in that precision."""

    pattern: str
    precision: Precision

    def __str__(self) -> str:
        return f"{self.pattern}={self.precision.label}"

    @classmethod
    def parse(cls, text: str) -> KeepRule:
        """Read `REGEX=fp16`; raises ConfigError for a missing `=`, a wrong pattern or an unknown precision."""
        pattern, equals, label = text.rpartition("=")
        if not equals or not pattern:
            raise ConfigError(f"--keep: expected REGEX=PRECISION, got {text!r}; write it like 'layer4.*=fp32'")
        try:
            re.compile(pattern)
            return cls(pattern, Precision.parse(label))
        except (re.error, OverflowError, RecursionError) as error:
            raise ConfigError(f"--keep: expected a regular expression, got {pattern!r}; correct it: {error}") from error
        except ValueError as error:
            raise ConfigError(f"--keep: expected REGEX=PRECISION, got {text!r}; {error}") from error


ALL = "all"
KINDS = ("confident", "diverse", "worst")


@dataclass(frozen=True)
class SampleChoice:
    """The value of `--calibration-select`: how many samples of which kind.

    Attributes:
        kind: `confident` are those with the largest margin between the first and the second class of the float model;
            `diverse` those whose outputs are farthest from each other; `worst` those on which plain INT8 agrees least
            with the float model.
    """

    kind: str
    count: int

    @classmethod
    def parse(cls, text: str) -> SampleChoice | None:
        """Read `worst:64`; None for `all`. Raises ConfigError for another form."""
        if text == ALL:
            return None
        kind, _, count = text.partition(":")
        if kind not in KINDS or not count.isascii() or not count.isdecimal() or int(count) < 1:
            raise ConfigError(
                f"--calibration-select: expected all, confident:N, diverse:N or worst:N with N from 1, got {text!r}; "
                "write it like worst:64"
            )
        return cls(kind, int(count))
