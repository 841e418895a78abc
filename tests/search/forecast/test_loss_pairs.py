"""Losses of networks whose errors do not simply add: pairs that amplify or cancel, and sensitivities that mislead."""

from __future__ import annotations

import numpy as np
import pytest

from search.forecast import loss_model
from search.forecast.loss_model import fit_loss
from search.forecast.priors import NoisePrior
from search.regression.similarity import Pairs
from tests.support.chain_layout import FP16, FP32, GROUPS, INT8, LAYOUT, PRECISIONS, mixes, uniform

STD = 0.001
SIZES = np.random.default_rng(5).lognormal(0, 0.5, GROUPS)
AMPLIFYING = ((0, 1), (3, 4), (7, 8))
CANCELLING = ((1, 2), (5, 6), (9, 10))


def energies(groups=SIZES**2):
    """(groups, precisions) what each group adds alone; all in INT8 add 1."""
    found = np.zeros((GROUPS, PRECISIONS))
    found[:, INT8] = groups / groups.sum()
    found[:, FP16] = 1e-4 * found[:, INT8]
    return found


def losses(precisions, amplifying=(), cancelling=()):
    """(n,) true losses, 10 % of the energy of summed vectors in which some pairs lie alike and some opposed."""
    each = energies()[np.arange(GROUPS), precisions]
    total = each.sum(axis=1)
    for cosine, pairs in ((0.9, amplifying), (-0.9, cancelling)):
        for one, two in pairs:
            total = total + 2 * cosine * np.sqrt(each[:, one] * each[:, two])
    return 0.1 * total


def fitted(rows, noise, **pairs):
    """A loss model of uniform assignments and random mixes, measured with a little noise."""
    precisions = np.concatenate([np.stack([uniform(p) for p in (FP32, FP16, INT8)]), mixes(rows, seed=1)])
    measured = losses(precisions, **pairs) + np.random.default_rng(2).normal(0, STD, len(precisions))
    return fit_loss(LAYOUT, NoisePrior(noise, 0.7), precisions, measured, np.full(len(precisions), STD))


def missed(model, **pairs):
    """Root mean square error of forecasts of mixes that were not measured."""
    others = mixes(300, seed=9)
    return float(np.sqrt(np.mean((model.predict_mean(others) - losses(others, **pairs)) ** 2)))


def test_pairs_that_amplify_or_cancel_are_learned(monkeypatch):
    tangled = {"amplifying": AMPLIFYING, "cancelling": CANCELLING}
    with_pairs = missed(fitted(60, energies(), **tangled), **tangled)
    monkeypatch.setattr(loss_model, "_SHARED", ())
    assert with_pairs < 0.8 * missed(fitted(60, energies(), **tangled), **tangled)


def test_forecasts_of_pairs_know_how_wrong_they_are():
    tangled = {"amplifying": AMPLIFYING, "cancelling": CANCELLING}
    model, others = fitted(60, energies(), **tangled), mixes(300, seed=9)
    loss, std = model.predict_latent(others)
    assert 0.7 < np.mean(np.abs(loss - losses(others, **tangled)) < 1.645 * std) < 0.99


def test_where_errors_add_pairs_cost_nothing(monkeypatch):
    with_pairs = missed(fitted(60, energies()))
    monkeypatch.setattr(loss_model, "_SHARED", ())
    assert with_pairs < 1.05 * missed(fitted(60, energies()))


@pytest.mark.parametrize("exponent", [0.5, 1.6])
def test_sensitivities_that_tell_groups_apart_too_little_or_too_much_are_corrected(exponent, monkeypatch):
    exaggerated = energies(SIZES ** (2 * exponent))
    corrected = missed(fitted(12, exaggerated))
    monkeypatch.setattr(loss_model, "_SPREAD_STD", 1e-9)
    assert corrected < 0.95 * missed(fitted(12, exaggerated))


def test_the_covariance_of_pairs_is_that_of_random_angles():
    rng, precisions = np.random.default_rng(3), mixes(5, seed=4)
    nodes = energies(rng.lognormal(0, 1, GROUPS))
    nodes[:, FP16] = 0.3 * nodes[:, INT8]
    each = nodes[np.arange(GROUPS), precisions]
    size = np.sqrt(each / each.sum(axis=1, keepdims=True))
    # The angle of every pair of groups, in each of their precisions, is one draw.
    draws, one, two = 40_000, *np.triu_indices(GROUPS, 1)
    own = precisions[:, one] * PRECISIONS + precisions[:, two]
    angles = rng.standard_normal((draws, len(one), PRECISIONS**2)).astype(np.float32)
    added = np.sqrt(2) * np.stack(
        [angles[:, np.arange(len(one)), row] @ (size[i, one] * size[i, two]) for i, row in enumerate(own)]
    )
    pairs = Pairs(nodes)
    assert np.cov(added) == pytest.approx(pairs.between(precisions, precisions), abs=0.03)
    assert pairs.own(precisions) == pytest.approx(np.diag(pairs.between(precisions, precisions)))


def test_a_mix_with_one_noisy_group_has_no_pairs():
    alone = np.zeros((2, GROUPS), np.int8)
    alone[0, 4] = INT8  # the other row has no noise at all
    assert Pairs(energies()).own(alone) == pytest.approx(0.0)
    assert Pairs(energies()).between(alone, mixes(3)) == pytest.approx(0.0)
