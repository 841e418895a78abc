"""Precisions: facts of each, and order by rank and not by stored id."""

from __future__ import annotations

import ml_dtypes
import pytest

from search.values import Assignment, Precision

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
KEPT_IDS = {"fp32": 0, "fp16": 1, "int8": 2}


def test_ids_are_as_they_were_stored() -> None:
    assert {precision.label: precision.id for precision in Precision} == KEPT_IDS
    assert [Precision.of_id(precision.id) for precision in Precision] == list(Precision)
    with pytest.raises(ValueError, match="no precision has the id 99"):
        Precision.of_id(99)


def test_every_precision_has_every_fact() -> None:
    for precision in Precision:
        assert {name for name in Precision.__annotations__ if not name.startswith("_")} <= vars(precision).keys()
    for fact in ("id", "rank", "colour", "dtype"):
        assert len({getattr(precision, fact) for precision in Precision}) == len(Precision)
    assert [precision.largest for precision in Precision if not precision.quantized] == [
        float(ml_dtypes.finfo(precision.dtype).max) for precision in Precision if not precision.quantized
    ]


def test_digests_of_assignments_hold_ids() -> None:
    """A stored digest must never change: this one was made when ids were the order."""
    known = "385423f5"
    assert Assignment({"g000": FP32, "g001": FP16, "g002": INT8}).digest.startswith(known)
