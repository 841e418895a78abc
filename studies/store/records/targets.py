"""Targets of studies: their search space, sensitivities and the repetitions of their baselines."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from search.values import Capability, Precision, RecoveryRecord, Target

REBUILD, PROCESS, REOPEN = "rebuild", "process", "reopen"  # kinds of a repetition

# What may end a search before it is complete; the last is that no better mix is expected.
TIME_LIMIT, REQUEST, NO_PROSPECT = "time_limit", "request", "no_prospect"
CLOSING = "closing"  # among the details: the step at the end of a search that is under way


@dataclass(frozen=True)
class TargetRecord:
    """One target of one study.

    Attributes:
        id: the study-target id that every method about evaluations takes.
        optuna_study: name of the Optuna study of this pair, in the same database.
        ranges_digest: artifact with the calibrated ranges; None before calibration.
        statistics_digest: artifact with what each calibration sample did to each tensor; None before calibration.
        latency_band: relative half-width inside which two latencies are a tie; None until measured.
        provisional_band: what counts until then.
        optimization_level: of TensorRT's builder, once for all workers of the target; None before it is settled, and
            on other backends. `details["level_reason"]` says why.
        recovery: what was tried to make INT8 lose less, and kept in the ranges; None before calibration, and where the
            study was told to recover nothing.
        options: what was given for this target alone, as in `SearchConfig.to_json`; they go over the study's own. None
            for the study's first target.
    """

    id: int
    study_id: int
    target: Target
    optuna_study: str
    space_digest: str | None
    ranges_digest: str | None
    latency_band: float | None
    capability: Capability | None
    details: dict[str, Any]
    options: dict[str, Any] | None = None
    optimization_level: int | None = None
    recovery: RecoveryRecord | None = None
    statistics_digest: str | None = None
    provisional_band: float = 0.0

    @property
    def stopped_by(self) -> str:
        """What ended the last search before it was complete: one of the three above; empty for anything else."""
        found: str = self.details.get("stopped_by", "")
        return found

    @property
    def closing(self) -> tuple[str, datetime] | None:
        """What the worker that ends the last search does, and when all will be done by the database's clock."""
        found = self.details.get(CLOSING)
        return None if found is None else (found["step"], datetime.fromisoformat(found["until"]))

    @property
    def band(self) -> float:
        """The tie band that counts now: the measured one, else the provisional one."""
        return self.provisional_band if self.latency_band is None else self.latency_band

    @property
    def band_is_provisional(self) -> bool:
        """Whether the study has not measured its own tie band on this target yet."""
        return self.latency_band is None


@dataclass(frozen=True)
class CalibrationRecord:
    """What a target is calibrated with.

    Attributes:
        ranges_digest: of the artifact with the ranges.
        recovery: as in `TargetRecord`.
        recovery_key: names what recovery came from by content, for other studies; None if there was none.
        statistics_digest: as in `TargetRecord`.
    """

    ranges_digest: str
    recovery: RecoveryRecord | None = None
    recovery_key: str | None = None
    statistics_digest: str | None = None


@dataclass(frozen=True)
class Choice:
    """One precision of one group on one target.

    Attributes:
        code: index in the group's frozen code list, None if the precision never stood in it.
        offered: whether the samplers may propose it.
        reason: why it is not offered; empty when it is.
        buildable: False once the engine's builder has refused it here, which does not change what is offered.
    """

    group: str
    precision: Precision
    code: int | None
    offered: bool
    reason: str = ""
    buildable: bool = True


@dataclass(frozen=True)
class SensitivityRecord:
    """What one group alone in one precision does, all other groups in FP32.

    Attributes:
        error: noise over power of the network's outputs; None if they are not finite.
        flipped: share of samples whose class changes; None if not measured, or the outputs are no classes.
        sqnr_db: of the group's own output; None if it is not finite.
        kl: divergence of the rounded from the float activations, in nats; None if none is rounded.
        overlap: of their histograms, 0 to 1; None if none is rounded.
        saturated: share of values outside what the precision can hold; None if none is rounded.
        samples: that the error was measured on; 0 if it is an estimate.
        mse: mean squared error of the group's own output, in its unit; None if it is not finite.
        shift: share of that error which is one constant per channel; None if it is not finite.
        weight_kl: divergence of the rounded from the float weights, in nats; None without constant weights.
        tails: share of activations beyond four standard deviations; None if none is rounded.
        peak: farthest activation from the mean, in standard deviations; None if none is rounded.
        channel_ratio: range of the widest channel over that of the median one; None if none is rounded.
    """

    group: str
    precision: Precision
    error: float | None
    flipped: float | None
    sqnr_db: float | None
    kl: float | None
    overlap: float | None
    saturated: float | None
    samples: int
    mse: float | None = None
    shift: float | None = None
    weight_kl: float | None = None
    tails: float | None = None
    peak: float | None = None
    channel_ratio: float | None = None


@dataclass(frozen=True)
class RepeatRecord:
    """A uniform baseline measured again for the tie band: built again (`rebuild`), or its engine in a fresh `process`.

    Attributes:
        raw_ms: latency on the clock.
        baseline_ms: of the FP32 baseline that ran in between; None on targets whose latencies are no ratios.
    """

    evaluation_id: int
    kind: str
    raw_ms: float
    baseline_ms: float | None
