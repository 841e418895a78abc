"""Which files of a study's inputs lie among its artifacts, and what each of its targets was told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update

from studies import records, statements, tables
from studies.lease_store import LeaseStore
from studies.retries import retried


class FileStore(LeaseStore):
    """The part of the store that is about hosts that did not make the study."""

    def files(self, study_id: int) -> tuple[records.FileRecord, ...]:
        """The files of a study that lie among the artifacts, by role and position; empty until `set_files`."""
        f = tables.File
        columns = (f.role, f.position, f.name, f.digest, f.size_bytes)
        query = select(*columns).where(f.study_id == study_id).order_by(f.role, f.position)
        return tuple(records.FileRecord(*row) for row in self._rows(query))

    @retried
    def set_files(self, study_id: int, files: Sequence[records.FileRecord]) -> None:
        """Store which files of a study lie among the artifacts, replacing what is there."""
        with self._writing("store the study's files") as connection:
            statements.lock(connection, tables.Study, study_id)
            for file in files:
                row = {"digest": file.digest, "kind": file.role, "key": None, "size_bytes": file.size_bytes}
                statements.ensure_row(connection, tables.Artifact, "digest", row)
            statements.replace_rows(connection, tables.File, {"study_id": study_id}, [vars(file) for file in files])

    @retried
    def add_config(self, study_id: int, changes: Mapping[str, Any]) -> None:
        """Put some options of a study in the place of what is there; others that a run changes meanwhile stay."""
        s = tables.Study
        with self._writing("store the options of the study") as connection:
            statements.lock(connection, s, study_id)
            known = connection.scalar(select(s.config).where(s.id == study_id)) or {}
            path = {"model_path": changes["model"]} if "model" in changes else {}
            connection.execute(update(s).where(s.id == study_id).values(config={**known, **changes}, **path))

    @retried
    def add_options(self, study_target_id: int, changes: Mapping[str, Any]) -> None:
        """The same of what a target was told that the study was not."""
        t = tables.StudyTarget
        with self._writing("store the options of a target") as connection:
            statements.lock(connection, t, study_target_id)
            known = connection.scalar(select(t.options).where(t.id == study_target_id)) or {}
            connection.execute(update(t).where(t.id == study_target_id).values(options={**known, **changes}))
