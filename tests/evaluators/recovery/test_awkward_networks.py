"""Every step on every opset, and on what networks hold that nothing can be done with: recovered, or left alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from evaluators.lowering.placement import ONNXRUNTIME_CPU, Placement
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.registry import SHIPPED, STEPS
from search.graph.model import Model
from search.values import Ranges, Recovery
from tests.support.awkward_network import awkward
from tests.support.networks import feeds, observed, residual_cnn
from tests.support.recovery_context import Arrays, context_of, output_error, widen
from tests.support.stream_graphs import loaded_from

# With weights of few bits biases and roundings matter as they do in hard networks with eight.
PLACEMENTS = {
    "bias": replace(ONNXRUNTIME_CPU, weight_bits=4),
    "round": replace(ONNXRUNTIME_CPU, weight_bits=5),
}


def placed(step: str) -> Placement:
    return PLACEMENTS.get(step, ONNXRUNTIME_CPU)


def plain(model: Model, step: str) -> Ranges:
    """Plain INT8; for `ranges` with ranges that reach far too far, as a few wild samples make them."""
    found = replace(observed(model), method="auto")
    return widen(found, 30.0) if step == "ranges" else found


@cache
def residual(opset: int) -> Model:
    return loaded_from(residual_cnn(seed=5, opset=opset, channels=8))


@pytest.mark.parametrize("opset", [11, 13, 18, 21, 23])
@pytest.mark.parametrize("step", ["ranges", "bias", "round"])
def test_constants_of_int8_are_recovered_on_every_opset(step: str, opset: int) -> None:
    model = residual(opset)
    context, ranges = context_of(model, placement=placed(step)), plain(model, step)
    proposal = STEPS.make(step).propose(context, ranges)
    assert proposal is not None
    assert output_error(context, proposal.ranges) < 0.9 * output_error(context, ranges)


def check_nothing_is_wrong(context: RecoveryContext, step: str, ranges: Ranges) -> None:
    """The float model is what it was, and INT8 not worse."""
    proposal = STEPS.make(step).propose(context, ranges)
    if proposal is None:
        return
    inputs = feeds(context.given, 50)
    exact = context.open_float(Recovery()).run(inputs)
    for name, array in context.open_float(proposal.ranges.recovery).run(inputs).items():
        np.testing.assert_allclose(array, exact[name], rtol=1e-5, atol=1e-6)
    after = output_error(context, proposal.ranges)
    assert np.isfinite(after)
    assert after <= 1.1 * output_error(context, ranges)


@pytest.mark.parametrize("step", SHIPPED)
def test_awkward_constants_are_left_alone_or_recovered(step: str) -> None:
    model = awkward()
    check_nothing_is_wrong(context_of(model, placement=placed(step)), step, plain(model, step))


@pytest.mark.parametrize("step", [step for step in SHIPPED if step != "ranges"])
def test_samples_that_are_no_numbers_spoil_nothing(step: str) -> None:
    """One of six batches to fit to has a channel of NaN. Data with NaN are refused before `ranges` would read them."""

    def spoil(number: int, inputs: Arrays) -> Arrays:
        if number == 1:
            inputs["image"][:, 1] = np.nan
        return inputs

    model = residual(17)
    check_nothing_is_wrong(context_of(model, placement=placed(step), spoil=spoil), step, plain(model, step))


@pytest.mark.parametrize("step", SHIPPED)
def test_a_channel_that_is_always_constant_spoils_nothing(step: str) -> None:
    def flatten(number: int, inputs: Arrays) -> Arrays:
        inputs["image"][:, 1] = 0.5
        return inputs

    model = residual(17)
    check_nothing_is_wrong(context_of(model, placement=placed(step), spoil=flatten), step, plain(model, step))
