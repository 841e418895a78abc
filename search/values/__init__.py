"""Plain frozen values that every folder speaks: precisions, assignments, ranges, targets, evaluations."""

from search.values.assignment import Assignment, digest_of, is_quantized
from search.values.evaluation import (
    BOUND_TRIES,
    UNLIKE_FLOAT,
    Accuracy,
    Answer,
    AuditRow,
    EngineSummary,
    Evaluation,
    Failure,
    FailureKind,
    FlippedSamples,
    Flips,
    Latency,
    LayerTime,
    Stage,
    bound_level,
)
from search.values.precision import BASELINE, RECOVERED_FIRST, REFERENCE, Precision
from search.values.ranges import Ranges, TensorRange
from search.values.recovery import Correction, Recovery
from search.values.recovery_record import NOT_TRIED, LossEstimate, MixBias, RecoveryRecord, StepRecord
from search.values.score import Score
from search.values.target import ATTENTION, FREE, GPU_CLOCK, THREAD_CLOCK, WALL_CLOCK, Capability, Target, flatten

__all__ = [
    "ATTENTION",
    "BASELINE",
    "BOUND_TRIES",
    "FREE",
    "GPU_CLOCK",
    "NOT_TRIED",
    "RECOVERED_FIRST",
    "REFERENCE",
    "THREAD_CLOCK",
    "UNLIKE_FLOAT",
    "WALL_CLOCK",
    "Accuracy",
    "Answer",
    "Assignment",
    "AuditRow",
    "Capability",
    "Correction",
    "EngineSummary",
    "Evaluation",
    "Failure",
    "FailureKind",
    "FlippedSamples",
    "Flips",
    "Latency",
    "LayerTime",
    "LossEstimate",
    "MixBias",
    "Precision",
    "Ranges",
    "Recovery",
    "RecoveryRecord",
    "Score",
    "Stage",
    "StepRecord",
    "Target",
    "TensorRange",
    "bound_level",
    "digest_of",
    "flatten",
    "is_quantized",
]
