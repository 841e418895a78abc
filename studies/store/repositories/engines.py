"""Facts about built engines: the audit of their groups, and the times of their layers."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from search.values import AuditRow, LayerTime, Precision
from studies.store import records
from studies.store.database import tables
from studies.store.database.retries import retry
from studies.store.database.transactions import Repository
from studies.store.reading.evaluation_rows import audit_row
from studies.store.statements import results, table_rows


class Engines(Repository):
    """Audits and profiles of the engines of evaluations."""

    def profile(self, evaluation_id: int) -> tuple[LayerTime, ...]:
        """What each layer of an evaluation's engine takes, in the order they run; empty if none was stored."""
        p = tables.LayerRecord
        rows = self._database.rows(table_rows.select_all(p, p.evaluation_id == evaluation_id).order_by(p.position))
        return tuple(LayerTime(row.name, row.kind, row.group, row.moves, row.ms) for row in rows)

    @retry
    def set_profile(self, evaluation_id: int, layers: Sequence[LayerTime], note: str = "") -> None:
        """Store what each layer of an evaluation's engine takes, in the order they run, replacing what is there.

        Args:
            note: what is noteworthy of this profile; it stands among the evaluation's notes, instead of an earlier one.
        """
        with self._database.begin_write("store a profile") as connection:
            results.replace_profile(connection, evaluation_id, layers)
            results.replace_note(connection, evaluation_id, records.OF_PROFILE, note)

    def audits(self, study_target_id: int) -> tuple[tuple[int, AuditRow], ...]:
        """(evaluation id, audit of one group) over every audited evaluation of one target."""
        a, e = tables.AuditRecord.__table__, tables.EvaluationRecord
        query = (
            select(a.c.evaluation_id, a.c["group"], a.c.asked, a.c.got, a.c.kernel, a.c.details)
            .join(e, e.id == a.c.evaluation_id)
            .where(e.study_target_id == study_target_id)
            .order_by(a.c.evaluation_id)
        )
        return tuple((row.evaluation_id, audit_row(row)) for row in self._database.rows(query))

    def never_obeyed(self, study_target_id: int) -> dict[tuple[str, Precision], tuple[int, ...]]:
        """(group, requested precision) → evaluations of a search where it ran in another one, if it obeyed in none."""
        a, e = tables.AuditRecord, tables.EvaluationRecord
        searched = (e.study_target_id == study_target_id, e.role != records.EXPORT, a.got.is_not(None))
        audited = select(a.group, a.asked, a.evaluation_id).join(e, e.id == a.evaluation_id).where(*searched)
        wrong = audited.where(e.not_obeyed > 0, a.got != a.asked).order_by(a.evaluation_id)
        evaluations: dict[tuple[str, Precision], tuple[int, ...]] = {}
        for group, precision, number in self._database.rows(wrong):
            evaluations[group, precision] = (*evaluations.get((group, precision), ()), number)
        groups = sorted({group for group, _ in evaluations})
        right = audited.with_only_columns(a.group, a.asked).where(a.group.in_(groups), a.got == a.asked).distinct()
        obeyed = {(group, precision) for group, precision in self._database.rows(right)} if evaluations else set()
        return {pair: ids for pair, ids in evaluations.items() if pair not in obeyed}

    def mismatches(self, ids: Sequence[int]) -> dict[int, tuple[tuple[str, Precision], ...]]:
        """Evaluation id → (group, what it ran in) of the groups that did not run in the requested precision."""
        a = tables.AuditRecord
        query = (
            select(a.evaluation_id, a.group, a.got)
            .where(a.evaluation_id.in_(list(ids)), a.got.is_not(None), a.got != a.asked)
            .order_by(a.evaluation_id, a.group)
        )
        mismatches: dict[int, tuple[tuple[str, Precision], ...]] = {}
        for number, group, got in self._database.rows(query):
            mismatches[number] = (*mismatches.get(number, ()), (group, got))
        return mismatches
