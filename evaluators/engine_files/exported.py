"""The layers and times of an engine in an export: `layers.json` and `profile.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evaluators.backends.layers import EngineFile, Layer
from search.values import LayerTime

LAYERS, PROFILE = "layers.json", "profile.json"


@dataclass(frozen=True)
class KnownGroup:
    """What is known of a group beside the engine.

    Attributes:
        nodes: names of its weighted ONNX nodes.
        why_not_int8: in a sentence; empty if it was asked for in INT8.
    """

    nodes: tuple[str, ...]
    why_not_int8: str = ""


def with_profile(engine: EngineFile, rows: Sequence[LayerTime], groups: Mapping[str, KnownGroup]) -> EngineFile:
    """The layers with times of a profiled run of the same engine, and with what is known of their groups.

    Args:
        rows: in the order in which layers run. A layer without a name has another one in each of the two: such rows
            belong to the nameless layers of their kind in the same order.
        groups: by id.
    """
    of_layer = _match(engine.layers, rows)
    layers = [_complete(layer, of_layer.get(i), groups) for i, layer in enumerate(engine.layers)]
    return replace(engine, layers=tuple(layers))


def _match(layers: Sequence[Layer], rows: Sequence[LayerTime]) -> dict[int, LayerTime]:
    """Position of a layer → its row."""
    by_name = {row.name: row for row in rows}
    row_by_layer = {i: by_name[layer.name] for i, layer in enumerate(layers) if layer.name in by_name}
    taken = {row.name for row in row_by_layer.values()}
    for kind in {layer.kind for layer in layers}:
        left = [i for i, layer in enumerate(layers) if layer.kind == kind and i not in row_by_layer]
        theirs = [row for row in rows if row.kind == kind and row.name not in taken]
        if len(left) == len(theirs):
            row_by_layer.update(zip(left, theirs, strict=True))
    return row_by_layer


def _complete(layer: Layer, row: LayerTime | None, groups: Mapping[str, KnownGroup]) -> Layer:
    if row is None:
        return layer
    timed = replace(layer, ms=row.ms)
    group = None if row.group is None or layer.moves else groups.get(row.group)
    if group is None:
        return timed
    if layer.weighted:
        timed = replace(timed, nodes=tuple(dict.fromkeys((*group.nodes, *timed.nodes))))
    if (layer.precision is not None and layer.precision.quantized) or not group.why_not_int8:
        return timed
    return replace(timed, why_not_int8=group.why_not_int8)


def write_layers(folder: Path, engine: EngineFile, count: int) -> None:
    """Write both files.

    Args:
        count: inferences of the profiled run.
    """
    _write(folder / LAYERS, engine.to_json())
    times = [{"name": layer.name, "averageMs": layer.ms} for layer in engine.layers if layer.ms is not None]
    _write(folder / PROFILE, [{"count": count}, *times])


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
