"""Scores on the final split, by the rows of a table of evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from studies.judging.rules.verdicts import FinalBounds
from studies.store.columns import Columns

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FinalSplit:
    """What is known of the final split.

    Attributes:
        scores: as stored.
        ids: (n,) evaluation ids of the table whose rows are asked for.
    """

    scores: Columns
    ids: NDArray[np.int64]

    @cached_property
    def tried_rows(self) -> Bools:
        """(n,) rows that were run on the final split, those that cannot be scored there too."""
        result: Bools = self._places >= 0
        return result

    @cached_property
    def unscorable(self) -> Bools:
        """(n,) rows whose outputs there cannot be scored: they are no pick, whatever the search says of them.

        A row of which nothing is stored there is none of them, as it may yet hold.
        """
        result: Bools = np.isin(self.ids, self.scores.evaluation_id[self.scores.samples == 0])
        return result

    @cached_property
    def scored_count(self) -> int:
        """How many evaluations were scored there."""
        return int((self.scores.samples > 0).sum())

    def column(self, name: str) -> Floats:
        """(n,) a column of the scores, NaN if there is nothing."""
        column = np.append(np.asarray(getattr(self.scores, name), np.float64), np.nan)
        result: Floats = column[self._places]
        return result

    def place(self, row: int) -> int | None:
        """Where in `scores` a row stands; None if it was not tried."""
        place = int(self._places[row])
        return place if place >= 0 else None

    def bounds(self, row: int) -> FinalBounds:
        """The bounds by which a row is judged; without any where it was not scored."""
        place = self.place(row)
        return (
            FinalBounds()
            if place is None
            else FinalBounds(self.scores.loss_bounds[place], self.scores.value_bounds[place])
        )

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        """(n,) the place in `scores` of each row; -1 where there is none."""
        scored = self.scores.evaluation_id
        result = np.full(len(self.ids), -1, np.int64)
        known = np.isin(scored, self.ids)
        result[np.searchsorted(self.ids, scored[known])] = np.flatnonzero(known)  # both are in order of id
        return result
