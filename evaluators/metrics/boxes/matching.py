"""How much boxes overlap, and which detections are right, as COCO decides it, for all samples of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OVERLAPS = np.linspace(0.5, 0.95, 10)
WRONG, RIGHT, IGNORED = np.int8(0), np.int8(1), np.int8(2)
_MOST = 100  # detections of a class in one sample
_LEAST = np.minimum(OVERLAPS, 1 - 1e-10)

States = NDArray[np.int8]
Numbers = NDArray[np.int64]
Chosen = NDArray[np.bool_]


@dataclass(frozen=True)
class Detections:
    """Detections of a batch, of each class in each sample at most 100: by class, then sample, then the best first.

    Attributes:
        rows: (k, 6) x1, y1, x2, y2, score and class.
        samples: (k,) the sample of each.
    """

    rows: Boxes
    samples: Numbers

    @classmethod
    def of(cls, boxes: Sequence[Boxes]) -> Detections:
        """The best of rows (k, 6) of each sample; those with a class below 0 are left out."""
        samples = np.repeat(np.arange(len(boxes)), [len(rows) for rows in boxes])
        rows = np.concatenate([np.empty((0, 6)), *boxes])
        real = rows[:, 5] >= 0
        rows, samples = rows[real], samples[real]
        order = np.lexsort((-rows[:, 4], samples, rows[:, 5]))
        rows, samples = rows[order], samples[order]
        starts, counts = _runs(rows[:, 5], samples)
        best = np.arange(len(rows)) - np.repeat(starts, counts) < _MOST
        return cls(rows[best], samples[best])

    def of_each_class(self) -> Iterator[tuple[float, slice]]:
        """Every class, and where its detections are."""
        starts, counts = _runs(self.rows[:, 5])
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            yield float(self.rows[start, 5]), slice(start, start + count)


@dataclass(frozen=True)
class Objects:
    """The labelled objects of a batch.

    Attributes:
        boxes: (m, 4) float64.
        classes, samples: (m,) of each.
        crowd: (m,) boxes that stand for many objects: any number of detections may lie in one.
        ignored: (m,) what is neither wanted nor wrong to find.
    """

    boxes: Boxes
    classes: Boxes
    samples: Numbers
    crowd: Chosen
    ignored: Chosen

    @classmethod
    def of(cls, labels: Boxes, areas: tuple[float, float]) -> Objects:
        """Objects from labels (n, m, 5 to 7), and the least and most area of those that count."""
        samples, places = np.nonzero(labels[..., 4] >= 0)
        rows = labels[samples, places]
        crowd = rows[:, 5] > 0 if rows.shape[1] > 5 else np.zeros(len(rows), np.bool_)
        sizes = rows[:, 6] if rows.shape[1] > 6 else box_areas(rows)
        ignored = crowd | (sizes < areas[0]) | (sizes > areas[1])
        return cls(rows[:, :4], rows[:, 4], samples, crowd, ignored)


def match(detections: Detections, objects: Objects) -> States:
    """(overlaps, k) states of detections: each takes the object of its class that it overlaps most, the best first.

    Objects that count go before those that are ignored, and of equal overlaps the last wins.
    """
    states = np.full((len(OVERLAPS), len(detections.rows)), WRONG)
    groups = _Groups(objects)
    hits, overlaps = groups.find_overlaps(detections)
    owners = groups.of(detections)[hits]
    free = np.ones((len(groups.counts), len(OVERLAPS), groups.most), np.bool_)
    # Detections of different groups take nothing from one another: the first of every group at once, and so on.
    for some in _split_by_rank(owners):
        group = owners[some]
        taken, takes = _choose(overlaps[some], free[group], groups.ignored[group])
        rows, levels = np.nonzero(takes)
        own, place = group[rows], taken[rows, levels]
        states[levels, hits[some][rows]] = np.where(groups.ignored[own, place], IGNORED, RIGHT)
        free[own, levels, place] = groups.crowd[own, place]
    return states


class _Groups:
    """Objects of the same class and sample, a row for each group: those that count first, filled up with none.

    Attributes:
        counts: (groups,) objects of each.
        most: the largest count.
        crowd, ignored: (groups, most) of each object.
    """

    def __init__(self, objects: Objects) -> None:
        order = np.lexsort((objects.ignored, objects.samples, objects.classes))
        classes, samples = objects.classes[order], objects.samples[order]
        self._boxes, self._crowd = objects.boxes[order], objects.crowd[order]
        self._starts, self.counts = _runs(classes, samples)
        keys = zip(classes[self._starts].tolist(), samples[self._starts].tolist(), strict=True)
        self._numbers = {key: number for number, key in enumerate(keys)}
        self.most = int(self.counts.max(initial=0))
        there = np.arange(self.most) < self.counts[:, None]
        self.crowd, self.ignored = np.zeros(there.shape, np.bool_), np.zeros(there.shape, np.bool_)
        self.crowd[there], self.ignored[there] = self._crowd, objects.ignored[order]

    def of(self, detections: Detections) -> Numbers:
        """(k,) the group of each detection; -1 where there is no object of its class in its sample."""
        starts, counts = _runs(detections.rows[:, 5], detections.samples)
        keys = zip(detections.rows[starts, 5].tolist(), detections.samples[starts].tolist(), strict=True)
        return np.repeat(np.array([self._numbers.get(key, -1) for key in keys], np.int64), counts)

    def find_overlaps(self, detections: Detections) -> tuple[Numbers, Boxes]:
        """Places (h,) of the detections that overlap any object enough, and by how much each one (h, most)."""
        owners = self.of(detections)
        places = np.flatnonzero(owners >= 0)
        counts = self.counts[owners[places]]
        pairs = np.repeat(np.arange(len(places)), counts)
        columns = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen = self._starts[owners[places]][pairs] + columns
        boxes = detections.rows[:, :4].take(places[pairs], axis=0)
        overlaps = np.full((len(places), self.most), -1.0)
        overlaps[pairs, columns] = paired_overlap(boxes, self._boxes.take(chosen, axis=0), self._crowd[chosen])
        enough = (overlaps >= _LEAST[0]).any(axis=1)
        return places[enough], overlaps[enough]


def _choose(overlaps: Boxes, free: Chosen, ignored: Chosen) -> tuple[Numbers, Chosen]:
    """The object that each of a detections takes at each least overlap, and whether it takes one: (a, levels).

    Args:
        overlaps: (a, most) with the objects of its group.
        free: (a, levels, most) objects that are not taken yet.
        ignored: (a, most) objects that do not count.
    """
    fits = free & (overlaps[:, None] >= _LEAST[:, None])
    counting = fits & ~ignored[:, None]
    wanted = np.where(counting.any(axis=2, keepdims=True), counting, fits)
    values = np.where(wanted, overlaps[:, None], -1.0)
    taken: Numbers = values.shape[2] - 1 - values[..., ::-1].argmax(axis=2)
    takes: Chosen = np.any(wanted, axis=2)
    return taken, takes


def _split_by_rank(owners: Numbers) -> list[Numbers]:
    """Places of the first of every owner, then of the second, and so on; equal owners stand together."""
    starts, counts = _runs(owners)
    ranks = np.arange(len(owners)) - np.repeat(starts, counts)
    return np.split(np.argsort(ranks, kind="stable"), np.cumsum(np.bincount(ranks))[:-1]) if len(owners) else []


def _runs(*keys: NDArray[Any]) -> tuple[Numbers, Numbers]:
    """Starts and lengths of the runs in which all keys, (k,) each, stay the same."""
    changes = [key[1:] != key[:-1] for key in keys]
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(keys[0])), np.bool_), np.logical_or.reduce(changes)]))
    return starts, np.diff(starts, append=len(keys[0]))


Boxes = NDArray[np.float64]  # columns x1, y1, x2, y2, perhaps more


def box_areas(boxes: Boxes) -> Boxes:
    """(n, 4) boxes to (n,) areas."""
    areas: Boxes = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return areas


def paired_overlap(boxes: Boxes, others: Boxes, crowd: NDArray[np.bool_] | None = None) -> Boxes:
    """Intersection over union of boxes (p, 4) and others (p, 4), row by row: (p,) float64.

    Args:
        crowd: (p,) others that stand for many objects: the intersection is divided by the box's own area there.
    """
    inner = paired_intersection(list(boxes.T), list(others.T))
    own = box_areas(boxes)
    whole = own + box_areas(others) - inner
    if crowd is not None:
        whole = np.where(crowd, own, whole)
    shares: Boxes = np.divide(inner, whole, out=np.zeros_like(inner), where=inner > 0)
    return shares


def paired_intersection(boxes: Sequence[Boxes], others: Sequence[Boxes]) -> Boxes:
    """(p,) area that boxes and others share, pair by pair; of both x1, y1, x2 and y2, (p,) each."""
    inner = _shared_length(boxes[0], boxes[2], others[0], others[2])
    inner *= _shared_length(boxes[1], boxes[3], others[1], others[3])
    return inner


def _shared_length(low: Boxes, high: Boxes, other_low: Boxes, other_high: Boxes) -> Boxes:
    shared = np.minimum(high, other_high)
    shared -= np.maximum(low, other_low)
    return np.maximum(shared, 0.0, out=shared)
