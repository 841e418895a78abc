"""Where engines run, and what each group may run in there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from search.values.assignment import digest_of
from search.values.precision import REFERENCE, Precision

ATTENTION = "Attention"
# Op types that are groups of their own where the user has them decided, as far as no weighted op has taken them in.
FREE = ("Add", "Gelu", "LayerNormalization", "Resize", "Softmax")


@dataclass(frozen=True)
class Capability:
    """What a target runs natively.

    Attributes:
        ops: op types with a native kernel, per precision below FP32; FP32 runs everything. `ATTENTION` among those of a
            quantized one stands for MatMul of two activations.
        min_channels: fewest input and output channels of a Conv that quantized precisions are worth on this target.
        min_matmul_size: fewest K and N of a Gemm/MatMul that they are worth.
        most_rows: of a product with weights alone in integers, beyond which reading weights is not most of the work.
        sizes: such sizes by the names above where a precision has its own, which count instead; floats have only these.
        withheld: op types that the target runs natively and that the user's capabilities file takes away.
        withheld_by: name of that file; empty without one.
    """

    ops: Mapping[Precision, frozenset[str]]
    min_channels: int = 1
    min_matmul_size: int = 1
    most_rows: int = 16
    sizes: Mapping[Precision, Mapping[str, int]] = field(default_factory=dict)
    withheld: Mapping[Precision, frozenset[str]] = field(default_factory=dict)
    withheld_by: str = ""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return tuple(p for p in sorted(Precision) if p is REFERENCE or p in self.ops)

    def why_not(self, precision: Precision, op: str) -> str:
        """Why an op type cannot run in a precision; empty if it can."""
        if precision is REFERENCE or op in self.ops.get(precision, ()):
            return ""
        if op in self.withheld.get(precision, ()):
            return f"the capabilities file {self.withheld_by} offers no {precision.label.upper()} to {op}"
        return f"the target has no {precision.label.upper()} kernel for {op}"

    def size(self, precision: Precision, name: str) -> int:
        """`min_channels`, `min_matmul_size` or `most_rows` as it holds for a precision."""
        of_all: int = getattr(self, name) if precision.quantized else 0
        return self.sizes.get(precision, {}).get(name, of_all)

    def to_json(self) -> dict[str, Any]:
        native: dict[str, Any] = {
            "ops": _label_ops(self.ops),
            "min_channels": self.min_channels,
            "min_matmul_size": self.min_matmul_size,
            "most_rows": self.most_rows,
        }
        if self.sizes:
            native["sizes"] = {precision.label: dict(own) for precision, own in sorted(self.sizes.items())}
        if not self.withheld_by:
            return native
        return {**native, "withheld": _label_ops(self.withheld), "withheld_by": self.withheld_by}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Capability:
        return cls(
            ops=_by_precision(data["ops"]),
            min_channels=data["min_channels"],
            min_matmul_size=data["min_matmul_size"],
            most_rows=data["most_rows"],
            sizes={Precision.parse(label): own for label, own in data.get("sizes", {}).items()},
            withheld=_by_precision(data.get("withheld", {})),
            withheld_by=data.get("withheld_by", ""),
        )


def _label_ops(ops: Mapping[Precision, frozenset[str]]) -> dict[str, list[str]]:
    return {precision.label: sorted(names) for precision, names in sorted(ops.items())}


def _by_precision(ops: Mapping[str, list[str]]) -> dict[Precision, frozenset[str]]:
    return {Precision.parse(label): frozenset(names) for label, names in ops.items()}


THREAD_CLOCK, WALL_CLOCK, GPU_CLOCK = "thread", "wall", "gpu"


@dataclass(frozen=True)
class Target:
    """Where engines run. Numbers of two targets never mix.

    Attributes:
        backend: name of the backend, for example `onnxruntime`.
        device: model of the device, for example `AMD EPYC` or `NVIDIA H200`; no host name, no index.
        versions: what changes speed with its version: runtime, driver major, compute capability.
        options: backend options that change speed or results: threads, graph level, TF32.
        statistic: which statistic of the samples is the latency: `mean`, `median` or `p20`.
        relative: whether a baseline is measured in between and the latency is scaled by it.
        clock: what inferences are timed by: `THREAD_CLOCK`, the processor time of the thread that runs them, which
            other processes do not stretch; `WALL_CLOCK`; or `GPU_CLOCK`, the device's own.
    """

    backend: str
    device: str
    versions: Mapping[str, str]
    options: Mapping[str, str]
    statistic: str
    relative: bool
    clock: str = WALL_CLOCK

    @property
    def fingerprint(self) -> str:
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "device": self.device,
            "versions": dict(self.versions),
            "options": dict(self.options),
            "statistic": self.statistic,
            "relative": self.relative,
            "clock": self.clock,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Target:
        return cls(**data)

    def differences(self, other: Target) -> list[str]:
        """What differs, as `key: mine against theirs`, for messages."""
        mine, theirs = flatten(self.to_json()), flatten(other.to_json())
        keys = sorted(mine.keys() | theirs.keys())
        return [f"{k}: {mine.get(k)} against {theirs.get(k)}" for k in keys if mine.get(k) != theirs.get(k)]


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` → `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
