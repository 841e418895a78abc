"""Which files of a study's inputs lie among its artifacts, what is to go from there, what each target was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, select, update

from studies.store import records, statements
from studies.store.database import tables
from studies.store.database.retries import retried
from studies.store.lease_store import LeaseStore


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
            for file in sorted(files, key=lambda file: file.digest):  # in one order, else two that store deadlock
                row = {"digest": file.digest, "kind": file.role, "key": None, "size_bytes": file.size_bytes}
                statements.hold_artifact(connection, row)
            statements.replace_rows(connection, tables.File, {"study_id": study_id}, [vars(file) for file in files])

    def release_study(self, study_id: int) -> frozenset[str]:
        """Let a study that is going to be deleted drop its engines, ranges and files; digests as of `delete_study`."""
        e, t, file, freed = tables.Evaluation, tables.StudyTarget, tables.File, frozenset[str]()
        targets = select(t.id).where(t.study_id == study_id)

        @retried
        def release() -> frozenset[str]:
            nonlocal freed  # what was freed before the answer to a commit was lost
            with self._writing("release the study's artifacts") as connection:
                held = statements.held_by_study(connection, study_id)
                connection.execute(update(e).where(e.study_target_id.in_(targets)).values(artifact=None))
                connection.execute(update(t).where(t.study_id == study_id).values(ranges_digest=None))
                connection.execute(delete(file).where(file.study_id == study_id))
                if held:
                    freed = statements.mark_unused(connection, held)
            return freed

        return release()

    @retried
    def forget_artifact(self, digest: str, remove: Callable[[str], object] = lambda digest: None) -> bool:
        """Remove an artifact that nothing refers to, its file first; False when something does.

        Args:
            remove: deletes the file. It is called inside the transaction, perhaps more than once: nobody else can make
                the artifact known meanwhile, and where it fails the row stays, for `unused_artifacts`.
        """
        with self._writing("forget an artifact") as connection:
            return statements.drop_artifact(connection, digest, remove)

    def unused_artifacts(self, age_s: float) -> frozenset[str]:
        """Digests whose files are to be removed, by `forget_artifact`: what was cut off before it was.

        Args:
            age_s: of what was put and never recorded; before it is so old somebody may be about to.
        """
        with self._reading("read the study") as connection:
            return statements.unused_artifacts(connection, age_s)

    @retried
    def add_config(self, study_id: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any] | None = None) -> None:
        """Put some options of a study in the place of what is there, in one transaction.

        Args:
            seen: the options as this run read them, when it began; see `_changed`.
        """
        s = tables.Study
        with self._writing("store the options of the study") as connection:
            statements.lock(connection, s, study_id)
            known = connection.scalar(select(s.config).where(s.id == study_id)) or {}
            changed = _changed(known, changes, seen)
            path = {"model_path": changed["model"]} if "model" in changed else {}
            if changed:
                connection.execute(update(s).where(s.id == study_id).values(config={**known, **changed}, **path))

    @retried
    def add_options(
        self, study_target_id: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any] | None = None
    ) -> None:
        """The same of what a target was told that the study was not."""
        t = tables.StudyTarget
        with self._writing("store the options of a target") as connection:
            statements.lock(connection, t, study_target_id)
            known = connection.scalar(select(t.options).where(t.id == study_target_id)) or {}
            changed = _changed(known, changes, seen)
            if changed:
                connection.execute(update(t).where(t.id == study_target_id).values(options={**known, **changed}))


def _changed(known: Mapping[str, Any], told: Mapping[str, Any], seen: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a run changes of the options that are stored.

    Between reading and writing a run checks its inputs and calibrates, while others may store what they were told. What
    it was told just as it had read it is no change and overwrites nothing. Of two totals of trials the larger stays,
    for workers that count to it are at work; of anything else the later word.
    """
    if seen is None:
        return dict(told)
    changed = {name: value for name, value in told.items() if name not in seen or value != seen[name]}
    if "trials" in changed and known.get("trials") not in (None, seen.get("trials")):
        changed["trials"] = max(changed["trials"], known["trials"])
    return changed
