"""Equalization wins back what uneven channels lose in INT8, and changes nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.equalize import Equalize
from evaluators.recovery.step import Proposal
from evaluators.recovery.streams.find import find_streams
from evaluators.recovery.streams.result import factors_of
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges, Recovery
from tests.support.networks import Net, finish, images, loaded, residual_cnn, sqnr_db
from tests.support.paths import DIGITS
from tests.support.recovery_contexts import context_for, run_over
from tests.support.stream_graphs import loaded_from


def propose(context: RecoveryContext) -> tuple[Ranges, Proposal]:
    plain = context.calibrate(Recovery())
    proposal = Equalize().propose(context, plain)
    assert proposal is not None
    return plain, proposal


def initializer(proto: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def multiply(proto: onnx.ModelProto, name: str, factor: NDArray[Any]) -> None:
    tensor = initializer(proto, name)
    array = (numpy_helper.to_array(tensor) * factor).astype(np.float32)
    tensor.CopyFrom(numpy_helper.from_array(array, name))


@functools.cache
def uneven(opset: int = 17) -> Model:
    """A residual network whose channels inside a block, and behind it, differ by up to 2**8."""
    proto, factors = residual_cnn(seed=5, opset=opset), 2.0 ** -(np.arange(32) % 9)
    for name in ("block.0/conv1.w", "block.0/conv1.b"):
        multiply(proto, name, factors[:16].reshape(-1, *(1,) * (3 if name.endswith("w") else 0)))
    multiply(proto, "block.0/conv2.w", 1 / factors[:16].reshape(1, -1, 1, 1))
    for name in ("block.1/conv2", "block.1/down"):
        multiply(proto, f"{name}.w", factors.reshape(-1, 1, 1, 1))
        multiply(proto, f"{name}.b", factors)
    multiply(proto, "fc.w", 1 / factors)
    return loaded_from(proto)


@pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, TENSORRT])
def test_uneven_channels_lose_nothing_then(placement: Placement) -> None:
    context = context_for(uneven(), {"image": images(16)}, {"image": images(16, 1)}, placement=placement)
    plain, proposal = propose(context)
    exact = run_over(context.open_float(Recovery()), context)["logits"]
    before = sqnr_db(exact, run_over(context.open_quantized(plain), context)["logits"])
    after = sqnr_db(exact, run_over(context.open_quantized(proposal.ranges), context)["logits"])
    assert after > before + 6
    np.testing.assert_array_equal(run_over(context.open_float(proposal.ranges.recovery), context)["logits"], exact)


def linear_bottlenecks() -> onnx.ModelProto:
    """As in MobileNetV2: what blocks hand on has no activation, and Clips inside of them allow one factor alone."""
    net = Net(8)
    x = net.clip6(net.conv("image", "stem", 3, 16, stride=2), "stem/clip")
    for number, (inputs, outputs) in enumerate([(16, 24), (24, 24), (24, 24)]):
        y = net.clip6(net.conv(x, f"b{number}.expand", inputs, 4 * inputs, 1), f"b{number}.expand/clip")
        y = net.conv(y, f"b{number}.depthwise", 4 * inputs, 4 * inputs, group=4 * inputs)
        y = net.conv(net.clip6(y, f"b{number}.depthwise/clip"), f"b{number}.project", 4 * inputs, outputs, 1)
        x = net.op("Add", [y, x], f"b{number}.add") if inputs == outputs else y
    net.head(net.clip6(net.conv(x, "last", 24, 32, 1), "last/clip"), 32)
    return net.model([4, 3, 16, 16], "logits", [4, 10])


def rescaled(even: Model) -> Model:
    """The same outputs, with channels times 2^k, k from 0 to 8, in every stream that allows it."""
    streams = find_streams(even)
    exponents = np.zeros(streams.count, np.int64)
    for slots in streams.components():
        exponents[slots] = -(np.arange(len(slots)) % 9) if len(slots) > 1 else 0
    return even.scale_constants(factors_of(streams.scalings, exponents))


@pytest.mark.parametrize("name", ["residual", "bottlenecks"])
def test_rescaled_streams_are_as_good_as_those_they_were_made_of(name: str) -> None:
    """As ResNet-18 and MobileNetV2 were made hard for the H200."""
    even = loaded(name) if name == "residual" else loaded_from(linear_bottlenecks())
    found = []
    for model in (even, rescaled(even)):
        context = context_for(model, {"image": images(16)}, {"image": images(16, 1)})
        plain = context.calibrate(Recovery())
        proposal = Equalize().propose(context, plain)
        exact = run_over(context.open_float(Recovery()), context)["logits"]
        both = plain, proposal.ranges if proposal is not None else plain
        found += [sqnr_db(exact, run_over(context.open_quantized(ranges), context)["logits"]) for ranges in both]
    of_even, _, before, after = found
    assert before < of_even - 10
    assert after > of_even - 1.5


@pytest.mark.slow
def test_digits_lose_nothing_in_int8_then() -> None:
    model = load(DIGITS / "digits.onnx", batch=16)
    with np.load(DIGITS / "digits.npz") as data:
        pixels, labels, clusters = data["image"], data["labels"], data["clusters"]
    fit, others = pixels[clusters < 20], slice(-400, None)
    context = context_for(model, {"image": fit}, {"image": pixels[others]})
    plain, proposal = propose(context)

    def share_right(ranges: Ranges | None) -> float:
        opened = context.open_float(Recovery()) if ranges is None else context.open_quantized(ranges)
        return float((run_over(opened, context)["logits"].argmax(axis=1) == labels[others]).mean())

    exact = share_right(None)
    assert share_right(plain) < exact - 0.05
    assert share_right(proposal.ranges) > exact - 0.01


@pytest.mark.parametrize("make", [uneven, lambda: rescaled(loaded_from(linear_bottlenecks()))])
def test_scaled_streams_run_in_fp16(make: Callable[[], Model]) -> None:
    context = context_for(make(), {"image": images(16)})
    plain, proposal = propose(context)
    halves = Assignment(dict.fromkeys(context.assignment, Precision.FP16))
    errors = []
    for ranges in (plain, proposal.ranges):
        graph = spelled_out(lower(context.model(ranges.recovery), halves, ranges, TENSORRT))
        exact = run_over(context.open_float(Recovery()), context)["logits"]
        errors.append(sqnr_db(exact, run_over(context.emulator.open(graph), context)["logits"]))
    assert errors[1] > min(50, errors[0] - 3)


@pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, TENSORRT])
@pytest.mark.parametrize("name", ["residual", "unet"])
def test_even_channels_are_left_alone(name: str, placement: Placement) -> None:
    context = context_for(loaded(name), {"image": images(16)}, placement=placement)
    assert Equalize().propose(context, context.calibrate(Recovery())) is None


@pytest.mark.parametrize("opset", [11, 13, 18, 21, 23])
def test_every_opset_is_recovered(opset: int) -> None:
    check_recovered(context_for(uneven(opset), {"image": images(16)}))


def check_recovered(context: RecoveryContext) -> None:
    """INT8 is better by 6 dB, and the float model what it was."""
    plain, proposal = propose(context)
    exact = run_over(context.open_float(Recovery()), context)["logits"]
    np.testing.assert_array_equal(run_over(context.open_float(proposal.ranges.recovery), context)["logits"], exact)
    before = sqnr_db(exact, run_over(context.open_quantized(plain), context)["logits"])
    assert sqnr_db(exact, run_over(context.open_quantized(proposal.ranges), context)["logits"]) > before + 6


def altered(changes: dict[str, NDArray[Any]]) -> Model:
    """The uneven network with some of its weights multiplied."""
    return uneven().scale_constants({name: (np.asarray(factor, np.float32),) for name, factor in changes.items()})


def dead(channels: int, *which: int) -> NDArray[Any]:
    factor = np.ones(channels, np.float32)
    factor[list(which)] = 0
    return factor


def test_half_of_the_time_is_left_to_other_steps() -> None:
    context = context_for(uneven(), {"image": images(16)})
    _, whole = propose(context)
    clock = iter([10.0, *[8.0] * 3, *[4.0] * 100])  # seconds left: at first, at the first 3 streams, at all others
    _, cut = propose(replace(context, seconds_left=lambda: next(clock)))
    assert cut.cut.startswith("it ran out of time after 3 of at most ")
    assert not whole.cut
    assert 0 < len(cut.ranges.recovery.factors) < len(whole.ranges.recovery.factors)


def test_dead_channels_change_nothing() -> None:
    """One that nothing is written to, one that only a bias keeps constant, and one of vanishing weights."""
    alive = dead(16, 1, 2)
    faint = np.where(np.arange(16) == 3, np.float32(2e-38), np.float32(1))
    weight = (alive * faint).reshape(-1, 1, 1, 1)
    check_recovered(
        context_for(altered({"block.0/conv1.w": weight, "block.0/conv1.b": dead(16, 1)}), {"image": images(16)})
    )


def test_a_constant_input_makes_constant_channels() -> None:
    context = context_for(uneven(), {"image": np.ones((8, 3, 16, 16), np.float32)})
    plain = context.calibrate(Recovery())
    proposal = Equalize().propose(context, plain)
    exact = run_over(context.open_float(Recovery()), context)["logits"]
    recovery = Recovery() if proposal is None else proposal.ranges.recovery
    np.testing.assert_array_equal(run_over(context.open_float(recovery), context)["logits"], exact)


def test_channels_that_hold_nan_are_left_alone() -> None:
    pixels = images(16)
    plain = context_for(uneven(), {"image": pixels}).calibrate(Recovery())
    pixels[3] = np.nan
    assert Equalize().propose(context_for(uneven(), {"image": pixels}), plain) is None


def test_shared_weights_are_left_alone_with_a_note() -> None:
    net, width = Net(7), 16
    x = net.op("Relu", [net.conv("image", "first", 3, width)], "first/relu")
    for number in range(2):
        x = net.op("Relu", [net.op("Conv", [x, "tied"], f"tied{number}")], f"tied{number}/relu")
    net.random("tied", width, width, 1, 1, fan_in=width)
    y = net.op("Relu", [net.conv(x, "inside", width, width)], "inside/relu")
    net.head(net.conv(y, "outside", width, width), width)
    proto = net.model([4, 3, 16, 16], "logits", [4, 10])
    factors = (2.0 ** -(np.arange(width) % 9)).astype(np.float32)
    for name, factor in (("inside.w", factors.reshape(-1, 1, 1, 1)), ("inside.b", factors)):
        multiply(proto, name, factor)
    multiply(proto, "outside.w", 1 / factors.reshape(1, -1, 1, 1))
    context = context_for(loaded_from(proto), {"image": images(16)})
    check_recovered(context)
    _, proposal = propose(context)
    assert "tied" not in proposal.ranges.recovery.factors
    assert any("tied" in note for note in proposal.notes)


def test_weights_that_are_computed_are_left_alone() -> None:
    net, width = Net(8), 16
    x = net.op("Relu", [net.conv("image", "first", 3, width)], "first/relu")
    weight = net.op("Mul", ["scale", net.random("base", width, width, 1, 1, fan_in=width)], "made")
    net.head(net.op("Relu", [net.op("Conv", [x, weight], "computed")], "computed/relu"), width)
    net.nodes[-1].output[0] = "logits"
    shapes: dict[str, list[int | str]] = {"image": [4, 3, 8, 8], "scale": [1, 1, 1, 1]}
    model = loaded_from(finish(net, shapes, {"logits": [4, 10]}))
    streams = find_streams(model)
    assert "first/relu_out" not in streams.tensors
    assert "computed_out" not in streams.tensors
