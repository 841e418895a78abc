"""Lowering's own names never meet the user's: whatever a file calls its tensors, it is lowered to the same numbers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import pytest

from evaluators.lowering.constants import Names
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges, TensorRange
from tests.support.assignments import mixes, precisions_of, uniform
from tests.support.networks import (
    Net,
    conditional,
    feeds,
    finish,
    observed,
    plain_session,
    residual_cnn,
    save,
    session_of,
)

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
PLACEMENTS = {"cpu": ONNXRUNTIME_CPU, "tensorrt": TENSORRT}
PRECISIONS = (FP32, FP16, INT8)


def loaded_as(proto: onnx.ModelProto, folder: Path) -> Model:
    return load(save(proto, folder / "net.onnx"))


def added(model: Model, ranges: Ranges, placement: Placement) -> list[str]:
    """Names of all tensors and nodes that lowering adds in some mix."""
    found: dict[str, None] = {}
    own = names_of(model.graph)
    for assignment in mixes(model, precisions_of(placement)):
        found.update(dict.fromkeys(sorted(names_of(lower(model, assignment, ranges, placement)) - own)))
    return list(found)


def names_of(model: ir.Model) -> set[str]:
    graph = model.graph
    values = {value.name for node in graph for value in node.outputs} | set(graph.initializers)
    return {name for name in values | {node.name for node in graph} if name}


def outputs(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> list[np.ndarray]:
    proto = ir.to_proto(lower(model, assignment, ranges, placement))
    onnx.checker.check_model(proto, full_check=True)
    return list(session_of(proto).run(None, feeds(model)))


def renamed(proto: onnx.ModelProto, names: dict[str, str]) -> onnx.ModelProto:
    """The network with its tensors called otherwise; nodes keep their names."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for node in copy.graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for tensor in copy.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    return copy


def called_otherwise(ranges: Ranges, names: dict[str, str]) -> Ranges:
    tensors = {names.get(name, name): seen for name, seen in ranges.tensors.items()}
    return replace(ranges, tensors=tensors, observed=tensors)


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_any_tensor_may_be_called_as_one_of_lowerings_own(placement: Placement, tmp_path: Path) -> None:
    """Every name that lowering would add is given to a tensor of the user's, a handful at a time."""
    proto = ir.to_proto(loaded_as(residual_cnn(), tmp_path).graph)
    plain = loaded_as(proto, tmp_path)
    ranges = observed(plain)
    assignments = list(itertools.islice(mixes(plain, precisions_of(placement)), 6))
    wanted = [outputs(plain, assignment, ranges, placement) for assignment in assignments]
    taken = added(plain, ranges, placement)
    kept = {"image", "logits"}
    own = sorted({name for node in proto.graph.node for name in (*node.input, *node.output)} - kept)
    assert len(taken) > 60
    for start in range(0, len(taken), len(own) // 2):
        names = dict(zip(own[start % 2 :: 2], taken[start:], strict=False))
        model, assigned = loaded_as(renamed(proto, names), tmp_path), called_otherwise(ranges, names)
        for assignment, expected in zip(assignments, wanted, strict=True):
            for got, wished in zip(outputs(model, assignment, assigned, placement), expected, strict=True):
                np.testing.assert_array_equal(got, wished)


def gain(name: str) -> onnx.ModelProto:
    """A constant of the user's, multiplied with an input that is quantized too."""
    n = Net()
    loud = n.op("Mul", ["image", n.const(name, np.float32(8))], "loud")
    both = n.op("Add", [n.conv("image", "first", 3, 16), n.conv(loud, "second", 3, 16)], "both")
    n.conv(both, "third", 16, 20)
    return finish(n, {"image": [2, 3, 8, 8]}, {"third_out": [2, 20, 8, 8]})


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
@pytest.mark.parametrize("name", ["image/scale", "image/scale16", "image/zero", "first.w/half", "second.w/int8"])
def test_a_constant_of_the_users_is_never_taken_for_a_scale_or_weight(
    name: str, placement: Placement, tmp_path: Path
) -> None:
    precisions = PRECISIONS if placement.float_side is FP16 else (FP32, INT8)
    found = {}
    for called in ("gain", name):
        model = loaded_as(gain(called), tmp_path)
        ranges = observed(model)
        found[called] = [outputs(model, uniform(model, p), ranges, placement)[0] for p in precisions]
    for plain, clashing in zip(found["gain"], found[name], strict=True):
        np.testing.assert_array_equal(plain, clashing)


def test_a_shared_weight_called_as_that_of_one_of_its_layers(tmp_path: Path) -> None:
    """`conv/weight` of a node `conv` is what exporters write. Of two layers that share it the other's bias is so large
    that it widens the scales."""
    n, c = Net(), 16
    n.random("conv/weight", c, c, 3, 3, fan_in=9 * c)
    biases = {"other": 3.0, "conv": 0.1}
    x = n.conv("image", "first", 3, c)
    for name, size in biases.items():
        bias = n.const(f"{name}/bias", np.full(c, size, np.float32))
        x = n.op("Relu", [n.op("Conv", [x, "conv/weight", bias], name, pads=[1] * 4)], f"{name}/relu")
    n.head(x, c)
    model = loaded_as(n.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path)
    ranges = observed(model)
    # So fine a scale of the input that INT32 cannot hold the larger bias.
    tiny = {**ranges.tensors, "first_out": TensorRange(-1e-6, 1e-6)}
    graph = lower(model, uniform(model, INT8), replace(ranges, tensors=tiny), ONNXRUNTIME_CPU).graph
    makers = {}
    for node in graph:
        if node.op_type == "Conv" and node.inputs[1] is not None:
            makers[node.name] = node.inputs[1].producer()
    parts = {}
    for name in biases:
        maker = makers[name]
        assert maker is not None
        codes, scales = (value.const_value.numpy() for value in maker.inputs[:2] if value and value.const_value)
        parts[name] = codes.astype(np.float32) * scales.reshape(-1, 1, 1, 1)
    exact = {name: array for name, array in initializers(model).items() if name == "conv/weight"}["conv/weight"]
    assert np.abs(parts["conv"] - exact).max() < 0.01
    assert np.abs(parts["other"] - exact).max() > 0.01


def initializers(model: Model) -> dict[str, np.ndarray]:
    return {name: v.const_value.numpy() for name, v in model.graph.graph.initializers.items() if v.const_value}


@pytest.mark.parametrize("place", ["weight", "activation"])
def test_groups_are_exposed_under_their_ids_whatever_is_called_so(place: str, tmp_path: Path) -> None:
    old = {"weight": "block.0/conv1.w", "activation": "block.1/conv1_out"}[place]
    plain = loaded_as(residual_cnn(), tmp_path)
    model = loaded_as(renamed(residual_cnn(), {old: "g001"}), tmp_path)
    wanted, got = (
        plain_session(ir.to_proto(expose_groups(lower(m, uniform(m, FP32), observed(m), TENSORRT), m))).run(
            None, feeds(m)
        )
        for m in (plain, model)
    )
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(one, other)


def test_names_in_bodies_are_taken_too() -> None:
    model = passes.ShapeInferencePass()(ir.from_proto(conditional())).model
    names = Names(model.graph)
    assert names.fresh("then_conv") == "then_conv.1"
    assert names.fresh("then_conv") == "then_conv.2"
    assert names.fresh("inner") == "inner.1"
    assert names.fresh("new") == "new"
