"""The drop of a share that is called detectable is found."""

from __future__ import annotations

import numpy as np
import pytest

from studies.gate.loss import above_p_value, count_units, detectable_drop

LEVEL = 0.005


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "share", "limit"), [(400, 0.02, 0.05), (2000, 0.005, 0.01), (2000, 0.01, 0.0)])
def test_the_drop_that_is_called_detectable_is_found_in_nine_of_ten_cases(
    samples: int, share: float, limit: float
) -> None:
    random = np.random.default_rng(1)
    found = []
    for _ in range(80):
        drop = detectable_drop(int(random.binomial(samples, share)), samples, limit, LEVEL)
        assert drop is not None
        lost, won, _ = random.multinomial(samples, [share + drop, share, 1 - 2 * share - drop])
        found.append(above_p_value(count_units(int(lost), int(won), samples), limit) <= LEVEL)
    assert np.mean(found) >= 0.9


def test_too_few_samples_detect_nothing() -> None:
    assert detectable_drop(1, 3, 0.5, LEVEL) is None
