"""Lowering: every network in uniform and random mixes, checked for validity, types, placement and accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import Lowered, expose_groups, lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, TENSORRT_WEAK, Placement
from evaluators.lowering.weights import channel_axis
from search.errors import ModelError
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges, TensorRange
from tests.support.assignments import mixes, precisions_of, uniform, uniform_and_mixed
from tests.support.networks import (
    NETWORKS,
    ODD,
    Net,
    feeds,
    loaded,
    observed,
    plain_session,
    ranged,
    residual_cnn,
    save,
    session_of,
    sqnr_db,
)

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32
ALL = [*NETWORKS, *ODD]
PLACEMENTS = {"cpu": ONNXRUNTIME_CPU, "tensorrt": TENSORRT}
HALF_OR_FLOAT = (TensorProto.FLOAT, TensorProto.FLOAT16)
C = 16


def only(model: Model, **wanted: Precision) -> Assignment:
    """FP32 but for the groups named."""
    assert set(wanted) <= {group.name for group in model.groups}
    return Assignment({group.id: wanted.get(group.name, FP32) for group in model.groups})


def lowered(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> onnx.ModelProto:
    return ir.to_proto(lower(model, assignment, ranges, placement))


def load_proto(proto: onnx.ModelProto, folder: Path) -> Model:
    return load(save(proto, folder / "net.onnx"))


class Graph:
    """A lowered model with the lookups that the checks need."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
        self.nodes = list(proto.graph.node)
        self.constants = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
        self.types = {t.name: t.data_type for t in proto.graph.initializer}
        for info in (*inferred.value_info, *inferred.input, *inferred.output):
            self.types[info.name] = info.type.tensor_type.elem_type
        self.outputs = {info.name for info in proto.graph.output}
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def of(self, *kinds: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if node.op_type in kinds]

    def source(self, node: onnx.NodeProto, kind: str) -> onnx.NodeProto | None:
        """The node of that kind that makes the first input."""
        made_by = self.producer.get(node.input[0])
        return made_by if made_by is not None and made_by.op_type == kind else None

    def node(self, name: str) -> onnx.NodeProto:
        return next(node for node in self.nodes if node.name == name)


def assert_strongly_typed(graph: Graph) -> None:
    """One float type in every op but those that convert, as TensorRT's strongly typed networks demand."""
    for node in graph.nodes:
        if node.op_type == "Cast":
            continue
        inputs = node.input[:1] if node.op_type == "Resize" else [name for name in node.input if name]
        kinds = {graph.types[name] for name in inputs} & set(HALF_OR_FLOAT)
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scale = graph.types[node.input[1]]
            assert scale == graph.types[node.input[0] if node.op_type == "QuantizeLinear" else node.output[0]], (
                node.name
            )
        assert len(kinds) <= 1, f"{node.op_type} {node.name} mixes float types"


def assert_no_detours(graph: Graph) -> None:
    """One Q a tensor, no round trip through equal scales, no float cast of a float cast."""
    for node in graph.of("QuantizeLinear"):
        before = graph.source(node, "DequantizeLinear")
        if before is not None:
            assert not np.array_equal(graph.constants[before.input[1]], graph.constants[node.input[1]]), node.name
    for node in graph.of("Cast"):
        before = graph.source(node, "Cast")
        kinds = {graph.types[name] for name in (*node.input, *node.output, *(before.input if before else ()))}
        assert before is None or not kinds <= set(HALF_OR_FLOAT), node.name
    for name, readers in graph.readers.items():
        quantizers = [node for node in readers if node.op_type == "QuantizeLinear" and node.input[0] == name]
        assert len(quantizers) <= 1, name


