"""Numbers have the digits that their interval allows."""

from __future__ import annotations

import math

import pytest

from studies.judging.rounding import decimals_of, estimate_text, half_width, latency_text, least_half, value_text
from studies.options.limits import MetricScale

PRICE = MetricScale("mae", "EUR", higher_is_better=False)
TOP1, SQNR = MetricScale("top1", ratio=True), MetricScale("sqnr", "dB")


@pytest.mark.parametrize(
    ("numbers", "metric", "text"),
    [
        ((0.0008333, -0.0006682, 0.0023348), TOP1, "0.08 ± 0.15 %"),
        ((0.1348, 0.1264, 0.1430), TOP1, "13.5 ± 0.8 %"),
        ((0.1348, 0.1164, 0.1531), TOP1, "13.5 ± 1.8 %"),
        ((0.5, 0.3, 0.7), TOP1, "50 ± 20 %"),
        ((-0.00009356, -0.00106, 0.00088), TOP1, "-0.01 ± 0.10 %"),
        ((-0.00000004, -0.0006, 0.0006), TOP1, "0.00 ± 0.06 %"),
        ((0.0, 0.0, 0.0), TOP1, "0 %"),
        ((1.234, 0.994, 1.474), SQNR, "1.23 ± 0.24 dB"),
        ((44.123, None, None), SQNR, "44.1 dB"),
        ((44.123, 44.123, 44.123), SQNR, "44.1 dB"),
        ((None, 0.0, 1.0), SQNR, "–"),
        ((math.nan, 0.0, 1.0), SQNR, "–"),
    ],
)
def test_a_loss_and_its_interval_end_in_the_same_digit(numbers, metric, text):
    assert estimate_text(*numbers, metric, missing="–") == text
    assert text != "–" or estimate_text(*numbers, metric) == ""


@pytest.mark.parametrize(
    ("value", "half", "metric", "text"),
    [
        (0.95873, 0.0058, TOP1, "95.9 %"),
        (0.8561, 0.013, TOP1, "85.6 %"),
        (0.8561, 0.04, TOP1, "86 %"),
        (0.9594, math.nan, TOP1, "95.9 %"),
        (50.123, 0.5, SQNR, "50.1 dB"),
        (14.3178, 0.0, PRICE, "14.32 EUR"),
        (14.3178, least_half([0.0, 0.03, math.nan, 0.012]), PRICE, "14.318 EUR"),
        (14.3178, least_half([0.0, math.nan]), PRICE, "14.32 EUR"),
        (math.nan, 0.1, TOP1, "–"),
    ],
)
def test_a_metric_has_no_digit_below_its_interval(value, half, metric, text):
    assert value_text(value, half, metric, missing="–") == text


def test_latencies_have_the_digits_that_two_measurements_share():
    assert [latency_text(value, 0.025) for value in (0.8316, 2.2024, 12.34, 1234.5)] == [
        "0.83 ms", "2.20 ms", "12.3 ms", "1234 ms",
    ]  # fmt: skip


def test_latencies_without_a_tie_band_have_three_digits():
    assert [latency_text(value, missing="–") for value in (0.94221, 10.04, 104.4, 1234.0, None, math.nan)] == [
        "0.942 ms", "10.0 ms", "104 ms", "1234 ms", "–", "–",
    ]  # fmt: skip


def test_an_uncertainty_has_two_digits_where_it_begins_with_one_or_two():
    assert [decimals_of(half) for half in (0.15, 0.4, 2.0, 40.0)] == [2, 1, 1, 0]
    assert [decimals_of(half) for half in (0.0, -1.0, math.nan, math.inf)] == [None] * 4


def test_an_interval_without_both_ends_has_no_width():
    assert half_width(1.0, 3.0) == 1.0
    assert math.isnan(half_width(None, 3.0))
    assert math.isnan(half_width(1.0, math.nan))
