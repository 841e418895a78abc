"""Judging evaluations by limits: which keep them, which are on the front, and which come nearest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search.values import REFERENCE
from studies.judging.final_split import FinalSplit
from studies.judging.measures import Measures
from studies.judging.rules import feasibility, verdicts
from studies.judging.rules.front import front
from studies.options.limits import LATENCY_MS, LOSS, METRIC_VALUE, Limits, MetricScale

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


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
        base = self.measures.row_of(REFERENCE.role)
        reference = np.nan if base is None else float(t.metric_value[base])
        return self._within(t.loss_low, reference - sign * t.loss_low)

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