def assert_placed_for_tensorrt(graph: Graph, model: Model, assignment: Assignment) -> None:
    """Symmetric INT8, float biases, and a Q only where some weighted op or residual Add reads it."""
    for node in graph.of("QuantizeLinear", "DequantizeLinear"):
        zero = graph.constants[node.input[2]]
        assert zero.dtype == np.int8
        assert not zero.any()
    for node in graph.of("QuantizeLinear"):
        for dequantize in graph.readers[node.output[0]]:
            kinds = {reader.op_type for reader in graph.readers[dequantize.output[0]]}
            assert kinds <= {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add"}, node.name
    int8 = {name for group in model.groups if assignment[group.id] is INT8 for name in group.anchors}
    for node in graph.of("Conv", "ConvTranspose", "Gemm"):
        for name in node.input[2:]:
            assert name in graph.constants
            assert graph.types[name] in HALF_OR_FLOAT
        assert (graph.producer.get(node.input[1]) is not None) == (node.name in int8)


@pytest.mark.parametrize("name", ALL)
def test_in_the_mixes_neighbours_have_every_pair_of_precisions(name: str) -> None:
    model = loaded(name)
    pinned = {group.id for group in model.groups if group.pinned}
    tried = list(mixes(model))
    assert tried == list(mixes(model)), "the same ones every time"
    for edge in model.edges:
        if edge.source is not None:
            first, second = (2 if group in pinned else 3 for group in (edge.source, edge.target))
            assert len({(mix[edge.source], mix[edge.target]) for mix in tried}) == first * second


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
@pytest.mark.parametrize("name", ALL)
def test_every_mix_is_valid_pure_and_accurate(name: str, placement: Placement) -> None:
    model, ranges = loaded(name), ranged(name)
    before = ir.to_proto(model.graph).SerializeToString(deterministic=True)
    batch = feeds(model, seed=99)
    expected = plain_session(ir.to_proto(model.graph)).run(None, batch)
    for i, assignment in enumerate(mixes(model, precisions_of(placement))):
        proto = lowered(model, assignment, ranges, placement)
        onnx.checker.check_model(proto, full_check=True)
        if i % 4 == 2:
            again = lowered(model, assignment, ranges, placement)
            assert proto.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
        graph = Graph(proto)
        assert_strongly_typed(graph)
        assert_no_detours(graph)
        if placement is TENSORRT:
            assert_placed_for_tensorrt(graph, model, assignment)
        session = session_of(proto)
        assert [(i.name, i.shape) for i in session.get_inputs()] == [(i.name, list(i.shape)) for i in model.inputs]
        assert [out.name for out in session.get_outputs()] == [spec.name for spec in model.outputs]
        lowest = max(assignment.values())
        enough = {INT8: 20.0, FP16: 50.0, FP32: 300.0}[lowest]
        for spec, wanted, got in zip(model.outputs, expected, session.run(None, batch), strict=True):
            assert got.dtype == np.dtype(spec.dtype)
            assert got.shape == spec.shape
            if spec.dtype == "float32":
                assert sqnr_db(wanted, got) > enough
    assert ir.to_proto(model.graph).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
@pytest.mark.parametrize("name", ALL)
def test_the_clean_models_nodes_keep_their_names(name: str, placement: Placement) -> None:
    model = loaded(name)
    proto = lowered(model, uniform(model, INT8), ranged(name), placement)
    assert {node.name for node in model.graph.graph} <= {node.name for node in proto.graph.node}
    assert len({node.name for node in proto.graph.node}) == len(proto.graph.node)


def test_fp32_everywhere_changes_nothing() -> None:
    model = loaded("mobile")
    proto = lowered(model, uniform(model, FP32), ranged("mobile"), ONNXRUNTIME_CPU)
    assert [node.name for node in proto.graph.node] == [node.name for node in model.graph.graph]


# -- placement ---------------------------------------------------------------------------------------------------------


def test_neighbours_in_int8_share_one_quantized_tensor() -> None:
    model = loaded("residual")
    for placement in PLACEMENTS.values():
        graph = Graph(lowered(model, uniform(model, INT8), ranged("residual"), placement))
        # block.0's output is read by two convolutions: quantized once, dequantized once.
        quantizers = [q for q in graph.of("QuantizeLinear") if q.input[0] == "block.0/relu2_out"]
        assert len(quantizers) == 1
        (dequantizer,) = graph.readers[quantizers[0].output[0]]
        readers = {reader.name for reader in graph.readers[dequantizer.output[0]]}
        assert readers == {"block.1/conv1", "block.1/down"}


def test_tensorrt_quantizes_the_skip_of_a_residual_add_and_no_outputs() -> None:
    model = loaded("residual")
    graph = Graph(lowered(model, uniform(model, INT8), ranged("residual"), TENSORRT))
    add = graph.node("block.0/add")
    kinds = [graph.producer[name].op_type for name in add.input]
    assert sorted(kinds) == ["Conv", "DequantizeLinear"]
    assert [reader.op_type for reader in graph.readers["block.1/conv1_out"]] == ["Relu"]


def test_onnx_runtime_gets_a_q_behind_every_int8_convolution_and_add() -> None:
    model = loaded("mobile")
    graph = Graph(lowered(model, uniform(model, INT8), ranged("mobile"), ONNXRUNTIME_CPU))
    for node in graph.of("Conv", "Add", "GlobalAveragePool"):
        behind = node.output[0]
        if graph.readers[behind][0].op_type == "Clip":
            behind = graph.readers[behind][0].output[0]
        assert [reader.op_type for reader in graph.readers[behind]] == ["QuantizeLinear"]


def test_onnx_runtime_gets_int32_biases_in_the_accumulators_scale() -> None:
    model = loaded("residual")
    graph = Graph(lowered(model, uniform(model, INT8), ranged("residual"), ONNXRUNTIME_CPU))
    for node in graph.of("Conv", "Gemm"):
        activation, weight, bias = (graph.producer[name] for name in node.input)
        assert graph.constants[bias.input[0]].dtype == np.int32
        product = graph.constants[activation.input[1]] * graph.constants[weight.input[1]]
        np.testing.assert_allclose(graph.constants[bias.input[1]], product, rtol=1e-6)


def test_a_reader_in_fp32_of_a_stored_tensor_reads_a_per_channel_dq() -> None:
    # ONNX Runtime quantizes a float convolution between a per-tensor DQ and a Q without being asked.
    model = loaded("mobile")
    names = {group.name: INT8 for group in model.groups if group.name != "mb.0/depthwise"}
    graph = Graph(lowered(model, only(model, **names), ranged("mobile"), ONNXRUNTIME_CPU))
    dequantizer = graph.source(graph.node("mb.0/depthwise"), "DequantizeLinear")
    assert dequantizer is not None
    assert graph.constants[dequantizer.input[1]].shape == (48,)
    assert len(set(graph.constants[dequantizer.input[1]])) == 1


def test_matrix_products_keep_their_residual_add_in_floats() -> None:
    model = loaded("transformer")
    for placement in PLACEMENTS.values():
        graph = Graph(lowered(model, uniform(model, INT8), ranged("transformer"), placement))
        add = graph.node("layer.0/mlp/add")
        assert all(graph.producer[name].op_type != "DequantizeLinear" for name in add.input)


def test_half_regions_have_no_casts_inside() -> None:
    model = loaded("residual")
    graph = Graph(lowered(model, uniform(model, FP16), ranged("residual"), TENSORRT))
    assert [node.input[0] for node in graph.of("Cast")] == ["image", "logits/raw"]
    text = loaded("transformer")
    graph = Graph(lowered(text, uniform(text, FP16), ranged("transformer"), TENSORRT))
    for node in graph.of("LayerNormalization", "Softmax"):
        assert graph.types[node.output[0]] == TensorProto.FLOAT


def test_what_leaves_half_range_stays_float() -> None:
    model, ranges = loaded("residual"), ranged("residual")
    high = replace(ranges, observed={**ranges.observed, "pool_out": TensorRange(0.0, 1e5)})
    graph = Graph(lowered(model, uniform(model, FP16), high, TENSORRT))
    assert graph.types["pool_out"] == TensorProto.FLOAT
    inner = replace(ranges, observed={**ranges.observed, "block.0/conv1_out": TensorRange(-1e5, 1.0)})
    graph = Graph(lowered(model, uniform(model, INT8), inner, TENSORRT))
    assert graph.types["block.0/conv1_out"] == TensorProto.FLOAT


def test_outputs_that_are_stored_in_int8_or_half_keep_name_and_type() -> None:
    model, ranges = loaded("branches"), ranged("branches")
    for placement, precision in ((ONNXRUNTIME_CPU, INT8), (TENSORRT, FP16)):
        proto = lowered(model, uniform(model, precision), ranges, placement)
        graph = Graph(proto)
        assert [out.name for out in proto.graph.output] == ["features", "logits", "map"]
        assert graph.producer["features"].op_type in ("DequantizeLinear", "Cast")
        assert all(graph.types[name] == TensorProto.FLOAT for name in graph.outputs)


def test_bodies_of_if_read_and_compute_floats() -> None:
    model = loaded("conditional")
    for placement, precision in ((ONNXRUNTIME_CPU, INT8), (TENSORRT, FP16), (TENSORRT, INT8)):
        proto = lowered(model, uniform(model, precision), ranged("conditional"), placement)
        graph = Graph(proto)
        (branching,) = graph.of("If")
        captured = {
            name for attribute in branching.attribute for node in attribute.g.node for name in node.input
        } & graph.producer.keys()
        assert captured
        assert {graph.types[name] for name in captured} == {TensorProto.FLOAT}


def test_a_clip_that_excludes_zero_is_no_clamp(tmp_path: Path) -> None:
    n = Net()
    low, high = n.const("low", np.float32(1)), n.const("high", np.float32(2))
    x = n.op("Clip", [n.conv("image", "stem", 3, C), low, high], "clip")
    n.head(n.op("Relu", [n.conv(x, "next", C, C)], "next/relu"), C)
    model = load_proto(n.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path)
    graph = Graph(lowered(model, uniform(model, INT8), observed(model), ONNXRUNTIME_CPU))
    assert [reader.op_type for reader in graph.readers["stem_out"]] == ["QuantizeLinear"]


# -- numbers -----------------------------------------------------------------------------------------------------------


def accuracy_of(model: Model, assignment: Assignment, ranges: Ranges, placement: Placement) -> float:
    batch = feeds(model, seed=7)
    expected = plain_session(ir.to_proto(model.graph)).run(None, batch)[0]
    return sqnr_db(expected, session_of(lowered(model, assignment, ranges, placement)).run(None, batch)[0])


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_clipped_ranges_are_followed(placement: Placement) -> None:
    model, ranges = loaded("residual"), ranged("residual")
    clipped = {name: TensorRange(0.7 * r.low, 0.7 * r.high) for name, r in ranges.tensors.items()}
    narrow = Ranges("percentile", clipped, ranges.observed, ranges.samples)
    wide, tight = (lowered(model, uniform(model, INT8), r, placement) for r in (ranges, narrow))
    scale = {t.name: numpy_helper.to_array(t) for t in wide.graph.initializer}
    for tensor in tight.graph.initializer:
        if tensor.name == "image/scale":
            np.testing.assert_allclose(numpy_helper.to_array(tensor), 0.7 * scale[tensor.name], rtol=2e-3)
    assert accuracy_of(model, uniform(model, INT8), narrow, placement) > 10


def test_a_missing_range_is_named() -> None:
    model, ranges = loaded("residual"), ranged("residual")
    less = replace(ranges, tensors={k: v for k, v in ranges.tensors.items() if k != "image"})
    with pytest.raises(ModelError, match="'image': calibration has no range"):
        lower(model, uniform(model, INT8), less, ONNXRUNTIME_CPU)


def changed(folder: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Model:
    """The residual network after a change of its constants by name."""
    proto = residual_cnn()
    arrays = {tensor.name: numpy_helper.to_array(tensor).copy() for tensor in proto.graph.initializer}
    change(arrays)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return load_proto(proto, folder)


def prune(arrays: dict[str, np.ndarray]) -> None:
    arrays["block.1/conv1.w"][::2] = 0
    arrays["block.1/conv1.b"][:] = 0.01 * np.arange(2 * C)


def overflow(arrays: dict[str, np.ndarray]) -> None:
    arrays["block.1/conv1.w"][::2] *= 1e-12
    arrays["block.1/conv1.b"][::2] = 3.0


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
@pytest.mark.parametrize("change", [prune, overflow])
def test_empty_and_overflowing_channels_keep_their_bias(
    change: Callable[[dict[str, np.ndarray]], None], placement: Placement, tmp_path: Path
) -> None:
    model = changed(tmp_path, change)
    assert accuracy_of(model, uniform(model, INT8), observed(model), placement) > 25


def test_an_empty_channels_bias_is_exact_whatever_the_input_scale(tmp_path: Path) -> None:
    model = changed(tmp_path, prune)
    ranges = observed(model)
    coarse = replace(ranges, tensors={**ranges.tensors, "block.0/relu2_out": TensorRange(0.0, 2550.0)})
    graph = Graph(lowered(model, uniform(model, INT8), coarse, ONNXRUNTIME_CPU))
    bias = graph.producer[graph.node("block.1/conv1").input[2]]
    codes, scale = (graph.constants[name].astype(np.float64) for name in bias.input[:2])
    np.testing.assert_allclose((codes * scale)[::2], 0.01 * np.arange(2 * C)[::2], rtol=1e-6)


@pytest.mark.parametrize("placement", PLACEMENTS.values(), ids=PLACEMENTS.keys())
def test_a_tensor_that_never_varies_is_no_division_by_zero(placement: Placement) -> None:
    model, ranges = loaded("residual"), ranged("residual")
    flat = {**ranges.tensors, "block.0/relu1_out": TensorRange(0.0, 0.0)}
    proto = lowered(model, uniform(model, INT8), replace(ranges, tensors=flat), placement)
    assert np.isfinite(plain_session(proto).run(None, feeds(model))[0]).all()


def test_seven_bit_weights_stay_within_63() -> None:
    model = loaded("residual")
    placement = replace(ONNXRUNTIME_CPU, weight_bits=7)
    graph = Graph(lowered(model, uniform(model, INT8), ranged("residual"), placement))
    codes = [array for name, array in graph.constants.items() if name.endswith(".w/int8")]
    assert len(codes) == 7
    assert max(int(np.abs(array.astype(int)).max()) for array in codes) == 63


def test_readers_in_half_and_float_see_the_same_scale() -> None:
    model = loaded("residual")
    graph = Graph(lowered(model, uniform(model, INT8), ranged("residual"), TENSORRT))
    for name, scale in graph.constants.items():
        if "/scale" in name:
            np.testing.assert_array_equal(scale, scale.astype(np.float16).astype(scale.dtype))


def test_shared_weights_are_stored_once() -> None:
    model = loaded("branches")
    graph = Graph(lowered(model, uniform(model, INT8), ranged("branches"), TENSORRT))
    assert graph.node("d").input[1] == graph.node("d_again").input[1]
    assert sum(name.startswith("d.w/int8") and name.endswith("int8") for name in graph.constants) == 1


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "axis"),
    [
        ("Conv", (8, 4, 3, 3), {}, 0),
        ("ConvTranspose", (8, 4, 2, 2), {}, 1),
        ("ConvTranspose", (8, 4, 2, 2), {"group": 2}, None),
        ("Gemm", (8, 4), {"transB": 1}, 0),
        ("Gemm", (8, 4), {}, 1),
        ("MatMul", (8, 4), {}, 1),
        ("MatMul", (2, 8, 4), {}, None),
        ("MatMul", (8,), {}, None),
    ],
)
def test_channel_axis(op: str, shape: tuple[int, ...], attributes: dict[str, int], axis: int | None) -> None:
    node = ir.from_proto(helper.make_node(op, ["x", "w"], ["y"], **attributes))
    assert channel_axis(node, np.zeros(shape, np.float32)) == axis


