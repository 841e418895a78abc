"""What lowering changes in a model's numbers is what its INT8 groups explain, and no more.

The reference is written apart from the lowering: the clean float model, in which the weights, activations and skips of
the INT8 groups, and nothing else, are rounded to 8 bits by ordinary float ops (Div, Round, Clip, Mul).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, Placement
from search.graph.model import Group, Model
from search.values import Assignment, Precision, Ranges, TensorRange
from tests.support.assignments import mixes
from tests.support.networks import BEYOND, NETWORKS, ODD, feeds, loaded, plain_session, ranged, session_of

pytestmark = pytest.mark.slow

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
ALL = [*NETWORKS, *ODD, *BEYOND]
# As TENSORRT, with the float sides of INT8 groups left in float32: then nothing but INT8 is left to explain.
WITHOUT_HALF = replace(TENSORRT, float_side=Precision.FP32)
FLOAT16_NOISE = 1e-6  # 60 dB


class Reference:
    """Rounds the tensors of INT8 groups in a copy of the clean model."""

    def __init__(self, model: Model, assignment: Assignment, ranges: Ranges, *, half_scales: bool) -> None:
        self.proto = ir.to_proto(model.graph)
        self.constants = {t.name: numpy_helper.to_array(t) for t in self.proto.graph.initializer}
        self.nodes = {node.name: node for node in self.proto.graph.node}
        self.ranges, self.half_scales = ranges, half_scales
        self.groups = [group for group in model.groups if assignment[group.id] is INT8]
        self.rounded: dict[str, str] = {}
        self.new: list[onnx.NodeProto] = []

    def write(self) -> onnx.ModelProto:
        reads = {(name, i) for group in self.groups for name in group.anchors for i in (0, 1)}
        reads |= {(name, i) for group in self.groups for name, i in self._skips(group)}
        read = {self.nodes[name].input[i] for name, i in reads}
        # All inputs of a Concat that is read in INT8 share its scale.
        shared = {
            name: node.output[0]
            for node in self.nodes.values()
            if node.op_type == "Concat" and node.output[0] in read
            for name in node.input
        }
        for name, i in sorted(reads):
            node = self.nodes[name]
            if node.input[i] in self.constants:
                node.input[i] = self._weight(node, node.input[i])
            else:
                node.input[i] = self._activation(node.input[i], shared.get(node.input[i], node.input[i]))
        return self._sorted()

    def _skips(self, group: Group) -> list[tuple[str, int]]:
        if group.op not in ("Conv", "ConvTranspose"):
            return []
        adds = [self.nodes[name] for name in group.nodes if self.nodes[name].op_type == "Add"]
        return [(add.name, i) for add in adds for i in (0, 1) if add.input[i] in group.skips]

    def _scale(self, largest: NDArray[np.float32]) -> NDArray[np.float32]:
        scale = (np.asarray(largest, np.float64) / 127).astype(np.float32)
        scale = np.where(scale == 0, np.float32(1), scale)
        if self.half_scales:
            half = scale.astype(np.float16)
            scale = np.where(half < scale, np.nextafter(half, np.float16(np.inf)), half).astype(np.float32)
        return scale

    def _weight(self, node: onnx.NodeProto, name: str) -> str:
        weight = self.constants[name]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        axis = {"Conv": 0, "Gemm": 0 if attributes.get("transB") else 1}.get(node.op_type, 1)
        per_tensor = node.op_type == "ConvTranspose" and attributes.get("group", 1) > 1
        others = (
            None
            if per_tensor or (node.op_type == "MatMul" and weight.ndim != 2)
            else tuple(i for i in range(weight.ndim) if i != axis)
        )
        scale = self._scale(np.abs(weight).max(axis=others, keepdims=True))
        codes = np.clip(np.rint(weight / scale), -127, 127)
        return self._constant(f"{node.name}/{name}/rounded", (codes * scale).astype(np.float32))

    def _activation(self, name: str, ranged_as: str) -> str:
        if name not in self.rounded:
            scale = self._constant(
                f"{name}/ref/scale", self._scale(np.float32(self.ranges.tensors[ranged_as].magnitude))
            )
            limits = [self._constant(f"{name}/ref/{limit}", np.float32(limit)) for limit in (-128, 127)]
            steps = [f"{name}/ref/{i}" for i in range(4)]
            self.new += [
                helper.make_node("Div", [name, scale], [steps[0]], name=steps[0]),
                helper.make_node("Round", [steps[0]], [steps[1]], name=steps[1]),
                helper.make_node("Clip", [steps[1], *limits], [steps[2]], name=steps[2]),
                helper.make_node("Mul", [steps[2], scale], [steps[3]], name=steps[3]),
            ]
            self.rounded[name] = steps[3]
        return self.rounded[name]

    def _constant(self, name: str, array: NDArray[np.float32]) -> str:
        self.proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def _sorted(self) -> onnx.ModelProto:
        self.proto.graph.node.extend(self.new)
        model = ir.from_proto(self.proto)
        passes.TopologicalSortPass()(model)
        return ir.to_proto(passes.RemoveUnusedNodesPass()(model).model)


def outputs(session: onnxruntime.InferenceSession, model: Model) -> NDArray[np.float64]:
    """All float outputs in one vector."""
    found = session.run(None, feeds(model, seed=99))
    return np.concatenate([a.astype(np.float64).ravel() for a in found if a.dtype == np.float32])


def rounded(model: Model, assignment: Assignment, ranges: Ranges, *, half_scales: bool) -> NDArray[np.float64]:
    return outputs(plain_session(Reference(model, assignment, ranges, half_scales=half_scales).write()), model)


def lowered(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> NDArray[np.float64]:
    return outputs(session_of(ir.to_proto(lower(model, assignment, ranges, placement))), model)


def noise(exact: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Squared error as a share of the signal's power."""
    return float(np.square(exact - other).sum() / np.square(exact).sum())


