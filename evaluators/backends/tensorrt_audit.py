"""What a TensorRT engine really runs, read from the engine inspector's JSON; needs no TensorRT.

TensorRT 8.6 writes raw control characters (U+001E, U+001F) inside strings: U+001E parts the names of the ONNX nodes
that a fused layer came from. Versions 8.6 and 10.x give a tensor's `Format/Datatype` in one key, 11.x in two; what
stands beside `Layers` (`Bindings`, from 11 on `I/O Tensors`) is not needed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from search.grouping import Group
from search.values import Assignment, AuditRow, EngineSummary, LayerTime, Precision

_ONNX_LAYER = re.compile(r"\[ONNX Layer: ([^\]\x1e\x1f]+)\]")
_TYPES = (
    (re.compile(r"int8", re.IGNORECASE), Precision.INT8),
    (re.compile(r"fp16|half", re.IGNORECASE), Precision.FP16),
    (re.compile(r"fp32|float", re.IGNORECASE), Precision.FP32),
)
# Layers that only move data: they carry the names of the weighted node they serve, but compute nothing of it.
_IDLE = frozenset({"Constant", "NoOp", "Shuffle"})
# Layers that only change format or type: what a change of precision between neighbours costs.
_CONVERTS = frozenset({"Cast", "Dequantize", "Quantize", "Reformat"})
_MOST_NAME = 300
_MOST_BESIDE = 300
_OPAQUE = re.compile(r"ForeignNode|Myelin|__myl", re.IGNORECASE)


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes:
        nodes: names of the ONNX nodes it came from.
        weights: precision its weights are stored in; None for a layer without.
        sparse: whether it runs on 2:4 sparse weights.
        inputs, outputs: format and type of its tensors, as TensorRT words them.
    """

    name: str
    kind: str
    nodes: frozenset[str]
    weights: Precision | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str
    sparse: bool = False

    @property
    def opaque(self) -> bool:
        """Inside a region whose layers the inspector does not show."""
        return bool(_OPAQUE.search(self.name) or _OPAQUE.search(self.kind))

    @property
    def moves(self) -> bool:
        """Computes nothing: a reformat, a reshape."""
        return self.kind in _IDLE or self.converts

    @property
    def converts(self) -> bool:
        """Only changes format or type."""
        return self.kind in _CONVERTS

    @property
    def precision(self) -> Precision | None:
        """What it computes in: its weights' type, else that of its first input."""
        if self.weights is not None:
            return self.weights
        return type_of(self.inputs[0]) if self.inputs else None

    def details(self) -> dict[str, str]:
        """As `AuditRow.details` has it."""
        return {
            "layer": self.name[:_MOST_NAME],
            "weights": self.weights.label if self.weights is not None else "",
            "inputs": "; ".join(self.inputs),
            "outputs": "; ".join(self.outputs),
            "sparse": "yes" if self.sparse else "no",
            "tactic": self.tactic,
        }


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
    kernels, regions = _kernels(layers)
    rows = (_row(group, assignment[group.id], kernels, regions) for group in groups)
    return tuple(
        replace(row, details={**row.details, **_beside(group, row, kernels, regions)})
        for group, row in zip(groups, rows, strict=True)
    )


def _kernels(layers: Iterable[EngineLayer]) -> tuple[dict[str, EngineLayer], dict[str, EngineLayer]]:
    """ONNX node → the layer that computes it, and → the opaque region that holds it."""
    kernels: dict[str, EngineLayer] = {}
    regions: dict[str, EngineLayer] = {}
    # Layers with weights last, so that they win: a fused pointwise layer may name the same node.
    for layer in sorted(layers, key=lambda layer: layer.weights is not None):
        if not layer.moves:
            (regions if layer.opaque else kernels).update(dict.fromkeys(layer.nodes, layer))
    return kernels, regions


def _row(
    group: Group, asked: Precision, kernels: Mapping[str, EngineLayer], regions: Mapping[str, EngineLayer]
) -> AuditRow:
    found = [kernels[anchor] for anchor in group.anchors if anchor in kernels]
    known = [layer.precision for layer in found if layer.precision is not None]
    if len(known) < len(group.anchors):
        hidden = next((regions[anchor] for anchor in group.anchors if anchor in regions), None)
        return AuditRow(group.id, asked, None, hidden.kind if hidden else "", hidden.details() if hidden else {})
    # Of several kernels (shared weights) one that does not obey is the answer.
    layer = next((layer for layer in found if layer.precision != asked), found[0])
    return AuditRow(group.id, asked, layer.precision, (layer.tactic or layer.kind)[:200], layer.details())


def _beside(
    group: Group, row: AuditRow, kernels: Mapping[str, EngineLayer], regions: Mapping[str, EngineLayer]
) -> dict[str, str]:
    """Where the group's other nodes run, say its residual Add and its activation: `Add, Relu: in the kernel`."""
    found: dict[str, list[str]] = {}
    for node in group.nodes:
        if node not in group.anchors:
            layer = kernels.get(node) or regions.get(node)
            found.setdefault(_place_of(layer, row.details.get("layer")), []).append(node.rpartition("/")[2] or node)
    text = "; ".join(f"{', '.join(nodes)}: {place}" for place, nodes in found.items())
    return {"beside": text[:_MOST_BESIDE]} if text else {}


def _place_of(layer: EngineLayer | None, kernel: str | None) -> str:
    if layer is None:
        return "not shown"  # folded away, or inside a region that does not name its nodes
    if layer.opaque:
        return "in an opaque region"
    if layer.name[:_MOST_NAME] == kernel:
        return "in the kernel"
    sides = (", ".join(_short_type(words) for words in side) for side in (layer.inputs, layer.outputs))
    return f"{layer.kind} {' → '.join(sides)}".strip()


def _short_type(words: str) -> str:
    known = type_of(words)
    return known.label if known is not None else words


def summary(layers: Sequence[EngineLayer]) -> EngineSummary:
    """What the engine is made of; layers that run nothing (constants, reshapes in place) do not count."""
    running = [layer for layer in layers if layer.kind not in ("Constant", "NoOp")]
    return EngineSummary(
        layers=len(running),
        moves=sum(layer.converts for layer in running),
        opaque=sum(layer.opaque for layer in running),
        sparse=sum(layer.sparse for layer in running),
    )


def layer_times(
    times: Mapping[str, float], layers: Iterable[EngineLayer], groups: Sequence[Group]
) -> tuple[LayerTime, ...]:
    """Times by layer name, as the profiler gives them, with the group that each layer computes.

    Args:
        times: milliseconds, in the order layers run.
    """
    known = {layer.name: layer for layer in layers}
    anchors = {anchor: group.id for group in groups for anchor in group.anchors}
    members = {node: group.id for group in groups for node in group.nodes}
    rows = []
    for name, ms in times.items():
        layer = known.get(name) or EngineLayer(name, _kind_of(name), _nodes(name, ""), None, (), (), "")
        owners = [owner for of in (anchors, members) for node, owner in of.items() if node in layer.nodes]
        owner = None if layer.converts else next(iter(owners), None)
        rows.append(LayerTime(name, layer.kind, owner, layer.converts, ms))
    return tuple(rows)


def _kind_of(name: str) -> str:
    """Of a layer that the inspector does not list: from what the profiler calls it."""
    return "Reformat" if name.startswith("Reformatting") else ""


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
        sparse=bool(data.get("HasSparseWeights", 0)) or "sparse" in str(data.get("TacticName", "")).lower(),
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
