"""FP8 (E4M3): what lowering writes of it, held against its published arithmetic, and who may have it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.diagnose.distributions import Scaled, weight_divergence
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import Lowered, lower
from evaluators.lowering.placement import TENSORRT, Placement
from search.graph.model import Model, load
from search.space.choices import make_space
from search.values import Assignment, Capability, Correction, Precision, Ranges, Recovery, TensorRange
from tests.support.assignments import mixes
from tests.support.networks import Net, feeds, finish, loaded, observed, ranged, save, sqnr_db

FP32, FP16, FP8, INT8 = Precision.FP32, Precision.FP16, Precision.FP8, Precision.INT8
IN_FP32 = replace(TENSORRT, float_side=FP32)
EVERY = frozenset({"Conv", "Gemm", "MatMul"})


def all_in(model: Model, precision: Precision) -> Assignment:
    return Assignment(dict.fromkeys([group.id for group in model.groups], precision))


def emulate(model: Model, mix: Assignment, ranges: Ranges, placement: Placement = TENSORRT) -> NDArray[np.float32]:
    lowered = spelled_out(lower(model, mix, ranges, placement))
    found = Emulator(OnnxRuntimeBackend(), placement).open(lowered).run(feeds(model, 1))
    return np.asarray(found[model.outputs[0].name])


def two_layers() -> onnx.ModelProto:
    n = Net(3)
    x = n.op("Relu", [n.gemm("x", "up", 40, 32)], "relu")
    n.linear(x, "down", 32, 24)
    n.nodes[-1].output[0] = "y"
    return finish(n, {"x": [6, 40]}, {"y": [6, 24]})


def e4m3(values: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float64]:
    """As OCP's specification and ONNX word it: to nearest even, beyond 448 saturated."""
    numbers = np.clip((values / scale).astype(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    return numbers.astype(np.float64) * scale


def test_it_computes_what_is_published(tmp_path: Path) -> None:
    proto = two_layers()
    model = load(save(proto, tmp_path / "model.onnx"))
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    ranges, x = observed(model), 2 * feeds(model, 1)["x"]  # beyond what calibration saw
    amax = {name: np.float32(ranges.tensors[name].magnitude) for name in ("x", "relu_out")}

    def product(read: NDArray[np.float32], name: str, weight: NDArray[np.float32]) -> NDArray[np.float64]:
        by_column = np.abs(weight).max(0) / np.float32(448)
        return e4m3(read, amax[name] / np.float32(448)) @ e4m3(weight, by_column)

    middle = np.maximum(product(x, "x", weights["up.w"].T) + weights["up.b"], 0).astype(np.float32)
    expected = product(middle, "relu_out", weights["down.w"]) + weights["down.b"]
    lowered = lower(model, all_in(model, FP8), ranges, IN_FP32)
    onnx.checker.check_model(ir.to_proto(lowered), full_check=True)
    found = Emulator(OnnxRuntimeBackend(), IN_FP32).open(lowered).run({"x": x})["y"]
    assert sqnr_db(expected, found) > 60
    assert np.abs(x).max() > amax["x"]


@pytest.mark.slow
@pytest.mark.parametrize("network", ["residual", "mobile", "transformer", "products"])
def test_every_mix_is_written_and_near_the_float_model(network: str) -> None:
    """Beside INT8 a tensor has codes of both kinds."""
    model, ranges = loaded(network), ranged(network)
    exact = emulate(model, all_in(model, FP32), ranges)
    space = make_space(model, Capability(dict.fromkeys([FP16, FP8, INT8], EVERY)))
    for mix in dict.fromkeys(space.nearest(mix) for mix in mixes(model, [FP16, FP8, INT8])):
        onnx.checker.check_model(ir.to_proto(lower(model, mix, ranges, TENSORRT)), full_check=True)
        assert sqnr_db(exact, emulate(model, mix, ranges)) > 12


def test_other_ranges_change_constants_alone() -> None:
    model, ranges = loaded("transformer"), ranged("transformer")
    space = make_space(model, Capability(dict.fromkeys([FP8, INT8], EVERY)), ranges)
    wider = {name: TensorRange(1.5 * found.low, 1.7 * found.high) for name, found in ranges.tensors.items()}
    other = replace(ranges, tensors=wider)
    for mix in mixes(model, [FP8, INT8]):
        lowered = Lowered(model, space.nearest(mix), ranges, TENSORRT)
        assert lowered.rescale(other)
        again = lower(model, space.nearest(mix), other, TENSORRT)
        assert ir.to_proto(lowered.model).SerializeToString() == ir.to_proto(again).SerializeToString()


def test_its_scale_is_of_the_largest_value_that_was_seen_or_set(tmp_path: Path) -> None:
    """INT8's ranges may cut off what is far from all else."""
    model = load(save(two_layers(), tmp_path / "model.onnx"))
    seen = observed(model)
    clipped = replace(seen, tensors={name: TensorRange(-1, 1) for name in seen.tensors})

    def scales(ranges: Ranges) -> dict[str, float]:
        constants = lower(model, all_in(model, FP8), ranges, IN_FP32).graph.initializers
        tensors = {name: constants[f"{name}/scale/fp8"].const_value for name in ("x", "relu_out")}
        return {name: float(tensor.numpy()) for name, tensor in tensors.items() if tensor is not None}

    amax = {name: seen.observed[name].magnitude / 448 for name in ("x", "relu_out")}
    assert scales(clipped) == pytest.approx(amax)
    assert scales(replace(clipped, fixed=("x",))) == pytest.approx({**amax, "x": 1 / 448})


def test_corrections_of_int8_leave_it_alone(tmp_path: Path) -> None:
    model = load(save(two_layers(), tmp_path / "model.onnx"))
    plain = observed(model)
    corrected = replace(plain, recovery=Recovery(corrections={"up": Correction(offset=np.ones(32, np.float32))}))
    for precision, moves in ((FP8, False), (INT8, True)):
        mix = all_in(model, precision)
        assert bool((emulate(model, mix, corrected) - emulate(model, mix, plain)).any()) is moves


def test_convolutions_that_modelopt_leaves_out_are_not_offered_it(tmp_path: Path) -> None:
    n = Net(4)
    x = n.conv(n.conv("image", "few", 3, 32), "usual", 32, 32)
    n.conv(x, "wide", 32, 32, 7)
    n.nodes[-1].output[0] = "y"
    model = load(save(finish(n, {"image": [1, 3, 8, 8]}, {"y": [1, 32, 8, 8]}), tmp_path / "model.onnx"))
    space = make_space(model, Capability({FP8: EVERY}))
    why = {group.name: space.choices[group.id][1].reason for group in model.groups}
    reason = "convolutions of up to 16 channels or more than 32 places have no fast kernel"
    assert why == {"few": reason, "usual": "", "wide": reason}


def test_what_is_lost_of_weights_and_activations_is_told(tmp_path: Path) -> None:
    model = load(save(two_layers(), tmp_path / "model.onnx"))
    lowered = lower(model, all_in(model, FP8), observed(model), TENSORRT)
    lost = weight_divergence(model.graph, lowered, ["up", "down"])
    assert lost is not None
    assert lost > 0
    grid = Scaled(FP8, 0.5)
    assert grid.round_values(np.array([0.5, 15.4, 17.3, 300.0])).tolist() == [0.5, 15.0, 18.0, 224.0]
    assert grid.saturated_share(np.array([1.0, 230.0, 240.0, 0.0])) == 0.25
