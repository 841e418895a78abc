"""A session without an engine: its outputs stand in tables, by the numbers of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Rows:
    """One batch; `x` holds row numbers of the whole split, -1 where filled up."""

    inputs: dict[str, NDArray[Any]]
    labels: NDArray[Any] | None
    count: int


class Table:
    """A session that looks its outputs up by row number; filled-up rows get NaN, which must never count."""

    memory_bytes = None

    def __init__(self, **outputs: NDArray[Any]) -> None:
        self.outputs = {name: np.concatenate([rows, np.full_like(rows[:1], np.nan)]) for name, rows in outputs.items()}
        self.rows_seen = 0

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.rows_seen += int((inputs["x"] >= 0).sum())
        return {name: rows[inputs["x"]] for name, rows in self.outputs.items()}

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None: ...

    def time(self, count: int) -> NDArray[np.float64]:
        return np.ones(count)

    def close(self) -> None: ...


def batched(total: int, size: int, labels: NDArray[Any] | None = None) -> Iterator[Rows]:
    for start in range(0, total, size):
        numbers = np.arange(start, start + size)
        own = None if labels is None else np.resize(labels[start : start + size], (size, *labels.shape[1:]))
        yield Rows({"x": np.where(numbers < total, numbers, -1)}, own, min(size, total - start))
