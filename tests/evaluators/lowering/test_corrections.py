"""Corrections change what INT8 computes, channel by channel, as `Correction` defines it, and nothing else."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.calibration.scales import weight_scales
from evaluators.lowering.corrections import OpConstants, corrected_model, find_constants
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.lowering.weights import along, channel_axis, nearest_codes
from search.errors import ModelError
from search.graph.model import Model, load
from search.values import Assignment, Correction, Precision, Ranges, Recovery, TensorRange
from tests.support.networks import Net, feeds, finish, observed, save, session_of
from tests.support.tensorrt.stand_in import standing_in

WITHOUT_HALF = replace(TENSORRT, float_side=Precision.FP32)
OPS = ("plain", "grouped", "depthwise", "up", "up2", "gemm", "turned", "added", "alone", "tied1", "tied2")


@functools.cache
def each_op() -> Model:
    """One weighted op of every form behind another, each of which gives an output."""
    n = Net(5)
    n.op("Conv", ["image", n.random("plain.w", 6, 4, 3, 3, fan_in=36)], "plain", pads=[1] * 4)
    n.conv("image", "grouped", 4, 6, group=2)
    n.op("Conv", ["image", n.random("depthwise.w", 4, 1, 3, 3, fan_in=9)], "depthwise", group=4)
    n.op("ConvTranspose", ["image", n.random("up.w", 4, 3, 2, 2, fan_in=16)], "up", strides=[2, 2])
    n.op("ConvTranspose", ["image", n.random("up2.w", 4, 3, 2, 2, fan_in=8)], "up2", group=2)
    n.op("Gemm", ["rows", n.random("gemm.w", 8, 5, fan_in=8)], "gemm", alpha=0.5)
    b = n.const("turned.b", np.array([[0.5], [1.0]], np.float32))
    n.op("Gemm", ["rows", n.random("turned.w", 5, 8, fan_in=8), b], "turned", transB=1, beta=2.0)
    n.linear("words", "added", 8, 5)
    n.op("MatMul", ["words", n.random("alone.w", 8, 5, fan_in=8)], "alone")
    shared = n.random("tied.w", 3, 4, 1, 1, fan_in=4)
    n.op("Conv", ["image", shared], "tied1")
    n.op("Conv", [n.op("Tanh", ["image"], "tanh"), shared], "tied2")
    image, made = [2, 4, 6, 6], [2, "c", "h", "w"]
    shapes: dict[str, Any] = dict.fromkeys(("plain", "grouped", "depthwise", "up", "up2", "tied1", "tied2"), made)
    shapes |= {name: [2, 5] for name in ("gemm", "turned")} | {"added/bias": [2, 3, 5], "alone": [2, 3, 5]}
    given = {"image": image, "rows": [2, 8], "words": [2, 3, 8]}
    proto = finish(n, given, {f"{name}_out": shape for name, shape in shapes.items()})  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        return load(save(proto, Path(folder) / "ops.onnx"))


def constants_of(model: Model, name: str) -> OpConstants:
    group = next(group for group in model.groups if name in group.anchors)
    found = find_constants(model.graph.graph.node(name), group.nodes)
    assert found is not None
    return found


def all_in(model: Model, precision: Precision) -> Assignment:
    return Assignment({group.id: precision for group in model.groups})


def output_of(name: str) -> str:
    return "added/bias_out" if name == "added" else f"{name}_out"


def channel_last(name: str, array: NDArray[Any]) -> NDArray[Any]:
    return np.moveaxis(array, 1, -1) if array.ndim == 4 else array


def run(graph: ir.Model, model: Model) -> dict[str, NDArray[Any]]:
    session = session_of(ir.to_proto(graph))
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds(model)), strict=True))


def wide_ranges(model: Model, corrections: dict[str, Correction]) -> Ranges:
    """Ranges in which the corrected outputs find room."""
    ranges = observed(model)
    tensors = {
        n: r if n in ("image", "rows", "words", "tanh_out") else TensorRange(-15.0, 15.0)
        for n, r in ranges.tensors.items()
    }
    return replace(ranges, tensors=tensors, recovery=Recovery({}, corrections))


@st.composite
def drawn_corrections(draw: st.DrawFn) -> dict[str, Correction]:
    """Scales and offsets of some ops; no offset for the one that has no place for it."""
    found = {}
    for name in draw(st.sets(st.sampled_from(OPS), min_size=1)):
        count = constants_of(each_op(), name).channels
        random = np.random.default_rng(draw(st.integers(0, 99)))
        scale = random.uniform(0.5, 1.5, count).astype(np.float32) if draw(st.booleans()) else None
        offset = random.uniform(-1, 1, count).astype(np.float32) if name != "alone" and draw(st.booleans()) else None
        if scale is not None or offset is not None:
            found[name] = Correction(scale, offset)
    return found


@pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, WITHOUT_HALF], ids=lambda placement: placement.name)
@given(corrections=drawn_corrections())
@settings(max_examples=12, deadline=None)
def test_int8_computes_scale_times_the_op_plus_offset(placement: Placement, corrections: dict[str, Correction]) -> None:
    model = each_op()
    exact = run(model.graph, model)
    int8 = all_in(model, Precision.INT8)
    given = run(lower(model, int8, wide_ranges(model, corrections), placement), model)
    weak = run(corrected_model(model, int8, wide_ranges(model, corrections), placement), model)
    for name in OPS:
        correction = corrections.get(name, Correction())
        wanted = channel_last(name, exact[output_of(name)])
        wanted = wanted * (1 if correction.scale is None else correction.scale)
        wanted = wanted + (0 if correction.offset is None else correction.offset)
        np.testing.assert_allclose(channel_last(name, weak[output_of(name)]), wanted, atol=2e-5)
        noise = np.abs(channel_last(name, given[output_of(name)]) - wanted).mean()
        assert noise < 0.05, f"{name}: {noise}, where a wrong offset would be 0.5 off"


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.FP32])
def test_other_precisions_ignore_corrections(precision: Precision) -> None:
    model = each_op()
    ones = {name: Correction(np.full(constants_of(model, name).channels, 2, np.float32)) for name in OPS}
    plain, corrected = wide_ranges(model, {}), wide_ranges(model, ones)
    mix = all_in(model, precision)
    lowered = [
        ir.to_proto(lower(model, mix, r, TENSORRT)).SerializeToString(deterministic=True) for r in (plain, corrected)
    ]
    assert lowered[0] == lowered[1]
    assert corrected_model(model, mix, corrected, TENSORRT) is model.graph


def some_rounding(model: Model, name: str, placement: Placement) -> NDArray[np.int8]:
    """Some weights rounded the other way, none of them its channel's largest."""
    codes, _ = nearest_codes(model.graph.graph.node(name), constants_of(model, name).weight, placement)
    moves = np.random.default_rng(1).integers(-1, 2, codes.shape)
    return np.asarray(np.where(np.abs(codes) < 110, moves, 0), np.int8)


