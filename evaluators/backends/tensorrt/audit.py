"""The audit of a TensorRT engine, from the JSON of the engine inspector. This module does not need TensorRT.

TensorRT 8.6 writes raw control characters (U+001E, U+001F) inside strings: U+001E parts the names of the ONNX nodes
that a fused layer came from; in later versions they stand side by side. Versions 8.6 and 10.x give a tensor's
`Format/Datatype` in one key, 11.x in two, of which NVIDIA's pages spell the one `Datatype` and `DataType`; what stands
beside `Layers` (`Bindings`, from 11 on `I/O Tensors`) is not needed here.

A kernel without `Weights` computes in what it reads, constants such as scales and biases left out. Where that is of
several types, or not told, its tactic's name may tell which; else its precision is not known, and its group is opaque.
TensorRT 8.6.0 does not tell the types of any tensor of an engine with dynamic shapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from search.graph.grouping import Group
from search.values import Assignment, AuditRow, EngineSummary, LayerTime, Precision

_ENTRY = "[ONNX Layer: "
_TYPES = [(re.compile(each.words, re.IGNORECASE), each) for each in sorted(Precision, reverse=True)]
_NUMBERS = re.compile(r"(?<![a-z])(?:int32|int64|bool)", re.IGNORECASE)  # of places, lengths and masks
# Myelin's constants, and the factors of its products: `__mye116_dconst`, `fc_bias _ ONNXTRT_Broadcast_6_constantHalf`,
# `__mye574/fc/Gemm_alpha`.
_MYELIN_CONSTANT = re.compile(r"__mye\d+(?:_dconst|.*_(?:alpha|beta))|.* _ .*_constant(?:Float|Half|Int8)")
# `f16f16_f16f16_f16`, `i8f32_i8i32_f32`: what is read and written, then what is multiplied and added up in.
_IN_TACTIC = re.compile(r"(?<![a-z0-9])(i8|bf16|f16|tf32|f32)(?:i8|i32|bf16|f16|tf32|f32)(?![a-z0-9])")
_TACTIC_TYPES = {word: precision for precision in Precision for word in precision.tactic_words}
# Layers that only move data: they carry the names of the weighted node they serve, but compute nothing of it.
_IDLE = frozenset({"Constant", "NoOp", "Shuffle"})
# Layers that only change format or type: what a change of precision between neighbours costs.
_CONVERTS = frozenset({"Cast", "Dequantize", "Quantize", "Reformat"})
_UNTOLD = "N/A"  # `N/A due to dynamic shapes`
_MOST_NAME = 300
_MOST_BESIDE = 300
_LONGEST_NAME = 20_000
_OPAQUE = re.compile(r"ForeignNode|Myelin|__myl", re.IGNORECASE)


@dataclass(frozen=True)
class EngineTensor:
    """What a layer reads or writes.

    Attributes:
        words: its format and type, as TensorRT words them.
        precision: None if it is of another type.
        axes: how many of its sizes are more than 1; None if they are not told.
    """

    name: str
    words: str
    precision: Precision | None
    axes: int | None = None

    @property
    def short(self) -> str:
        return self.precision.label if self.precision is not None else self.words


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine.

    Attributes:
        metadata: names the ONNX nodes it came from.
        weights: precision its weights are stored in; None for a layer without.
        sparse: whether it runs on 2:4 sparse weights.
    """

    name: str
    kind: str
    metadata: str = ""
    weights: Precision | None = None
    inputs: tuple[EngineTensor, ...] = ()
    outputs: tuple[EngineTensor, ...] = ()
    tactic: str = ""
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

    def nodes(self, known: Collection[str] = ()) -> frozenset[str]:
        """Names of the ONNX nodes it came from; those in `known` are told from what stands beside them."""
        named = frozenset(_read_onnx_names(self.metadata, known))
        if named:
            return named
        return frozenset([self.name]) if self.name in known else frozenset(_split_fused(self.name))

    def precision(self, group_precision: Precision | None = None, constants: Collection[str] = ()) -> Precision | None:
        """What it computes in: its weights' type, else that of what it reads; of several, what its tactic's name says.

        Args:
            group_precision: that the assignment gives its group; where it is not sure, but nothing that it reads is
                of this precision, the first that it reads is the answer.
            constants: names of tensors that are; those with more than one axis are weights, and tell.

        Returns:
            None if it cannot be told.
        """
        if self.weights is not None:
            alone = (
                group_precision is not None and group_precision.blocks and group_precision.dtype == self.weights.dtype
            )
            return group_precision if alone and self._reads_floats() else self.weights
        data = [tensor for tensor in self.inputs if not _is_beside(tensor, constants)]
        types = list(dict.fromkeys(tensor.precision for tensor in data if not tensor.words.startswith(_UNTOLD)))
        tactic_precision = _tactic_precision(self.tactic)
        if len(types) == 1 and (len(data) == len(self.inputs) or tactic_precision in (None, types[0])):
            return types[0]
        if tactic_precision is not None and (tactic_precision in types or not types):
            return tactic_precision
        return (
            types[0]
            if types and None not in (group_precision, *types) and group_precision not in (*types, tactic_precision)
            else None
        )

    def _reads_floats(self) -> bool:
        return all(tensor.precision is not None and not tensor.precision.quantized for tensor in self.inputs)

    def details(self) -> dict[str, str]:
        """How the layer runs, as `AuditRow.details` has it."""
        return {
            "layer": self.name[:_MOST_NAME],
            "weights": self.weights.label if self.weights is not None else "",
            "inputs": "; ".join(tensor.words for tensor in self.inputs),
            "outputs": "; ".join(tensor.words for tensor in self.outputs),
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
    if not isinstance(layers, list) or any(not isinstance(layer, dict) for layer in layers):
        raise ValueError("expected the inspector's detailed JSON; build with ProfilingVerbosity.DETAILED")
    if any(len(str(layer.get("Name", ""))) > _LONGEST_NAME for layer in layers):  # patterns take its square
        raise ValueError(f"expected names of at most {_LONGEST_NAME:,} characters")
    return tuple(_layer(layer) for layer in layers)


def type_of(text: str) -> Precision | None:
    """The precision in words such as `Channel major FP16 format`, `Int8`, `Half`; None for other types."""
    return next((precision for pattern, precision in _TYPES if pattern.search(text)), None)


def audit_rows(layers: Iterable[EngineLayer], groups: Sequence[Group], assignment: Assignment) -> tuple[AuditRow, ...]:
    """One row per group: the precision of the kernel of its weighted op; opaque where no kernel shows."""
    layers = tuple(layers)
    kernels, regions = _kernels(layers, {node for group in groups for node in (*group.anchors, *group.nodes)})
    constants = _constants(layers)
    rows = (_row(group, assignment[group.id], kernels, regions, constants) for group in groups)
    return tuple(
        replace(row, details={**row.details, **_beside(group, row, kernels, regions)})
        for group, row in zip(groups, rows, strict=True)
    )


def _kernels(
    layers: Iterable[EngineLayer], known: Collection[str]
) -> tuple[dict[str, EngineLayer], dict[str, EngineLayer]]:
    """ONNX node → the layer that computes it, and → the opaque region that holds it."""
    kernels: dict[str, EngineLayer] = {}
    regions: dict[str, EngineLayer] = {}
    # Layers with weights last, so that they win: a fused pointwise layer may name the same node.
    for layer in sorted(layers, key=lambda layer: layer.weights is not None):
        if not layer.moves:
            (regions if layer.opaque else kernels).update(dict.fromkeys(layer.nodes(known), layer))
    return kernels, regions


def _constants(layers: Iterable[EngineLayer]) -> set[str]:
    """Names of tensors that constants make, and what only changes their form."""
    names: set[str] = set()
    for layer in layers:
        if layer.kind == "Constant" or (layer.moves and layer.inputs and {t.name for t in layer.inputs} <= names):
            names.update(tensor.name for tensor in layer.outputs)
    return names


def _row(
    group: Group,
    group_precision: Precision,
    kernels: Mapping[str, EngineLayer],
    regions: Mapping[str, EngineLayer],
    constants: Collection[str],
) -> AuditRow:
    precisions = {
        kernels[anchor]: kernels[anchor].precision(group_precision, constants)
        for anchor in group.anchors
        if anchor in kernels
    }
    unsure = [layer for layer, precision in precisions.items() if precision is None]
    if unsure or not all(anchor in kernels for anchor in group.anchors):
        hidden = next(iter([*unsure, *(regions[anchor] for anchor in group.anchors if anchor in regions)]), None)
        return AuditRow(
            group.id, group_precision, None, hidden.kind if hidden else "", hidden.details() if hidden else {}
        )
    # Of several kernels (shared weights) one that does not obey is the answer.
    layer = next(
        (layer for layer, precision in precisions.items() if precision != group_precision), next(iter(precisions))
    )
    return AuditRow(group.id, group_precision, precisions[layer], (layer.tactic or layer.kind)[:200], layer.details())


def _beside(
    group: Group, row: AuditRow, kernels: Mapping[str, EngineLayer], regions: Mapping[str, EngineLayer]
) -> dict[str, str]:
    """Where the group's other nodes run, say its residual Add and its activation: `Add, Relu: in the kernel`."""
    nodes_by_place: dict[str, list[str]] = {}
    for node in group.nodes:
        if node not in group.anchors:
            layer = kernels.get(node) or regions.get(node)
            nodes_by_place.setdefault(_place_of(layer, row.details.get("layer")), []).append(
                node.rpartition("/")[2] or node
            )
    text = "; ".join(f"{', '.join(nodes)}: {place}" for place, nodes in nodes_by_place.items())
    return {"beside": text[:_MOST_BESIDE]} if text else {}


def _place_of(layer: EngineLayer | None, kernel: str | None) -> str:
    if layer is None:
        return "not shown"  # folded away, or inside a region that does not name its nodes
    if layer.opaque:
        return "in an opaque region"
    if layer.name[:_MOST_NAME] == kernel:
        return "in the kernel"
    sides = (", ".join(tensor.short for tensor in side) for side in (layer.inputs, layer.outputs))
    return f"{layer.kind} {' → '.join(sides)}".strip()


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
    names = anchors.keys() | members.keys()
    rows = []
    for name, ms in times.items():
        # Of a layer that the inspector does not list: from what the profiler calls it.
        layer = known.get(name) or EngineLayer(name, "Reformat" if name.startswith("Reformatting") else "")
        nodes = layer.nodes(names)
        owners = [owner for of in (anchors, members) for node, owner in of.items() if node in nodes]
        owner = None if layer.converts else next(iter(owners), None)
        rows.append(LayerTime(name, layer.kind, owner, layer.converts, ms))
    return tuple(rows)


def _layer(data: Mapping[str, Any]) -> EngineLayer:
    return EngineLayer(
        name=str(data.get("Name", "")),
        kind=str(data.get("LayerType", "")),
        metadata=str(data.get("Metadata", "")),
        weights=_weights(data.get("Weights")),
        inputs=_tensors(data.get("Inputs")),
        outputs=_tensors(data.get("Outputs")),
        tactic=str(data.get("TacticName", "")),
        sparse=bool(data.get("HasSparseWeights", 0)) or "sparse" in str(data.get("TacticName", "")).lower(),
    )


def _read_onnx_names(metadata: str, known: Collection[str]) -> Iterator[str]:
    """What stands in `[ONNX Layer: NAME]`, of which NAME may hold brackets too.

    An entry ends before the next one, or before a control character. Where something else follows, the one name that
    is known is taken.
    """
    for part in metadata.split(_ENTRY)[1:]:
        entry = re.split(r"[\x1e\x1f]", part)[0].rstrip()
        whole = entry.removesuffix("]")
        shorter = [entry[: end.start()] for end in re.finditer(r"\](?=[^\w/.])", entry)]
        among = [name for name in shorter if name in known]
        if whole != entry and (whole in known or len(among) != 1):
            yield whole
        elif len(among) == 1 or len(shorter) == 1:
            yield (among or shorter)[0]


def _split_fused(name: str) -> Iterator[str]:
    """Parts of a layer's name: one behind the other are joined by ` + `, side by side by ` || `."""
    return (part.strip() for part in re.split(r" \+ | \|\| ", name))


def _is_beside(tensor: EngineTensor, constants: Collection[str]) -> bool:
    """Whether a tensor is not what a product multiplies: a scale, a bias, a factor, a number of places."""
    if tensor.name in constants or _MYELIN_CONSTANT.fullmatch(tensor.name):
        return tensor.axes is not None and tensor.axes < 2
    return tensor.precision is None and bool(_NUMBERS.search(tensor.words))


def _tactic_precision(tactic: str) -> Precision | None:
    """What all of a tactic's name says that it reads and multiplies in; None if it says several, or nothing."""
    types = {_TACTIC_TYPES.get(read) for read in _IN_TACTIC.findall(tactic.lower())}
    return types.pop() if len(types) == 1 else None


def _weights(data: Any) -> Precision | None:
    return type_of(str(data.get("Type", ""))) if isinstance(data, dict) and data.get("Count", 0) else None


def _tensors(data: Any) -> tuple[EngineTensor, ...]:
    if not isinstance(data, list):
        return ()
    return tuple(_tensor(tensor) for tensor in data if isinstance(tensor, dict))


def _tensor(data: Mapping[str, Any]) -> EngineTensor:
    # 8.6 and 10.x have one key; 11.x two.
    said = {key.lower(): str(value) for key, value in data.items()}
    words = said.get("format/datatype", f"{said.get('format', '')} {said.get('datatype', '')}".strip())
    sizes = data.get("Dimensions")
    axes = sum(size != 1 for size in sizes) if isinstance(sizes, list) else None
    return EngineTensor(said.get("name", ""), words, type_of(said.get("datatype", words)), axes)
