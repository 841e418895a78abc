"""The interface of all forms of data: samples by index, all or some, in batches, which may be read ahead."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluators import cores
from search.values import digest_of

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

    @property
    def forms(self) -> Indices | None:
        """(samples,) the same number for samples of one shape, labels included; None where all have the same."""

    def __len__(self) -> int:
        """Number of samples."""

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        """Rows in the order of `indices`: (len(indices), …) arrays by input name in the model's dtypes, and labels.

        Several labels are one array with a field for each, see `label_arrays`. All samples have to be of one form.

        Raises:
            DataError: a sample that is only now read does not fit the model, or its file is gone.
        """

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        """The labels that `batch` gives, (len(indices), …), without reading more than they need.

        None where there are none, and where labels of these samples have several shapes, which no array holds.
        """

    def source_rows(self, indices: Indices) -> Indices:
        """Where these samples stand in the data as they were given, counted from 0 over all their files in order."""


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
        sizes: real rows of each batch, at most `batch`, which sum to the number of samples; None for batches as full as
            they can be. A batch holds samples of one form, so it also ends where the next sample has another.
    """
    start = 0
    for size in batch_sizes(dataset.forms, indices, batch) if sizes is None else sizes:
        wanted = indices[start : start + size]
        start += size
        padded = np.pad(wanted, (0, batch - len(wanted)), mode="edge")
        rows, labels = dataset.batch(padded)
        yield Batch(rows, None if labels is None else labels[: len(wanted)], len(wanted))


def batch_sizes(forms: Indices | None, indices: Indices, batch: int) -> Iterator[int]:
    """How many samples each batch holds: full ones, but for the last before a sample of another form.

    Args:
        forms: of all samples of the data set; None where there is one.
        indices: of the samples, in their order.
    """
    changes = [] if forms is None else (np.flatnonzero(np.diff(forms[indices])) + 1).tolist()
    for start, stop in pairwise([0, *changes, len(indices)]):
        yield from (min(batch, stop - first) for first in range(start, stop, batch))


def gather_forms(dataset: Dataset, indices: Indices, batch: int) -> Indices:
    """Put samples into an order in which batches hold one form each and are full where they can be.

    The batches stand in an order that depends on the content of the data alone, so that the first of them are a fair
    part of all. Where the data have one form, the order stays as it is.
    """
    forms = dataset.forms
    if forms is None:
        return indices
    parts = [indices[forms[indices] == form] for form in np.unique(forms[indices])]
    whole = [part[start : start + batch] for part in parts for start in range(0, len(part), batch)]
    order = np.random.RandomState(int(dataset.digest[:8], 16)).permutation(len(whole))
    return np.concatenate([indices[:0], *(whole[place] for place in order)])


T = TypeVar("T")
_WORTH_S = 0.001  # a read that takes less is not worth a thread


def read_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Pass items on in their order, each read by one other thread while the caller works on the one before it.

    Reading begins in the caller's thread and moves to the other once it takes a while. What reading raises is raised
    where its item would have come. Close the generator, or exhaust it, before the items' source is used otherwise.
    """
    for item in items:
        yield item
        start = time.perf_counter()
        following = next(items, None)
        if following is None:
            return
        if time.perf_counter() - start > _WORTH_S:
            yield from _beside(following, items)
            return
        yield following


def _beside(item: T | None, items: Iterator[T]) -> Generator[T, None, None]:
    with ThreadPoolExecutor(1, "reading", initializer=cores.bind_thread, initargs=(cores.spare_cpus(),)) as pool:
        while item is not None:
            coming = pool.submit(next, items, None)
            yield item
            item = coming.result()


def limit(dataset: Dataset, most: int | None) -> Dataset:
    """The data set, or where it has more samples than `most` so many of them, drawn by its content alone."""
    if most is None or len(dataset) <= most:
        return dataset
    random = np.random.RandomState(int(dataset.digest[:8], 16))
    return LimitedDataset(dataset, np.sort(random.permutation(len(dataset))[:most]).astype(np.int64))


class LimitedDataset:
    """Some samples of another data set, which are counted again from 0.

    Args:
        whole: the other one.
        kept: (samples,) numbers of the samples, ascending.
    """

    def __init__(self, whole: Dataset, kept: Indices) -> None:
        self._whole = whole
        self._kept = kept
        self._digest = digest_of({"of": whole.digest, "kept": kept.tolist()})

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def digest(self) -> str:
        return self._digest

    @property
    def has_labels(self) -> bool:
        return self._whole.has_labels

    @property
    def clusters(self) -> NDArray[Any] | None:
        clusters = self._whole.clusters
        return None if clusters is None else clusters[self._kept]

    @property
    def forms(self) -> Indices | None:
        forms = self._whole.forms
        return None if forms is None else forms[self._kept]

    def batch(self, indices: Indices) -> tuple[Arrays, NDArray[Any] | None]:
        return self._whole.batch(self._kept[indices])

    def labels(self, indices: Indices) -> NDArray[Any] | None:
        return self._whole.labels(self._kept[indices])

    def source_rows(self, indices: Indices) -> Indices:
        return self._whole.source_rows(self._kept[indices])
