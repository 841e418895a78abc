"""Offsets and scales of channels: what they repair, and by what they are not misled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.recovery.int8.channel_fits import ChannelFits, fit_channels, usual_mean

SAMPLES, VALUES = 40, 200
Array = NDArray[np.float32]


def fitted(rough: Any, exact: Any, weights: Any = None) -> ChannelFits:
    found = fit_channels(
        [rough.astype(np.float32)], [exact.astype(np.float32)], [np.ones(len(rough)) if weights is None else weights],
        shifted=True,
    )  # fmt: skip
    assert found is not None
    return found


def responses(channels: int = 3) -> Any:
    """(samples, channels, values): mostly near 0, a tenth strong, as an object on ground."""
    random = np.random.default_rng(0)
    shape = (SAMPLES, channels, VALUES)
    return 0.3 * random.standard_normal(shape) + 3.0 * (random.random(shape) < 0.1)


def test_an_offset_and_a_scale_that_all_values_share_are_repaired() -> None:
    exact = responses()
    found = fitted(0.9 * exact - 0.2, exact)
    np.testing.assert_allclose(found.scale, 1 / 0.9, atol=0.01)
    np.testing.assert_allclose(found.scaled_offset, 0.2 / 0.9, atol=0.01)


def test_noise_is_no_reason_to_shrink_strong_responses() -> None:
    exact = responses()
    rough = exact + 0.5 * np.random.default_rng(1).standard_normal(exact.shape)
    found = fitted(rough, exact)
    np.testing.assert_allclose(found.scale, 1.0, atol=0.03)
    least_squares = np.polyfit(rough[:, 0].ravel(), exact[:, 0].ravel(), 1)[0]
    assert least_squares < 0.85, "a regression of float on INT8 would shrink them"


def test_values_that_are_clipped_do_not_move_the_others() -> None:
    exact = responses()
    exact[:, :, ::100] = 40.0
    rough = np.minimum(exact, 8.0) + 0.1 * np.random.default_rng(1).standard_normal(exact.shape)
    found = fitted(rough, exact)
    assert np.abs(found.offset).max() < 0.02
    np.testing.assert_allclose(found.scale, 1.0, atol=0.02)
    assert (exact - rough).mean() > 0.3, "a mean would move all of them"


def test_samples_that_count_little_are_left_out() -> None:
    exact = responses()
    rough, weights = exact - 0.2, np.ones(SAMPLES)
    rough[:15] += 50.0
    weights[:15] = 0.1
    np.testing.assert_allclose(fitted(rough, exact, weights).offset, 0.2, atol=1e-3)
    assert fit_channels([rough], [exact], [np.zeros(SAMPLES)], shifted=True) is None


@pytest.mark.parametrize("channels", [1, 300])
def test_of_many_values_some_tell_the_same(channels: int) -> None:
    random = np.random.default_rng(0)
    exact = random.standard_normal((4, channels, 20_000))
    found = fitted(exact - 0.5 + 0.1 * random.standard_normal(exact.shape), exact)
    assert found.offset.shape == found.scale.shape == (channels,)
    np.testing.assert_allclose(found.offset, 0.5, atol=5 * 0.1 / 64)  # five standard errors


def test_channels_of_which_nothing_can_be_told_keep_their_scale() -> None:
    exact = np.zeros((SAMPLES, 2, VALUES))
    exact[:, 1] = 1.0
    found = fitted(np.ones_like(exact), exact)
    np.testing.assert_array_equal(found.scale, 1.0)
    np.testing.assert_allclose(found.offset, [-1.0, 0.0])


def test_the_usual_mean_of_errors_without_outliers_is_their_mean() -> None:
    errors = np.random.default_rng(0).standard_normal((5, 4000))
    np.testing.assert_allclose(usual_mean(errors), errors.mean(axis=1), atol=0.003)
