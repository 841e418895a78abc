"""Factors on streams change tensors as they should, and no output, on whatever graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.recovery.streams.find import find_streams
from evaluators.recovery.streams.result import Exponents, Streams, factors_of
from search.graph.model import Model
from tests.support.networks import ODD, loaded
from tests.support.stream_graphs import graphs, run_all


def random_exponents(streams: Streams, seed: int) -> Exponents:
    found = np.random.default_rng(seed).integers(-5, 6, streams.count)
    found[0] = 0
    return found


def check_exact(model: Model, seed: int = 0) -> None:
    """Every tensor is divided by the powers of its slots, bit by bit; outputs are what they were."""
    streams = find_streams(model)
    exponents = random_exponents(streams, seed)
    scaled = model.scaled(factors_of(streams.scalings, exponents))
    before, after = run_all(model), run_all(scaled)
    for name, array in before.items():
        slots = streams.tensors.get(name)
        power = np.zeros((), np.int64) if slots is None else exponents[slots]
        np.testing.assert_array_equal(np.ldexp(after[name], power), array, name)


def free_channels(model: Model, tensor: str) -> int:
    slots = find_streams(model).tensors.get(tensor)
    return 0 if slots is None else len(set(slots.reshape(-1).tolist()) - {0})


@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_factors_on_random_graphs_are_exact(model: Model, seed: int) -> None:
    check_exact(model, seed)


@pytest.mark.parametrize("name", ["residual", "mobile", "unet", "transformer", *ODD])
def test_factors_on_networks_are_exact(name: str) -> None:
    model = loaded(name)
    check_exact(model)
    streams = find_streams(model)
    scaled = model.scaled(factors_of(streams.scalings, random_exponents(streams, 1)))
    for output, array in run_all(model, optimized=True, only=True).items():
        # Fused kernels may sum in another order.
        np.testing.assert_allclose(run_all(scaled, optimized=True, only=True)[output], array, 1e-4, 1e-5)
