"""What no sum explains: regions that only work as a whole, and errors that mixes share."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest

from search.forecast.latency_model import fit_latency
from search.forecast.priors import Baseline, LatencyPrior, latency_prior
from search.forecast.region_costs import RegionCosts
from search.regression.similarity import Kind, KnownMixes, Similarity
from search.space.layout import Layout, Precisions
from search.values import LayerTime
from tests.support.small_layouts import ATTENTION, CHAIN, layout_of

BLOCKS = replace(CHAIN, blocks=np.array([0, 0, 0, 1, 1, 1]))
NODES = np.tile([4.0, 2.0, 1.0], (6, 1))


def prior_of(layout: Layout) -> LatencyPrior:
    groups = len(layout.groups)
    return latency_prior(
        layout, [Baseline(np.full(groups, p, np.int8), ms * groups) for p, ms in enumerate((4.0, 2.0, 1.0))]
    )


def rows(count: int, groups: int, seed: int = 0) -> Precisions:
    return np.random.default_rng(seed).integers(3, size=(count, groups)).astype(np.int8)


def fallen_back(precisions: Precisions) -> np.ndarray:
    """Milliseconds where each half of six groups runs in its highest precision."""
    halves = precisions.reshape(-1, 2, 3).min(axis=2)
    return 3 * np.array([4.0, 2.0, 1.0])[halves].sum(axis=1)


def test_features_of_mixed_regions_are_what_they_would_take_in_their_highest_precision() -> None:
    costs = RegionCosts(BLOCKS, NODES, None)
    precisions = np.array([[2, 2, 2, 1, 1, 1], [2, 1, 2, 0, 0, 0]], np.int8)
    slowest, apart, *own = costs.features(precisions).T
    assert slowest.tolist() == [0.0, 6.0 - 4.0]
    assert apart.tolist() == [0.0, 4.0]
    assert [each.tolist() for each in own] == [[0.0, 4.0], [0.0, 0.0]]


def test_no_region_of_a_uniform_assignment_is_mixed_unless_its_engine_breaks_it_up() -> None:
    """A product of activations has no INT8, so all INT8 has it in FP16."""
    layout = replace(layout_of(6, [(i, i + 1) for i in range(5)], floats=(1,)), blocks=BLOCKS.blocks)
    uniform, float_end = np.array([2, 1, 2, 2, 2, 2], np.int8), np.array([2, 1, 1, 2, 2, 2], np.int8)
    assert layout.uniforms[-1].tolist() == uniform.tolist()
    fused = Baseline(np.ones(6, np.int8), 12.0, (LayerTime("{ForeignNode[g00...g05]}", "Myelin", None, False, 12.0),))
    layers = {False: fused.profile, True: tuple(LayerTime(g, "Gemm", g, False, 4.0) for g in layout.groups)}
    for broken_up, profile in layers.items():
        prior = latency_prior(layout, [fused, Baseline(uniform, 24.0, profile)])
        mixed = RegionCosts(layout, NODES, None, prior.broken).features(np.stack([uniform, float_end]))[:, 1] > 0
        assert mixed.tolist() == [broken_up, True]


def test_regions_that_fall_back_are_learned_where_no_sum_explains_them() -> None:
    others = rows(200, 6, seed=1)
    truth = fallen_back(others)
    known = rows(40, 6)
    missed = [
        np.abs(fit_latency(layout, prior_of(layout), known, fallen_back(known)).predict(others)[0] / truth - 1).mean()
        for layout in (BLOCKS, CHAIN)
    ]
    assert missed[0] < 0.6 * missed[1]


def test_a_region_that_profiles_show_as_one_layer_is_believed_to_fall_back() -> None:
    layers = {0: ("g00", 3.0), 8: ("g08", 3.0), 9: ("g09", 3.0)}
    profile = [LayerTime("g00", "Conv", *layers[0][:1], False, 3.0)]
    profile += [LayerTime(f"region{i}", "Myelin", None, False, ms) for i, ms in enumerate((4.0, 3.0))]
    profile += [LayerTime(name, "Conv", name, False, ms) for name, ms in (layers[8], layers[9])]
    engines = [Baseline(np.full(10, p, np.int8), ms, tuple(profile)) for p, ms in enumerate((4.0, 2.0, 1.0))]
    prior = latency_prior(ATTENTION, engines)
    assert prior.opaque is not None
    assert np.flatnonzero(prior.opaque).tolist() == list(range(1, 8))
    assert prior.nodes[1:8].sum() > 0.3 * prior.nodes.sum(), "the region's time is that of its groups"
    whole, mixed = np.full((1, 10), 2, np.int8), np.full((1, 10), 2, np.int8)
    mixed[0, 2] = 1
    model = fit_latency(ATTENTION, prior, rows(0, 10), np.zeros(0))
    sums = [float(ATTENTION.values(model.mean(), row)[0]) for row in (whole, mixed)]
    assert model.predict_mean(whole)[0] == pytest.approx(sums[0])
    assert model.predict_mean(mixed)[0] > sums[1] + 0.02


@pytest.mark.parametrize("reach", [0.1, 0.0])
def test_similarities_are_covariances_of_one_for_a_mix_with_itself(reach: float) -> None:
    precisions = rows(30, 6)
    alike = Similarity.of(CHAIN, NODES, Kind(reach)).between(precisions, precisions)
    assert np.diagonal(alike) == pytest.approx(1.0)
    assert alike == pytest.approx(alike.T)
    assert np.linalg.eigvalsh(alike).min() > -1e-9
    assert Similarity.of(CHAIN, NODES, Kind(reach)).between(precisions[:0], precisions).shape == (0, 30)


def runs_of(row: Precisions) -> list[tuple[int, int, int]]:
    """For every group of a chain the first group, last group and precision of its run."""
    found: list[tuple[int, int, int]] = []
    for precision, members in groupby(row.tolist()):
        first, last = len(found), len(found) + len(list(members)) - 1
        found += [(first, last, precision)] * (last - first + 1)
    return found


def test_the_share_of_the_same_runs_is_that_of_comparing_group_by_group() -> None:
    one, two = rows(40, 6), rows(500, 6, seed=1)
    similarity = Similarity.of(CHAIN, NODES, Kind(0.0))
    expected = [
        [
            sum(w for w, k, other in zip(similarity.weights, runs_of(a), runs_of(b), strict=True) if k == other)
            for a in one
        ]
        for b in two
    ]
    assert similarity.between(two, one) == pytest.approx(np.array(expected), abs=1e-12)


def test_many_mixes_are_compared_as_a_few_are() -> None:
    one, two = rows(40, 6), rows(500, 6, seed=1)
    similarity = Similarity.of(CHAIN, NODES, Kind(0.1))
    parts = np.concatenate([similarity.between(two[:250], one), similarity.between(two[250:], one)])
    assert similarity.between(two, one) == pytest.approx(parts, abs=1e-5)


@pytest.mark.parametrize("reach", [0.1, 0.0])
def test_sums_of_weighted_covariances_need_no_covariances(reach: float) -> None:
    known, mixes = rows(30, 6), rows(50, 6, seed=1)
    compared = KnownMixes(Similarity.of(CHAIN, NODES, Kind(reach)), known)
    weights = np.random.default_rng(0).normal(size=30)
    assert compared.weigh(mixes, weights) == pytest.approx(compared.between(mixes) @ weights)
    assert compared.weigh(mixes[:0], weights).shape == (0,)
    assert KnownMixes(compared.similarity, known[:0]).weigh(mixes, weights[:0]) == pytest.approx(0.0)


def test_mixes_share_the_runs_that_begin_and_end_alike() -> None:
    one, two = np.array([[0, 0, 2, 2, 1, 1]], np.int8), np.array([[0, 0, 2, 2, 2, 1]], np.int8)
    assert Similarity.of(CHAIN, NODES, Kind(0.0)).between(one, two)[0, 0] == pytest.approx(2 / 6)


def test_errors_that_mixes_share_are_forecast_of_their_kin() -> None:
    """Runs whose kernels are lucky or not: what was measured of a run holds in other mixes."""
    rng = np.random.default_rng(3)
    luck = {}

    def measured(precisions: Precisions) -> np.ndarray:
        factors = [np.mean([luck.setdefault(k, rng.uniform(0.8, 1.2)) for k in runs_of(row)]) for row in precisions]
        return 2.0 * np.array([4.0, 2.0, 1.0])[precisions].sum(axis=1) * np.array(factors)

    known, others = rows(150, 6), rows(100, 6, seed=1)
    ms, truth = measured(known), measured(others)
    model = fit_latency(CHAIN, prior_of(CHAIN), known, ms)
    assert model.tuning.shared > 0
    sums = CHAIN.values(model.mean(), others)
    mean, std = model.predict_latent(others)
    assert np.abs(mean - truth).mean() < 0.9 * np.abs(sums - truth).mean()
    assert np.mean(np.abs(mean - truth) < 2 * std) > 0.8
