"""One judged evaluation, as other packages show and export it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from studies.judging.rules.verdicts import Disagreement, Verdict
from studies.store.records import FinalLevel

# Outputs that correlate less with FP32's share less than 4 % of their variance. An INT8 engine that loses ten points of
# top-1 still has 0.89. Of 64 samples of one value that have nothing to do with FP32's, 19 in 20 stay below this; larger
# outputs always do.
UNRELATED_BELOW = 0.2


@dataclass(frozen=True)
class FinalScore:
    """What the final split says of an evaluation; NaN if it was not `scored` there.

    Attributes:
        value: of the metric.
        loss: against FP32, in the metric's unit.
        low, high: 95 % interval of the loss that allows for how many were tried.
        tries: how many were looked at there until this one was taken, itself included.
        failure: why it could not be scored there; empty if it was, or was not tried.
        disagreement: with the loss of the search, where chance does not explain it.
    """

    verdict: Verdict
    tries: int
    value: float = float("nan")
    loss: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    failure: str = ""
    disagreement: Disagreement | None = None
    scored: bool = False


@dataclass(frozen=True)
class Point:
    """One evaluation, judged. Floats are NaN, and counts -1, where a stage was not reached.

    Attributes:
        row: its place in the table of evaluations that it was read with.
        trial: the number that users know it by; -1 where no trial asked for it.
        role: `baseline:fp32` and the like; empty for a mix.
        latency_ms: the latest word on it.
        search_ms: what the search itself measured.
        spread: inter-quartile range of the latency samples over their median.
        speedup: against uniform FP32; None if that was not measured.
        value: of the metric.
        loss_low, loss_high: 95 % interval of the loss.
        complete: whether it was scored on all samples.
        resemblance: least correlation of its outputs with FP32's, on the search and the final split.
        not_obeyed, opaque: groups that did not run as asked, or do not tell.
        moves: layers of its engine that only change format or type.
        picks: what it is picked as: `best`, `accurate`, `fast`, `knee`.
        ties: pick → rows that it beats as that by noise alone.
        not_sure: whether it keeps the accuracy limits by its estimate alone, and not by a bound of it.
        doubts: what is doubtful in its latency.
        mismatch: which groups did not run as asked, in words.
        final_levels: its newest export at each other optimization level, the lowest first.
    """

    row: int
    id: int
    trial: int
    role: str
    status: str
    latency_ms: float
    search_ms: float
    spread: float
    speedup: float | None
    value: float
    loss: float
    loss_low: float
    loss_high: float
    complete: bool
    memory_bytes: int
    size_bytes: int
    build_s: float
    resemblance: float
    not_obeyed: int
    opaque: int
    moves: int
    feasible: bool
    on_front: bool
    not_sure: bool
    picks: tuple[str, ...]
    ties: Mapping[str, tuple[int, ...]]
    final: FinalScore
    doubts: tuple[str, ...] = ()
    mismatch: str = ""
    final_levels: tuple[FinalLevel, ...] = field(default=())

    @property
    def unrelated(self) -> bool:
        """Whether its outputs have nothing in common with FP32's: whatever the metric says, it is probably broken."""
        return self.resemblance < UNRELATED_BELOW  # NaN is not

    @property
    def baseline(self) -> str:
        """The precision that it is a uniform baseline of; empty for a mix."""
        return self.role.partition(":")[2]
