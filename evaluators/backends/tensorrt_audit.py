"""What a TensorRT engine really runs, read from the engine inspector's JSON; needs no TensorRT.

TensorRT 8.6 writes raw control characters (U+001E, U+001F) inside strings: U+001E parts the names of the ONNX nodes
that a fused layer came from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search.grouping import Group
from search.values import Assignment, AuditRow, Precision

_ONNX_LAYER = re.compile(r"\[ONNX Layer: ([^\]\x1e\x1f]+)\]")
_TYPES = (
    (re.compile(r"int8", re.IGNORECASE), Precision.INT8),
    (re.compile(r"fp16|half", re.IGNORECASE), Precision.FP16),
    (re.compile(r"fp32|float", re.IGNORECASE), Precision.FP32),
)
# Layers that only move data: they carry the names of the weighted node they serve, but compute nothing of it.
_MOVES = frozenset({"Constant", "NoOp", "Reformat", "Shuffle"})
_OPAQUE = re.compile(r"ForeignNode|Myelin|__myl", re.IGNORECASE)


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes:
        nodes: names of the ONNX nodes it came from.
        weights: precision its weights are stored in; None for a layer without.
        inputs, outputs: format and type of its tensors, as TensorRT words them.
    """

    name: str
    kind: str
    nodes: frozenset[str]
    weights: Precision | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str

    @property
    def opaque(self) -> bool:
        """Inside a region whose layers the inspector does not show."""
        return bool(_OPAQUE.search(self.name) or _OPAQUE.search(self.kind))

    @property
    def moves(self) -> bool:
        """Computes nothing: a reformat, a reshape."""
        return self.kind in _MOVES

    @property
    def precision(self) -> Precision | None:
        """What it computes in: its weights' type, else that of its first input."""
        if self.weights is not None:
            return self.weights
        return type_of(self.inputs[0]) if self.inputs else None


def parse(text: str) -> tuple[EngineLayer, ...]:
    """Layers of an engine from `IEngineInspector.get_engine_information`, in the order they run.

    Raises:
        ValueError: the text is no inspector JSON, or names only (built without detailed profiling verbosity).
    """
    data = json.loads(text, strict=False)
    layers = data.get("Layers") if isinstance(data, dict) else None
    if layers is None or any(not isinstance(layer, dict) for layer in layers):
        raise ValueError("expected the inspector's detailed JSON; build with ProfilingVerbosity.DETAILED")
    return tuple(_layer(layer) for layer in layers)


def type_of(text: str) -> Precision | None:
    """The precision in words such as `Channel major FP16 format`, `Int8`, `Half`; None for other types."""
    return next((precision for pattern, precision in _TYPES if pattern.search(text)), None)


def audit_rows(layers: Iterable[EngineLayer], groups: Sequence[Group], assignment: Assignment) -> tuple[AuditRow, ...]:
    """One row per group: the precision of the kernel of its weighted op; opaque where no kernel shows."""
    kernels: dict[str, EngineLayer] = {}
    # Layers with weights last, so that they win: a fused pointwise layer may name the same node.
    for layer in sorted(layers, key=lambda layer: layer.weights is not None):
        if not layer.moves and not layer.opaque:
            kernels.update(dict.fromkeys(layer.nodes, layer))
    rows = []
    for group in groups:
        found = [kernels[anchor] for anchor in group.anchors if anchor in kernels]
        got = [layer.precision for layer in found]
        known = [precision for precision in got if precision is not None]
        complete = len(known) == len(group.anchors)
        kernel = found[0].tactic or found[0].kind if found else ""
        rows.append(AuditRow(group.id, assignment[group.id], min(known) if complete else None, kernel[:200]))
    return tuple(rows)


def _layer(data: Mapping[str, Any]) -> EngineLayer:
    name = str(data.get("Name", ""))
    return EngineLayer(
        name=name,
        kind=str(data.get("LayerType", "")),
        nodes=_nodes(name, str(data.get("Metadata", ""))),
        weights=_weights(data.get("Weights")),
        inputs=_formats(data.get("Inputs")),
        outputs=_formats(data.get("Outputs")),
        tactic=str(data.get("TacticName", "")),
    )


def _nodes(name: str, metadata: str) -> frozenset[str]:
    named = _ONNX_LAYER.findall(metadata)
    return frozenset(named or (part.strip() for part in name.split(" + ")))


def _weights(data: Any) -> Precision | None:
    return type_of(str(data.get("Type", ""))) if isinstance(data, dict) and data.get("Count", 0) else None


def _formats(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list):
        return ()
    return tuple(_format(tensor) for tensor in data if isinstance(tensor, dict))


def _format(tensor: Mapping[str, Any]) -> str:
    # 8.6 and 10.x have one key; 11.x two.
    joined = tensor.get("Format/Datatype")
    return str(joined) if joined is not None else f"{tensor.get('Format', '')} {tensor.get('Datatype', '')}".strip()
