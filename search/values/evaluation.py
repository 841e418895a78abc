"""One assignment built, measured and audited on one target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.values.assignment import Assignment
from search.values.precision import Precision

UNLIKE_FLOAT = "unlike the float model: "  # begins the note of a uniform FP32 engine that is another function


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


class Stage(str, Enum):
    """Where an evaluation is, in this order."""

    LOWER = "lower"
    BUILD = "build"
    AUDIT = "audit"
    LATENCY = "latency"
    ACCURACY = "accuracy"


class FailureKind(str, Enum):
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CRASHED = "crashed"
    REFUSED = "refused"
    NON_FINITE = "non_finite"
    ERROR = "error"


@dataclass(frozen=True)
class Failure:
    """Why an evaluation failed.

    Attributes:
        log: the tail of what the evaluator process printed.
        group: id of the group that the engine's builder refused, where it named one.
    """

    stage: Stage
    kind: FailureKind
    message: str
    log: str = ""
    group: str | None = None


class Answer(str, Enum):
    """What an audit says of one group."""

    OBEYED = "obeyed"
    NOT_OBEYED = "not obeyed"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class AuditRow:
    """Asked and got precision of one group, read back from what was built; `got` is None when opaque.

    `details` says how it runs, as far as the engine shows it: `layer`, `weights`, `inputs`, `outputs` (formats and
    types in the engine's words), `sparse` (`yes` or `no`), `tactic`, and of the group's other nodes, say a residual Add
    and an activation, which do not decide the answer, where they run: `beside`.
    """

    group: str
    asked: Precision
    got: Precision | None
    kernel: str
    details: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def answer(self) -> Answer:
        if self.got is None:
            return Answer.OPAQUE
        return Answer.OBEYED if self.got == self.asked else Answer.NOT_OBEYED


@dataclass(frozen=True)
class LayerTime:
    """What one layer of an engine takes, from a profiled run.

    Attributes:
        name: in the engine's words.
        kind: type of the layer, in the engine's words.
        group: id of the group it computes; None for what belongs to none.
        moves: whether it only changes format or type, or copies.
        ms: of one inference, a mean or median over several. Profiling adds to every layer, so the sum is more than
            the engine's latency.
    """

    name: str
    kind: str
    group: str | None
    moves: bool
    ms: float


@dataclass(frozen=True)
class EngineSummary:
    """What an engine is made of.

    Attributes:
        layers: kernels and copies that one inference runs.
        moves: those of them that only change format or type (reformats, casts), or copy.
        opaque: regions whose inside does not show.
        sparse: layers that run on sparse weights.
        moves_ms: what the moves take, from a profiled run; None if none was made.
        profiled_ms: what all layers take in that run.
        build_threads: that the builder was allowed; None if it cannot be told, or was not used.
        optimization_level: of TensorRT's builder; None on other backends.
    """

    layers: int
    moves: int
    opaque: int = 0
    sparse: int = 0
    moves_ms: float | None = None
    profiled_ms: float | None = None
    build_threads: int | None = None
    optimization_level: int | None = None

    @property
    def computing_ms(self) -> float | None:
        """What all layers but the moves take; None where no run was profiled."""
        return None if self.profiled_ms is None or self.moves_ms is None else self.profiled_ms - self.moves_ms


@dataclass(frozen=True)
class Latency:
    """Latency of one engine in one measurement.

    Attributes:
        value_ms: the latency in milliseconds: `raw_ms`, on relative targets times what the baseline usually takes ÷
            `baseline_ms`. It is not stored: whoever reads the measurement derives it from all baselines known by then.
        raw_ms: the statistic of `samples_ms`, unscaled.
        spread: inter-quartile range of `samples_ms` over their median; with a baseline, of the samples held against the
            baseline of the same moment, so that what slows down both is not in it.
        baseline_ms: the statistic of the baseline measured in between; None if none was.
        samples_ms: (n,) float64 milliseconds of one inference each.
        baseline_samples_ms: (m,) float64, empty if no baseline was measured.
        warnings: what makes the number doubtful, in words.
        around_ms: what surrounds an inference and is not in it: `host_to_device`, `device_to_host`, `enqueue` (host
            time to hand over its kernels one by one), `launch` (as one graph); empty if there is no such thing.
        conditions: state of the device `before` and `after`, and `throttled` (reasons); empty if unknown. Where other
            processes `interrupted` inferences, how many of them, and of the `undisturbed` ones, which alone count.
        wall_ms: what inferences took on the wall clock where the target's is processor time; None elsewhere.
    """

    value_ms: float
    raw_ms: float
    spread: float
    baseline_ms: float | None
    samples_ms: NDArray[np.float64]
    baseline_samples_ms: NDArray[np.float64]
    warnings: tuple[str, ...] = ()
    around_ms: Mapping[str, float] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    wall_ms: float | None = None


# How many candidates may have been looked at before one is judged: for each number there is a bound that allows for it.
BOUND_TRIES = (1, 2, 3, 4, 5, 6, 8, 12, 24, 60)
CONFIDENCE = 0.95  # of all bounds together


def bound_level(tries: int) -> float:
    """The error probability of each of so many bounds, of which all together hold with 95 % (Šidák)."""
    return 1 - float(CONFIDENCE ** (1 / max(tries, 1)))


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of one engine on one split.

    Attributes:
        metric: name of the metric.
        value: the metric over the samples seen, in its unit.
        loss: how much worse than uniform FP32 on the same samples, ≥ 0 when worse, in the metric's unit.
        loss_low, loss_high: 95 % interval of the loss from paired per-sample (or per-batch) differences.
        loss_bounds: upper bounds of the loss, for the first few of `BOUND_TRIES`, by which verdicts are given; empty
            where there are too few samples for a bound.
        value_bounds: how bad the value may be, likewise.
        samples, total: samples seen and in the split; `samples < total` when stopped early.
        scores: (samples,) float64 per-sample scores; per batch for metrics of the update/compute kind.
        resemblance: least correlation of its float outputs with FP32's on some samples of the split, whatever the
            metric; 0 for an engine that gives the same on every sample; None if it cannot be told.
        run_s, score_s: seconds that the engine's runs with their transfers took, and scoring that they did not cover.
        flips: samples whose class differs from FP32's; None where outputs are no classes, or nobody counted them.
    """

    metric: str
    value: float
    loss: float
    loss_low: float
    loss_high: float
    samples: int
    total: int
    scores: NDArray[np.float64]
    resemblance: float | None = None
    run_s: float = 0.0
    score_s: float = 0.0
    flips: Flips | None = None
    loss_bounds: tuple[float, ...] = ()
    value_bounds: tuple[float, ...] = ()

    @property
    def complete(self) -> bool:
        return self.samples == self.total


@dataclass(frozen=True)
class Evaluation:
    """One assignment built, measured and audited on one target; ends ok (`failure is None`) or failed.

    Measures of stages that were reached are kept even when a later stage failed.
    `artifact` is the path of the engine file while it is fresh, relative to nothing. `profile` is there where it was
    asked for.

    Attributes:
        stage_s: seconds that each part took in the process that ended it: `lower`, `build`, `audit`, `load`, `latency`,
            `run` (the engine over the samples), `score`, `reference` (FP32's own engine and outputs, once a process)
            and `wait` (for other processes that measured). What took no time is absent.
        attempts: evaluator processes that tried it.
        deaths: of these processes, those that ended in the middle of it, in order: at which stage, how and why.
    """

    assignment: Assignment
    failure: Failure | None = None
    audit: tuple[AuditRow, ...] = ()
    latency: Latency | None = None
    accuracy: Accuracy | None = None
    size_bytes: int | None = None
    memory_bytes: int | None = None
    build_s: float | None = None
    total_s: float | None = None
    attempts: int = 1
    artifact: str | None = None
    notes: tuple[str, ...] = field(default=())
    engine: EngineSummary | None = None
    profile: tuple[LayerTime, ...] = ()
    stage_s: Mapping[str, float] = field(default_factory=dict)
    deaths: tuple[Failure, ...] = ()

    @property
    def ok(self) -> bool:
        return self.failure is None
