"""The files of the database, such as engines, ranges and inputs of studies, and those that nothing refers to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from studies.store import records
from studies.store.database import tables
from studies.store.database.retries import retry
from studies.store.database.transactions import Repository
from studies.store.statements import artifacts, table_rows

Row = Any


class Files(Repository):
    """The files among the artifacts, by their digests."""

    def inputs(self, study_id: int) -> tuple[records.FileRecord, ...]:
        """The files of a study that lie among the artifacts, by role and position; empty until `set_files`."""
        f = tables.FileRecord
        query = table_rows.select_all(f, f.study_id == study_id).order_by(f.role, f.position)
        return tuple(f.of(row) for row in self._database.rows(query))

    @retry
    def set_inputs(self, study_id: int, files: Sequence[records.FileRecord]) -> None:
        """Store which files of a study lie among the artifacts, replacing what is there."""
        with self._database.begin_write("store the study's files") as connection:
            table_rows.lock(connection, tables.StudyRecord, study_id)
            connection.execute(delete(tables.FileRecord).where(tables.FileRecord.study_id == study_id))
            insert_files(connection, study_id, files)

    def find(self, key: str) -> records.ArtifactRecord | None:
        """The cache entry with this key, say the ranges of a model, data and method; None when there is none."""
        rows = self._database.rows(table_rows.select_all(tables.ArtifactRecord, tables.ArtifactRecord.key == key))
        return tables.ArtifactRecord.of(rows[0]) if rows else None

    def all(self) -> tuple[records.ArtifactRecord, ...]:
        """Every artifact the database knows, of all studies, those too whose files are yet to be removed."""
        a = tables.ArtifactRecord
        return tuple(a.of(row) for row in self._database.rows(table_rows.select_all(a).order_by(a.digest)))

    @retry
    def add(self, digest: str, kind: str, size_bytes: int, *, key: str | None = None) -> None:
        """Make an artifact known, under a cache key if given; a key that is there moves to this digest."""
        with self._database.begin_write("store an artifact") as connection:
            row = {"digest": digest, "kind": kind, "key": None, "size_bytes": size_bytes}
            artifacts.hold_artifact(connection, row, likely_new=True)
            if key is not None:
                artifacts.move_key(connection, key, digest)

    def release_engines(self, evaluation_ids: Sequence[int]) -> frozenset[str]:
        """Let evaluations drop their engines; digests that nothing refers to any more, as of `Studies.delete`."""
        e, freed = tables.EvaluationRecord, frozenset[str]()

        @retry
        def release() -> frozenset[str]:
            nonlocal freed  # as of `Studies.delete`
            held: set[str] = set()
            with self._database.begin_write("release engines") as connection:
                for chunk in table_rows.chunks([int(evaluation_id) for evaluation_id in evaluation_ids]):
                    held |= artifacts.held_artifacts(connection, e.id.in_(chunk))
                    connection.execute(update(e).where(e.id.in_(chunk)).values(artifact=None))
                if held:
                    freed = artifacts.mark_unused(connection, held)
            return freed

        return release()

    def release_study(self, study_id: int) -> frozenset[str]:
        """Let a study that will be deleted drop its engines, ranges and files; digests as of `Studies.delete`."""
        e, t, file, freed = tables.EvaluationRecord, tables.TargetRecord, tables.FileRecord, frozenset[str]()
        targets = select(t.id).where(t.study_id == study_id)

        @retry
        def release() -> frozenset[str]:
            nonlocal freed  # what was freed before the answer to a commit was lost
            with self._database.begin_write("release the study's artifacts") as connection:
                held = artifacts.held_by_study(connection, study_id)
                connection.execute(update(e).where(e.study_target_id.in_(targets)).values(artifact=None))
                connection.execute(
                    update(t).where(t.study_id == study_id).values(ranges_digest=None, statistics_digest=None)
                )
                connection.execute(delete(file).where(file.study_id == study_id))
                if held:
                    freed = artifacts.mark_unused(connection, held)
            return freed

        return release()

    @retry
    def forget(self, digest: str, remove: Callable[[str], object] = lambda digest: None) -> bool:
        """Remove an artifact that nothing refers to, its file first; False when something does.

        Args:
            remove: deletes the file. It is called inside the transaction, perhaps more than once: nobody else can make
                the artifact known meanwhile, and where it fails the row stays, for `unused`.
        """
        with self._database.begin_write("forget an artifact") as connection:
            return artifacts.drop_artifact(connection, digest, remove)

    def find_unused(self, age_s: float) -> frozenset[str]:
        """Digests whose files `forget` has to remove: removals that were interrupted before.

        Args:
            age_s: of what was put and never recorded; before it is so old somebody may be about to.
        """
        with self._database.begin_read("read the study") as connection:
            return artifacts.unused_artifacts(connection, age_s)


def insert_files(connection: Connection, study_id: int, files: Sequence[records.FileRecord]) -> None:
    """Add the files of a study that lie among the artifacts."""
    for file in sorted(files, key=lambda file: file.digest):  # in one order, else two that store deadlock
        row = {"digest": file.digest, "kind": file.role, "key": None, "size_bytes": file.size_bytes}
        artifacts.hold_artifact(connection, row)
    if files:
        connection.execute(insert(tables.FileRecord), [{"study_id": study_id, **file.values()} for file in files])