# -- probing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_exposed_groups_give_what_the_float_model_has_there(name: str) -> None:
    model, ranges = loaded(name), ranged(name)
    batch = feeds(model)
    exposed = [
        plain_session(ir.to_proto(expose_groups(lower(model, uniform(model, p), ranges, TENSORRT), model)))
        for p in (FP32, FP16)
    ]
    for session in exposed:
        assert [out.name for out in session.get_outputs()] == [group.id for group in model.groups]
    for group, exact, half in zip(model.groups, *(session.run(None, batch) for session in exposed), strict=True):
        assert exact.shape == group.shape
        assert sqnr_db(exact, half) > 50


def test_a_resize_that_fills_up_with_a_number_has_a_range_of_its_own(tmp_path: Path) -> None:
    net = Net()
    x = net.op(
        "Resize",
        [net.conv("image", "first", 3, 8), net.const("roi", np.array([0, 0, -0.3, -0.2, 1, 1, 1.4, 1.1], np.float32)),
         "", net.const("size", np.array([2, 8, 10, 10], np.int64))],
        "crop", mode="nearest", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=50.0,
    )  # fmt: skip
    net.conv(x, "second", 8, 8)
    model = load(save(net.model([2, 3, 8, 8], "y", [2, 8, 10, 10]), tmp_path / "crop.onnx"))
    batch = feeds(model)
    expected = plain_session(ir.to_proto(model.graph)).run(None, batch)[0]
    for placement in (ONNXRUNTIME_CPU, TENSORRT):
        lowered = lower(model, uniform(model, Precision.INT8), observed(model), placement)
        found = plain_session(ir.to_proto(lowered)).run(None, batch)[0]
        assert np.square(found - expected).mean() < 1e-3 * np.square(expected).mean()


