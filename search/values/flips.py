"""Samples whose class a lower precision changes, split into those that FP32 had right and those it had wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class FlippedSamples:
    """Samples of one kind.

    Attributes:
        first: indices of the first few in the data.
    """

    count: int
    first: Sequence[int]


@dataclass(frozen=True)
class Flips:
    """How the classes that an engine gives differ from FP32's.

    Attributes:
        samples: that were looked at.
        right: of these, how many FP32 had right; None without labels.
        lost: FP32 right, the engine wrong.
        gained: FP32 wrong, the engine right.
        moved: another class, and both wrong; without labels all whose class differs.
    """

    samples: int
    right: int | None
    lost: FlippedSamples
    gained: FlippedSamples
    moved: FlippedSamples

    @property
    def count(self) -> int:
        """Samples whose class differs."""
        return self.lost.count + self.gained.count + self.moved.count

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Flips:
        kinds = {name: FlippedSamples(**stored[name]) for name in ("lost", "gained", "moved")}
        return cls(stored["samples"], stored["right"], **kinds)
