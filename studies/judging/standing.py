"""Where a study stands: feasibility, front and picks, derived from stored rows and the limits given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.judging.failure_summary import FailureSummary, summarize_failures
from studies.judging.rules import feasibility, hypervolume, verdicts
from studies.judging.rules import front as fronts
from studies.judging.rules.candidates import Aim, Candidates, aim_of, is_relative
from studies.judging.rules.picks import Picks, choose, ties
from studies.judging.rules.quantiles import quantile
from studies.judging.rules.verdicts import Disagreement, Verdict
from studies.options.limits import LATENCY_MS, LOSS, METRIC_VALUE, Limits
from studies.store.reading.latencies import confirmed_ms
from studies.store.records import (
    EXPORT,
    OK,
    RUNNING,
    EvaluationTable,
    FinalLevel,
    FinalTable,
    StudyRecord,
    TargetRecord,
)
from studies.store.store import Store

# Outputs that correlate less with FP32's share less than 4 % of their variance. An INT8 engine that loses ten points of
# top-1 still has 0.89. Of 64 samples of one value that have nothing to do with FP32's, 19 in 20 stay below this; larger
# outputs always do.
UNRELATED_BELOW = 0.2

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """One target's evaluations, judged by limits. Row numbers index `table`.

    Attributes:
        confirmed_ms: (n,) float64, latency measured again; NaN where it was not, or where that was doubtful and the
            search's own measurement was not.
        number: place of the target in the study, from 1.
        target_name: what tells it from the study's other targets; empty where there is no other.
        finals: scores on the final split, and failures there.
        failed: what went wrong, where all that are finished failed.
        doubts: evaluation id → what is doubtful in its latency, of those that are shown.
        mismatches: evaluation id → which groups did not run as asked, in words, of those that are shown.
        final_levels: evaluation id → the newest export at each other optimization level, the lowest first, of those
            that are shown.
    """

    study: StudyRecord
    target: TargetRecord
    limits: Limits
    table: EvaluationTable
    finals: FinalTable
    confirmed_ms: Floats
    number: int = 1
    target_name: str = ""
    failed: FailureSummary | None = None
    doubts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    mismatches: Mapping[int, str] = field(default_factory=dict)
    final_levels: Mapping[int, tuple[FinalLevel, ...]] = field(default_factory=dict)

    @property
    def evaluations(self) -> int:
        """How many there are, finished and running."""
        return len(self.table)

    @cached_property
    def done(self) -> int:
        """How many evaluations are finished; those that are running have rows too."""
        return int((self.table.status != RUNNING).sum())

    @property
    def higher_is_better(self) -> bool:
        return bool(self.study.metric["higher_is_better"])

    @property
    def band(self) -> float:
        """The relative tie band of latency that counts now."""
        return self.target.band

    @property
    def band_is_provisional(self) -> bool:
        """Whether the study has not measured its own tie band yet."""
        return self.target.latency_band is None

    @cached_property
    def latency_ms(self) -> Floats:
        """(n,) what counts of each latency: the latest clean measurement, or the latest where none is clean."""
        return np.where(np.isnan(self.confirmed_ms), self.table.latency_ms, self.confirmed_ms)

    @cached_property
    def loss_band(self) -> Floats:
        """(n,) half-widths of the loss intervals."""
        return (self.table.loss_high - self.table.loss_low) / 2

    @cached_property
    def complete(self) -> Bools:
        """Rows that may stand on a front: all samples seen, and every group obeyed or opaque."""
        seen_all: Bools = self.table.samples == self.table.total_samples
        return self._measured & seen_all

    @cached_property
    def stopped(self) -> Bools:
        """Rows that would be `complete`, had limits not stopped their scoring early."""
        seen_some: Bools = self.table.samples < self.table.total_samples
        return self._measured & seen_some

    @cached_property
    def _measured(self) -> Bools:
        """Rows with a latency that obey the audit."""
        t = self.table
        known: Bools = np.isfinite(t.latency_ms) & (t.not_obeyed == 0)
        found: Bools = known & (t.status == OK)
        return found

    @cached_property
    def regained(self) -> Bools:
        """Stopped rows that may keep the limits, of which only scoring them to the end can tell.

        Their loss counts with the low end of its interval. No limits have such rows among those that they stopped
        themselves: beyond a latency nothing is regained, and a loss was exceeded with more confidence than this.
        """
        t, sign = self.table, 1.0 if self.higher_is_better else -1.0
        base = self.row_of("baseline:fp32")
        reference = np.nan if base is None else float(t.metric_value[base])
        result: Bools = self._within_limits(t.loss_low, reference - sign * t.loss_low) & self.stopped
        return result

    @cached_property
    def fails_final(self) -> Bools:
        """Rows whose outputs on the final split cannot be scored: they are no pick, whatever the search says of them.

        A row of which nothing is stored there is none of them, as it may yet hold.
        """
        result: Bools = np.isin(self.table.id, self.finals.evaluation_id[self.finals.samples == 0])
        return result

    @cached_property
    def resemblance(self) -> Floats:
        """(n,) least correlation of the outputs with FP32's, on the search and the final split; NaN where unknown."""
        found: Floats = self.table.resemblance.copy()
        finals = self.finals
        for row, number in zip(*np.nonzero(self.table.id[:, None] == finals.evaluation_id), strict=True):
            found[row] = np.fmin(found[row], finals.resemblance[number])
        return found

    @cached_property
    def unrelated(self) -> Bools:
        """Rows whose outputs have nothing in common with FP32's: whatever the metric says, they are probably broken."""
        result: Bools = self.resemblance < UNRELATED_BELOW  # NaN is not
        return result

    @cached_property
    def feasible(self) -> Bools:
        """Rows that keep all limits by what the search measured, ran as asked and can be scored on the final split."""
        result: Bools = self._keeps_limits & ~self.fails_final
        return result

    @cached_property
    def _keeps_limits(self) -> Bools:
        result: Bools = self._within_limits(self.table.loss, self.table.metric_value) & self.complete
        return result

    def _within_limits(self, loss: Floats, metric_value: Floats) -> Bools:
        """Rows that keep all limits if these are their (n,) losses and metric values."""
        measures, not_obeyed = self._measures(loss, metric_value), self.table.not_obeyed
        return feasibility.feasible(measures, not_obeyed, self.limits, higher_is_better=self.higher_is_better)

    def _measures(self, loss: Floats, metric_value: Floats) -> feasibility.Columns:
        """The objectives and what the limits bound, if these are the (n,) losses and metric values."""
        known = {LATENCY_MS: self.latency_ms, LOSS: loss, METRIC_VALUE: metric_value}
        bounded = {limit.column for limit, _ in self.limits.rows()}
        return known | {column: getattr(self.table, column) for column in bounded - known.keys()}

    # -- picks -----------------------------------------------------------------------------------------------------

    @cached_property
    def front(self) -> Bools:
        return fronts.front(self.latency_ms, self.table.loss, self.band, self.loss_band, self.feasible)

    @cached_property
    def aim(self) -> Aim:
        """What the pick `best` is under these limits."""
        return aim_of(self.limits, self.study.metric["name"])

    @cached_property
    def candidates(self) -> Candidates:
        t = self.table
        return Candidates(
            latency_ms=self.latency_ms,
            loss=t.loss,
            loss_error=verdicts.standard_error(t.loss_low, t.loss_high),
            loss_band=self.loss_band,
            margin=self._margins("search", t.loss, t.loss_low, t.loss_high, t.metric_value, t.samples),
            latency_band=self.band,
            eligible=self.feasible,
            fails=self._looked_at & ~self.keeps_final,
            holds=self._looked_at & self.keeps_final,
            final_margin=self._final_margins,
            on_front=self.front,
            fp32=self.row_of("baseline:fp32"),
        )

    @cached_property
    def picks(self) -> Picks:
        return choose(self.candidates, self.aim)

    def ties(self, name: str) -> list[int]:
        """Rows that the pick of this name beats by noise alone."""
        return ties(self.candidates, self.picks, name, self.aim)

    def not_sure(self, row: int) -> bool:
        """Whether this row keeps the accuracy limits by its estimate alone, and not by a bound of it."""
        return bool(self.feasible[row] and not self.candidates.sure[row])

    # -- the final split -------------------------------------------------------------------------------------------

    @cached_property
    def keeps_final(self) -> Bools:
        """Rows that keep all limits by the estimates of the final split and the latest latencies."""
        measures = self._measures(self._of_final("loss"), self._of_final("value"))
        keeps = feasibility.keeps_limits(measures, self.limits, higher_is_better=self.higher_is_better)
        result: Bools = keeps & np.isfinite(measures[LOSS])
        return result

    @cached_property
    def _looked_at(self) -> Bools:
        """Rows that were tried on the final split, those that cannot be scored there too."""
        result: Bools = self._final_rows >= 0
        return result

    @cached_property
    def _final_rows(self) -> NDArray[np.int64]:
        """(n,) the row of `finals` that belongs to each row; -1 where there is none."""
        ids, scored = self.table.id, self.finals.evaluation_id
        result = np.full(len(ids), -1, np.int64)
        known = np.isin(scored, ids)
        result[np.searchsorted(ids, scored[known])] = np.flatnonzero(known)  # both are in order of id
        return result

    def _of_final(self, name: str) -> Floats:
        """(n,) a column of `finals`, NaN where there is nothing."""
        column = np.append(np.asarray(getattr(self.finals, name), np.float64), np.nan)
        result: Floats = column[self._final_rows]
        return result

    @cached_property
    def _final_margins(self) -> Floats:
        names = ("loss", "loss_low", "loss_high", "value", "samples")
        return self._margins("final", *(self._of_final(name) for name in names))

    def _margins(self, split: str, loss: Floats, low: Floats, high: Floats, value: Floats, samples: Any) -> Floats:
        """(n,) standard errors from these estimates of a split to the nearest accuracy limit.

        Samples of one cluster may all be right or wrong together, so a cluster counts as one.
        """
        metric, error = self.study.metric, verdicts.standard_error(low, high)
        samples = self.study.clusters(split) or samples
        relative, ratio = is_relative(metric["name"]), bool(metric.get("ratio", False))
        of_value = verdicts.value_error(value, error, samples, relative=relative, ratio=ratio)
        return verdicts.margins(loss, error, value, of_value, self.limits, higher_is_better=self.higher_is_better)

    def looked_at(self, row: int) -> bool:
        """Whether this row was tried on the final split."""
        return bool(self._looked_at[row])

    def tries(self, row: int) -> int:
        """How many rows were looked at on the final split until this one was taken, itself included.

        Of a row that stands in the line of `best` those before it; of any other all that were looked at.
        """
        line = self.picks.line
        if row in line:
            return max(1, sum(self.looked_at(each) for each in line[: line.index(row) + 1]))
        return max(1, int(self._looked_at.sum()))

    def verdict(self, row: int) -> Verdict:
        """Whether this row keeps all limits with its numbers of the final split."""
        if self.fails_final[row]:
            return Verdict.FAILS
        if not self.looked_at(row):
            return Verdict.UNCONFIRMED
        if not self.limits:
            return Verdict.UNLIMITED
        if not self.keeps_final[row]:
            return Verdict.FAILS
        surely = bool(self._final_margins[row] >= quantile(self.tries(row)))
        return Verdict.SURELY if surely else Verdict.HOLDS

    def final_interval(self, row: int) -> tuple[float, float] | None:
        """95 % interval of the loss on the final split that allows for how many were tried; None without a score."""
        final = self.final_of(row)
        if final is None:
            return None
        f = self.finals
        wider = quantile(self.tries(row), two_sided=True) / quantile(two_sided=True)
        loss, low, high = (float(column[final]) for column in (f.loss, f.loss_low, f.loss_high))
        return loss - wider * (loss - low), loss + wider * (high - loss)

    def disagreement(self, row: int) -> Disagreement | None:
        """The losses of search and final split where they differ by more than chance explains."""
        final = self.final_of(row)
        if final is None:
            return None
        t, f = self.table, self.finals
        search_error = float(verdicts.standard_error(t.loss_low[row], t.loss_high[row]))
        final_error = float(verdicts.standard_error(f.loss_low[final], f.loss_high[final]))
        compared = int((f.samples > 0).sum())
        return verdicts.disagreement(float(t.loss[row]), search_error, float(f.loss[final]), final_error, compared)

    @cached_property
    def kept(self) -> Bools:
        """What is shown, and the candidates for `best`: rows whose engines are kept."""
        result: Bools = self.shown.copy()
        result[list(self.picks.line)] = True
        return result

    @cached_property
    def shown(self) -> Bools:
        """Front and picks, which need not be on it: what tables show."""
        result: Bools = self.front | self.picks.mask(len(self.table))
        return result

    def front_rows(self) -> list[int]:
        """Rows of the front, fastest first."""
        return self._fastest_first(self.front)

    def shown_rows(self) -> list[int]:
        """Rows of front and picks, fastest first."""
        return self._fastest_first(self.shown)

    def barred_rows(self) -> list[int]:
        """Rows that keep all limits and fail on the final split, fastest first."""
        return self._fastest_first(self._keeps_limits & self.fails_final)

    def told_rows(self) -> list[int]:
        """Rows that a table of the front names: front, picks, what the final split ruled out, and baselines."""
        failed = [row for row in self.picks.line if self.candidates.fails[row]]
        return list(dict.fromkeys([*self.shown_rows(), *failed, *self.barred_rows(), *self.baselines()]))

    def nearest(self, count: int = 3, *, early: bool = True) -> list[feasibility.Near]:
        """The rows nearest to the limits, for when nobody keeps them.

        Args:
            early: also rows that were stopped early, where they miss the latency alone: that is measured as well as in
                complete rows.
        """
        t = self.table
        measures = self._measures(t.loss, t.metric_value)
        over = feasibility.overshoots(measures, self.limits, higher_is_better=self.higher_is_better)
        eligible = self.complete
        if early and over:
            eligible = eligible | (self.stopped & feasibility.misses_only(over, "latency"))
        return feasibility.nearest(over, eligible & ~self.fails_final, count)

    def baselines(self) -> list[int]:
        """Rows of the uniform baselines, in the order they ran."""
        return list(self._baselines)

    @cached_property
    def _baselines(self) -> tuple[int, ...]:
        roles = self.table.role
        return tuple(int(row) for row in np.flatnonzero(roles != "") if roles[row].startswith("baseline:"))

    def row_of(self, role: str) -> int | None:
        """The first row of this role, as `baseline:fp32`, that went well; None where there is none."""
        rows = self._baselines if role.startswith("baseline:") else np.flatnonzero(self.table.role == role)
        return next((int(row) for row in rows if self.table.role[row] == role and self.table.status[row] == OK), None)

    @cached_property
    def reference(self) -> hypervolume.Reference | None:
        rows = [row for row in self.baselines() if self.complete[row]]
        if not rows:
            return None
        return hypervolume.reference_of(self._latencies(rows), [float(loss) for loss in self.table.loss[rows]])

    def hypervolumes(self) -> Floats:
        """(n,) hypervolume after each row, limits left aside; zeros before the baselines are there."""
        if self.reference is None:
            return np.zeros(len(self.table))
        return hypervolume.hypervolume_history(self.table.latency_ms, self.table.loss, self.complete, self.reference)

    def final_of(self, row: int) -> int | None:
        """The row of `finals` that scores this evaluation on the final split; None too where it failed there."""
        f = self.finals
        found = np.flatnonzero((f.evaluation_id == self.table.id[row]) & (f.samples > 0))
        return int(found[0]) if len(found) else None

    def final_levels_of(self, row: int) -> tuple[FinalLevel, ...]:
        """The exports of this evaluation at other optimization levels; of rows that are shown alone."""
        return self.final_levels.get(int(self.table.id[row]), ())

    def final_failure(self, row: int) -> str:
        """Why this evaluation could not be scored on the final split; empty where it was, or was not tried."""
        found = np.flatnonzero(self.finals.evaluation_id == self.table.id[row])
        return str(self.finals.failure[found[0]]) if len(found) else ""

    def speedup(self, row: int) -> float | None:
        """How many times faster than uniform FP32."""
        base = self.row_of("baseline:fp32")
        return float(self.latency_ms[base] / self.latency_ms[row]) if base is not None else None

    def _fastest_first(self, mask: Bools) -> list[int]:
        rows = np.flatnonzero(mask)
        return [int(row) for row in rows[np.argsort(self.latency_ms[rows], kind="stable")]]

    def _latencies(self, rows: Sequence[int]) -> list[float]:
        return [float(self.table.latency_ms[row]) for row in rows]


def standing(
    store: Store, study: StudyRecord, target: TargetRecord, limits: Limits, *, exports: bool = False
) -> Standing:
    """Read one target's evaluations from the store and judge them by `limits`.

    Args:
        exports: also those that an export built again; they are no part of the search, so they are neither counted nor
            on its front.
    """
    table = store.evaluations.table(target.id)
    if not exports:
        table = table.only(table.role != EXPORT)
    failed = summarize_failures(store, table)
    return Standing(
        study, target, limits, table, store.evaluations.finals(target.id), confirmed_ms(table), failed=failed
    )