@pytest.mark.parametrize("placement", ["cpu", "tensorrt", "weak"])
@pytest.mark.parametrize("name", ALL)
def test_other_ranges_in_a_lowered_model_are_as_lowering_with_them(name: str, placement: str) -> None:
    model, ranges = loaded(name), ranged(name)
    where = {**PLACEMENTS, "weak": TENSORRT_WEAK}[placement]
    tensors = {tensor: TensorRange(0.7 * known.low, 0.6 * known.high) for tensor, known in ranges.tensors.items()}
    other = replace(ranges, tensors=tensors)
    for mix in uniform_and_mixed(model)[3 if placement == "weak" else 2 :]:
        again = Lowered(model, mix, ranges, where)
        assert again.rescale(other)
        assert ir.to_proto(again.model).SerializeToString() == lowered(model, mix, other, where).SerializeToString()
        spelled = Lowered(model, mix, ranges, where)
        spelled_out(spelled.model)
        assert spelled.rescale(other)
        expected = spelled_out(lower(model, mix, other, where))
        assert ir.to_proto(spelled.model).SerializeToString() == ir.to_proto(expected).SerializeToString()


def test_ranges_that_change_more_than_constants_are_lowered_anew() -> None:
    """A bias that would overflow widens the scales of its weight, and other observed values may rule half out."""
    model, ranges = loaded("residual"), ranged("residual")
    tiny = {name: TensorRange(known.low * 1e-12, known.high * 1e-12) for name, known in ranges.tensors.items()}
    for other in (replace(ranges, tensors=tiny), replace(ranges, observed=dict(ranges.observed))):
        assert not Lowered(model, uniform(model, INT8), ranges, ONNXRUNTIME_CPU).rescale(other)
