"""What recovery tried on one target: each step, whether it was kept and why, and the losses around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

NOT_TRIED = "it was not tried"


@dataclass(frozen=True)
class LossEstimate:
    """A loss against FP32 on the same samples, in the metric's unit, with its 95 % interval.

    Attributes:
        value: of the metric itself; None where an earlier version did not keep it.
    """

    loss: float
    low: float
    high: float
    samples: int
    value: float | None = None

    @property
    def shows(self) -> bool:
        """Whether there is a loss that chance does not explain."""
        return self.low > 0


@dataclass(frozen=True)
class StepRecord:
    """One recovery step.

    Attributes:
        name: as the step calls itself.
        exact: whether it changes the float model; else it changes what INT8 alone uses.
        kept: whether what it proposed is part of the result.
        reason: why it was kept or not, in words.
        error_before, error_after: of the outputs of all INT8 on held-out calibration samples, without and with it:
            noise over power of the float outputs; None if they are not finite or were not measured.
        loss_before, loss_after: the metric's loss on all calibration samples that there was time for; None if it cannot
            be scored there.
        final: the loss of all INT8 on the final samples with this step and those kept before it; None if the step
            was not kept or they were not scored.
        seconds: that proposing and measuring took.
        notes: the step's own, one sentence each.
        cut: where it ran out of time, after how much, in words; `NOT_TRIED` where the time was over before; empty where
            it did not.
    """

    name: str
    exact: bool
    kept: bool
    reason: str
    error_before: float | None = None
    error_after: float | None = None
    loss_before: LossEstimate | None = None
    loss_after: LossEstimate | None = None
    final: LossEstimate | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    cut: str = ""


@dataclass(frozen=True)
class RecoveryRecord:
    """All steps that were tried on one target, in their order.

    Attributes:
        asked: as `--recover` was given.
        plain: the loss of plain INT8 on the final samples; None if it was not scored.
        notes: what holds for all of it, one sentence each.
        again: whether it had more time, after it had run out of it.
        own: groups whose INT8 has the scales of a quantized file, which no step changes.
        formats: steps that were tried for other precisions than INT8, named `bias of W4`; their losses are not scored.
    """

    asked: str
    steps: tuple[StepRecord, ...] = ()
    plain: LossEstimate | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    again: bool = False
    formats: tuple[StepRecord, ...] = ()
    own: tuple[str, ...] = ()

    @property
    def kept_steps(self) -> tuple[StepRecord, ...]:
        return tuple(step for step in self.steps if step.kept)

    @property
    def cut(self) -> tuple[StepRecord, ...]:
        """Steps that ran out of time: with more of it they may do more."""
        return tuple(step for step in self.steps if step.cut)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RecoveryRecord:
        steps, formats = (tuple(_step(row) for row in data.get(name, ())) for name in ("steps", "formats"))
        again, own = data.get("again", False), tuple(data.get("own", ()))
        notes = tuple(data["notes"])
        return cls(data["asked"], steps, _loss(data["plain"]), notes, data["seconds"], again, formats, own)


@dataclass(frozen=True)
class MixBias:
    """What came of correcting the biases of one mix for itself, where it had those of all INT8 before.

    Attributes:
        step: the correction on held-out calibration samples, where the mix without and with it was emulated.
        kept: whether the engine has it now.
        reason: why it was kept or not, in words.
        before, after: loss of the engine without and with it on the same search samples; `after` is None if no
            engine was built with it.
    """

    step: StepRecord
    kept: bool
    reason: str
    before: LossEstimate
    after: LossEstimate | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MixBias:
        return cls(
            _step(data["step"]),
            data["kept"],
            data["reason"],
            LossEstimate(**data["before"]),
            _loss(data["after"]),
        )


def _step(row: Mapping[str, Any]) -> StepRecord:
    losses = {name: _loss(row[name]) for name in ("loss_before", "loss_after", "final")}
    return StepRecord(**{**row, **losses, "notes": tuple(row["notes"])})


def _loss(row: Mapping[str, Any] | None) -> LossEstimate | None:
    return None if row is None else LossEstimate(**row)
