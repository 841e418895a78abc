"""The interface of all forms of data: samples by index, in batches as the model takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    @property
    def clusters(self) -> NDArray[Any] | None:
        """(samples,) int64 or text: the same for samples that belong together; None if the data do not say."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        """Rows in the order of `indices`: (len(indices), …) arrays by input name in the model's dtypes, and labels.

        Several labels are one array with a field for each, see `label_arrays`.

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


def batches(dataset: Dataset, indices: Indices, batch: int, sizes: Sequence[int] | None = None) -> Iterator[Batch]:
    """The samples at `indices`, in this order, in batches that are filled up to `batch` rows. Reads lazily.

    Args:
        sizes: real rows of each batch, at most `batch`, which sum to the number of samples; None for full batches but
            for the last.
    """
    start = 0
    for size in _full_sizes(len(indices), batch) if sizes is None else sizes:
        wanted = indices[start : start + size]
        start += size
        padded = np.pad(wanted, (0, batch - len(wanted)), mode="edge")
        rows, labels = dataset.batch(padded)
        yield Batch(rows, None if labels is None else labels[: len(wanted)], len(wanted))


def _full_sizes(samples: int, batch: int) -> Iterator[int]:
    return (min(batch, samples - start) for start in range(0, samples, batch))
