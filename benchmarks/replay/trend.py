"""What both halves of a simulator begin with: totals of an assignment, so that the unseen is judged by its like."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay.measured import Rows
from benchmarks.replay.precisions import MEASURED, PRECISIONS
from search.space.layout import Layout, Precisions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Totals:
    """Totals of an assignment, each divided by its largest.

    Groups in each precision but the first; edges between each pair of precisions, by number and by size of the tensor;
    and the time that the uniform engines' profiles say, where there are some.

    Attributes:
        times: (groups, `PRECISIONS`) ms; zeros where there are no profiles.
    """

    layout: Layout
    times: Floats

    def __call__(self, precisions: Precisions) -> Floats:
        groups, (sources, targets) = len(self.layout.groups), self.layout.edges.T
        found = [(precisions == precision).mean(axis=1) for precision in range(1, PRECISIONS)]
        weights = self.layout.elements / max(self.layout.elements.sum(), 1.0)
        for one, other in combinations(range(PRECISIONS), 2):
            ends = precisions[:, sources], precisions[:, targets]
            changed = ((ends[0] == one) & (ends[1] == other)) | ((ends[0] == other) & (ends[1] == one))
            found += [changed.mean(axis=1), changed @ weights]
        ms = self.times[np.arange(groups), precisions].sum(axis=1)
        return np.stack([*found, ms / (np.max(self.times.sum(axis=0)) or 1.0)], axis=1)


def totals(rows: Rows) -> Totals:
    times = np.zeros((len(rows.layout.groups), PRECISIONS))
    place = {group: i for i, group in enumerate(rows.layout.groups)}
    for precision, layers in rows.profiles.items():
        for layer in layers:
            if layer.group is not None and not layer.moves:
                times[place[layer.group], MEASURED.index(precision)] += layer.ms
    return Totals(rows.layout, times)
