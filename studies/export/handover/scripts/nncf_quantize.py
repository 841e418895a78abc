"""Quantize an ONNX model with NNCF, but for the nodes that bitfront found to need a float type.

    python quantize.py MODEL.onnx DATA.npz --out model.int8.onnx

MODEL.onnx is the model that bitfront was given. DATA.npz holds an array for every input of it, samples first. The names
of the nodes are read from nncf.json beside this script. It needs nncf, onnx and numpy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

HERE = Path(__file__).resolve().parent


def name_nodes(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Give nodes the names that the hand-over knows them by; `names`: first output → name."""
    for node in model.graph.node:
        node.name = names.get(next(filter(None, node.output), ""), node.name)


def batches(data: Path, inputs: list[str], batch: int, samples: int) -> Iterator[dict[str, Any]]:
    """Feeds of `batch` samples each, from the first `samples` of the arrays; what is left over is not used."""
    with np.load(data, allow_pickle=False) as file:
        arrays = {name: file[name] for name in inputs}
    count = min(samples, *(len(array) for array in arrays.values())) // batch
    if not count:
        raise SystemExit(f"quantizing: expected at least {batch} samples in {data}, one batch; give more")
    for start in range(0, count * batch, batch):
        yield {name: array[start : start + batch] for name, array in arrays.items()}


def ignored_scope(model: onnx.ModelProto, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `nncf.IgnoredScope` for a model, in which nodes that others took in may be missing."""
    there = {node.name for node in model.graph.node}
    missing = [name for name in settings["weighted"] if name not in there]
    if missing:
        raise SystemExit(
            f"quantizing: the model has no node {missing[0]!r} ({len(missing)} missing). "
            "Give the one that bitfront was given."
        )
    return {"names": [name for name in settings["ignored_scope"]["names"] if name in there]}


def quantize(model: onnx.ModelProto, settings: Mapping[str, Any], data: Path, samples: int) -> onnx.ModelProto:
    """The quantized model, with the nodes of the ignored scope in float."""
    import nncf

    name_nodes(model, settings["rename"])
    feeds = list(batches(data, settings["inputs"], settings["batch"], samples))
    quantized: onnx.ModelProto = nncf.quantize(
        model,
        nncf.Dataset(feeds),
        subset_size=len(feeds),
        preset=nncf.QuantizationPreset.MIXED,
        ignored_scope=nncf.IgnoredScope(**ignored_scope(model, settings)),
    )
    return quantized


def main() -> None:
    settings = json.loads((HERE / "nncf.json").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description="Quantize with NNCF, but for the nodes in nncf.json.")
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("model.int8.onnx"))
    parser.add_argument("--samples", type=int, default=settings["samples"], help="how many of the data calibrate")
    arguments = parser.parse_args()
    onnx.save(
        quantize(onnx.load(str(arguments.model)), settings, arguments.data, arguments.samples), str(arguments.out)
    )
    print(f"wrote {arguments.out}: {len(settings['ignored_scope']['names'])} nodes were left in float")


if __name__ == "__main__":
    main()
