"""Faults of a user's own program: each kind is planted in random outputs and found; none is found where none is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from evaluators.diagnose.wrapper.fault import Fault, FaultKind, WrapperOutput
from evaluators.diagnose.wrapper.find_fault import find_faults

Array = NDArray[Any]
SAMPLES = 40
SHAPES = st.sampled_from([(10,), (3, 8, 8), (4, 6, 5), (12, 7), (2, 3, 4, 5)])
SEEDS = st.integers(0, 2**16)
NOISES = st.sampled_from([0.0, 1e-6, 1e-3, 0.03, 0.1])  # of the outputs' standard deviation
CASES = {"shape": SHAPES, "seed": SEEDS, "noise": NOISES}
FEW = settings(max_examples=25, deadline=None)


def outputs(shape: tuple[int, ...], seed: int, noise: float) -> tuple[Array, Array, Array]:
    """An output of FP32, of an engine that rounds it, and of another program around another engine."""
    rng = np.random.default_rng(seed)
    channels = (1, -1, *[1] * (len(shape) - 1))
    means, widths = rng.normal(0, 2, shape[0]).reshape(channels), rng.uniform(0.5, 2, shape[0]).reshape(channels)
    exact = means + widths * rng.standard_normal((SAMPLES, *shape))
    rounded = exact + noise * exact.std() * rng.standard_normal(exact.shape)
    mine = exact + noise * exact.std() * rng.standard_normal(exact.shape)
    return (*(array.astype(np.float32) for array in (exact, rounded, mine)),)


def look(mine: Array, rounded: Array, exact: Array) -> WrapperOutput:
    [found] = find_faults({"y": mine}, {"y": rounded}, {"y": exact}, 10.0)
    return found


def fault_of(mine: Array, rounded: Array, exact: Array) -> Fault:
    fault = look(mine, rounded, exact).fault
    assert fault is not None
    assert fault.after_db >= fault.before_db + 10
    return fault


@FEW
@given(**CASES)
def test_none_is_found_where_none_was_planted(shape: tuple[int, ...], seed: int, noise: float) -> None:
    exact, rounded, mine = outputs(shape, seed, noise)
    for values in (mine, exact, rounded):
        assert look(values, rounded, exact).fault is None


@FEW
@given(**CASES, amount=st.floats(0.3, 3.0))
def test_what_no_fault_explains_gets_none(shape: tuple[int, ...], seed: int, noise: float, amount: float) -> None:
    exact, rounded, mine = outputs(shape, seed, noise)
    ruined = mine + amount * exact.std() * np.random.default_rng(seed + 1).standard_normal(mine.shape)
    assert look(ruined.astype(np.float32), rounded, exact).fault is None
    assert look(np.zeros_like(mine), rounded, exact).fault is None


@FEW
@given(**CASES, data=st.data())
def test_permuted_channels_are_found_with_their_order(
    shape: tuple[int, ...], seed: int, noise: float, data: st.DataObject
) -> None:
    exact, rounded, mine = outputs(shape, seed, noise)
    axis = data.draw(st.integers(1, len(shape)))
    order = data.draw(st.permutations(range(shape[axis - 1])))
    assume(list(order) != sorted(order))
    fault = fault_of(np.take(mine, order, axis), rounded, exact)
    assert (fault.kind, fault.axis, fault.size) == (FaultKind.PERMUTED, axis, shape[axis - 1])
    moved = [place for place, source in enumerate(order) if place != source]
    assert list(fault.channels) == moved
    assert list(fault.order) == [order[place] for place in moved]


def test_two_of_a_thousand_classes_that_are_swapped_are_found() -> None:
    exact, rounded, mine = outputs((1000,), 3, 0.1)
    order = np.arange(1000)
    order[[17, 423]] = 423, 17
    fault = fault_of(mine[:, order], rounded, exact)
    assert (fault.kind, list(fault.channels), list(fault.order)) == (FaultKind.PERMUTED, [17, 423], [423, 17])


def test_samples_in_another_order_are_found() -> None:
    exact, rounded, mine = outputs((10,), 4, 0.01)
    fault = fault_of(mine[::-1], rounded, exact)
    assert (fault.kind, fault.axis) == (FaultKind.PERMUTED, 0)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (2,), (1, 4)])
def test_samples_that_few_values_tell_apart_are_not_taken_for_moved(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    exact = rng.standard_normal((64, *shape)).astype(np.float32)
    assert fault_of(exact * 3, exact, exact).kind is FaultKind.SCALE
    for other in (rng.standard_normal(exact.shape), exact + 0.05 * rng.standard_normal(exact.shape)):
        assert look(other.astype(np.float32), exact, exact).fault is None


def test_two_probabilities_do_not_tell_samples_apart() -> None:
    """Each is one minus the other, so an order by the first always fits the second."""
    rng = np.random.default_rng(1)
    first, second = (1 / (1 + np.exp(-4 * rng.standard_normal(256))) for _ in range(2))
    exact, mine = (np.stack([share, 1 - share], axis=1).astype(np.float32) for share in (first, second))
    assert look(mine, exact, exact).fault is None


def test_channels_of_zeros_and_equal_ones_are_not_taken_for_moved() -> None:
    exact, rounded, mine = outputs((6, 4, 4), 5, 0.01)
    for array in (exact, rounded, mine):
        array[:, 2:4] = 0
        array[:, 5] = array[:, 4]
    assert look(mine, rounded, exact).fault is None
    fault = fault_of(mine[:, [1, 0, 2, 3, 4, 5]], rounded, exact)
    assert list(fault.channels) == [0, 1]


@FEW
@given(**CASES, data=st.data())
def test_a_wrong_scale_or_offset_of_the_whole_output_is_found(
    shape: tuple[int, ...], seed: int, noise: float, data: st.DataObject
) -> None:
    exact, rounded, mine = outputs(shape, seed, noise)
    scale = data.draw(st.sampled_from([1 / 255, 1 / 16, 255.0, -1.0]))
    fault = fault_of(np.float32(scale) * mine, rounded, exact)
    assert (fault.kind, fault.axis) == (FaultKind.SCALE, None)
    assert fault.scales == [pytest.approx(scale, rel=0.05)]
    offset = 20 * float(exact.std())
    fault = fault_of(mine + np.float32(offset), rounded, exact)
    assert (fault.kind, fault.axis) == (FaultKind.OFFSET, None)
    assert fault.offsets == [pytest.approx(offset, rel=0.05)]
    fault = fault_of(np.float32(scale) * (mine + np.float32(offset)), rounded, exact)
    assert (fault.kind, fault.axis) == (FaultKind.AFFINE, None)


@FEW
@given(shape=st.sampled_from([(3, 8, 8), (12, 9), (8, 30)]), seed=SEEDS, noise=NOISES, data=st.data())
def test_a_wrong_scale_or_offset_of_one_channel_is_found(
    shape: tuple[int, ...], seed: int, noise: float, data: st.DataObject
) -> None:
    exact, rounded, mine = outputs(shape, seed, noise)
    channel, axis = data.draw(st.integers(0, shape[0] - 1)), 1
    scales, offsets = np.ones((1, shape[0], *[1] * (len(shape) - 1))), np.zeros((1, shape[0], *[1] * (len(shape) - 1)))
    scales[0, channel], offsets[0, channel] = 1 / 0.229, 10 * float(exact.std())
    fault = fault_of((scales * mine).astype(np.float32), rounded, exact)
    assert (fault.kind, fault.axis, list(fault.channels)) == (FaultKind.SCALE, axis, [channel])
    assert fault.scales == [pytest.approx(1 / 0.229, rel=0.1)]
    fault = fault_of((mine + offsets).astype(np.float32), rounded, exact)
    assert (fault.kind, fault.axis, list(fault.channels)) == (FaultKind.OFFSET, axis, [channel])


@FEW
@given(shape=st.sampled_from([(3, 8, 8), (4, 6, 5), (2, 3, 4, 5), (5, 5, 5)]), seed=SEEDS, noise=NOISES)
def test_a_transposed_layout_is_found_by_shape_and_by_values(shape: tuple[int, ...], seed: int, noise: float) -> None:
    exact, rounded, mine = outputs(shape, seed, noise)
    last = (0, *range(2, mine.ndim), 1)
    for values in (mine.transpose(last), mine.transpose(last).reshape(mine.shape)):
        fault = fault_of(np.ascontiguousarray(values), rounded, exact)
        assert (fault.kind, tuple(fault.order)) == (FaultKind.LAYOUT, last)


@FEW
@given(seed=SEEDS, noise=NOISES)
def test_swapped_outputs_are_found(seed: int, noise: float) -> None:
    first, second = outputs((4, 5), seed, noise), outputs((4, 5), seed + 1, noise)
    exact, rounded, mine = ({"a": one, "b": other} for one, other in zip(first, second, strict=True))
    swapped = {"a": mine["b"], "b": mine["a"]}
    found = find_faults(swapped, rounded, exact, 10.0)
    assert [(each.name, each.fault and each.fault.kind, each.fault and each.fault.other) for each in found] == [
        ("a", FaultKind.SWAPPED, "b"),
        ("b", FaultKind.SWAPPED, "a"),
    ]
    assert [each.fault for each in find_faults(mine, rounded, exact, 10.0)] == [None, None]


def test_an_engine_that_gives_nan_is_no_reference() -> None:
    exact, rounded, mine = outputs((10,), 8, 0.01)
    rounded[3] = np.nan
    found = look(mine[:, ::-1], rounded, exact)
    assert found.fault is not None
    assert found.fault.kind is FaultKind.PERMUTED
    assert (found.to_evaluation_db, math.isfinite(found.to_float_db)) == (-math.inf, True)


def test_class_numbers_that_begin_at_one_are_found() -> None:
    exact = np.random.default_rng(9).integers(0, 50, 40)
    fault = fault_of(exact + 1, exact, exact)
    assert (fault.kind, fault.offsets) == (FaultKind.OFFSET, [pytest.approx(1)])
