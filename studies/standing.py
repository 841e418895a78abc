"""Where a study stands: feasibility, front and picks, derived from stored rows and the limits given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from studies import pareto
from studies.config import Limits
from studies.failures import AllFailed, all_failed
from studies.queries import Reader
from studies.records import EXPORT, OK, RUNNING, EvaluationTable, FinalTable, StudyRecord, TargetRecord
from studies.tallies import Tallies

# Outputs that correlate less with FP32's share less than 4 % of their variance. Rounded ones correlate by 0.9 and more;
# 64 samples of one value that have nothing to do with FP32's stay below this in 19 of 20 cases, larger outputs always.
UNRELATED_BELOW = 0.2

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Standing:
    """One target's evaluations, judged by limits. Row numbers index `table`.

    Attributes:
        confirmed_ms: (n,) float64, latency measured again beside the other finalists; NaN where it was not.
        number: place of the target in the study, from 1.
        target_name: what tells it from the study's other targets; empty where there is no other.
        finals: scores on the final split, and failures there.
        counted: evaluations in all, where `table` has only those that may stand on the front, and the baselines.
        failed: what went wrong, where all that are finished failed.
        doubts: evaluation id → what is doubtful in its latency, of those that are shown.
    """

    study: StudyRecord
    target: TargetRecord
    limits: Limits
    table: EvaluationTable
    finals: FinalTable
    confirmed_ms: Floats
    number: int = 1
    target_name: str = ""
    counted: int | None = None
    failed: AllFailed | None = None
    doubts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def evaluations(self) -> int:
        """How many there are, finished and running."""
        return len(self.table) if self.counted is None else self.counted

    @cached_property
    def done(self) -> int:
        """How many evaluations are finished; those that are running have rows too."""
        return int((self.table.status != RUNNING).sum())

    @property
    def higher_is_better(self) -> bool:
        return bool(self.study.metric["higher_is_better"])

    @property
    def band(self) -> float:
        return self.target.latency_band or 0.0

    @cached_property
    def latency_ms(self) -> Floats:
        """(n,) the latest word on each latency: measured again, else as the search measured it."""
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
        result: Bools = self._keeps_limits & ~self.fails_final
        return result

    @cached_property
    def _keeps_limits(self) -> Bools:
        result: Bools = self._within_limits(self.table.loss, self.table.metric_value) & self.complete
        return result

    def _within_limits(self, loss: Floats, metric_value: Floats) -> Bools:
        """Rows that keep all limits if these are their (n,) losses and metric values."""
        t, better = self.table, self.higher_is_better
        return pareto.feasible(
            self.latency_ms, loss, metric_value, t.memory_bytes, t.not_obeyed, self.limits, higher_is_better=better
        )

    @cached_property
    def front(self) -> Bools:
        return pareto.front(self.latency_ms, self.table.loss, self.band, self.loss_band, self.feasible)

    @cached_property
    def picks(self) -> pareto.Picks:
        return pareto.picks(self.latency_ms, self.table.loss, self.band, self.loss_band, self.feasible, self.front)

    @cached_property
    def shown(self) -> Bools:
        """Front and picks, which need not be on it: what tables show and whose engines are kept."""
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
        return list(dict.fromkeys([*self.shown_rows(), *self.barred_rows(), *self.baselines()]))

    def nearest(self, count: int = 3, *, early: bool = True) -> list[pareto.Near]:
        """The rows nearest to the limits, for when nobody keeps them.

        Args:
            early: also rows that were stopped early, where they miss the latency alone: that is measured as well as in
                complete rows.
        """
        t = self.table
        over = pareto.overshoots(
            self.latency_ms, t.loss, t.metric_value, t.memory_bytes, self.limits, higher_is_better=self.higher_is_better
        )
        eligible = self.complete
        if early and over:
            eligible = eligible | (self.stopped & pareto.misses_only(over, "latency"))
        return pareto.nearest(over, eligible & ~self.fails_final, count)

    def baselines(self) -> list[int]:
        """Rows of the uniform baselines, in the order they ran."""
        return [row for row, role in enumerate(self.table.role) if role.startswith("baseline:")]

    def row_of(self, role: str) -> int | None:
        found = np.flatnonzero((self.table.role == role) & (self.table.status == OK))
        return int(found[0]) if len(found) else None

    @cached_property
    def reference(self) -> pareto.Reference | None:
        rows = [row for row in self.baselines() if self.complete[row]]
        if not rows:
            return None
        return pareto.reference_of(self._latencies(rows), [float(loss) for loss in self.table.loss[rows]])

    def hypervolumes(self) -> Floats:
        """(n,) hypervolume after each row, limits left aside; zeros before the baselines are there."""
        if self.reference is None:
            return np.zeros(len(self.table))
        return pareto.hypervolume_history(self.table.latency_ms, self.table.loss, self.complete, self.reference)

    def final_of(self, row: int) -> int | None:
        """The row of `finals` that scores this evaluation on the final split; None too where it failed there."""
        f = self.finals
        found = np.flatnonzero((f.evaluation_id == self.table.id[row]) & (f.samples > 0))
        return int(found[0]) if len(found) else None

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
    reader: Reader, study: StudyRecord, target: TargetRecord, limits: Limits, *, exports: bool = False
) -> Standing:
    """Read one target's evaluations from the store and judge them by `limits`.

    Args:
        exports: also those that an export built again; they are no part of the search, so they are neither counted nor
            on its front.
    """
    table = reader.evaluations(target.id)
    if not exports:
        table = _only(table, table.role != EXPORT)
    return _judged(reader, study, target, limits, table)


def front_standing(reader: Tallies, study: StudyRecord, target: TargetRecord, limits: Limits) -> Standing:
    """As `standing`, but of a large study only what front, picks and baselines need is read.

    Where nothing keeps the limits, all is read: `nearest` looks at every evaluation.
    """
    tally, better = reader.tally(target.id, reader.now()), bool(study.metric["higher_is_better"])
    table = reader.front_table(target.id, limits, target.latency_band or 0.0, tally, higher_is_better=better)
    now = _judged(reader, study, target, limits, table)
    if now.picks.accurate is None:
        return standing(reader, study, target, limits)
    return replace(now, counted=tally.finished + tally.running)


def _judged(
    reader: Reader, study: StudyRecord, target: TargetRecord, limits: Limits, table: EvaluationTable
) -> Standing:
    again = reader.confirmed(target.id)
    confirmed = np.array([again.get(int(number), np.nan) for number in table.id], dtype=np.float64)
    failed = all_failed(reader, table)
    return Standing(study, target, limits, table, reader.finals(target.id), confirmed, failed=failed)


def _only(table: EvaluationTable, rows: Bools) -> EvaluationTable:
    return EvaluationTable(**{column.name: getattr(table, column.name)[rows] for column in fields(table)})
