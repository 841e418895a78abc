from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from evaluators.calibration import scales as scales_module
from evaluators.calibration.scales import (
    BINS,
    activation_scale,
    bins_of,
    clip,
    entropy_bins,
    mse_bins,
    percentile_bins,
    weight_pairs,
    weight_scales,
)
from search.values import TensorRange

FLOATS = st.floats(-(2.0**100), 2.0**100, width=32)
RANGES = st.tuples(FLOATS, FLOATS).map(lambda pair: TensorRange(min(pair), max(pair)))
FLAGS = st.booleans()


def levels(signed: bool, symmetric: bool) -> tuple[int, int]:
    low, high = (-128, 127) if signed else (0, 255)
    return (low + 1, high) if symmetric else (low, high)


def round_trip(x: NDArray[np.float64], seen: TensorRange, signed: bool, symmetric: bool) -> NDArray[np.float64]:
    scale, zero = activation_scale(seen, signed=signed, symmetric=symmetric)
    codes = np.clip(np.rint(x / scale) + zero, *levels(signed, symmetric))
    return (codes - zero) * scale


class TestActivationScale:
    @given(RANGES, FLAGS, FLAGS, st.floats(0, 1))
    def test_error_inside_the_range_is_at_most_half_a_step(
        self, seen: TensorRange, signed: bool, symmetric: bool, at: float
    ) -> None:
        x = np.array([seen.low + at * (seen.high - seen.low)])
        scale, _ = activation_scale(seen, signed=signed, symmetric=symmetric)
        error = np.abs(round_trip(x, seen, signed, symmetric) - x)
        # The scale is rounded to float32, which moves the last of 255 levels by up to 255 half-ulps.
        assert error[0] <= scale * 0.5001

    @given(RANGES, FLAGS, FLAGS)
    def test_zero_is_exact(self, seen: TensorRange, signed: bool, symmetric: bool) -> None:
        assert round_trip(np.zeros(1), seen, signed, symmetric)[0] == 0

    @given(RANGES, FLAGS, FLAGS)
    def test_zero_point_is_a_level_and_the_scale_a_positive_float32(
        self, seen: TensorRange, signed: bool, symmetric: bool
    ) -> None:
        scale, zero = activation_scale(seen, signed=signed, symmetric=symmetric)
        low, high = levels(signed, symmetric)
        assert low <= zero <= high
        assert scale > 0
        assert scale == float(np.float32(scale))

    def test_relu6_uses_all_256_levels(self) -> None:
        seen = TensorRange(0.0, 6.0)
        scale, zero = activation_scale(seen, signed=False, symmetric=False)
        codes = np.rint(np.linspace(0, 6, 10_000) / scale) + zero
        assert zero == 0
        assert set(codes.astype(int)) == set(range(256))

    def test_symmetric_int8_is_the_magnitude_over_127(self) -> None:
        assert activation_scale(TensorRange(-1.0, 12.7), signed=True, symmetric=True) == (
            pytest.approx(0.1, rel=1e-6),
            0,
        )

    def test_a_range_away_from_zero_is_widened_to_it(self) -> None:
        assert activation_scale(TensorRange(255.0, 510.0), signed=False, symmetric=False) == (2.0, 0)
        assert activation_scale(TensorRange(-510.0, -255.0), signed=False, symmetric=False) == (2.0, 255)

    @pytest.mark.parametrize("signed", [True, False])
    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("value", [0.0, 1e-42])
    def test_a_range_of_nothing_has_scale_one(self, value: float, signed: bool, symmetric: bool) -> None:
        assert activation_scale(TensorRange(0.0, value), signed=signed, symmetric=symmetric)[0] == 1.0


