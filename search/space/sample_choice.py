"""The user's choice of calibration samples."""

from __future__ import annotations

from dataclasses import dataclass

from search.errors import ConfigError

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