@pytest.mark.parametrize("block", [20, 2**20])
@pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, TENSORRT], ids=lambda placement: placement.name)
def test_roundings_are_added_to_the_nearest_codes(
    placement: Placement, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evaluators.calibration.scales._BLOCK_VALUES", block)  # of values that are rounded at a time
    model = each_op()
    roundings = {name: some_rounding(model, name, placement) for name in ("plain", "depthwise", "up2", "turned")}
    corrections = {name: Correction(rounding=rounding) for name, rounding in roundings.items()}
    lowered = lower(model, all_in(model, Precision.INT8), wide_ranges(model, corrections), placement)
    for name, rounding in roundings.items():
        read = lowered.graph.node(name).inputs[1]
        assert read is not None
        dequantize = read.producer()
        assert dequantize is not None
        codes = dequantize.inputs[0].const_value.numpy()  # type: ignore[union-attr]
        nearest, _ = nearest_codes(model.graph.graph.node(name), constants_of(model, name).weight, placement)
        np.testing.assert_array_equal(codes, nearest + rounding)
        assert rounding.any()


def test_float_weights_for_an_engine_that_quantizes_them_itself_give_the_wanted_codes() -> None:
    model = each_op()
    names = ("plain", "grouped", "depthwise", "up", "turned", "alone")
    roundings = {name: some_rounding(model, name, WITHOUT_HALF) for name in names}
    scale = np.full(6, 1.25, np.float32)
    corrections = {n: Correction(scale if n == "plain" else None, None, r) for n, r in roundings.items()}
    ranges = wide_ranges(model, corrections)
    graph = corrected_model(model, all_in(model, Precision.INT8), ranges, WITHOUT_HALF).graph
    for name, rounding in roundings.items():
        node = graph.node(name)
        written = node.inputs[1].const_value.numpy()  # type: ignore[union-attr]
        axis = channel_axis(node, written)
        codes = np.rint(written / along(weight_scales(written, axis), axis, written.ndim))
        nearest, _ = nearest_codes(model.graph.graph.node(name), constants_of(model, name).weight, WITHOUT_HALF)
        np.testing.assert_array_equal(codes, nearest + rounding)


@pytest.mark.parametrize(
    ("name", "correction"),
    [("alone", Correction(offset=np.ones(5, np.float32))), ("computed", Correction(np.ones(4, np.float32)))],
)
def test_what_an_op_has_no_place_for_is_refused(name: str, correction: Correction, tmp_path: Path) -> None:
    model = each_op()
    if name == "computed":
        n = Net(1)
        bias = n.op("ReduceMean", ["image"], "mean", axes=[0, 2, 3], keepdims=0)
        n.op("Conv", ["image", n.random("w", 4, 4, 1, 1, fan_in=4), bias], "computed")
        model = load(save(n.model([2, 4, 6, 6], "y", [2, 4, 6, 6]), tmp_path / "computed.onnx"))
    ranges = replace(observed(model), recovery=Recovery({}, {name: correction}))
    with pytest.raises(ModelError, match=f"correcting '{name}'"):
        lower(model, all_in(model, Precision.INT8), ranges, TENSORRT)


def test_a_weakly_typed_engine_is_built_of_corrected_constants_only_where_it_runs_int8() -> None:
    model = each_op()
    ranges = wide_ranges(model, {"plain": Correction(np.full(6, 2, np.float32), np.ones(6, np.float32))})
    with standing_in("8.6.1"):
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranges)
        floats = builder.lower(all_in(model, Precision.FP16)).onnx
        group = next(group.id for group in model.groups if "plain" in group.anchors)
        mixed = builder.lower(all_in(model, Precision.FP16).replace({group: Precision.INT8})).onnx
    before, after = (ir.from_proto(_proto(data)).graph.node("plain") for data in (floats, mixed))
    assert len(before.inputs) == 2
    np.testing.assert_array_equal(_constant(after, 1), 2 * _constant(before, 1))
    np.testing.assert_array_equal(_constant(after, 2), np.ones(6, np.float32))


