"""Judging evaluations by limits, also on the final split: which keep them, are on the front, come nearest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from studies.judging.measures import Measures
from studies.judging.rules import feasibility, verdicts
from studies.judging.rules.front import front
from studies.judging.rules.verdicts import FinalBounds
from studies.options.limits import LATENCY_MS, LOSS, METRIC_VALUE, Limits, MetricScale
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


@dataclass(frozen=True)
class Judgement:
    """One target's evaluations under limits. Masks are (n,) bool over the rows of the table.

    Attributes:
        band: the relative tie band of latency.
    """

    measures: Measures
    final: FinalSplit
    limits: Limits
    metric: MetricScale
    band: float

    @cached_property
    def feasible(self) -> Bools:
        """Rows that keep all limits in the search, ran as requested and can be scored on the final split."""
        result: Bools = self._keeps & ~self.final.unscorable
        return result

    @cached_property
    def barred_rows(self) -> Bools:
        """Rows that keep all limits but cannot be scored on the final split."""
        result: Bools = self._keeps & self.final.unscorable
        return result

    @cached_property
    def regainable(self) -> Bools:
        """Rows that were stopped early and may keep the limits, which only scoring all samples can show.

        Their loss counts with the low end of its interval. No limits have such rows among those that they stopped
        themselves: beyond a latency nothing is regained, and a loss was exceeded with more confidence than this.
        """
        result: Bools = self._may_keep & self.measures.stopped_rows
        return result

    @cached_property
    def near(self) -> Bools:
        """Rows that were scored on all search samples and keep the limits, or would by the low end of their loss.

        Those that cannot be scored on the final split are none of them.
        """
        result: Bools = (self._keeps | self._may_keep) & self.measures.complete & ~self.final.unscorable
        return result

    @cached_property
    def front(self) -> Bools:
        """Feasible rows that no other beats beyond measurement noise."""
        measures = self.measures
        return front(measures.latency_ms, measures.table.loss, self.band, measures.loss_band, self.feasible)

    @cached_property
    def keeps_final(self) -> Bools:
        """Rows that keep all limits by the estimates of the final split and the latest latencies."""
        columns = self._columns(self.final.column("loss"), self.final.column("value"))
        keeps = feasibility.keeps_limits(columns, self.limits, higher_is_better=self.metric.higher_is_better)
        result: Bools = keeps & np.isfinite(columns[LOSS])
        return result

    def nearest(self, count: int = 3, *, early: bool = True) -> list[feasibility.Near]:
        """The rows nearest to the limits, for studies in which no row keeps them.

        Args:
            early: also rows that were stopped early, where they miss the latency alone: that is measured as well as in
                complete rows.
        """
        columns = self._columns(self.measures.table.loss, self.measures.table.metric_value)
        over = feasibility.overshoots(columns, self.limits, higher_is_better=self.metric.higher_is_better)
        eligible = self.measures.complete
        if early and over:
            eligible = eligible | (self.measures.stopped_rows & feasibility.misses_only(over, "latency"))
        return feasibility.nearest(over, eligible & ~self.final.unscorable, count)

    def margins(self, loss: ArrayLike, error: ArrayLike, value: ArrayLike, samples: ArrayLike) -> Floats:
        """(n,) standard errors from these estimates to the nearest accuracy limit.

        Args:
            error: (n,) standard errors of the losses.
            samples: that the estimates rest on; of samples in clusters, which may all be right or wrong together, the
                clusters.
        """
        relative, ratio = self.metric.relative, self.metric.ratio
        of_value = verdicts.value_error(value, error, samples, relative=relative, ratio=ratio)
        higher = self.metric.higher_is_better
        return verdicts.margins(loss, error, value, of_value, self.limits, higher_is_better=higher)

    @cached_property
    def _may_keep(self) -> Bools:
        """Rows that keep the limits if their loss is the low end of its interval."""
        t, sign = self.measures.table, 1.0 if self.metric.higher_is_better else -1.0
        return self._within(t.loss_low, self.measures.fp32_value - sign * t.loss_low)

    @cached_property
    def _keeps(self) -> Bools:
        t = self.measures.table
        result: Bools = self._within(t.loss, t.metric_value) & self.measures.complete
        return result

    def _within(self, loss: Floats, metric_value: Floats) -> Bools:
        """Rows that keep all limits if these are their (n,) losses and metric values."""
        columns, not_obeyed = self._columns(loss, metric_value), self.measures.table.not_obeyed
        return feasibility.feasible(columns, not_obeyed, self.limits, higher_is_better=self.metric.higher_is_better)

    def _columns(self, loss: Floats, metric_value: Floats) -> feasibility.Columns:
        """The objectives and what the limits bound, if these are the (n,) losses and metric values."""
        known = {LATENCY_MS: self.measures.latency_ms, LOSS: loss, METRIC_VALUE: metric_value}
        bounded = {limit.column for limit, _ in self.limits.rows()}
        return known | {column: getattr(self.measures.table, column) for column in bounded - known.keys()}