class TestWeightScales:
    @given(st.integers(0, 2**32 - 1), st.sampled_from([7, 8]), st.sampled_from([None, 0, 1, -1]))
    def test_error_is_at_most_half_a_step(self, seed: int, bits: int, axis: int | None) -> None:
        rng = np.random.default_rng(seed)
        weight = (rng.standard_normal((4, 3, 2)) * 10.0 ** rng.uniform(-20, 20)).astype(np.float32)
        scales = weight_scales(weight, axis, bits).astype(np.float64)
        assert scales.shape == (() if axis is None else (weight.shape[axis],))
        step = scales if axis is None else np.expand_dims(scales, [a for a in range(3) if a != axis % 3])
        codes = np.rint(weight / step)
        assert np.abs(codes).max() == 2 ** (bits - 1) - 1
        assert (np.abs(codes * step - weight) <= step * 0.5001).all()

    @given(st.integers(0, 2**32 - 1), st.sampled_from([(0, (4, 7, 3, 3)), (0, (3, 5)), (1, (5, 3))]))
    def test_pairs_keep_their_limit_though_each_code_is_changed_by_one(
        self, seed: int, form: tuple[int, tuple[int, ...]]
    ) -> None:
        rng, (axis, shape) = np.random.default_rng(seed), form
        weight = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-20, 20)).astype(np.float32)
        scales = weight_scales(weight, axis, pair_limit=128)
        step = np.expand_dims(scales, [a for a in range(len(shape)) if a != axis])
        codes = np.rint(weight / step).astype(int)
        assert weight_pairs(codes + rng.integers(-1, 2, shape), axis).max() <= 128
        assert (scales >= weight_scales(weight, axis)).all()
        assert (scales <= 1.03 * weight_scales(weight, axis, 7)).all(), "never much coarser than 7 bits"

    def test_a_channel_without_large_pairs_keeps_nearly_all_of_its_eight_bits(self) -> None:
        weight = np.zeros((2, 4, 1, 2), np.float32)
        weight[0, :, 0, 0] = [127, -127, 0, 127]  # of different signs, which do not add up
        weight[1, :, 0, 0] = [100, 80, 70, -10]  # the second and the third are no pair
        np.testing.assert_allclose(weight_scales(weight, 0, pair_limit=128), [127 / 125.5, 180 / 125.5], rtol=1e-6)
        assert weight_pairs(weight, 0).max(axis=1).tolist() == [127, 180]

    @pytest.mark.parametrize("axis", [0, 1])
    def test_a_few_rows_at_a_time_give_the_scales_of_all(self, axis: int, monkeypatch: pytest.MonkeyPatch) -> None:
        weight = np.random.default_rng(0).standard_normal((7, 6, 3, 3)).astype(np.float32)
        whole = weight_scales(weight, axis, pair_limit=128)
        monkeypatch.setattr(scales_module, "_BLOCK_VALUES", 100)
        np.testing.assert_array_equal(weight_scales(weight, axis, pair_limit=128), whole)

    def test_scales_are_those_of_the_magnitudes(self) -> None:
        weight = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
        expected = np.abs(weight.astype(np.float64)).max(axis=1) / 127
        np.testing.assert_array_equal(weight_scales(weight, 0), expected.astype(np.float32))

    def test_channels_of_zeros_have_scale_one(self) -> None:
        weight = np.array([[0, 0], [1.27, -0.5]], np.float32)
        np.testing.assert_allclose(weight_scales(weight, 0), [1.0, 0.01], rtol=1e-6)
        assert weight_scales(np.zeros((3, 0), np.float32), 0).tolist() == [1, 1, 1]

    def test_too_small_for_float32_is_scale_one(self) -> None:
        assert weight_scales(np.full(2, 1e-44, np.float32), None) == 1.0

    @pytest.mark.parametrize(
        ("weight", "axis", "bits", "message"),
        [
            (np.ones((2, 2)), 2, 8, "no axis 2"),
            (np.ones((2, 2)), 0, 16, "not 16"),
            (np.array([np.nan, 1.0]), None, 8, "NaN or Inf"),
        ],
    )
    def test_refuses(self, weight: NDArray[np.float64], axis: int | None, bits: int, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            weight_scales(weight, axis, bits)


class TestBins:
    @given(st.integers(0, 2**32 - 1), st.floats(-20, 20), FLAGS)
    def test_counts_are_those_of_numpy(self, seed: int, exponent: float, magnitudes: bool) -> None:
        x = (np.random.default_rng(seed).standard_normal((7, 300)) * 10.0**exponent).astype(np.float32)
        seen = TensorRange(float(x.min()), float(x.max()))
        counts = bins_of(seen, magnitudes=magnitudes).count(x)
        values, edges = (np.abs(x), (0.0, seen.magnitude)) if magnitudes else (x, (seen.low, seen.high))
        expected, _ = np.histogram(values.astype(np.float64), BINS, edges)
        # A value at an edge may fall on either side of it: running counts differ by those few.
        assert counts.sum() == x.size
        assert np.abs(np.cumsum(counts - expected)).max() <= 2

    def test_zeros_do_not_count_as_magnitudes(self) -> None:
        counts = bins_of(TensorRange(-1.0, 4.0), magnitudes=True).count(np.array([0, 0, -1, 4, 0.0001], np.float32))
        assert counts.sum() == 3
        assert counts[[0, BINS // 4, BINS - 1]].tolist() == [1, 1, 1]

    @pytest.mark.parametrize("top", [3.4e38, 1e-44])
    def test_extremes_of_float32(self, top: float) -> None:
        x = np.array([-top, 0, top], np.float32)
        counts = bins_of(TensorRange(float(x[0]), float(x[2])), magnitudes=False).count(x)
        assert counts[[0, BINS - 1]].tolist() == [1, 1]
        assert counts[BINS // 2 - 1 : BINS // 2 + 1].sum() == 1


def slow_entropy(counts: NDArray[np.int64]) -> int:
    """One limit after another, both distributions written out, as pytorch-quantization does."""
    divergences = {}
    for end in range(128, BINS + 1):
        kept = counts[:end].astype(np.float64)
        p = kept.copy()
        p[-1] += counts[end:].sum()
        level = np.arange(end) * 128 // end
        share = np.bincount(level, kept) / np.maximum(np.bincount(level, kept > 0), 1)
        q = np.where(kept > 0, share[level], 0.0)
        p, q = p[p > 0] / p.sum(), q[p > 0] / max(q.sum(), 1)
        divergences[end] = float((p * np.log(p / q)).sum()) if (q > 0).all() else np.inf
    least = min(divergences.values())
    return max(end for end, value in divergences.items() if value <= least + 1e-12)


def slow_mse(counts: NDArray[np.int64], kept: int) -> float:
    points = np.repeat(np.arange(BINS), 40) + np.tile((np.arange(40) + 0.5) / 40, BINS)
    step = kept / 127
    error = (np.minimum(np.rint(points / step), 127) * step - points) ** 2
    return float((error.reshape(BINS, 40).mean(axis=1) * counts).sum())


def histogram(kind: str) -> NDArray[np.int64]:
    rng = np.random.default_rng(7)
    x = {
        "normal": lambda: rng.standard_normal(50_000),
        "laplace": lambda: rng.laplace(size=50_000),
        "outliers": lambda: np.concatenate([rng.standard_normal(50_000), [100.0, 90.0]]),
        "uniform": lambda: rng.uniform(0, 1, 50_000),
        "few": lambda: np.array([0.1, 0.2, 0.3, 5.0]),
    }[kind]()
    return np.histogram(np.abs(x), BINS, (0, np.abs(x).max()))[0]


KINDS = ["normal", "laplace", "outliers", "uniform", "few"]


class TestLimits:
    @pytest.mark.parametrize("kind", ["normal", "outliers", "few"])
    def test_entropy_is_the_least_divergence_of_all_limits(self, kind: str) -> None:
        assert entropy_bins(histogram(kind)) == slow_entropy(histogram(kind))

    @pytest.mark.parametrize("kind", KINDS)
    def test_mse_is_the_least_error_of_all_limits(self, kind: str) -> None:
        counts = histogram(kind)
        best = min(slow_mse(counts, kept) for kept in range(128, BINS + 1, 16))
        assert slow_mse(counts, mse_bins(counts)) <= best * 1.01

    def test_mse_clips_far_outliers_and_no_uniform_data(self) -> None:
        counts = np.append(histogram("normal")[:-1:8] * 10_000, np.zeros(BINS - len(histogram("normal")[:-1:8])))
        counts[-1] = 1
        assert mse_bins(counts.astype(np.int64)) < BINS // 4
        assert mse_bins(histogram("uniform")) == BINS

    @given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.floats(50.1, 100))
    def test_percentile_leaves_out_at_most_its_tail_on_each_side(self, parts: list[int], percentile: float) -> None:
        assume(sum(parts))
        counts = np.resize(np.array(parts, np.int64), BINS)
        first, last = percentile_bins(counts, percentile)
        tail = counts.sum() * (1 - percentile / 100) * (1 + 1e-9)
        assert 0 <= first < last <= BINS
        assert counts[:first].sum() <= tail
        assert counts[last:].sum() <= tail
        # Cutting one more bin would leave out too much.
        assert counts[: first + 1].sum() >= tail * (1 - 1e-6)
        assert counts[last - 1 :].sum() >= tail * (1 - 1e-6)

    def test_percentile_follows_the_quantiles_of_the_data(self) -> None:
        x = np.random.default_rng(0).gumbel(size=200_000).astype(np.float32)
        seen = TensorRange(float(x.min()), float(x.max()))
        kept = clip(seen, bins_of(seen, magnitudes=False).count(x), "percentile", 99.9)
        width = (seen.high - seen.low) / BINS
        assert kept.low == pytest.approx(np.quantile(x, 0.001), abs=2 * width)
        assert kept.high == pytest.approx(np.quantile(x, 0.999), abs=2 * width)

    def test_percentile_keeps_peaks_at_the_ends(self) -> None:
        x = np.clip(np.random.default_rng(0).normal(3, 3, 20_000), 0, 6).astype(np.float32)
        seen = TensorRange(0.0, 6.0)
        assert clip(seen, bins_of(seen, magnitudes=False).count(x), "percentile", 99.9) == seen

    @pytest.mark.parametrize("method", ["entropy", "mse"])
    @pytest.mark.parametrize(("low", "high"), [(-3.0, 3.0), (0.0, 8.0), (-8.0, 0.0), (-0.2, 8.0), (2.0, 8.0)])
    def test_limits_stay_inside_what_was_seen(self, method: str, low: float, high: float) -> None:
        x = np.clip(np.random.default_rng(0).normal((low + high) / 2, 1, 10_000), low, high).astype(np.float32)
        seen = TensorRange(float(x.min()), float(x.max()))
        kept = clip(seen, bins_of(seen, magnitudes=True).count(x), method, 0)
        assert seen.low <= kept.low <= kept.high <= seen.high
        assert kept.low == 0 if seen.low == 0 else True

    @pytest.mark.parametrize("method", ["entropy", "mse"])
    def test_a_range_above_its_limit_stays_a_range(self, method: str) -> None:
        counts = np.zeros(BINS, np.int64)
        counts[[1000, BINS - 1]] = [10**9, 1]
        kept = clip(TensorRange(7.0, 14.0), counts, method, 0)
        assert kept.low <= kept.high
