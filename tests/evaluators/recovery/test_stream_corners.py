"""Where factors are tempting and wrong: sizes that change or only happen to agree, and ops that move channels."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from evaluators.calibration.channels import observe_channels
from evaluators.data import Batch
from evaluators.recovery.equalize import Equalize
from evaluators.recovery.streams.choice import kept_axes
from evaluators.recovery.streams.find import find_streams
from evaluators.recovery.streams.result import Streams, factors_of
from search.errors import ModelError
from search.graph.model import Model, ShapeRequest, load
from search.values import Recovery
from tests.support.networks import Net, save
from tests.support.old_runtime import NEWER
from tests.support.recovery_context import context_of
from tests.support.stream_graphs import outputs_of

Shape = Sequence[int | str]
CHANNELS = 6


class Small:
    """A few ops between matrices of random weights."""

    def __init__(self, opset: int = 17) -> None:
        self.net = Net(3, opset)

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: object) -> str:
        return self.net.op(kind, list(inputs), name or f"{kind}{len(self.net.nodes)}", **attributes)

    def const(self, values: Any, kind: type = np.float32) -> str:
        return self.net.const(f"constant{len(self.net.weights)}", np.asarray(values, kind))

    def ints(self, *values: int) -> str:
        return self.const(values, np.int64)

    def uneven(self, *shape: int) -> str:
        return self.const(self.net.rng.uniform(0.5, 2, shape))

    def matrix(self, x: str, rows: int, columns: int, name: str = "") -> str:
        return self.op("MatMul", x, self.const(self.net.rng.standard_normal((rows, columns))), name=name)

    def conv(self, x: str, inputs: int, outputs: int) -> str:
        return self.net.conv(x, f"conv{len(self.net.nodes)}", inputs, outputs, 1)

    def proto(self, inputs: dict[str, Shape], rank: int) -> onnx.ModelProto:
        """The last op makes the output, of this rank."""
        self.net.nodes[-1].output[0] = "y"
        given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [f"d{axis}" for axis in range(rank)])
        graph = helper.make_graph(self.net.nodes, "small", given, [made], self.net.weights)
        opset = [helper.make_opsetid("", self.net.opset)]
        return helper.make_model(graph, opset_imports=opset, ir_version=8)


def opened(proto: onnx.ModelProto, shapes: dict[str, ShapeRequest] | None = None) -> Model:
    with tempfile.TemporaryDirectory() as folder:
        return load(save(proto, Path(folder) / "model.onnx"), shapes=shapes)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def check(model: Model, *feeds: dict[str, Any]) -> Streams:
    """Random factors change no bit of the outputs."""
    streams = find_streams(model)
    exponents = np.random.default_rng(0).integers(-5, 6, streams.count)
    exponents[0] = 0
    scaled = model.scale_constants(factors_of(streams.scalings, exponents))
    for feed in feeds:
        np.testing.assert_array_equal(outputs_of(scaled, feed)["y"], outputs_of(model, feed)["y"])
    return streams


def free(streams: Streams, name: str) -> int:
    """How many factors the channels of a tensor may have."""
    slots = streams.tensors.get(name)
    return 0 if slots is None else len(np.unique(slots))


# -- sizes that change -------------------------------------------------------------------------------------------------


def turned() -> Model:
    """(N, channels) is laid out as (channels, N), as with a batch of 1 only the names of the axes change."""
    small = Small()
    x = small.op("Relu", small.matrix("x", 3, CHANNELS), name="a")
    x = small.op("Transpose", small.op("Reshape", x, small.ints(CHANNELS, -1)), perm=[1, 0])
    small.matrix(x, CHANNELS, 4)
    return opened(small.proto({"x": ["N", 3]}, 2), {"x": ShapeRequest((1, 3), (1, 3), (4, 3))})


def test_axes_that_agree_at_the_measured_size_alone_are_not_followed() -> None:
    model = turned()
    assert free(check(model, {"x": random(1, 3)}, {"x": random(2, 3)}), "a_out") == 1
    context = context_of(model, batches=8)
    proposal = Equalize().propose(context, context.calibrate(Recovery()))
    assert proposal is None or not proposal.ranges.recovery.factors


@pytest.mark.parametrize("largest", [CHANNELS, 9])
def test_channels_are_followed_beside_a_size_that_changes(largest: int) -> None:
    """(N, channels, 1, 1) → (N, channels) → (N, groups, channels of a group): whatever N is, also as many."""
    small = Small()
    x = small.op("Relu", small.conv("x", 3, CHANNELS), name="a")
    x = small.op("Reshape", small.op("GlobalAveragePool", x), small.ints(-1, 2, 3))
    small.matrix(small.op("Reshape", x, small.ints(0, -1)), CHANNELS, 4)
    low, best, high = ((n, 3, 2, 2) for n in (1, 1, largest))
    model = opened(small.proto({"x": ["N", 3, 2, 2]}, 2), {"x": ShapeRequest(low, best, high)})
    assert free(check(model, *({"x": random(n, 3, 2, 2)} for n in (1, 2, 6))), "a_out") == CHANNELS


@pytest.mark.parametrize("kind", ["Slice", "Gather"])
def test_positions_along_a_length_that_changes_have_one_factor(kind: str) -> None:
    small = Small()
    parts = [small.matrix("x", 3, CHANNELS, name="a"), small.matrix("z", 3, CHANNELS)]
    x = small.op("Concat", *parts, axis=1)
    if kind == "Slice":
        x = small.op("Slice", x, small.ints(0), small.ints(4), small.ints(1))
    else:
        x = small.op("Gather", x, small.ints(4), axis=1)
    small.matrix(x, CHANNELS, 4)
    model = opened(
        small.proto({"x": [1, "T", 3], "z": [1, 4, 3]}, 3), {"x": ShapeRequest((1, 2, 3), (1, 4, 3), (1, 8, 3))}
    )
    feeds = [{"x": random(1, size, 3), "z": random(1, 4, 3)} for size in (4, 2, 5)]
    streams = check(model, *(feeds if kind == "Slice" else [feeds[0], feeds[2]]))
    assert free(streams, "a_out") == CHANNELS
    assert streams.tensors["a_out"].shape == (1, 1, CHANNELS)
    kept = {name: kept_axes(slots) for name, slots in streams.tensors.items()}
    batches = [Batch(feed, None, 1) for feed in feeds[:1] + feeds[2:]]
    assert observe_channels(model.graph, kept, batches)["a_out"].magnitude.shape == (1, 1, CHANNELS)


# -- ops that move channels --------------------------------------------------------------------------------------------


def test_a_pad_that_moves_channels_gives_them_one_factor() -> None:
    """One more in front and one less behind: the size stays."""
    small = Small()
    x = small.op("Pad", small.conv("x", 3, CHANNELS), small.ints(0, 1, 0, 0, 0, -1, 0, 0), name="p")
    small.conv(x, CHANNELS, 4)
    assert free(check(opened(small.proto({"x": [2, 3, 4, 4]}, 4)), {"x": random(2, 3, 4, 4)}), "p_out") == 1


def test_a_pad_that_moves_positions_leaves_channels_apart() -> None:
    small = Small()
    x = small.op("Mul", small.matrix("x", 3, CHANNELS), small.uneven(1, 5, CHANNELS))
    x = small.op("Pad", x, small.ints(0, 1, 0, 0, -1, 0), name="p")
    small.matrix(small.op("Mul", x, small.uneven(1, 5, CHANNELS)), CHANNELS, 4)
    assert free(check(opened(small.proto({"x": [1, 5, 3]}, 3)), {"x": random(1, 5, 3)}), "p_out") == CHANNELS


def test_a_pad_of_some_axes_counts_those() -> None:
    small = Small(opset=18)
    x = small.conv("x", 3, CHANNELS)
    x = small.op("Pad", x, small.ints(1, -1), "", small.ints(-3), name="p")
    small.conv(x, CHANNELS, 4)
    assert free(check(opened(small.proto({"x": [2, 3, 4, 4]}, 4)), {"x": random(2, 3, 4, 4)}), "p_out") == 1


def test_a_resize_that_is_rounded_to_the_same_size_mixes_channels() -> None:
    small = Small()
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    x = small.op("Resize", small.conv("x", 3, 4), "", small.const([1, 1.2, 2, 2]), name="r", **how)
    small.conv(x, 4, 4)
    assert free(check(opened(small.proto({"x": [2, 3, 4, 4]}, 4)), {"x": random(2, 3, 4, 4)}), "r_out") == 1


def test_a_slice_backwards_begins_where_onnx_clamps_it() -> None:
    small = Small()
    x = small.op("Slice", small.conv("x", 3, CHANNELS), *(small.ints(value) for value in (-9, -9, 1, -1)))
    small.conv(x, 1, 4)
    check(opened(small.proto({"x": [2, 3, 4, 4]}, 4)), {"x": random(2, 3, 4, 4)})


def test_an_empty_slice_ends_what_it_reads() -> None:
    small = Small()
    x = small.conv("x", 3, CHANNELS)
    none = small.op("Slice", x, *(small.ints(value) for value in (CHANNELS, 99, 1)))
    small.conv(small.op("Add", x, small.op("ReduceSum", none, small.ints(1))), CHANNELS, 4)
    check(opened(small.proto({"x": [2, 3, 4, 4]}, 4)), {"x": random(2, 3, 4, 4)})


# -- norms -------------------------------------------------------------------------------------------------------------


def test_a_computed_variance_ends_a_stream() -> None:
    small = Small()
    x = small.op("Abs", small.conv("x", 3, CHANNELS))
    variance = small.op("ReduceMean", x, axes=[0, 2, 3], keepdims=0)
    x = small.op("BatchNormalization", x, *(small.uneven(CHANNELS) for _ in range(3)), variance)
    small.conv(x, CHANNELS, 4)
    check(opened(small.proto({"x": [2, 3, 4, 4]}, 4)), {"x": random(2, 3, 4, 4)})


@NEWER
def test_a_norm_whose_bias_is_one_number_is_left_alone() -> None:
    small = Small()
    x = small.op("LayerNormalization", "x", small.uneven(CHANNELS), small.uneven(1), name="norm")
    small.matrix(x, CHANNELS, 4)
    streams = check(opened(small.proto({"x": [2, 3, CHANNELS]}, 3)), {"x": random(2, 3, CHANNELS)})
    assert free(streams, "norm_out") == 0


# -- what steps rest on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [17, 18])
def test_channels_of_a_tensor_without_other_axes_are_told_apart(opset: int) -> None:
    """Without axes a reduction would be one over all channels."""
    small = Small(opset)
    x = small.op("GlobalAveragePool", small.op("Relu", small.conv("x", 3, CHANNELS)), name="pooled")
    x = small.op("Reshape", small.op("Squeeze", x, name="only"), small.ints(1, CHANNELS))
    small.matrix(x, CHANNELS, 4)
    model = opened(small.proto({"x": [1, 3, 4, 4]}, 2))
    batches = [Batch({"x": random(1, 3, 4, 4)}, None, 1)]
    seen = observe_channels(model.graph, {"pooled_out": (1,), "only_out": (0,)}, batches)
    assert len(np.unique(seen["only_out"].magnitude)) > 1
    for part in ("low", "high", "square", "elements"):
        one, other = (np.ravel(getattr(seen[name], part)) for name in ("only_out", "pooled_out"))
        np.testing.assert_array_equal(one, other)


def test_factors_that_would_change_the_shape_of_a_constant_are_refused() -> None:
    small = Small()
    small.matrix("x", CHANNELS, 4)
    model = opened(small.proto({"x": [2, CHANNELS]}, 2))
    name = next(iter(model.graph.graph.initializers))
    with pytest.raises(ModelError, match=r"expected factors that broadcast to the shape \(6, 4\)"):
        model.scale_constants({name: [np.ones((3, 1, 1), np.float32)]})
