"""The file of a user's own outputs: what can be read, and one clear message for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.diagnose.wrapper.outputs_file import check_shapes, read_outputs
from search.errors import DataError

ROWS = 20
BOXES, LOGITS = np.zeros((ROWS, 4), np.float32), np.ones((ROWS, 3, 5), np.float16)


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "mine.npz", **{"boxes": BOXES, "logits": LOGITS, **arrays})
    return folder / "mine.npz"


def read(path: Path, samples: int = 30, most: int = 64) -> Any:
    return read_outputs(path, ["boxes", "logits"], samples, most)


def test_rows_are_those_of_the_data_or_the_ones_that_are_named(tmp_path: Path) -> None:
    found = read(saved(tmp_path, extra=np.zeros(3)), most=16)
    assert list(found.indices) == list(range(16))
    assert {name: array.shape for name, array in found.arrays.items()} == {"boxes": (16, 4), "logits": (16, 3, 5)}
    named = read(saved(tmp_path, indices=np.arange(ROWS)[::-1] + 5))
    assert list(named.indices) == list(range(ROWS + 4, 4, -1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"boxes": np.zeros((19, 4))}, "as many rows in each output, one per sample, got 'boxes' 19, 'logits' 20"),
        ({"boxes": np.full((ROWS, 4), np.nan)}, "output 'boxes' holds 80 NaN or infinite values, the first in row 0"),
        ({"boxes": np.full((ROWS, 4), "x")}, "output 'boxes' has type <U1; expected numbers"),
        ({"indices": np.zeros(3, int)}, "expected 'indices' to name the sample of each row, shape (20,) of integers"),
        ({"indices": np.full(ROWS, 30)}, "'indices' names sample 30; expected 0 to 29"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(saved(tmp_path, **changes))
    assert words in str(caught.value)
    assert str(tmp_path / "mine.npz") in str(caught.value)


def test_what_is_missing_is_named_beside_what_is_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", boxes=BOXES, scores=LOGITS)
    with pytest.raises(DataError, match="there is none for 'logits', but for 'boxes', 'scores'"):
        read(tmp_path / "mine.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(DataError, match=r"not a readable \.npz archive"):
        read(tmp_path / "text.npz")
    with pytest.raises(DataError, match="at most 10 rows, one per sample of the data in their order, got 20"):
        read(saved(tmp_path), samples=10)
    few = saved(tmp_path, boxes=BOXES[:4], logits=LOGITS[:4])
    with pytest.raises(DataError, match="at least 16 samples, got 4"):
        read(few)


def test_shapes_may_be_those_of_another_order_of_axes_or_of_another_output() -> None:
    expected = {"a": np.zeros((20, 3, 8, 8)), "b": np.zeros((20, 4))}
    for shape in ((20, 8, 8, 3), (20, 8, 3, 8), (20, 4)):
        check_shapes({"a": np.zeros(shape)}, expected, Path("mine.npz"))
    with pytest.raises(DataError, match=r"output 'a' has shape \(20, 192\), expected \(20, 3, 8, 8\)"):
        check_shapes({"a": np.zeros((20, 192))}, expected, Path("mine.npz"))