def without_half(assignment: Assignment) -> Assignment:
    return Assignment({group: FP32 if precision is FP16 else precision for group, precision in assignment.items()})


@pytest.mark.parametrize("name", ALL)
def test_int8_groups_compute_on_rounded_tensors_and_nothing_else_changes(name: str) -> None:
    model, ranges = loaded(name), ranged(name)
    for assignment in {without_half(mix): None for mix in mixes(model)}:
        wanted = rounded(model, assignment, ranges, half_scales=False)
        assert noise(wanted, lowered(model, assignment, ranges, WITHOUT_HALF)) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_with_half_the_error_is_that_of_int8_and_of_float16(name: str) -> None:
    """A float16 rounding in front of an INT8 one now and then moves a value to the next level: hence the factor."""
    model, ranges = loaded(name), ranged(name)
    exact = outputs(plain_session(ir.to_proto(model.graph)), model)
    for assignment in mixes(model):
        explained = noise(exact, rounded(model, assignment, ranges, half_scales=True))
        found = noise(exact, lowered(model, assignment, ranges, TENSORRT))
        assert found <= 2 * explained + FLOAT16_NOISE
        if INT8 in assignment.values():
            assert found >= explained / 2


def test_a_scale_that_is_off_shows() -> None:
    model, ranges = loaded("residual"), ranged("residual")
    everything = Assignment({group.id: INT8 for group in model.groups})
    skip = next(name for group in model.groups for name in group.skips)
    wider = TensorRange(1.02 * ranges.tensors[skip].low, 1.02 * ranges.tensors[skip].high)
    off = replace(ranges, tensors={**ranges.tensors, skip: wider})
    wanted = rounded(model, everything, ranges, half_scales=False)
    assert noise(wanted, lowered(model, everything, off, WITHOUT_HALF)) > 1e-6
