"""Factors on streams change tensors as they should, and no output, on whatever graph."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluators.recovery.streams.find import find_streams
from evaluators.recovery.streams.result import Exponents, Streams, factors_of
from evaluators.recovery.streams.slots import Slots
from search.graph.model import Model
from tests.support.networks import ODD, Net, finish, loaded
from tests.support.stream_graphs import graphs, loaded_from, run_all


def random_exponents(streams: Streams, seed: int) -> Exponents:
    found = np.random.default_rng(seed).integers(-5, 6, streams.count)
    found[0] = 0
    return found


def test_slots_of_long_signals_are_made_equal_without_sorting_their_pairs_as_columns() -> None:
    """Found on a U-net of an EEG, whose tensors of 64 x 7,500 took 23 s in each of two steps."""
    sets = Slots()
    one, other = sets.make(64, 1), sets.make(64, 1)
    start = time.process_time()
    for _ in range(3):
        sets.unite(np.broadcast_to(one, (64, 30_000)), np.broadcast_to(other, (64, 30_000)))
    assert time.process_time() - start < 1.5
    assert (sets.roots(one) == sets.roots(other)).all()
    assert len(np.unique(sets.roots(one))) == 64


def check_exact(model: Model, seed: int = 0) -> None:
    """Every tensor is divided by the powers of its slots, bit by bit; outputs are what they were."""
    streams = find_streams(model)
    exponents = random_exponents(streams, seed)
    scaled = model.scale_constants(factors_of(streams.scalings, exponents))
    before, after = run_all(model), run_all(scaled)
    for name, array in before.items():
        slots = streams.tensors.get(name)
        power = np.zeros((), np.int64) if slots is None else exponents[slots]
        np.testing.assert_array_equal(np.ldexp(after[name], power), array, name)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_factors_on_random_graphs_are_exact(model: Model, seed: int) -> None:
    check_exact(model, seed)


@pytest.mark.parametrize("name", ["residual", "mobile", "unet", "transformer", *ODD])
def test_factors_on_networks_are_exact(name: str) -> None:
    model = loaded(name)
    check_exact(model)
    streams = find_streams(model)
    scaled = model.scale_constants(factors_of(streams.scalings, random_exponents(streams, 1)))
    for output, array in run_all(model, optimized=True, only=True).items():
        # Fused kernels may sum in another order.
        np.testing.assert_allclose(run_all(scaled, optimized=True, only=True)[output], array, 1e-4, 1e-5)


def test_newer_norms_and_attention_are_exact() -> None:
    """RMSNormalization is a writer; Attention, which nobody knows here, ends every stream."""
    net, d = Net(4, opset=23), 8
    x = net.linear("x", "first", d, d)
    y = net.op("RMSNormalization", [x, net.const("gain", np.linspace(1, 9, d, dtype=np.float32))], "norm", axis=-1)
    parts = [net.linear(y, name, d, d) for name in ("q", "k", "v")]
    mixed = net.op("Attention", parts, "attention", q_num_heads=2, kv_num_heads=2)
    net.linear(mixed, "last", d, d)
    net.nodes[-1].output[0] = "y"
    model = loaded_from(finish(net, {"x": [2, 4, d]}, {"y": [2, 4, d]}))
    check_exact(model)
    assert set(find_streams(model).tensors) == {"norm_out"}


def test_streams_reach_through_what_keeps_channels_apart() -> None:
    """A bottleneck under a residual stream, a U-Net's skips, and the values of attention."""
    wanted = {
        "residual": {"block.0/relu1_out", "block.1/add_out", "flatten_out"},
        "unet": {"p1_out", "up1_out", "cat2_out"},
        "transformer": {"layer.0/attn/norm_out", "layer.0/attn/join_out", "norm_out"},
    }
    for name, tensors in wanted.items():
        free = find_streams(loaded(name)).tensors
        assert tensors <= set(free), name
        assert all(len(np.unique(free[tensor])) > 15 for tensor in tensors), name


def test_one_bound_allows_one_factor() -> None:
    slots = find_streams(loaded("mobile")).tensors
    assert len(np.unique(slots["mb.0/act1_out"])) == 1
    np.testing.assert_array_equal(slots["mb.0/expand_out"], slots["mb.0/act1_out"])
