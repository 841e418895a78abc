"""Maps from noise to loss: inverse, derivatives, start; and losses in dB."""

from __future__ import annotations

import numpy as np
import pytest

from search.forecast.loss_maps import Decibels, Map, Saturating
from search.forecast.loss_model import fit_loss
from search.forecast.priors import noise_prior
from search.forecast.quality import quality
from tests.support.assignments import THREE
from tests.support.chain_layout import LAYOUT, losses, mixes, uniform

KINDS = [Saturating, Decibels]
NOISE = np.array([1e-6, 1e-3, 0.1, 1.0, 3.0])


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_found_again_from_its_loss(kind: type[Map]) -> None:
    made = kind(2.0, 1.3, 5.0)
    assert [made.noise(float(loss)) for loss in made.loss(NOISE)] == pytest.approx(NOISE)
    assert made.noise(0.0) == made.noise(-1.0) == 0.0
    assert (np.diff(made.loss(NOISE)) > 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_are_those_of_small_steps(kind: type[Map]) -> None:
    at, step = np.log([2.0, 1.3, 5.0]), 1e-6
    found = kind(*np.exp(at)).slopes(NOISE)
    for place in range(3):
        moved = at.copy()
        moved[place] += step
        expected = (kind(*np.exp(moved)).loss(NOISE) - kind(*np.exp(at)).loss(NOISE)) / step
        np.testing.assert_allclose(found[place], expected, rtol=1e-3, atol=1e-8)
    expected = (kind(*np.exp(at)).loss(NOISE * np.exp(step)) - kind(*np.exp(at)).loss(NOISE)) / step
    np.testing.assert_allclose(found[3], expected, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("worst", [0.02, 4.0, 85.0])
def test_a_map_starts_where_the_worst_noise_makes_the_worst_loss(kind: type[Map], worst: float) -> None:
    started = kind(*np.exp(kind.start(worst))).loss(np.ones(1))[0]
    assert 0.8 * worst < started <= worst * (1 + 1e-9)


def test_losses_in_decibels_go_with_the_logarithm_of_the_noise() -> None:
    """Over six decades of it, where a map that saturates is far off."""
    precisions = np.concatenate([np.stack([uniform(p) for p in range(len(THREE))]), mixes(40)])
    others = mixes(100, seed=9)
    noise, unseen = (1e6 * losses(rows)[0] for rows in (precisions, others))
    std = np.full(len(noise), 0.05)
    truth = 10 * np.log10(1 + unseen)
    errors = {}
    for decibels in (True, False):
        model = fit_loss(LAYOUT, noise_prior(LAYOUT), precisions, 10 * np.log10(1 + noise), std, decibels=decibels)
        mean, predicted_std = model.predict(others)
        errors[decibels] = float(np.median(np.abs(mean - truth)))
        if decibels:
            assert quality(mean, predicted_std, truth).rank_correlation > 0.98
            assert model.limit_on_noise(float(mean[0])) == pytest.approx(LAYOUT.values(model.mean(), others)[0])
    assert errors[True] < 0.3
    assert errors[True] < 0.3 * errors[False]
