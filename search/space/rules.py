"""The user's rules about layers."""

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
