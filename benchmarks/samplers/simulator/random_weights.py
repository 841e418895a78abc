"""Measured engines that are shipped as rows: ResNet-18 and MobileNetV2 with random weights on an H200.

`data/h200_*_random.json`: random weights, batch 32, 224×224, TensorRT 8.6.0, weakly typed with obeyed precisions;
latencies are good, losses say nothing. Their ONNX files are not shipped: edges and tensor sizes are rebuilt here from
the known architectures, by node name, as `search.graph.grouping` finds them (a residual Add belongs to the last
convolution of its branch).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import ROOT
from search.graph.grouping import Edge
from search.space.choices import Choice, Space, Variable
from search.space.layout import Layout, Precisions, make_layout
from search.values import LayerTime, Precision

NAMES = ("resnet18", "mobilenet_v2")
LETTERS = {"f": Precision.FP32, "h": Precision.FP16, "i": Precision.INT8}
BATCH = 32
MOBILENET_CHANNELS = (32, 16, 24, 24, 32, 32, 32, 64, 64, 64, 64, 96, 96, 96, 160, 160, 160, 320)
MOBILENET_SIZES = (112, 112, 56, 56, 28, 28, 28, 14, 14, 14, 14, 14, 14, 14, 7, 7, 7, 7)


@dataclass(frozen=True)
class Measured:
    """Engines of one network.

    Attributes:
        precisions: (n, groups) int8.
        latency_ms: (n,) float64; median of 200 launches of a CUDA graph.
        profiles: layers of the uniform engines, in the order they ran.
        noise: (n,) float64; squared output error over squared output.
    """

    name: str
    layout: Layout
    precisions: Precisions
    latency_ms: NDArray[np.float64]
    profiles: Mapping[Precision, tuple[LayerTime, ...]]
    noise: NDArray[np.float64]


def load_measured(name: str) -> Measured:
    """The H200 rows of one of `NAMES`."""
    data = _read(f"h200_{name}_random.json")
    nodes = data["groups"]
    edges = _resnet18(nodes) if name == "resnet18" else _mobilenet_v2(nodes)
    rows = data["rows"]
    return Measured(
        name=name,
        layout=free_layout(nodes, edges),
        precisions=_precisions(rows),
        latency_ms=np.array([row["lat"] for row in rows]),
        noise=np.array([row["nmse"] for row in rows]),
        profiles={LETTERS[key]: _layers(times, nodes) for key, times in data["profiles"].items()},
    )


def _read(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "benchmarks" / "data" / name).read_text()))


def _precisions(rows: list[dict[str, Any]]) -> Precisions:
    return np.array([["fhi".index(letter) for letter in row["a"]] for row in rows], np.int8)


def free_layout(groups: list[str], edges: list[Edge]) -> Layout:
    """The layout where every group may run in every precision."""
    choices = {group: tuple(Choice(precision, True) for precision in Precision) for group in groups}
    space = Space(choices, tuple(Variable(group, (group,), tuple(Precision)) for group in groups))
    return make_layout(groups, edges, space)


def _layers(times: Mapping[str, float], nodes: list[str]) -> tuple[LayerTime, ...]:
    layers = []
    for name, ms in times.items():
        moves = name.startswith("Reformatting")
        owner = next((node for node in nodes if node in name.split(" + ")), None)
        layers.append(LayerTime(name, "Reformat" if moves else "", None if moves else owner, moves, ms))
    return tuple(layers)


def _edge(source: str, target: str, channels: int, size: int) -> Edge:
    return Edge(source, target, source, BATCH * channels * size * size)


def _resnet18(nodes: list[str]) -> list[Edge]:
    edges, before, left = [], nodes[0], (64, 112)  # what enters a block, and its channels and size
    for layer in range(1, 5):
        channels, size = 32 * 2**layer, 112 // 2**layer
        for block in range(2):
            stem = f"/layer{layer}/layer{layer}.{block}"
            first, second, down = f"{stem}/conv1/Conv", f"{stem}/conv2/Conv", f"{stem}/downsample/downsample.0/Conv"
            edges += [_edge(before, first, *left), _edge(first, second, channels, size)]
            if down in nodes:
                edges += [_edge(before, down, *left), _edge(down, second, channels, size)]
            else:
                edges.append(_edge(before, second, *left))
            before, left = second, (channels, size)
    return [*edges, _edge(before, "/fc/Gemm", *left)]


def _mobilenet_v2(nodes: list[str]) -> list[Edge]:
    edges, before, left = [], nodes[0], (MOBILENET_CHANNELS[0], MOBILENET_SIZES[0])
    for block in range(1, 18):
        parts = [node for node in nodes if node.startswith(f"/features/features.{block}/")]
        right = (MOBILENET_CHANNELS[block], MOBILENET_SIZES[block])
        wide = left[0] * (6 if len(parts) == 3 else 1)
        sizes = ([left, (wide, left[1])] if len(parts) == 3 else [left]) + [(wide, right[1])]
        edges += [_edge(s, t, *of) for s, t, of in zip([before, *parts], parts, sizes, strict=False)]
        if left == right:
            edges.append(_edge(before, parts[-1], *left))
        before, left = parts[-1], right
    edges.append(_edge(before, nodes[-2], *left))
    return [*edges, _edge(nodes[-2], nodes[-1], 1280, 7)]