@pytest.mark.parametrize(
    "write",
    [
        lambda model, mix, ranges: lower(model, mix, ranges, ONNXRUNTIME_CPU),
        lambda model, mix, ranges: corrected_model(model, mix, ranges, TENSORRT),
    ],
    ids=["lowered", "weakly typed"],
)
def test_a_mix_with_corrections_of_its_own_is_written_with_them(write: Any) -> None:
    model = each_op()
    every = {name: Correction(offset=np.ones(6, np.float32)) for name in ("plain", "grouped")}
    own = {"plain": Correction(offset=np.full(6, 7, np.float32))}
    int8 = all_in(model, Precision.INT8)
    group = next(group.id for group in model.groups if "grouped" in group.anchors)
    mix = int8.replace({group: Precision.FP32})
    ranges = wide_ranges(model, every).with_mixes({mix.digest: own})
    for chosen, wanted in ((mix, own), (all_in(model, Precision.FP16), every)):
        found = write(model, chosen, ranges).graph.initializers
        expected = write(model, chosen, wide_ranges(model, wanted)).graph.initializers
        assert found.keys() == expected.keys()
        for name, value in found.items():
            np.testing.assert_array_equal(value.const_value.numpy(), expected[name].const_value.numpy())


def _proto(data: bytes) -> Any:
    import onnx

    return onnx.load_from_string(data)


def _constant(node: ir.Node, index: int) -> NDArray[Any]:
    value = node.inputs[index]
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()
