"""What every form of data gives: samples by index, in batches as the model takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Indices = NDArray[np.int64]


class Dataset(Protocol):
    """Samples that fit a model. Its content never changes while it is open."""

    @property
    def digest(self) -> str:
        """64 hex digits of the content: names, dtypes, shapes and bytes, however they are stored."""

    @property
    def has_labels(self) -> bool: ...

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        """Rows in the order of `indices`: (len(indices), …) arrays by input name in the model's dtypes, and labels.

        Raises:
            DataError: a sample that is only now read does not fit the model, or its file is gone.
        """

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        """The labels that `batch` gives, (len(indices), …), without reading more than they need."""


@dataclass(frozen=True)
class Batch:
    """What one inference takes.

    Attributes:
        inputs: by input name, exactly the model's batch of rows; the last real row repeated where samples ran out.
        labels: labels of the real rows, (count, …); None without labels.
        count: real rows; outputs behind them are to be thrown away.
    """

    inputs: Arrays
    labels: NDArray[Any] | None
    count: int


def batches(dataset: Dataset, indices: Indices, batch: int) -> Iterator[Batch]:
    """The samples at `indices`, in this order, `batch` at a time, the last batch padded. Reads lazily."""
    for start in range(0, len(indices), batch):
        wanted = indices[start : start + batch]
        padded = np.pad(wanted, (0, batch - len(wanted)), mode="edge")
        rows, labels = dataset.batch(padded)
        yield Batch(rows, None if labels is None else labels[: len(wanted)], len(wanted))
