"""A fourth precision between FP16 and INT8, which no release has: what a new member of `Precision` goes through.

`add` makes it known to a process. With `BITFRONT_TEST_TOY` an evaluator process knows it too, and its ONNX Runtime
claims a kernel of it for every weighted op; what runs is the float one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from search.values import AuditRow, Capability, Precision

ID, LABEL = 7, "toy"
FACTS = {"dtype": "toy", "value_bytes": 1.5, "usual_time": 0.5, "usual_noise": 0.1, "ceiling_db": 40.0}
COLOUR = "#123456"


def add() -> Precision:
    """Make it a member: its id is the largest, its rank lies between those of two others."""
    made = object.__new__(Precision)
    made._name_, made._value_ = "TOY", ID
    for name, value in {"id": ID, "rank": 2, "scaled": True, "colour": COLOUR, **FACTS}.items():
        setattr(made, name, value)
    Precision.INT8.rank = 3
    Precision._member_names_.append("TOY")
    Precision._member_map_["TOY"] = Precision._value2member_map_[ID] = made
    return made


def remove() -> None:
    """Forget it again."""
    Precision.INT8.rank = 2
    Precision._member_names_.remove("TOY")
    del Precision._member_map_["TOY"], Precision._value2member_map_[ID]


def claim_kernels() -> None:
    """Let ONNX Runtime offer it, and say that it ran where it was asked for."""
    from evaluators.backends.onnxruntime import backend as onnxruntime
    from evaluators.backends.onnxruntime import builder

    real, look = onnxruntime.OnnxRuntimeBackend.capability, builder.audit_rows

    def capability(backend: Any) -> Capability:
        offered = real(backend)
        return replace(offered, ops={**offered.ops, Precision.parse(LABEL): frozenset({"Conv", "Gemm"})})

    def audit_rows(optimized: Any, model: Any, assignment: Any) -> tuple[AuditRow, ...]:
        rows = look(optimized, model, assignment)
        return tuple(replace(row, got=row.asked) if row.asked.label == LABEL else row for row in rows)

    onnxruntime.OnnxRuntimeBackend.capability = capability  # type: ignore[method-assign]
    builder.audit_rows = audit_rows
