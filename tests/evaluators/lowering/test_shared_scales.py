"""Weakly typed TensorRT: a Resize in INT8 copies the codes of its input, so what it reads and makes has one range."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.lowering.int8.plan import quantized_tensors, with_shared_scales
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_WEAK
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges, TensorRange
from tests.support.assignments import uniform
from tests.support.networks import Net, feeds, observed, save, session_of, sqnr_db

INT8, FP16 = Precision.INT8, Precision.FP16


def u_network() -> onnx.ModelProto:
    """(4, 3, 16, 16) → maps: two convolutions, the second enlarged and joined with the first."""
    n = Net(7)
    fine = n.op("Relu", [n.conv("image", "fine", 3, 16)], "fine/relu")
    coarse = n.op("Relu", [n.conv(fine, "coarse", 16, 16, stride=2)], "coarse/relu")
    scales = n.const("scales", np.array([1, 1, 2, 2], np.float32))
    enlarged = n.op("Resize", [coarse, "", scales], "enlarged", mode="nearest")
    joined = n.op("Concat", [enlarged, fine], "joined", axis=1)
    n.conv(joined, "maps", 32, 8)
    return n.model([4, 3, 16, 16], "maps", [4, 8, 16, 16])


@pytest.fixture
def network(tmp_path: Path) -> Model:
    return load(save(u_network(), tmp_path / "net.onnx"))


def ranges_for(model: Model, assignment: Assignment, **fixed: float) -> tuple[Ranges, dict[str, float]]:
    """Observed ranges, and by name the magnitudes that a builder is told.

    Args:
        fixed: magnitudes that a user set.
    """
    ranges = observed(model)
    by_hand = {name: TensorRange(-most, most) for name, most in fixed.items()}
    ranges = replace(ranges, tensors={**ranges.tensors, **by_hand}, fixed=tuple(fixed))
    shared = with_shared_scales(model, assignment, TENSORRT_WEAK, ranges)
    return ranges, {name: range_.magnitude for name, range_ in shared.tensors.items()}


def test_both_sides_of_a_resize_have_the_range_of_the_concat(network: Model) -> None:
    ranges, shared = ranges_for(network, uniform(network, INT8))
    joined = ranges.tensors["joined_out"].magnitude
    assert ranges.tensors["coarse/relu_out"].magnitude != joined
    assert {shared[name] for name in ("coarse/relu_out", "enlarged_out", "fine/relu_out", "joined_out")} == {joined}


def test_without_a_concat_both_sides_have_the_range_of_what_is_read(tmp_path: Path) -> None:
    n = Net(8)
    x = n.op("Relu", [n.conv("image", "first", 3, 16)], "first/relu")
    x = n.op("Resize", [x, "", n.const("scales", np.array([1, 1, 2, 2], np.float32))], "enlarged", mode="linear")
    x = n.op("MaxPool", [x], "pooled", kernel_shape=[5, 5], strides=[4, 4])
    x = n.op("Resize", [x, "", n.const("more", np.array([1, 1, 2, 2], np.float32))], "again", mode="linear")
    n.conv(x, "maps", 16, 8)
    model = load(save(n.model([4, 3, 16, 16], "maps", [4, 8, 16, 16]), tmp_path / "net.onnx"))
    ranges, shared = ranges_for(model, uniform(model, INT8))
    assert ranges.tensors["pooled_out"].magnitude != ranges.tensors["again_out"].magnitude
    assert shared["again_out"] == shared["pooled_out"] == ranges.tensors["pooled_out"].magnitude
    assert ranges.tensors["first/relu_out"].magnitude != ranges.tensors["enlarged_out"].magnitude
    assert shared["enlarged_out"] == shared["first/relu_out"]
    assert shared["pooled_out"] != shared["enlarged_out"]  # a MaxPool rounds anew


def test_a_concat_that_no_int8_layer_reads_shares_nothing(network: Model) -> None:
    maps = next(group.id for group in network.groups if group.name == "maps")
    ranges, shared = ranges_for(network, uniform(network, INT8).replace({maps: FP16}))
    known = {name: range_.magnitude for name, range_ in ranges.tensors.items()}
    assert shared == {**known, "enlarged_out": known["coarse/relu_out"]}


@pytest.mark.parametrize("reader", [INT8, FP16])
def test_a_concat_that_is_pooled_for_an_int8_layer_shares_its_range(reader: Precision, tmp_path: Path) -> None:
    n = Net(9)
    sides = [n.op("Relu", [n.conv("image", name, 3, 16)], f"{name}/relu") for name in ("left", "right")]
    pooled = n.op("MaxPool", [n.op("Concat", sides, "joined", axis=1)], "pooled", kernel_shape=[2, 2], strides=[2, 2])
    n.conv(pooled, "maps", 32, 8)
    model = load(save(n.model([4, 3, 16, 16], "maps", [4, 8, 8, 8]), tmp_path / "net.onnx"))
    last = next(group for group in model.groups if group.name == "maps")
    ranges, shared = ranges_for(model, uniform(model, INT8).replace({last.id: reader}))
    told = {shared[name] for name in ("left/relu_out", "right/relu_out")}
    joined = {ranges.tensors["joined_out"].magnitude}
    assert (told == joined) == (reader is INT8), (told, joined)


def test_a_tensor_of_two_concats_keeps_the_range_of_the_first(tmp_path: Path) -> None:
    n = Net(9)
    x = n.op("Relu", [n.conv("image", "stem", 3, 16)], "stem/relu")
    scales = n.const("scales", np.array([1, 1, 2, 2], np.float32))
    first = n.op("Concat", [x, n.conv("image", "one", 3, 16)], "joined.1", axis=1)
    enlarged = n.op("Resize", [x, "", scales], "enlarged", mode="nearest")
    second = n.op(
        "Concat", [enlarged, n.op("Resize", [n.conv("image", "two", 3, 16), "", scales], "other")], "joined.2", axis=1
    )
    a = n.op("MaxPool", [n.conv(second, "b", 32, 8)], "small", kernel_shape=[2, 2], strides=[2, 2])
    n.op("Add", [n.conv(first, "a", 32, 8), a], "sum")
    model = load(save(n.model([4, 3, 16, 16], "maps", [4, 8, 16, 16]), tmp_path / "net.onnx"))
    ranges, shared = ranges_for(model, uniform(model, INT8))
    assert shared["enlarged_out"] == shared["stem/relu_out"] == ranges.tensors["joined.1_out"].magnitude
    assert shared["other_out"] == shared["two_out"] == ranges.tensors["joined.2_out"].magnitude


def test_a_range_set_by_hand_never_parts_the_sides_of_a_resize(network: Model) -> None:
    int8 = uniform(network, INT8)
    ranges, shared = ranges_for(network, int8, enlarged_out=1.0)
    joined = ranges.tensors["joined_out"].magnitude
    assert shared["enlarged_out"] == shared["coarse/relu_out"] == joined
    _, shared = ranges_for(network, int8, **{"coarse/relu_out": 2.0, "fine/relu_out": 3.0})
    assert shared["enlarged_out"] == shared["coarse/relu_out"] == 2.0
    assert shared["fine/relu_out"] == 3.0  # a Concat converts what it reads
    assert shared["joined_out"] == joined


def test_the_emulation_rounds_with_the_shared_range(network: Model) -> None:
    assignment, ranges, inputs = uniform(network, INT8), observed(network), feeds(network)
    wanted = session_of(ir.to_proto(network.graph)).run(None, inputs)[0]
    for placement in (TENSORRT, TENSORRT_WEAK):
        proto = ir.to_proto(lower(network, assignment, ranges, placement))
        onnx.checker.check_model(proto, full_check=True)
        assert sqnr_db(wanted, session_of(proto).run(None, inputs)[0]) > 25


@pytest.mark.parametrize(
    ("kind", "channels", "is_separate"),
    [
        ("HardSwish", 1, True),
        ("HardSwish", 3, True),
        ("HardSwish", 16, False),
        ("Relu", 3, False),
        ("Elu", 3, True),
        ("Elu", 16, False),
        ("silu", 3, False),
        ("PRelu", 16, True),
        ("constant", 3, False),
    ],
)
def test_which_activations_are_in_a_kernel_of_their_own(kind, channels, is_separate, tmp_path: Path) -> None:
    n = Net(10)
    x = n.conv("image", "first", channels, 16)
    if kind == "silu":
        n.op("Mul", [x, n.op("Sigmoid", [x], "gate")], "active")
    elif kind == "constant":
        n.op("Mul", [x, n.const("factor", np.float32(0.5))], "active")
    else:
        slope = [n.const("slope", np.full((16, 1, 1), 0.2, np.float32))] if kind == "PRelu" else []
        n.op(kind, [x, *slope], "active")
    n.conv("active_out", "maps", 16, 8)
    model = load(save(n.model([4, channels, 16, 16], "maps", [4, 8, 16, 16]), tmp_path / "net.onnx"))
    assignment = uniform(model, INT8)
    assert ("first_out" in quantized_tensors(model, assignment, TENSORRT_WEAK)) == is_separate
    assert "first_out" not in quantized_tensors(model, assignment, TENSORRT)
