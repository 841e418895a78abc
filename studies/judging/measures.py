"""The measurements of one target's evaluations, independent of limits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search.values import BASELINE, RECOVERED_FIRST, REFERENCE, Precision
from studies.judging.rules.hypervolume import hypervolume_history, reference_of
from studies.store.columns import EvaluationTable
from studies.store.reading.repeats import confirmed_ms, find_doubtful
from studies.store.records import OK, RUNNING

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
FLOATS = [each.role for each in sorted(Precision) if not each.quantized and each is not REFERENCE]
_QUANTIZED = [each.role for each in RECOVERED_FIRST if each.quantized]


@dataclass(frozen=True)
class Measures:
    """Columns that follow from a table of evaluations. Row numbers index the table."""

    table: EvaluationTable

    @cached_property
    def finished_count(self) -> int:
        """How many evaluations are finished; those that are running have rows too."""
        return int((self.table.status != RUNNING).sum())

    @cached_property
    def latency_ms(self) -> Floats:
        """(n,) what counts of each latency: the latest clean measurement, or the latest where none is clean."""
        again = confirmed_ms(self.table)
        return np.where(np.isnan(again), self.table.latency_ms, again)

    @cached_property
    def doubtful(self) -> Bools:
        """(n,) rows whose latency is doubtful: of the measurement that counts, something was disturbed."""
        return find_doubtful(self.table)

    @cached_property
    def loss_band(self) -> Floats:
        """(n,) half-widths of the loss intervals."""
        band: Floats = self.table.loss_high / 2 - self.table.loss_low / 2  # finite wherever both ends are
        return band

    @cached_property
    def complete(self) -> Bools:
        """(n,) rows that may stand on a front: all samples seen, and every group obeyed or opaque."""
        seen_all: Bools = self.table.samples == self.table.total_samples
        return self._usable & seen_all

    @cached_property
    def stopped_rows(self) -> Bools:
        """(n,) rows that would be `complete`, had limits not stopped their scoring early."""
        seen_some: Bools = self.table.samples < self.table.total_samples
        return self._usable & seen_some

    @cached_property
    def _usable(self) -> Bools:
        """Rows with a latency that obey the audit."""
        t = self.table
        usable: Bools = np.isfinite(t.latency_ms) & (t.not_obeyed == 0) & (t.status == OK)
        return usable

    @cached_property
    def baselines(self) -> list[int]:
        """Rows of the uniform baselines, in the order they ran."""
        roles = self.table.role
        return [int(row) for row in np.flatnonzero(roles != "") if roles[row].startswith(BASELINE)]

    def row_of(self, role: str) -> int | None:
        """The first row of this role, as `baseline:fp32`, that went well; None if there is none."""
        rows = self.baselines if role.startswith(BASELINE) else np.flatnonzero(self.table.role == role)
        return next((int(row) for row in rows if self.table.role[row] == role and self.table.status[row] == OK), None)

    @property
    def fp32_value(self) -> float:
        """The metric of uniform FP32 on the search samples; NaN before that was measured, or if it is infinite."""
        row = self.row_of(REFERENCE.role)
        return np.nan if row is None else float(self.table.metric_value[row])

    @property
    def quantized_rows(self) -> list[int]:
        """Rows of the uniform baselines in quantized precisions, that which is recovered first, then the coarsest."""
        return [row for role in _QUANTIZED for row in self.baselines if self.table.role[row] == role]

    @property
    def quantized_row(self) -> int | None:
        """The first of `quantized_rows` that went well; None if there is none."""
        return next((row for row in self.quantized_rows if self.table.status[row] == OK), None)

    @property
    def uniform_rows(self) -> list[tuple[Precision, int]]:
        """The uniform baselines that a mix is compared with, FP32 and the coarsest quantized one, if they went well."""
        ends = self.row_of(REFERENCE.role), self.quantized_row
        return [(Precision.parse(self.table.role[row].removeprefix(BASELINE)), row) for row in ends if row is not None]

    def speedup(self, row: int) -> float | None:
        """How many times faster than uniform FP32; None if that was not measured."""
        base = self.row_of(REFERENCE.role)
        return float(self.latency_ms[base] / self.latency_ms[row]) if base is not None else None

    def fastest_first(self, mask: Bools) -> list[int]:
        """The rows of a mask, ordered by latency."""
        rows = np.flatnonzero(mask)
        return [int(row) for row in rows[np.argsort(self.latency_ms[rows], kind="stable")]]

    def hypervolumes(self) -> Floats:
        """(n,) hypervolume after each row; all zero without a baseline to measure it from."""
        rows = [row for row in self.baselines if self.complete[row]]
        if not rows:
            return np.zeros(len(self.table))
        t = self.table
        reference = reference_of(t.latency_ms[rows].tolist(), t.loss[rows].tolist())
        return hypervolume_history(t.latency_ms, t.loss, self.complete, reference)
