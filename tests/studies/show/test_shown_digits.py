"""Numbers have the digits that their interval allows."""

from __future__ import annotations

import math

import pytest

from studies.options.limits import MetricScale
from studies.show.rounding import estimate_text, latency_text, value_text

TOP1, SQNR = MetricScale("top1", ratio=True), MetricScale("sqnr", "dB")


@pytest.mark.parametrize(
    ("numbers", "metric", "text"),
    [
        ((0.0008333, -0.0006682, 0.0023348), TOP1, "0.08 ± 0.15 %"),
        ((0.1348, 0.1264, 0.1430), TOP1, "13.48 ± 0.83 %"),
        ((0.1348, 0.1164, 0.1531), TOP1, "13.5 ± 1.8 %"),
        ((0.5, 0.3, 0.7), TOP1, "50 ± 20 %"),
        ((-0.00000004, -0.0006, 0.0006), TOP1, "0.000 ± 0.060 %"),
        ((44.123, 43.0, 45.2), SQNR, "44.1 ± 1.1 dB"),
        ((44.123, None, None), SQNR, "44.1 dB"),
        ((44.123, 44.123, 44.123), SQNR, "44.1 dB"),
        ((None, 0.0, 1.0), SQNR, "–"),
        ((math.nan, 0.0, 1.0), SQNR, "–"),
    ],
)
def test_a_loss_and_its_interval_end_in_the_same_digit(numbers, metric, text):
    assert estimate_text(*numbers, metric) == text


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [(0.9594, 0.0007, "95.9 %"), (0.8561, 0.013, "86 %"), (0.9594, math.nan, "95.9 %"), (math.nan, 0.1, "–")],
)
def test_a_metric_has_no_digit_below_its_interval(value, half, text):
    assert value_text(value, half, TOP1) == text


def test_latencies_have_three_digits():
    assert [latency_text(value) for value in (0.94221, 10.04, 104.4, 1234.0, None, math.nan)] == [
        "0.942 ms", "10.0 ms", "104 ms", "1234 ms", "–", "–",
    ]  # fmt: skip
