"""Sequential correction of biases and scales of channels: what it wins, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT
from evaluators.recovery.int8.bias import BiasStep, correct_means
from evaluators.recovery.int8.sample_errors import usual_power
from evaluators.recovery.step import Proposal
from search.graph.model import Model
from search.values import Assignment, Correction, Precision, Ranges, Recovery
from tests.support.awkward_network import awkward
from tests.support.networks import feeds, loaded, observed
from tests.support.recovery_context import Arrays, context_of, output_error

# With weights of four bits the means of channels are lost as those of hard networks are with eight.
COARSE = replace(ONNXRUNTIME_CPU, weight_bits=4)
COARSE_TENSORRT = replace(TENSORRT, weight_bits=4)


def proposed(model: Model, ranges: Ranges, **options: Any) -> Proposal:
    found = BiasStep().propose(context_of(model, **{"placement": COARSE, **options}), ranges)
    assert found is not None
    return found


@pytest.mark.parametrize("placement", [COARSE, COARSE_TENSORRT], ids=lambda placement: placement.name)
@pytest.mark.parametrize("name", ["mobile", "transformer"])
def test_corrected_means_lower_the_error_of_the_outputs(name: str, placement: Any) -> None:
    model = loaded(name)
    ranges = observed(model)
    context = context_of(model, placement=placement)
    found = proposed(model, ranges, placement=placement)
    assert output_error(context, found.ranges) < 0.8 * output_error(context, ranges)
    assert found.ranges == BiasStep().propose(context, ranges).ranges, "equal arguments give equal proposals"  # type: ignore[union-attr]


def test_the_mean_of_each_channel_is_that_of_the_float_model() -> None:
    model = loaded("residual")
    ranges = observed(model)
    context = context_of(model, placement=COARSE)
    found = proposed(model, ranges)

    def bias(ranges: Ranges) -> NDArray[np.float64]:
        exact, rough = context.open_float(Recovery()), context.open_quantized(ranges)
        given = [batch.inputs for batch in context.fitting()]
        return np.mean([rough.run(i)["logits"] - exact.run(i)["logits"] for i in given], axis=(0, 1), dtype=np.float64)

    assert np.abs(bias(found.ranges)).mean() < 0.5 * np.abs(bias(ranges)).mean()


def test_a_tenth_of_garbage_costs_little_of_what_is_won() -> None:
    model = loaded("mobile")
    ranges = observed(model)

    def spoil(number: int, inputs: Arrays) -> Arrays:
        noise = 100 * np.random.default_rng(number).standard_normal(inputs["image"].shape)
        return {"image": noise.astype(np.float32)} if number % 10 == 3 else inputs

    context = context_of(model, placement=COARSE)
    plain, clean, spoilt = (
        output_error(context, each)
        for each in (
            ranges,
            proposed(model, ranges, batches=10).ranges,
            proposed(model, ranges, batches=10, spoil=spoil).ranges,
        )
    )
    assert spoilt < plain - 0.5 * (plain - clean)


def test_only_ops_that_a_mix_runs_in_int8_are_corrected_and_roundings_stay() -> None:
    model = loaded("residual")
    first, second = model.groups[:2]
    mix = Assignment({g.id: Precision.FP32 for g in model.groups}).replace({first.id: Precision.INT8})
    rounding = np.ones((16, 3, 3, 3), np.int8)
    earlier = {
        first.anchors[0]: Correction(np.full(16, 3, np.float32), None, rounding),
        second.anchors[0]: Correction(offset=np.ones(16, np.float32)),
    }
    ranges = replace(observed(model), recovery=Recovery({}, earlier))
    corrections = correct_means(context_of(model, placement=COARSE), ranges, mix).ranges.recovery.corrections
    assert set(corrections) == {first.anchors[0]}
    np.testing.assert_array_equal(corrections[first.anchors[0]].rounding, rounding)
    scale = corrections[first.anchors[0]].scale
    assert scale is None or scale.max() < 3


@pytest.mark.parametrize("opset", [11, 13, 17, 21])
def test_what_cannot_be_corrected_is_left_alone_with_a_note(opset: int) -> None:
    model = awkward(opset)
    ranges = observed(model)
    context = context_of(model, placement=COARSE)
    found = proposed(model, ranges)
    corrections = found.ranges.recovery.corrections
    assert "open is left alone: its weight or bias is computed, or has no channels" in found.notes
    assert not {"open", "made"} & set(corrections)
    tied = [corrections[name] for name in ("tied1", "tied2") if name in corrections]
    assert all(each.scale is None for each in tied), "a scale of its own would copy the weight"
    assert all(np.isfinite(a).all() for c in corrections.values() for a in (c.scale, c.offset) if a is not None)
    assert corrections.get("product", Correction()).offset is None
    assert output_error(context, found.ranges) <= 1.1 * output_error(context, ranges)


def test_without_time_nothing_is_changed() -> None:
    model = loaded("residual")
    found = BiasStep().propose(context_of(model, placement=COARSE, seconds=0.0), observed(model))
    assert found.ranges == observed(model)
    assert found.cut.startswith("it ran out of time after 0 of ")


class Metered:
    """An emulator whose runs take a second each."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self.seconds = 0

    def open(self, graph: ir.Model) -> Metered:
        opened = Metered(self._emulator)
        opened.session, opened.meter = self._emulator.open(graph), self
        return opened

    def run(self, inputs: Arrays) -> Arrays:
        self.meter.seconds += 1
        return dict(self.session.run(inputs))


@pytest.mark.parametrize(("seconds", "all_samples"), [(90.0, False), (1000.0, True)])
def test_where_time_is_short_all_ops_are_corrected_by_fewer_samples(seconds: float, all_samples: bool) -> None:
    model, known = loaded("residual"), context_of(loaded("residual"), placement=COARSE)
    metered = Metered(known.emulator)
    found = BiasStep().propose(
        replace(known, emulator=metered, seconds_left=lambda: seconds - metered.seconds), observed(model)
    )
    assert found.cut == ""
    assert found.ranges.recovery.corrections
    assert (metered.seconds == 7 * 2 * 12) is all_samples, "of seven ops, both models, and twelve batches"
    assert output_error(known, found.ranges) < 0.9 * output_error(known, observed(model))


def test_ranges_of_samples_that_are_not_finite_correct_nothing() -> None:
    model = loaded("residual")

    def spoil(number: int, inputs: Arrays) -> Arrays:
        return {"image": np.full_like(inputs["image"], np.nan)}

    assert BiasStep().propose(context_of(model, placement=COARSE, spoil=spoil), observed(model)).ranges == observed(
        model
    )
    assert np.isfinite(feeds(model)["image"]).all()


def test_ops_for_which_no_time_is_left_keep_what_they_had() -> None:
    model = loaded("residual")
    before = proposed(model, observed(model)).ranges
    assert len(before.recovery.corrections) > 1
    late = context_of(model, placement=COARSE, seconds=0.0)
    found = correct_means(late, before, late.assignment)
    assert found.ranges == before
    assert found.cut == "it ran out of time after 0 of 7 ops"


def test_a_sample_that_is_not_finite_inside_leaves_the_others_to_correct() -> None:
    """A logarithm of nothing that a Where hides: the inputs and outputs are finite."""
    rows = [np.random.default_rng(number).standard_normal((4, 3, 5)).astype(np.float32) for number in range(4)]
    power = usual_power(rows)
    rows[1][2, 1, 3] = np.nan
    np.testing.assert_allclose(usual_power(rows), power, rtol=0.2)
    only = [np.full((2, 3, 5), np.nan, np.float32)]
    assert np.isfinite(usual_power(only)).all()
