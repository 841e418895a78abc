"""Targets of studies: their facts, their options, and the repetitions for their tie band."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from search.values import Capability, Latency, Target
from studies.store import records
from studies.store.database import tables
from studies.store.database.retries import is_repeat, retry
from studies.store.database.transactions import Repository
from studies.store.reading.repeats import provisional_band
from studies.store.statements import table_rows

Row = Any


class Targets(Repository):
    """The targets of studies; methods that take a study-target id are about one of them."""

    def of_study(self, study_id: int) -> tuple[records.TargetRecord, ...]:
        """The targets of a study, the first one first; empty until `add`."""
        return self._read(tables.TargetRecord.study_id == study_id)

    def load(self, study_target_id: int) -> records.TargetRecord:
        """One target as it is now."""
        (target,) = self._read(tables.TargetRecord.id == study_target_id)
        return target

    def _read(self, condition: ColumnElement[bool]) -> tuple[records.TargetRecord, ...]:
        t, r = tables.TargetRecord, tables.RepeatRecord
        count = select(func.count()).where(r.study_target_id == t.id).scalar_subquery()
        query = (
            select(*t.__table__.c, tables.FingerprintRecord.description.label("target"), count.label("repeats"))
            .join(tables.FingerprintRecord, tables.FingerprintRecord.id == t.target_id)
            .where(condition)
            .order_by(t.id)
        )
        rows = self._database.rows(query)
        targets = tuple(t.of(row) for row in rows)
        for target, row in zip(targets, rows, strict=True):
            measured = target.latency_band is not None
            repeats = self.repeats(target.id) if row.repeats and not measured else ()
            target.provisional_band = 0.0 if measured else provisional_band(repeats)
        return targets

    def details(self, study_target_id: int) -> dict[str, Any]:
        """The details of a target as they are now."""
        t = tables.TargetRecord
        rows = self._database.rows(select(t.details).where(t.id == study_target_id))
        return dict(rows[0].details or {})

    def find_recovery(self, key: str) -> records.CalibrationRecord | None:
        """What a target of any study is calibrated with that recovered the same from the same; None if none is."""
        t = tables.TargetRecord
        query = select(t.ranges_digest, t.recovery).where(t.recovery_key == key, t.ranges_digest.is_not(None)).limit(1)
        row = next(iter(self._database.rows(query)), None)
        if row is None:
            return None
        return records.CalibrationRecord(row.ranges_digest, row.recovery, key)

    @retry
    def add(
        self,
        study_id: int,
        target: Target,
        optuna_study: str,
        *,
        capability: Capability | None = None,
        details: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> int:
        """Add a target to a study, or find it there unchanged; the study-target id.

        Args:
            options: as in `TargetRecord`.
        """
        with self._database.begin_write("add the target") as connection:
            table_rows.lock(connection, tables.StudyRecord, study_id)
            target_id = ensure_fingerprint(connection, target)
            t = tables.TargetRecord
            known = connection.scalar(select(t.id).where(t.study_id == study_id, t.target_id == target_id))
            if known is not None:
                return known
            values = {"study_id": study_id, "target_id": target_id, "optuna_study": optuna_study}
            facts = {"capability": capability, "details": dict(details or {})}
            facts["options"] = None if options is None else dict(options)
            return table_rows.insert_row(connection, t, {**values, **facts})

    @retry
    def settle(self, study_target_id: int, *, details: Mapping[str, Any] | None = None, **fields: float | str) -> None:
        """Set columns of a study's target, and add to its details, unless one of these columns is set already.

        Of workers that find the same thing out the first one's word stays, also where it was taken for lost: what is
        stored is in use. So read it back afterwards.
        """
        t = tables.TargetRecord
        columns = [t.__table__.c[name] for name in fields]
        with self._database.begin_write("store what is once for all workers") as connection:
            locked = select(t.details, *columns).where(t.id == study_target_id).with_for_update(key_share=True)
            row = connection.execute(locked).one_or_none()
            if row is not None and all(value is None for value in row[1:]):
                added = {"details": {**(row[0] or {}), **details}} if details else {}
                connection.execute(update(t).where(t.id == study_target_id).values(**fields, **added))

    @retry
    def add_details(self, study_target_id: int, **details: Any) -> bool:
        """Add to a target's details, or replace some of them; whether that changed any."""
        t = tables.TargetRecord
        with self._database.begin_write("update the target") as connection:
            locked = select(t.details).where(t.id == study_target_id).with_for_update(key_share=True)
            known = connection.scalar(locked) or {}
            changed = {**known, **details}
            if changed != known:
                connection.execute(update(t).where(t.id == study_target_id).values(details=changed))
            return changed != known or is_repeat()  # the answer to the change itself may have been lost

    @retry
    def add_options(
        self, study_target_id: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any] | None = None
    ) -> None:
        """Store the options of a target that differ from its study's, as `merge_options` says."""
        t = tables.TargetRecord
        with self._database.begin_write("store the options of a target") as connection:
            locked = select(t.options).where(t.id == study_target_id).with_for_update(key_share=True)
            known = connection.scalar(locked) or {}
            changed = table_rows.merge_options(known, changes, seen)
            if changed:
                connection.execute(update(t).where(t.id == study_target_id).values(options={**known, **changed}))

    def repeats(self, study_target_id: int) -> tuple[records.RepeatRecord, ...]:
        """Baselines that were measured again for the tie band, in the order they were."""
        r = tables.RepeatRecord
        rows = self._database.rows(table_rows.select_all(r, r.study_target_id == study_target_id).order_by(r.id))
        return tuple(r.of(row) for row in rows)

    @retry
    def add_repeat(self, study_target_id: int, evaluation_id: int, kind: str, latency: Latency) -> None:
        """Store that a baseline was measured again for the tie band; `kind` as in `RepeatRecord`."""
        values = {"study_target_id": study_target_id, "evaluation_id": evaluation_id, "kind": kind}
        values |= {"raw_ms": latency.raw_ms, "baseline_ms": latency.baseline_ms}
        with self._database.begin_write("store a repetition") as connection:
            connection.execute(insert(tables.RepeatRecord).values(values))


def ensure_fingerprint(connection: Connection, target: Target) -> int:
    """The id of a target's description, which all studies share; it is added where there is none."""
    description = {"fingerprint": target.fingerprint, "description": target}
    return int(table_rows.ensure_row(connection, tables.FingerprintRecord, "fingerprint", description))
