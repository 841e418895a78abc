"""A calibration method for each tensor: what it wins, what garbage among the samples does to it, what stays."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from evaluators.recovery.int8.narrow_ranges import OutputErrors
from evaluators.recovery.int8.range_candidates import Grid, propose_ranges
from evaluators.recovery.int8.tensor_ranges import RangesStep, _Choice
from search.graph.floats.bounds import UNBOUNDED
from search.graph.model import Model
from search.values import Ranges, TensorRange
from tests.support.networks import loaded, observed
from tests.support.recovery_context import Arrays, context_of, output_error

PLACEMENTS = pytest.mark.parametrize("placement", [ONNXRUNTIME_CPU, TENSORRT], ids=lambda placement: placement.name)


def stretched(model: Model, factor: float = 30.0) -> Ranges:
    """Ranges as minimum and maximum give them where one sample in a thousand reaches far out."""
    found = replace(observed(model), method="auto")
    return replace(found, tensors={n: TensorRange(factor * r.low, factor * r.high) for n, r in found.tensors.items()})


def proposed(model: Model, ranges: Ranges, placement: Placement = ONNXRUNTIME_CPU, **options: Any) -> Ranges:
    found = RangesStep().propose(context_of(model, placement=placement, **options), ranges)
    assert found is not None
    return found.ranges


@pytest.mark.slow
@PLACEMENTS
@pytest.mark.parametrize("name", ["mobile", "activations"])
def test_ranges_that_reach_too_far_are_cut(name: str, placement: Placement) -> None:
    model = loaded(name)
    context = context_of(model, placement=placement)
    ranges = stretched(model)
    found = proposed(model, ranges, placement)
    assert output_error(context, found) < 0.5 * output_error(context, ranges)
    assert found == proposed(model, ranges, placement), "equal arguments give equal proposals"


@pytest.mark.slow
@PLACEMENTS
def test_a_tenth_of_garbage_among_the_samples_ruins_no_range(placement: Placement) -> None:
    model = loaded("residual")

    def spoil(number: int, inputs: Arrays) -> Arrays:
        noise = 100 * np.random.default_rng(number).standard_normal(inputs["image"].shape)
        return {"image": noise.astype(np.float32)} if number % 10 == 3 else inputs

    context = context_of(model, placement=placement)
    found = proposed(model, stretched(model, 100.0), placement, batches=10, spoil=spoil)
    assert output_error(context, found) < 0.01 < 0.1 < output_error(context, stretched(model, 100.0))


@pytest.mark.slow
def test_one_method_for_all_is_tried_too() -> None:
    """Where samples differ much in brightness, groups by themselves take the bright ones for garbage."""
    model = loaded("mobile")

    def expose(number: int, inputs: Arrays) -> Arrays:
        return {name: (array * 8.0 ** -(number % 4)).astype(np.float32) for name, array in inputs.items()}

    context = context_of(model, batches=8, spoil=expose)
    ranges = stretched(model)
    step = RangesStep()
    found = proposed(model, ranges, batches=8, spoil=expose)
    judged, by_method = OutputErrors(context, ranges), _Choice(context, ranges).by_method()
    assert set(by_method) == {"mean", "percentile", "mse"}
    assert all(judged.mean(found) <= judged.mean(one) for one in by_method.values())
    assert step.propose(context_of(model, seconds=0.0), ranges).ranges == ranges


def test_no_group_is_looked_at_where_judging_takes_the_time_that_groups_would_have() -> None:
    """Every look at groups begins with a run over all samples, after which other steps would have no time."""
    model = loaded("residual")
    judged: list[None] = []  # batches, each of which takes a second
    context = replace(context_of(model), seconds_left=lambda: 40.0 - len(judged), alive=lambda: judged.append(None))
    proposal = RangesStep().propose(context, stretched(model))
    assert proposal is not None
    assert re.match(r"it ran out of time after 0 of \d+ groups", proposal.cut)
    assert proposal.ranges != stretched(model), "one method for all is found all the same"


def test_a_method_that_a_user_named_stays() -> None:
    model = loaded("residual")
    assert RangesStep().propose(context_of(model), replace(stretched(model), method="minmax")) is None


def test_a_range_that_a_user_set_stays() -> None:
    model = loaded("residual")
    name = model.groups[1].inputs[0]
    ranges = replace(stretched(model), fixed=(name,))
    found = proposed(model, ranges)
    assert found.tensors[name] == ranges.tensors[name]
    assert found.tensors != ranges.tensors
    assert Ranges.from_json(found.to_json()).fixed == (name,)


def test_good_ranges_are_left_as_they_are_and_without_time_all_are() -> None:
    model = loaded("residual")
    ranges = replace(observed(model), method="auto")
    context = context_of(model)
    found = RangesStep().propose(context, ranges)
    after = ranges if found is None else found.ranges
    assert output_error(context, after) <= 1.2 * output_error(context, ranges)
    hurried = RangesStep().propose(context_of(model, seconds=0.0), stretched(model))
    assert hurried.ranges == stretched(model)
    assert hurried.cut.startswith("it ran out of time after 0 of ")


def test_constant_and_infinite_tensors_have_no_other_candidates() -> None:
    grid = Grid(ONNXRUNTIME_CPU, UNBOUNDED)
    flat = np.ones((4, 2, 3), np.float32)
    assert list(propose_ranges(TensorRange(1.0, 1.0), [flat], [np.ones(4)], grid)) == ["minmax"]
    wild = np.full((4, 2, 3), np.inf, np.float32)
    assert list(propose_ranges(TensorRange(0.0, 1.0), [wild], [np.ones(4)], grid)) == ["minmax"]
    assert list(propose_ranges(TensorRange(0.0, 1.0), [flat], [np.zeros(4)], grid)) == ["minmax"]


@PLACEMENTS
def test_rounding_is_that_of_the_target(placement: Placement) -> None:
    grid = Grid(placement, UNBOUNDED)
    values = np.linspace(-3, 5, 1001, dtype=np.float32)
    chosen = TensorRange(-1.0, 4.0)
    scale, zero = grid.levels(chosen)
    low, high = (-128, 127) if placement.symmetric else (0, 255)
    wanted = (np.clip(np.rint(values / scale) + zero, low, high) - zero) * scale
    assert np.abs(grid.round_values(values, chosen) - wanted).max() <= scale * 1.01, "a tie may go either way"
    assert np.mean(np.abs(grid.round_values(values, chosen) - wanted) > 1e-4) < 0.01
