"""Bounds of ops: no value that a network computes lies outside, and ranges are cut to them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from search.graph.floats.bounds import UNBOUNDED, bounds_of_values, cut
from search.graph.model import load
from search.values import TensorRange
from tests.support.networks import NETWORKS, ODD, Net, loaded, ranged, save


@pytest.mark.parametrize("name", [*NETWORKS, *ODD])
def test_no_observed_value_lies_outside(name: str) -> None:
    bounds = bounds_of_values(loaded(name).graph.graph)
    seen = {tensor: one for tensor, one in ranged(name).observed.items() if tensor in bounds}
    assert seen
    for tensor, one in seen.items():
        low, high = bounds[tensor]
        assert low - 1e-5 <= one.low <= one.high <= high + 1e-5, tensor


def test_what_is_known_of_each_op(tmp_path: Path) -> None:
    n = Net()
    limits = [n.const("low", np.float32(-1)), n.const("high", np.float32(2))]
    x = n.conv("image", "stem", 3, 4)
    relu = n.op("Relu", [x], "relu")
    clip = n.op("Clip", [x, *limits], "clip")
    capped = n.op("Clip", [relu, "", limits[1]], "capped")
    added = n.op("Add", [capped, n.op("Sigmoid", [x], "sigmoid")], "added")
    gated = n.op("Mul", [relu, n.op("HardSigmoid", [x], "gate")], "gated")
    pooled = n.op("MaxPool", [clip], "pooled", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1])
    joined = n.op("Concat", [pooled, relu, clip], "joined", axis=1)
    floored = n.op("Clip", [n.op("Softmax", [added], "softmax", axis=1), limits[1]], "floored")
    n.head(n.op("Concat", [joined, gated, added, floored], "all", axis=1), 24)
    found = bounds_of_values(load(save(n.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path / "m.onnx")).graph.graph)
    inf = math.inf
    expected = {
        **{"relu_out": (0, inf), "clip_out": (-1, 2), "capped_out": (0, 2), "added_out": (0, 3), "gated_out": (0, inf)},
        **{"pooled_out": (-1, 2), "joined_out": (-1, inf), "softmax_out": (0, 1), "floored_out": (2, 2)},
        **{"all_out": (-1, inf), "stem_out": UNBOUNDED, "logits": UNBOUNDED},
    }
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("given", "bounds", "kept"),
    [
        ((-6.5, 6.5), (0, 6), (0, 6)),
        ((-3, 3), (0, math.inf), (0, 3)),
        ((-3, 3), UNBOUNDED, (-3, 3)),
        ((-1, 1), (2, 4), (-1, 1)),  # a range that holds nothing of what the op gives is nobody's mistake but its own
    ],
)
def test_a_range_is_cut_to_bounds(
    given: tuple[float, float], bounds: tuple[float, float], kept: tuple[float, float]
) -> None:
    assert cut(TensorRange(*given), bounds) == TensorRange(*kept)
