"""Set the precision of TensorRT's layers to what bitfront measured them in.

    polygraphy convert MODEL.onnx --fp16 --int8 --calibration-cache calibration.cache --precision-constraints obey \
        --trt-network-postprocess-script constraints.py --output model.plan

Polygraphy calls `postprocess` with the network that TensorRT parsed from MODEL.onnx, the model that bitfront was given.
The precisions are read from precisions.json beside this script.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# A constant or a shuffle that the parser adds may have the name of the node that it was added for.
KINDS = ("CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY")


def postprocess(network: Any) -> None:
    """Set the precision of every weighted layer.

    Raises:
        RuntimeError: TensorRT has no layer for a node that a precision was measured for.
    """
    settings = json.loads((Path(__file__).resolve().parent / "precisions.json").read_text(encoding="utf-8"))
    missing = set_precisions(network, settings["layers"])
    if missing:
        raise RuntimeError(
            f"setting precisions: TensorRT made no weighted layer of {len(missing)} nodes, the first of which makes "
            f"{missing[0]!r}. Give the ONNX file that bitfront was given."
        )


def set_precisions(network: Any, wanted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Set the precision of the weighted layers, found by the name of a node or by the tensor that it makes.

    Returns:
        First outputs of the nodes that have no such layer.
    """
    types = importlib.import_module("tensorrt")
    by_name = {node["name"]: node for node in wanted if node["name"] is not None}
    by_output = {node["output"]: node for node in wanted}
    missing = dict(by_output)
    for place in range(network.num_layers):
        layer = network.get_layer(place)
        if layer.type.name not in KINDS:  # others may have no output
            continue
        node = by_name.get(layer.name) or by_output.get(layer.get_output(0).name)
        if node is not None:
            layer.precision = getattr(types, node["precision"])
            missing.pop(node["output"], None)
    return list(missing)
