"""A report about an engine file: shares by precision, the costliest float layers, two engines side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluators.engine_files import EngineFile, Layer, Tensor
from search.values import Precision

MOST_BOTTLENECKS = 10
MOVES, UNKNOWN = "moves data", "not told"


@dataclass(frozen=True)
class EngineReport:
    """One engine file and, where asked for, another one beside it."""

    engine: EngineFile
    other: EngineFile | None = None

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "file": self.engine.path,
            "kind": self.engine.kind,
            "notes": list(self.engine.notes),
            "precisions": precision_rows(self.engine.layers),
            "bottlenecks": bottleneck_rows(self.engine.layers),
            "layers": [layer.to_json() for layer in self.engine.layers],
        }
        if self.other is not None:
            values["against"] = {"file": self.other.path, "kind": self.other.kind, "notes": list(self.other.notes)}
            values["nodes"] = node_rows(self.engine, self.other)
            values["agreement"] = vars(agreement(self.engine, self.other))
        return values


def precision_rows(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """A row per precision, finest first, then layers that only move data and those whose precision is not told.

    Shares are of all layers, of all MACs and of all time that is known. That of MACs is None where those of any layer
    with weights, or of a fused region whose layers are not told, are unknown: such a layer may hold most of them.
    """
    kinds = [_kind_of(layer) for layer in layers]
    order = [*(precision.label for precision in sorted(Precision, key=lambda p: p.rank)), MOVES, UNKNOWN]
    rows = []
    for kind in order:
        own = [layer for layer, each in zip(layers, kinds, strict=True) if each == kind]
        if own:
            rows.append(
                {
                    "precision": kind,
                    "layers": len(own),
                    "weighted": sum(layer.weighted for layer in own),
                    "layers_share": len(own) / len(layers),
                    "macs_share": _share(own, layers, "macs"),
                    "ms": _sum(own, "ms"),
                    "ms_share": _share(own, layers, "ms"),
                }
            )
    return rows


def bottleneck_rows(layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Layers that compute, are not in INT8 and cost most, and why they are not in INT8.

    Cost is time where it is known, else MACs. Layers of which neither is known come last, those with weights first.
    """
    kept = [layer for layer in layers if not layer.moves and (layer.precision is None or not layer.precision.quantized)]
    kept.sort(key=lambda layer: (-(layer.ms or 0.0), -(layer.macs or 0), not layer.weighted))
    return [
        {
            "layer": layer.name,
            "kind": layer.kind,
            "precision": _kind_of(layer),
            "ms": layer.ms,
            "macs": layer.macs,
            "why_not_int8": layer.why_not_int8,
        }
        for layer in kept[:MOST_BOTTLENECKS]
    ]


def layer_rows(layers: Iterable[Layer]) -> list[dict[str, Any]]:
    """A row per layer, as the table prints it."""
    return [
        {
            "layer": layer.name,
            "kind": layer.kind,
            "precision": _kind_of(layer),
            "inputs": [_tensor_text(tensor) for tensor in layer.inputs],
            "outputs": [_tensor_text(tensor) for tensor in layer.outputs],
            "details": [f"{name} {value}" for name, value in layer.attributes.items()],
            "macs": layer.macs,
            "ms": layer.ms,
            "why_not_int8": layer.why_not_int8,
        }
        for layer in layers
    ]


def node_rows(engine: EngineFile, other: EngineFile) -> list[dict[str, Any]]:
    """A row per ONNX node that both or one of two engines name: what it runs in there, and in what time."""
    mine, theirs = _by_node(engine.layers), _by_node(other.layers)
    rows = []
    for node in dict.fromkeys((*mine, *theirs)):
        one, two = mine.get(node), theirs.get(node)
        if any(layer is not None and not layer.moves for layer in (one, two)):
            rows.append({"node": node, **_side("", one), **_side("other_", two), "differs": _differs(one, two)})
    return rows


@dataclass(frozen=True)
class PrecisionAgreement:
    """How far two engines of one model run their weights in the same precisions.

    Attributes:
        weighted: layers with weights of the first engine.
        same: those that run in the same precision in the other.
        hidden: those of which one of the two does not tell it.
        differ: names of the others.
    """

    weighted: int
    same: int
    hidden: int
    differ: tuple[str, ...]

    def text(self) -> str:
        hidden = f"; of {self.hidden} one of both does not tell it" if self.hidden else ""
        share = f" ({self.same / self.weighted:.1%})" if self.weighted else ""
        return f"{self.same} of {self.weighted} layers with weights run in the same precision in both{share}{hidden}"


def agreement(engine: EngineFile, other: EngineFile) -> PrecisionAgreement:
    """Compare the layers with weights by the ONNX nodes that they compute."""
    theirs, same, hidden, differ = _by_node(other.layers), 0, 0, []
    weighted = [layer for layer in engine.layers if layer.weighted and not layer.moves]
    for layer in weighted:
        kinds = {_kind_of(theirs[node]) for node in layer.nodes if node in theirs and theirs[node].weighted}
        if UNKNOWN in {*kinds, _kind_of(layer)}:
            hidden += 1
        elif kinds == {_kind_of(layer)}:
            same += 1
        else:
            differ.append(layer.name)
    return PrecisionAgreement(len(weighted), same, hidden, tuple(differ))


def _by_node(layers: Iterable[Layer]) -> Mapping[str, Layer]:
    """ONNX node → the layer that computes it; one with weights before others, one that moves data last."""
    by_node: dict[str, Layer] = {}
    for layer in sorted(layers, key=lambda each: (each.moves, not each.weighted)):
        for node in layer.nodes:
            by_node.setdefault(node, layer)
    return {node: by_node[node] for layer in layers for node in layer.nodes}


def _side(prefix: str, layer: Layer | None) -> dict[str, Any]:
    return {
        f"{prefix}precision": None if layer is None else _kind_of(layer),
        f"{prefix}formats": None if layer is None else [_tensor_text(t) for t in (*layer.inputs, *layer.outputs)],
        f"{prefix}ms": None if layer is None else layer.ms,
    }


def _differs(one: Layer | None, two: Layer | None) -> bool:
    return one is None or two is None or _kind_of(one) != _kind_of(two)


def _kind_of(layer: Layer) -> str:
    if layer.moves:
        return MOVES
    return UNKNOWN if layer.precision is None else layer.precision.label


def _tensor_text(tensor: Tensor) -> str:
    shape = "" if tensor.shape is None else f" {'×'.join(map(str, tensor.shape))}"
    return f"{tensor.format or tensor.type}{shape}"


def _sum(layers: Iterable[Layer], name: str) -> float | None:
    known = [value for layer in layers if (value := getattr(layer, name)) is not None]
    return sum(known) if known else None


def _hides_macs(layer: Layer) -> bool:
    """Whether a layer may multiply, and it is not known how much."""
    return layer.macs is None and not layer.moves and (layer.weighted or layer.precision is None)


def _share(own: Sequence[Layer], layers: Sequence[Layer], name: str) -> float | None:
    if name == "macs" and any(map(_hides_macs, layers)):
        return None
    part, whole = _sum(own, name), _sum(layers, name)
    return None if not whole else (part or 0) / whole
