"""Results of requests to an evaluator process for which there is no value of the domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.contract import Metric, MetricMeaning
from search.values import Accuracy, Capability, Evaluation, Latency, Ranges, RecoveryRecord, Target


@dataclass(frozen=True)
class DataDescription:
    """Digests of the data and how many samples each split has.

    Attributes:
        clusters: split → number of clusters; empty where samples belong to none.
    """

    digest: str
    final_digest: str
    calibration_digest: str
    calibration: int
    search: int
    final: int
    clusters: Mapping[str, int]


@dataclass(frozen=True)
class MetricDescription(MetricMeaning):
    """What scores outputs.

    Attributes:
        relative: whether outputs are compared with those of FP32, so that FP32 always has the least loss.
        notes: how it was chosen and what it does not score, one sentence each.
    """

    relative: bool
    notes: Sequence[str]

    @classmethod
    def of(cls, metric: Metric, notes: Sequence[str]) -> MetricDescription:
        return cls(**metric.meaning(), relative=metric.needs_reference, notes=notes)


@dataclass(frozen=True)
class Description:
    """What a process opened.

    Attributes:
        model: digest of the model.
        knobs: what decides, beside assignment and ranges, what is built.
        engine_file: what an exported engine is called.
        placement: the way in which assignments are lowered for this target, as `Placement.to_json` gives it.
        data, metric: None in a process that only builds.
        score_clusters: split → (scores,) int64, the cluster of each score, where samples belong to clusters.
        labelled: whether the data have labels.
    """

    target: Target
    model: str
    capability: Capability
    knobs: dict[str, str]
    engine_file: str
    placement: dict[str, Any]
    data: DataDescription | None = None
    metric: MetricDescription | None = None
    score_clusters: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    labelled: bool = False


@dataclass(frozen=True)
class Built:
    """What building a candidate left for measuring it, in the same process or in another one on the same target.

    Attributes:
        evaluation: what is known so far: audit, size, seconds, notes. Where building failed it is finished.
        engine: the engine file; None where building failed.
        log: the end of what the process printed while it built; the keeper of the process fills it in.
    """

    evaluation: Evaluation
    engine: Path | None
    log: str = ""


@dataclass(frozen=True)
class Calibrated:
    """Ranges of every float tensor.

    Attributes:
        notes: what is noteworthy about the ranges, one sentence each.
        mismatches: where a calibration cache that was given and the model differ, one sentence each.
    """

    ranges: Ranges
    notes: Sequence[str]
    mismatches: Sequence[str] = ()


@dataclass(frozen=True)
class Recovered:
    """Ranges with what recovery changed, and what it tried."""

    ranges: Ranges
    record: RecoveryRecord


@dataclass(frozen=True)
class FloatComparison:
    """Outputs of two float models on the same samples.

    Attributes:
        equal: whether all are the same bit by bit.
        error: noise over the outputs' power, mean over the outputs; None if it is not finite. Of outputs that are no
            floats, the share of values that differ.
        floats: whether there are outputs of floats, of which alone the error is then.
    """

    equal: bool
    error: float | None
    floats: bool
    samples: int


@dataclass(frozen=True)
class FinalScores:
    """Finalists, measured again and scored on the final split.

    Attributes:
        latency: label → latency, measured in turn with the others and the baseline.
        accuracy: label → accuracy on the final split.
        reference: FP32's value of the metric there.
        failed: label → message, of engines that are not in `accuracy` because their outputs on the final split are
            not finite.
        counts: samples of each batch there.
    """

    latency: Mapping[str, Latency]
    accuracy: Mapping[str, Accuracy]
    reference: float
    failed: Mapping[str, str]
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class EmulatedScore:
    """An assignment scored without an engine, written as Q/DQ and Cast, in ONNX Runtime.

    Attributes:
        accuracy: on the search split; None if its outputs are not finite.
        failure: why there is none; empty if there is.
    """

    accuracy: Accuracy | None
    failure: str = ""


@dataclass(frozen=True)
class LatencyComparison:
    """Two engines timed in turn: the target's statistic of each, in milliseconds.

    Attributes:
        baseline_ms: of FP32, timed in turn with both on relative targets; None on others.
        warnings: what is doubtful in the measurements.
    """

    engine_ms: float
    measured_ms: float
    baseline_ms: float | None
    warnings: Sequence[str]


@dataclass(frozen=True)
class EngineScores:
    """Engine files scored on the same samples, in the same order.

    Attributes:
        metric: what scored them.
        scores: label → (n,) float64: one score per sample, per batch for accumulating metrics.
        values: label → the metric over everything.
        counts: samples of each batch.
        clusters: (n,) int64 codes, the same for scores that belong together; None if they are independent.
        failed: label → message, of engines that are not in `scores` because their outputs are not finite.
        data: digest of the data.
    """

    metric: MetricDescription
    scores: Mapping[str, NDArray[np.float64]]
    values: Mapping[str, float]
    counts: Sequence[int]
    clusters: NDArray[np.int64] | None
    failed: Mapping[str, str]
    data: str
