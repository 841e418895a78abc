"""Write a model of a whole sequence from one of a single step: `python examples/recurrent/unroll.py step.onnx 16`."""

import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper


def unroll(step, steps, x="x", y="y", state="state", following="next"):
    """A model that reads (batch, steps, …) as `x` and a first state, and gives (batch, steps, …) as `y`."""
    graph, nodes, made = step.graph, [], []
    shared = {weight.name for weight in graph.initializer} | {""}
    numbers = [numpy_helper.from_array(np.array(i), f"step{i}") for i in range(steps)]
    axis, now = numpy_helper.from_array(np.array([1]), "axis"), state
    for i, number in enumerate(numbers):
        names = {name: name for name in shared} | {state: now}
        nodes.append(helper.make_node("Gather", [x, number.name], [f"{x}/{i}"], f"{x}/{i}", axis=1))
        for node in graph.node:
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            copy.name = f"{node.name}/{i}"
            copy.input[:] = [names.get(name, f"{name}/{i}") for name in node.input]
            copy.output[:] = [f"{name}/{i}" for name in node.output]
            nodes.append(copy)
        nodes.append(helper.make_node("Unsqueeze", [f"{y}/{i}", axis.name], [f"{y}/{i}/row"], f"{y}/{i}/row"))
        made.append(f"{y}/{i}/row")
        now = f"{following}/{i}"
    nodes.append(helper.make_node("Concat", made, [y], y, axis=1))
    values = {value.name: value for value in (*graph.input, *graph.output)}
    for name in (x, y):
        values[name].type.tensor_type.shape.dim.insert(1, onnx.TensorShapeProto.Dimension(dim_value=steps))
    inputs, weights = [values[x], values[state]], [*graph.initializer, *numbers, axis]
    whole = helper.make_graph(nodes, "sequence", inputs, [values[y]], weights)
    return helper.make_model(whole, opset_imports=step.opset_import, ir_version=step.ir_version)


if __name__ == "__main__":
    onnx.save(unroll(onnx.load(sys.argv[1]), steps=int(sys.argv[2])), "sequence.onnx")
