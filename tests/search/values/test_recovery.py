"""What recovery changed survives storage, and names itself by its content."""

from __future__ import annotations

import json

import numpy as np

from search.values import Assignment, Correction, Precision, Ranges, Recovery, TensorRange

FACTORS = {"weight": (np.array([[2.0], [0.5]], np.float32), np.array([4.0, 1.0], np.float32))}
CORRECTION = Correction(
    scale=np.array([1.01, 0.99], np.float32),
    offset=np.array([0.1, -0.2], np.float32),
    rounding=np.eye(2, dtype=np.int8),
)


def test_ranges_carry_a_recovery_through_json() -> None:
    ranges = Ranges(
        "minmax",
        {"x": TensorRange(0, 1)},
        {"x": TensorRange(0, 1)},
        4,
        recovery=Recovery(FACTORS, {"conv": CORRECTION}),
    )
    again = Ranges.from_json(json.loads(json.dumps(ranges.to_json())))
    assert again == ranges
    found = again.recovery.corrections["conv"]
    for name in ("scale", "offset", "rounding"):
        wanted = getattr(CORRECTION, name)
        assert getattr(found, name).dtype == wanted.dtype
        np.testing.assert_array_equal(getattr(found, name), wanted)
    for part, wanted_part in zip(again.recovery.factors["weight"], FACTORS["weight"], strict=True):
        np.testing.assert_array_equal(part, wanted_part)


def test_nothing_recovered_leaves_ranges_and_their_digest_as_they_were() -> None:
    ranges = Ranges("minmax", {}, {}, 1)
    assert not ranges.recovery
    assert "recovery" not in ranges.to_json()
    assert ranges.digest != Ranges("minmax", {}, {}, 1, recovery=Recovery(FACTORS)).digest


def test_parts_that_are_not_there_stay_away() -> None:
    again = Recovery.from_json(Recovery({}, {"conv": Correction(offset=np.zeros(1, np.float32))}).to_json())
    assert again.corrections["conv"].scale is None
    assert again.corrections["conv"].rounding is None


def test_another_precision_has_corrections_of_its_own_which_change_no_digest_where_there_are_none() -> None:
    plain = Recovery(FACTORS, {"conv": CORRECTION})
    rounded = Correction(rounding=np.ones((4, 2), np.int8), clip=np.full((2, 2), 7, np.int8))
    own = plain.with_corrections(Precision.W4, {"fc": rounded})
    again = Recovery.from_json(json.loads(json.dumps(own.to_json())))
    np.testing.assert_array_equal(again.of(Precision.W4)["fc"].clip, 7)
    assert again.of(Precision.INT8).keys() == {"conv"}
    moved = own.with_means({"fc": Correction(offset=np.ones(2, np.float32))}, Precision.W4)
    assert moved.of(Precision.W4)["fc"].clip is rounded.clip, "roundings and clips stay where means change"
    assert moved.corrections == own.corrections
    assert own.digest != plain.digest == own.with_corrections(Precision.W4, {}).digest


def test_a_mix_has_its_own_scales_and_offsets_and_the_roundings_of_all_int8() -> None:
    mix, other = (Assignment({"g": precision}) for precision in (Precision.INT8, Precision.FP32))
    own = {"late": Correction(offset=np.ones(2, np.float32))}
    ranges = Ranges("minmax", {}, {}, 1, recovery=Recovery(FACTORS, {"conv": CORRECTION}))
    with_own = Ranges.from_json(json.loads(json.dumps(ranges.with_mixes({mix.digest: own}).to_json())))
    found = with_own.recovery.corrections_in(mix)
    assert set(found) == {"conv", "late"}
    assert (found["conv"].scale, found["conv"].offset) == (None, None)
    np.testing.assert_array_equal(found["conv"].rounding, CORRECTION.rounding)
    np.testing.assert_array_equal(found["late"].offset, own["late"].offset)
    assert with_own.recovery.corrections_in(other) == with_own.recovery.corrections
    assert with_own.for_mix(other) == ranges, "what is of one mix says nothing of another"
    assert with_own.for_mix(mix).recovery == Recovery(FACTORS, found)
    assert ranges.with_mixes({}).digest == ranges.digest != with_own.digest


def test_means_are_what_is_left_without_roundings() -> None:
    recovery = Recovery({}, {"conv": CORRECTION, "rounded": Correction(rounding=CORRECTION.rounding)})
    assert set(recovery.means) == {"conv"}
    assert recovery.means["conv"].rounding is None
    assert recovery.with_means(recovery.means) == recovery
    assert set(recovery.with_means({}).corrections) == {"conv", "rounded"}
