"""The standing of a study: its judged evaluations, its front, its picks and lists of them, from stored rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from studies.judging.details import TargetDetails
from studies.judging.judged_target import JudgedTarget
from studies.judging.judgement import FinalSplit
from studies.judging.measures import Measures
from studies.judging.points import Point
from studies.options.limits import Limits
from studies.store.columns import MOST_ROWS, Columns, EvaluationTable
from studies.store.records import EXPORT, StudyRecord, TargetRecord
from studies.store.store import Store

Bools = NDArray[np.bool_]
_REOPENED = 1.08  # an H200 took up to 7 % longer for plans that were opened again than right after they were built


@dataclass(frozen=True)
class Standing(JudgedTarget):
    """One target's evaluations, judged by limits, with a point for each that is shown."""

    def point(self, row: int) -> Point:
        """One judged evaluation with all its facts."""
        if row not in self._points:
            self._points[row] = Point(now=self, row=row)
        return self._points[row]

    def points(self, rows: Sequence[int]) -> list[Point]:
        """Several judged evaluations, in this order."""
        ids = [int(self.table.id[row]) for row in rows]
        if len(rows) <= MOST_ROWS:  # else whole columns are read
            self.table.details.read(ids)
        self.details.look_up(ids)
        return [self.point(row) for row in rows]

    @cached_property
    def _points(self) -> dict[int, Point]:
        return {}


def read_standing(
    store: Store,
    study: StudyRecord,
    target: TargetRecord,
    limits: Limits,
    *,
    exports: bool = False,
    table: EvaluationTable | None = None,
    finals: Columns | None = None,
) -> Standing:
    """Read one target's evaluations from the store and judge them by `limits`, percentages of FP32's value resolved.

    Args:
        exports: whether to include evaluations that an export built again. They are not part of the search, so they are
            neither counted nor on its front.
        table: all evaluations, if they have just been read.
        finals: their scores on the final split, if they are known.
    """
    table = store.evaluations.table(target.id) if table is None else table
    if not exports:
        table = table.only(table.role != EXPORT)
    final = FinalSplit(store.evaluations.finals(target.id) if finals is None else finals, table.id)
    measures = Measures(table)
    if limits.of_fp32:
        limits = limits.with_fp32(measures.fp32_value)
    return Standing(study, target, limits, measures, final, TargetDetails(store, target, table))


def front_and_picks(now: Standing) -> Bools:
    """(n,) front and picks, which need not be on it: what tables show."""
    result: Bools = now.judgement.front | now.picks.mask(len(now.table))
    return result


def engines_to_keep(now: Standing) -> Bools:
    """(n,) rows whose engines are kept: what is shown, the candidates for `best`, and uniform INT8 near the limits.

    Those that keep the limits and are hardly slower than `best` may become it when that is measured again.
    """
    result = front_and_picks(now)
    if now.picks.best is not None:
        result |= now.judgement.feasible & (
            now.measures.latency_ms <= _REOPENED * now.measures.latency_ms[now.picks.best]
        )
    result[list(now.picks.line)] = True
    if now.near_int8 is not None:
        result[now.near_int8] = True
    return result


def front_points(now: Standing) -> list[Point]:
    """Front and picks, fastest first."""
    return now.points(now.measures.fastest_first(front_and_picks(now)))


def table_points(now: Standing) -> list[Point]:
    """What a table of the front names: front, picks, what the final split ruled out, and baselines."""
    return now.points(table_rows(now))


def table_rows(now: Standing) -> list[int]:
    """Rows of `table_points`."""
    tried, keeps = now.final.tried_rows, now.judgement.keeps_final
    failed = [row for row in now.picks.line if tried[row] and not keeps[row]]
    order = now.measures.fastest_first
    shown, barred = order(front_and_picks(now)), order(now.judgement.barred_rows)
    return list(dict.fromkeys([*shown, *failed, *barred, *now.measures.baselines]))


def best_point(now: Standing) -> Point | None:
    """The recommended evaluation; None if there is none."""
    return None if now.picks.best is None else now.point(now.picks.best)


def pick_points(now: Standing) -> dict[str, Point]:
    """The picks by name, `best` first; those that nothing is picked as are absent."""
    rows = now.picks.by_name()
    return dict(zip(rows, now.points(list(rows.values())), strict=True))
