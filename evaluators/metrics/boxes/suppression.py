"""Greedy suppression: of boxes of one class that overlap the best is kept. All samples of a batch at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.metrics.boxes.matching import Boxes, box_areas, paired_intersection

Numbers = NDArray[np.int64]
Chosen = NDArray[np.bool_]

_CANDIDATES = 3000  # of a sample, the best; more are the far end of the curve
_SORTED_FIRST = 512  # of the candidates: a trained network seldom needs more until enough are kept
_AT_ONCE = 64  # of a sample, compared in one round
_KEPT = 300
_PAIRS = 2**13  # compared at once, so that they stay in the CPU's cache


class BestDetections:
    """The best 3000 detections of one sample before suppression; of equal scores the first goes first.

    Args:
        scores: (k,) float.
        boxes, classes: (k,) numbers.
    """

    def __init__(self, scores: NDArray[Any], boxes: Numbers, classes: Numbers) -> None:
        best = _largest(scores, _CANDIDATES)  # an engine that is broken may give every box a high score
        self.scores, self.boxes, self.classes = scores[best], boxes[best], classes[best]
        self._sorted = self._best_first(_SORTED_FIRST)
        self._taken = 0

    def take(self, count: int) -> Numbers:
        """Places of the next best; fewer where there are no more."""
        if self._taken + count > _SORTED_FIRST == len(self._sorted):
            self._sorted = self._best_first(_CANDIDATES)
        places = self._sorted[self._taken : self._taken + count]
        self._taken += len(places)
        return places

    def _best_first(self, most: int) -> Numbers:
        places = _largest(self.scores, most)
        return places[np.argsort(-self.scores[places], kind="stable")]


def _largest(scores: NDArray[Any], most: int) -> Numbers:
    """Places of the largest scores, ascending; of equal ones the first."""
    if len(scores) <= most:
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - most)[len(scores) - most]
    above = np.flatnonzero(scores > least)
    ties = np.flatnonzero(scores == least)[: most - len(above)]
    return np.sort(np.concatenate([above, ties]))


def suppress_overlaps(
    samples: Sequence[BestDetections], boxes: Callable[[Numbers, Numbers], Boxes], most_overlap: float
) -> list[Boxes]:
    """Keep those of each sample's best 3000 detections that overlap no better one of their class, the best first.

    Detections are sorted and compared, the best first, until 300 of a sample are kept.

    Args:
        samples: the candidates of each; they are used up.
        boxes: gives boxes (k, 4) by the numbers of their samples and of their boxes, both (k,).
        most_overlap: what overlaps a better detection by more than this is left out.

    Returns:
        (k, 6) for each sample, at most 300.
    """
    detections = [np.empty((0, 6)) for _ in samples]
    owners, rows = np.empty(0, np.int64), np.empty((0, 6))  # kept of the samples that are not finished
    left = list(range(len(samples)))
    while left:
        old = len(rows)
        next_owners, next_rows = _take_rows(samples, left, boxes)
        owners, rows = np.concatenate([owners, next_owners]), np.concatenate([rows, next_rows])
        kept = _keep(owners, rows, old, most_overlap)
        owners, rows = owners[kept], rows[kept]
        counts, more = np.bincount(owners, minlength=len(samples)), np.bincount(next_owners, minlength=len(samples))
        finished = [sample for sample in left if counts[sample] >= _KEPT or more[sample] < _AT_ONCE]
        for sample in finished:
            detections[sample] = rows[owners == sample][:_KEPT]
        left = [sample for sample in left if sample not in finished]
        unfinished = np.isin(owners, left)
        owners, rows = owners[unfinished], rows[unfinished]
    return detections


def _take_rows(
    samples: Sequence[BestDetections], left: Sequence[int], boxes: Callable[[Numbers, Numbers], Boxes]
) -> tuple[Numbers, Boxes]:
    """The next detections (k, 6) of the samples that are left, the best of each first, and their samples (k,)."""
    taken = [(samples[number], samples[number].take(_AT_ONCE)) for number in left]
    owners = np.repeat(left, [len(places) for _, places in taken])
    numbers = np.concatenate([sample.boxes[places] for sample, places in taken])
    scores = np.concatenate([sample.scores[places] for sample, places in taken])
    classes = np.concatenate([sample.classes[places] for sample, places in taken])
    return owners, np.column_stack([boxes(owners, numbers), scores, classes])


def _keep(owners: Numbers, rows: Boxes, old: int, most_overlap: float) -> Chosen:
    """(k,) which of detections (k, 6) are kept, the best of each sample first; the first `old` are kept already.

    Whether a detection is kept follows from the better ones alone, so that every pass settles at least one more.
    """
    worse, better = _rivals(owners, rows, old, most_overlap)
    kept, before = np.ones(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    while not np.array_equal(kept, before):
        kept, before = np.ones(len(rows), np.bool_), kept
        kept[worse[before[better]]] = False
    return kept


def _rivals(owners: Numbers, rows: Boxes, old: int, most_overlap: float) -> tuple[Numbers, Numbers]:
    """Places of the detections from `old` on that overlap a better one of their sample and class, and of that one."""
    order = np.lexsort((rows[:, 5], owners))  # keeps the order within a class
    ordered = rows.take(order, axis=0)
    columns = np.concatenate([ordered[:, :4].T, box_areas(ordered)[None]])
    starts = _group_starts(owners[order], rows[order, 5])
    places = np.flatnonzero(order >= old)
    pairs = [_select_overlaps(columns, worse, better, most_overlap) for worse, better in _pairs(places, starts[places])]
    worse = np.concatenate([np.empty(0, np.int64), *(some for some, _ in pairs)])
    better = np.concatenate([np.empty(0, np.int64), *(some for _, some in pairs)])
    return order[worse], order[better]


def _group_starts(owners: Numbers, classes: Boxes) -> Numbers:
    """(k,) where the run of the same sample and class begins that each belongs to."""
    first = np.ones(len(owners), np.bool_)
    first[1:] = (owners[1:] != owners[:-1]) | (classes[1:] != classes[:-1])
    starts = np.flatnonzero(first)
    own_starts: Numbers = starts[np.cumsum(first) - 1]
    return own_starts


def _pairs(places: Numbers, starts: Numbers) -> Iterator[tuple[Numbers, Numbers]]:
    """Every place with each one from its start on before it, some at a time."""
    counts = places - starts
    ends = np.cumsum(counts)
    cuts = np.flatnonzero(np.diff(ends // _PAIRS, prepend=0))
    for first, last in zip([0, *cuts], [*cuts, len(places)], strict=True):
        some = counts[first:last]
        before = np.cumsum(some) - some
        worse = np.repeat(places[first:last], some)
        yield worse, np.arange(len(worse)) + np.repeat(starts[first:last] - before, some)


def _select_overlaps(columns: Boxes, worse: Numbers, better: Numbers, most: float) -> tuple[Numbers, Numbers]:
    """The pairs that overlap by more than this; columns (5, k) are x1, y1, x2, y2 and area."""
    # Each column alone: `take` is quicker than an index, and one array of all columns would not stay in the cache.
    some, others = ([column.take(places) for column in columns] for places in (worse, better))
    inner = paired_intersection(some, others)
    whole = some[4] + others[4]
    whole -= inner
    with np.errstate(all="ignore"):  # empty boxes: 0 / 0 is not more than anything
        inner /= whole
    hits = np.flatnonzero(inner > most)
    return worse[hits], better[hits]
