"""The drop of a share that is called detectable is found."""

from __future__ import annotations

import numpy as np
import pytest

from studies.gate.check import GateCheck, GateVerdict
from studies.gate.loss import PairedScores, above_p_value, count_units, detectable_drop, judge_loss

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


@pytest.mark.parametrize("samples", [300, 1000])
def test_a_drop_is_found_though_hardly_a_sample_changes_today(samples: int) -> None:
    random = np.random.default_rng(2)

    def judged(share: float) -> GateCheck:
        same = np.ones(samples)
        changed = np.where(random.random(samples) < share, 0.0, 1.0)
        changed[0] = 0.5
        return judge_loss(PairedScores(changed, same, ratio=True, higher_is_better=True), 0.01, 0.05)

    drop = judged(0.0).smallest
    assert drop is not None
    assert drop < 0.01 + 20 / samples
    assert np.mean([judged(drop).verdict is GateVerdict.FAILS for _ in range(20)]) >= 0.9
