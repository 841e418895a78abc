"""Groups, edges and decisions as arrays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from search.graph.model import load
from search.space.choices import make_space
from search.space.layout import Costs, make_layout
from search.space.rules import KeepRule
from search.values import Capability, Precision
from tests.support.assignments import THREE
from tests.support.networks import NETWORKS, save

EVERYTHING = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
PRECISIONS = len(THREE)
TENSORRT = Capability({Precision.FP16: EVERYTHING, Precision.INT8: EVERYTHING}, min_channels=16)


def laid_out(name, tmp_path, granularity="group", keep=()):
    model = load(save(NETWORKS[name](), tmp_path / "net.onnx"))
    space = make_space(model, TENSORRT, None, keep, granularity)
    return make_layout([group.id for group in model.groups], model.edges, space)


def random_costs(layout, seed=0):
    rng = np.random.default_rng(seed)
    edges = rng.uniform(0, 1, (len(layout.edges), PRECISIONS, PRECISIONS))
    return Costs(rng.uniform(), rng.uniform(0, 1, (len(layout.groups), PRECISIONS)), edges)


@pytest.mark.parametrize("granularity", ["group", "block"])
@pytest.mark.parametrize("name", NETWORKS)
def test_costs_are_the_same_by_group_and_by_decision(name, granularity, tmp_path):
    layout = laid_out(name, tmp_path, granularity, (KeepRule.parse("fc|classes=fp32"),))
    costs, rng = random_costs(layout), np.random.default_rng(1)
    pairwise = layout.pairwise(costs)
    codes = np.stack([rng.integers(len(effects), size=20) for effects in layout.effects], axis=1)
    precisions = layout.precisions(codes)
    expected = [pairwise.value(row) for row in codes]
    assert np.allclose(layout.values(costs, precisions), expected)
    assignments = [layout.assignment(row) for row in codes]
    assert np.array_equal(layout.precisions_of(assignments), precisions)
    again = np.array([layout.codes_of(assignment) for assignment in assignments])
    assert np.array_equal(layout.precisions(again), precisions)


def test_costs_add_up_term_by_term(tmp_path):
    layout = laid_out("residual", tmp_path)
    one, two = random_costs(layout, 1), random_costs(layout, 2)
    precisions = layout.precisions(np.array(list(itertools.islice(all_codes(layout), 50))))
    both = layout.values(one, precisions) + 3 * layout.values(two, precisions)
    assert np.allclose(layout.values(one.plus(two, 3), precisions), both)


def all_codes(layout):
    return itertools.product(*(range(len(effects)) for effects in layout.effects))
