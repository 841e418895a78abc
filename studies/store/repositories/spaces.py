"""The search space of a target, and the effect of single groups in lower precisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import insert, select, update

from evaluators.diagnose.group_error import GroupError
from search.values import Precision
from studies.store import records
from studies.store.database import tables
from studies.store.database.retries import retry
from studies.store.database.transactions import Repository
from studies.store.statements import table_rows


class Spaces(Repository):
    """The search space of each target: choices of groups, and their sensitivities."""

    def choices(self, study_target_id: int) -> tuple[records.ChoiceRecord, ...]:
        """Every precision of every group, by group id and precision; empty until `set_choices`."""
        c = tables.ChoiceRecord
        rows = self._database.rows(table_rows.select_all(c, c.study_target_id == study_target_id))
        return tuple(sorted(map(c.of, rows), key=lambda choice: (choice.group, choice.precision)))

    @retry
    def set_choices(
        self,
        study_target_id: int,
        space_digest: str,
        choices: Sequence[records.ChoiceRecord],
        calibration: records.CalibrationRecord | None = None,
    ) -> None:
        """Store what each group may take, with the digest of that space, unless the target has a space already.

        Args:
            calibration: that the space is made with, stored with it; nothing is stored where the target has other
                ranges.
        """
        ranges_digest = None if calibration is None else calibration.ranges_digest
        t = tables.TargetRecord
        with self._database.begin_write("store the search space") as connection:
            known = select(t.space_digest, t.ranges_digest).where(t.id == study_target_id)
            row = connection.execute(known.with_for_update(key_share=True)).one_or_none()
            if row is None or row[0] is not None or row[1] not in (None, ranges_digest):
                return
            if calibration is not None:  # whoever removes them has done so before, or sees that they are in use
                held = (calibration.ranges_digest, calibration.statistics_digest)
                artifact = select(tables.ArtifactRecord.digest).where(
                    tables.ArtifactRecord.digest.in_(filter(None, held))
                )
                connection.execute(artifact.order_by(tables.ArtifactRecord.digest).with_for_update()).all()
            rows = [{**choice.values(), "study_target_id": study_target_id} for choice in choices]
            if rows:
                connection.execute(insert(tables.ChoiceRecord), rows)
            values: dict[str, Any] = {"space_digest": space_digest, "ranges_digest": ranges_digest}
            if calibration is not None:
                values |= vars(calibration)
            connection.execute(update(t).where(t.id == study_target_id).values(**values))

    @retry
    def set_calibration(self, study_target_id: int, calibration: records.CalibrationRecord) -> None:
        """Let a target go on with other ranges, while no evaluation rests on those it has."""
        t = tables.TargetRecord
        with self._database.begin_write("store the calibration") as connection:
            connection.execute(update(t).where(t.id == study_target_id).values(**vars(calibration)))

    def unbuildable(self, study_target_id: int) -> frozenset[tuple[str, Precision]]:
        """(group id, precision) that the engine's builder has refused on this target; see `mark_unbuildable`."""
        c = tables.ChoiceRecord
        query = select(c.group, c.precision).where(c.study_target_id == study_target_id, c.buildable.is_(False))
        return frozenset((row[0], row[1]) for row in self._database.rows(query))

    @retry
    def mark_unbuildable(self, study_target_id: int, group: str, precision: Precision) -> None:
        """Remember that the engine's builder refuses this group in this precision; again changes nothing.

        Raises:
            KeyError: `set_choices` stored no such choice.
        """
        c = tables.ChoiceRecord
        choice = (c.study_target_id == study_target_id, c.group == group, c.precision == precision)
        with self._database.begin_write("mark a choice as not buildable") as connection:
            if not table_rows.meets_row(connection, update(c).where(*choice).values(buildable=False)):
                raise KeyError((study_target_id, group, precision.label))

    def sensitivity_rows(self, study_target_id: int) -> tuple[GroupError, ...]:
        """What groups do alone in lower precisions, by group and precision; empty until `set_sensitivities`."""
        s = tables.SensitivityRecord
        columns = [s.__table__.c[field.name] for field in fields(GroupError)]
        rows = self._database.rows(select(*columns).where(s.study_target_id == study_target_id))
        return tuple(sorted((GroupError(*row) for row in rows), key=lambda row: (row.group, row.precision)))

    def sensitivities(self, study_target_id: int) -> dict[tuple[str, Precision], float]:
        """(group id, precision) → error of the network's outputs, noise over power, with that group alone in it.

        Infinite where outputs are not finite. FP32 is not among the pairs; empty until `set_sensitivities`.
        """
        rows = self.sensitivity_rows(study_target_id)
        return {(row.group, row.precision): math.inf if row.error is None else row.error for row in rows}

    @retry
    def set_sensitivities(self, study_target_id: int, rows: Sequence[GroupError], *, replace: bool = True) -> None:
        """Store what groups do alone in lower precisions on this target.

        Args:
            replace: what is there; else nothing happens where something is.
        """
        values = [vars(row) for row in rows]
        s = tables.SensitivityRecord
        with self._database.begin_write("store sensitivities") as connection:
            table_rows.lock(connection, tables.TargetRecord, study_target_id)
            there = select(s.group).where(s.study_target_id == study_target_id).limit(1)
            if not replace and connection.scalar(there) is not None:
                return
            table_rows.replace_rows(connection, tables.SensitivityRecord, {"study_target_id": study_target_id}, values)
