"""Which ranges are narrowed by the error of the outputs, and how far."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.recovery.int8.bias import BiasStep
from evaluators.recovery.int8.narrow_ranges import NarrowStep, OutputErrors, narrow_ranges
from search.values import Ranges, TensorRange
from tests.support.networks import loaded, observed
from tests.support.recovery_context import context_of, output_error, widen

Floats = NDArray[np.float64]


@pytest.fixture(scope="module")
def ranges() -> Ranges:
    known = {"image": TensorRange(0.0, 8.0), "twin": TensorRange(0.0, 8.0), "swish": TensorRange(-0.4, 4.0)}
    return replace(observed(loaded("residual")), tensors=known)


def errors_of(ranges: Ranges, before: Floats | None) -> Floats:
    """Least where `image` reaches to about 2 and `swish` as far as it does."""
    reach, swish = ranges.tensors["image"].high, ranges.tensors["swish"].high
    spread = np.linspace(0.9, 1.1, 40)
    return spread * (reach**2 + 16 / reach**2 + (4 - swish) ** 2)


def test_a_range_is_narrowed_as_long_as_the_error_falls(ranges: Ranges) -> None:
    found, count, tried = narrow_ranges(ranges, [["image", "twin"], ["swish"]], errors_of, has_time=lambda: True)
    assert (count, tried) == (1, 2)
    assert found.tensors["image"] == found.tensors["twin"], "they have one scale"
    assert found.tensors["image"].high == pytest.approx(8 * 0.7**4)
    assert found.tensors["swish"] == ranges.tensors["swish"]


def test_the_short_side_of_a_range_stays(ranges: Ranges) -> None:
    tries = iter([True, True, True, False])

    def errors(ranges: Ranges, before: Floats | None) -> Floats:
        return np.linspace(0.9, 1.1, 40) * ranges.tensors["swish"].high

    found, _, tried = narrow_ranges(ranges, [["swish"]], errors, has_time=lambda: next(tries))
    assert found.tensors["swish"] == TensorRange(-0.4, 4.0 * 0.7 * 0.7)
    assert tried == 0, "its time was over before it was settled"


def test_gains_that_may_be_chance_narrow_nothing(ranges: Ranges) -> None:
    random = np.random.default_rng(0)

    def errors(ranges: Ranges, before: Floats | None) -> Floats:
        return 1.0 + 0.1 * random.standard_normal(40)

    assert narrow_ranges(ranges, [["image"], ["swish"]], errors, has_time=lambda: True) == (ranges, 0, 2)


def test_without_time_nothing_is_tried(ranges: Ranges) -> None:
    assert narrow_ranges(ranges, [["image"]], errors_of, has_time=lambda: False) == (ranges, 0, 0)


def test_ranges_that_the_user_set_stay_and_few_samples_narrow_nothing_by_chance() -> None:
    model = loaded("residual")
    ranges = replace(observed(model), method="auto")
    assert NarrowStep().propose(context_of(model), replace(ranges, fixed=tuple(ranges.tensors))) is None
    assert NarrowStep().propose(context_of(model), ranges) is None
    assert NarrowStep().propose(context_of(model), replace(ranges, method="minmax")) is None, "the user's own"


def test_a_range_that_is_far_too_wide_is_narrowed_by_the_outputs_of_the_network() -> None:
    model = loaded("residual")
    context = context_of(model, batches=24)
    ranges = replace(observed(model), method="auto")
    wide = replace(ranges, tensors={**ranges.tensors, "image": widen(ranges, 16.0).tensors["image"]})
    proposal = NarrowStep().propose(context, wide)
    assert proposal is not None
    assert proposal.ranges.tensors["image"].high < 0.5 * wide.tensors["image"].high
    assert output_error(context, proposal.ranges) < 0.6 * output_error(context, wide)
    corrected = BiasStep().propose(context, wide)
    assert corrected is not None
    again = NarrowStep().propose(context, corrected.ranges)
    assert again is not None
    assert again.ranges.recovery.means != corrected.ranges.recovery.means, "they made up for the wide range"


def test_a_step_that_runs_out_of_time_says_after_how_many_ranges() -> None:
    model = loaded("residual")
    context = replace(context_of(model, batches=24), seconds_left=iter([10.0, *[9.0] * 3, *[-1.0] * 99]).__next__)
    proposal = NarrowStep().propose(context, replace(observed(model), method="auto"))
    assert proposal is not None
    assert re.fullmatch(r"it ran out of time after \d of \d+ ranges", proposal.cut)


def test_what_shows_no_gain_is_not_run_on_all_samples() -> None:
    model = loaded("residual")
    context = context_of(model, batches=24)
    ranges = observed(model)
    outputs = OutputErrors(context, ranges)
    known = outputs.errors(ranges, None)
    assert known is not None
    assert outputs.errors(widen(ranges, 16.0), known) is None
    assert outputs.errors(ranges, known + 1) is not None
