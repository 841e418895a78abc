"""What every tensor reaches, as calibration saw it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from search.values.assignment import Assignment, digest_of
from search.values.recovery import Correction, Recovery


@dataclass(frozen=True)
class TensorRange:
    """The values of one tensor that are worth representing: low ≤ high, finite."""

    low: float
    high: float

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Ranges:
    """Calibrated ranges of every float tensor, by name in the clean model.

    `observed` holds the plain minimum and maximum, which feasibility of floats (FP16) needs whatever `method` clipped.
    `fixed` names the tensors whose range a user set by hand, which no recovery step changes.
    `infinite` names the tensors that held Inf as well, as masked scores do: both are of their finite values.
    `selected` are the indices of the samples that `--calibration-select` chose; empty for all of them.
    `recovery` is what was changed of the model before they were calibrated, and of its INT8 constants with them.
    """

    method: str
    tensors: Mapping[str, TensorRange]
    observed: Mapping[str, TensorRange]
    samples: int
    infinite: tuple[str, ...] = ()
    recovery: Recovery = field(default_factory=Recovery)
    fixed: tuple[str, ...] = ()
    selected: tuple[int, ...] = ()

    @property
    def digest(self) -> str:
        return digest_of(self.to_json())

    @property
    def constant(self) -> tuple[str, ...]:
        """Names of tensors that never varied in the data."""
        flat = (name for name, seen in self.observed.items() if seen.low == seen.high)
        return tuple(name for name in flat if name not in self.infinite)

    def with_mixes(self, mixes: Mapping[str, Mapping[str, Correction]]) -> Ranges:
        """These ranges with what single mixes have of their own, as in `Recovery.mixes`."""
        return replace(self, recovery=replace(self.recovery, mixes=mixes))

    def for_mix(self, assignment: Assignment) -> Ranges:
        """The ranges of one mix, in which its corrections stand as if they were those of all INT8."""
        recovery = replace(self.recovery, corrections=self.recovery.corrections_in(assignment), mixes={})
        return replace(self, recovery=recovery)

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "samples": self.samples,
            "tensors": {name: [r.low, r.high] for name, r in sorted(self.tensors.items())},
            "observed": {name: [r.low, r.high] for name, r in sorted(self.observed.items())},
            # Left out where there is none, so that the digest of such ranges is what it was before there was the key.
            **({"infinite": sorted(self.infinite)} if self.infinite else {}),
            **({"fixed": sorted(self.fixed)} if self.fixed else {}),
            **({"selected": list(self.selected)} if self.selected else {}),
            **({"recovery": self.recovery.to_json()} if self.recovery else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ranges:
        return cls(
            method=data["method"],
            samples=data["samples"],
            tensors={name: TensorRange(*pair) for name, pair in data["tensors"].items()},
            observed={name: TensorRange(*pair) for name, pair in data["observed"].items()},
            infinite=tuple(data.get("infinite", ())),
            recovery=Recovery.from_json(data["recovery"]) if "recovery" in data else Recovery(),
            fixed=tuple(data.get("fixed", ())),
            selected=tuple(data.get("selected", ())),
        )
