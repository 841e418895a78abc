"""Run in the environment of the peers: Polygraphy itself loads a script and calls it with a stand-in of a network.

python apply_constraints.py CONSTRAINTS.py NAME=KIND=OUTPUT… prints NAME=PRECISION of each layer that was given one
"""

import sys
import types

from polygraphy.backend.common import InvokeFromScript
from polygraphy.backend.trt import PostprocessNetwork

sys.modules["tensorrt"] = types.SimpleNamespace(float32="float32", float16="float16", int8="int8")


class Layer:
    """The part of a TensorRT layer that a script needs."""

    def __init__(self, name, kind, output):
        self.name, self.type = name, types.SimpleNamespace(name=kind)
        self.output, self.precision = types.SimpleNamespace(name=output), None

    def get_output(self, index):
        return self.output


layers = [Layer(*text.split("=")) for text in sys.argv[2:]]
network = types.SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__)
PostprocessNetwork((None, network), func=InvokeFromScript(sys.argv[1], name="postprocess"))()
print(*[f"{layer.name}={layer.precision}" for layer in layers if layer.precision])
