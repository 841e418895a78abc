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
    """The scores of an evaluation on the final split; NaN if it was not `scored` there.

    Attributes:
        value: the value of the metric.
        loss: the loss against FP32, in the metric's unit.
        low, high: the 95 % interval of the loss, which accounts for the number of candidates that were tried.
        bound, value_bound: the loss is at most this, and the metric at worst this, with 95 % certainty, also for that
            number of candidates: what the verdict is given by. NaN where there are too few samples for it.
        tries: the number of candidates that were tried until this one was taken, including it.
        failure: why it could not be scored there; empty if it was, or was not tried.
        disagreement: the disagreement with the loss of the search, if chance does not explain it.
    """

    verdict: Verdict
    tries: int
    value: float = float("nan")
    loss: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    bound: float = float("nan")
    value_bound: float = float("nan")
    failure: str = ""
    disagreement: Disagreement | None = None
    scored: bool = False


@dataclass(frozen=True)
class Point:
    """One judged evaluation. If a stage was not reached, its floats are NaN and its counts -1.

    Attributes:
        row: its row in the table of evaluations that it was read with.
        trial: the number of its trial, by which users know it; -1 if it has none.
        role: `baseline:fp32`, `baseline:int8` and so on; empty for a mix.
        latency_ms: the latest measurement of its latency.
        samples_per_s: samples in a second at that latency, where one batch runs after the other.
        search_ms: the measurement of the search itself.
        spread: the inter-quartile range of the latency samples divided by their median.
        speedup: how many times as fast as uniform FP32; None if that was not measured.
        value: of the metric.
        loss_low, loss_high: 95 % interval of the loss.
        complete: whether it was scored on all samples.
        resemblance: least correlation of its outputs with FP32's, on the search and the final split.
        not_obeyed, opaque: the numbers of groups that did not run as requested, and of groups whose precision is not
            known.
        moves: the number of layers of its engine that only change format or type.
        picks: the names of its picks: `best`, `accurate`, `fast`, `knee`.
        ties: for each of its picks, the rows that it beats only by noise.
        not_sure: whether only its estimate keeps the accuracy limits, but not the bound of its interval.
        doubtful: whether its latency is doubtful; `speedup_doubtful`: whether that or the one of FP32 is.
        doubts: the doubts about its latency in words, of evaluations that a table shows.
        mismatch: the groups that did not run in the requested precision, in words.
        final_levels: its newest export at each other optimization level, the lowest first.
    """

    row: int
    id: int
    trial: int
    role: str
    status: str
    latency_ms: float
    samples_per_s: float
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
    doubtful: bool = False
    speedup_doubtful: bool = False
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
