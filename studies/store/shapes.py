"""What the JSON values of the tables look like that are written from no class of their own.

They are held against these where they are read: a database may come from anywhere. A key with a default may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search.values.shape import Amount, Count

Tensor = tuple[str, str, Sequence[Count]]  # name, type and shape


@dataclass
class StudyModel:
    """What is told of a study's model without its file."""

    inputs: Sequence[Tensor]
    outputs: Sequence[Tensor] = ()


@dataclass
class StudyEnvironment:
    """As `studies.environment.collect` gives it."""

    python: str = ""
    platform: str = ""
    cpu: Mapping[str, str | int | Sequence[str] | None] | None = None
    memory_bytes: Count = 0
    packages: Mapping[str, str] | None = None
    gpus: Sequence[Mapping[str, str]] = ()
    container: str = ""


@dataclass
class ClosingStep:
    """What the worker that ends a search does, and when all will be done (ISO 8601)."""

    step: str
    until: str


@dataclass
class TargetDetails:
    """What the workers of a target leave for each other."""

    closing: ClosingStep | None = None
    stopped_by: str = ""
    level_reason: str = ""
    repeatability: Amount = 0.0
    rebuild: Amount = 0.0
    process: Amount = 0.0
    final_reference: float | None = None
    finalists_by: str | None = None
    resolution_told: Sequence[str] = ()


@dataclass
class DeviceState:
    """As `Backend.device_state` gives it."""

    sm_clock_mhz: float = 0.0
    memory_clock_mhz: float = 0.0
    temperature_c: float = 0.0
    power_w: float = 0.0
    throttled: Sequence[str] = ()
    other_processes: Count = 0


@dataclass
class Conditions:
    """As in `Latency.conditions`."""

    before: DeviceState | None = None
    after: DeviceState | None = None
    throttled: Sequence[str] = ()
    openings_ms: Sequence[float] = ()
    interrupted: Count = 0
    undisturbed: Count = 0


@dataclass
class Surroundings:
    """What is kept beside the samples of a latency."""

    around_ms: Mapping[str, float] | None = None
    conditions: Conditions | None = None


@dataclass
class StoredFailure:
    """An evaluator process that died over an evaluation."""

    stage: str
    kind: str
    message: str | None = None
    log: str | None = None
