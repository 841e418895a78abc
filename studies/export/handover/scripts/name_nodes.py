"""Write a copy of an ONNX model in which the nodes that a hand-over names have those names.

    python name_nodes.py MODEL.onnx NAMED.onnx

The names are read from mix.json beside this script. It needs onnx.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx


def main() -> None:
    names = json.loads((Path(__file__).resolve().parent / "mix.json").read_text(encoding="utf-8"))["rename"]
    model = onnx.load(sys.argv[1])
    for node in model.graph.node:
        node.name = names.get(next(filter(None, node.output), ""), node.name)
    onnx.save(model, sys.argv[2])


if __name__ == "__main__":
    main()
