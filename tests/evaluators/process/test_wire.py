from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.process.wire import dumps, read
from search.values import (
    Accuracy,
    Assignment,
    AuditRow,
    Capability,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    Precision,
    Stage,
    Target,
)


def evaluation() -> Evaluation:
    return Evaluation(
        assignment=Assignment({"g000": Precision.INT8, "g001": Precision.FP32}),
        failure=Failure(Stage.ACCURACY, FailureKind.NON_FINITE, "größer als ∞\n\ttab", "log\x1b[m \udcff"),
        audit=(
            AuditRow("g000", Precision.INT8, Precision.INT8, "QLinearConv"),
            AuditRow("g001", Precision.FP32, None, ""),
        ),
        latency=Latency(1.5, 1.25, 0.01, None, np.array([1.0, np.nan, np.inf]), np.empty(0), ("spread",)),
        accuracy=Accuracy("top1", 0.5, -0.0, -math.inf, math.inf, 2, 4, np.array([0.0, 1.0])),
        size_bytes=2**40,
        build_s=0.1 + 0.2,
        attempts=2,
        notes=("a", "b"),
    )


def same(left: Any, right: Any) -> Any:
    """Equal in type and value, arrays and NaN included, all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in dataclasses.fields(left))
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(map(same, left.values(), right.values()))
    if isinstance(left, float) and math.isnan(left):
        return math.isnan(right)
    equal: bool = left == right
    return equal


VALUES: list[tuple[Any, Any]] = [
    (None, None),
    (True, bool),
    (-(2**70), int),
    (0.1, float),
    (math.nan, float),
    (-math.inf, float),
    ("", str),
    ("zero\0, line\n, snow ☃, half \ud800", str),
    ([1, [2.5, None]], Any),
    ((), tuple[int, ...]),
    ((1, (2, [3])), tuple[int, tuple[int, list[int]]]),
    ({"a": {"b": [[]]}}, dict[str, Any]),
    ({Precision.INT8: (1, "codes are keys too"), Precision.FP16: (2, "")}, dict[Precision, tuple[int, str]]),
    ({1: "one"}, dict[int, str]),
    (frozenset({"Conv", "Gemm"}), frozenset[str]),
    (Path("a b/\udcff"), Path),
    (Precision.FP16, Precision),
    (Stage.BUILD, Stage | None),
    (FailureKind.OUT_OF_MEMORY, FailureKind),
    (Assignment({"g": Precision.INT8}), Assignment),
    (Assignment({}), Assignment),
    (Capability({Precision.INT8: frozenset({"Conv", "Gemm"})}, min_channels=16), Capability),
    (Target("onnxruntime", "AMD EPYC", {"onnxruntime": "1"}, {"threads": "1"}, "p20", True), Target),
    (evaluation(), Evaluation),
    ({"1": evaluation().latency}, Mapping[str, Latency | None]),
]


def back(value: Any, kind: Any) -> Any:
    return read(json.loads(dumps(value)), kind)


@pytest.mark.parametrize(("value", "kind"), VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_it_was(value: Any, kind: Any) -> None:
    assert same(back(value, kind), value)


@pytest.mark.parametrize(
    "array",
    [
        np.empty(0),
        np.empty((0, 3), np.int8),
        np.array(3.5, np.float32),
        np.arange(24, dtype=np.int64).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(6.0)[::-2],
        np.array([1.0, np.nan, -0.0, np.inf], np.float16),
        np.array([True, False]),
        np.arange(3, dtype=">i4"),
        np.array(["a", "größer"]),
        np.asfortranarray(np.ones((2, 3), np.complex64)),
    ],
    ids=lambda array: f"{array.dtype.str}{array.shape}",
)
def test_an_array_comes_back_bit_for_bit_and_writable(array: np.ndarray[Any, Any]) -> None:
    found = back(array, NDArray[Any])
    assert same(found, np.ascontiguousarray(array).reshape(array.shape))
    assert found.flags.writeable


@pytest.mark.parametrize("scalar", [np.float32(0.5), np.float64("nan"), np.int64(7), np.bool_(True), np.str_("x")])
def test_numpy_scalars_become_pythons_own(scalar: Any) -> None:
    found = back({"x": [scalar]}, dict[str, list[type(scalar.item())]])["x"][0]  # type: ignore[misc]
    assert type(found) in (float, int, bool, str)
    assert same(found, scalar.item())


def test_a_message_is_one_line_of_ascii() -> None:
    text = dumps({"message": "two\r\nlines\u2028 ☃", "value": evaluation()})
    assert text.isascii()
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    "value",
    [
        object(),
        np.array([object()]),
        np.array([None, "text"], object),
        np.zeros(2, [("a", "f4")]),
        1 + 2j,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_it_does_not_know_is_refused_by_the_sender(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps({"value": [value]})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("x", int),
        (None, Path),
        ({"stage": 1}, Failure),
        ({}, Failure),
        ("lunch", Stage),
        (7, Assignment),
        ({"g": "int7"}, Assignment),
        (["a"], NDArray[Any]),
        ({"dtype": "<f8", "shape": [3]}, NDArray[Any]),
        ({"dtype": "<f8", "shape": [3], "data": "AAAA"}, NDArray[Any]),
        ({"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}, NDArray[Any]),
    ],
)
def test_anything_else_is_a_value_error_on_the_other_side(value: Any, kind: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of msgspec, of numpy, or our own
        read(value, kind)
