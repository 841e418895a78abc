"""How much boxes overlap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
