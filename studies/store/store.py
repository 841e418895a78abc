"""The store of studies: every write is one transaction, so killing a process loses at most the evaluation in flight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from search.errors import StudyError
from search.values import (
    Capability,
    Latency,
    Precision,
    Target,
)
from studies.store import records, statements, suggestions
from studies.store.database import database, tables
from studies.store.database.database import (
    artifact_folder,
    check_usable,
    close_optuna,
    default_url,
    hide_password,
    optuna_reported,
    optuna_storage,
)
from studies.store.database.retries import repeated, retried
from studies.store.evaluation_store import EvaluationStore
from studies.store.files_store import FileStore
from studies.store.reading.counts import Tallies
from studies.store.records import FullStudyError, KnownEvaluationError, LostEvaluationError, NewStudy

if TYPE_CHECKING:
    from search.graph.model import Edge, Group

__all__ = [
    "FullStudyError",
    "KnownEvaluationError",
    "LostEvaluationError",
    "NewStudy",
    "Store",
    "artifact_folder",
    "check_usable",
    "close_optuna",
    "default_url",
    "hide_password",
    "optuna_reported",
    "optuna_storage",
]

STUDY_FIELDS = frozenset({"state", "model_path", "config", "data", "metric", "model", "environment"})
MAX_NAME = 200


class Store(EvaluationStore, FileStore, Tallies):
    """Writes studies and, as a Reader, reads them. Safe to use from several threads and processes.

    Every method that writes is one transaction: it happens as a whole or, when it raises, not at all. Besides what a
    method names, each may raise RunError (disk full, server lost) and StudyError (database read-only). What a server
    cut off is run again.
    """

    @classmethod
    def open(cls, url: str, *, create: bool = False, write: bool = True) -> Store:
        """Open the database at `url`, upgrading tables of an older bitfront.

        Args:
            url: SQLAlchemy URL; SQLite files, PostgreSQL or MySQL.
            create: make the database file and our tables where they are missing.
            write: False for reading verbs: nothing is created, and nothing can be written by mistake.

        Raises:
            StudyError: not there, not ours, made by a newer bitfront, not reachable, or read-only and `write`.
        """
        return cls(database.open_engine(url, create=create, write=write), database.parse_url(url))

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; what is read later has a connection for that alone."""
        self._closed = True
        self._engine.dispose()

    @retried
    def create_study(self, new: NewStudy, clusters: Mapping[str, NDArray[np.int64]] = MappingProxyType({})) -> int:
        """Add a study; its id. StudyError when the name is taken or unusable.

        Args:
            clusters: `search` and `final` → one integer code per score, the same for scores that belong together;
                empty where the data have no clusters.
        """
        if not new.name.strip() or len(new.name) > MAX_NAME:
            raise StudyError(f"The study name {new.name[:40]!r} cannot be used: expected 1 to {MAX_NAME} characters.")
        try:
            with self._writing("create the study") as connection:
                return statements.insert_study(connection, new, clusters)
        except IntegrityError:
            known = self.study(new.name)
            if repeated() and (known.state, known.model_digest) == (new.state, new.model_digest):
                return known.id
            raise StudyError(
                f"There is a study {new.name!r} in {self.url} already. Go on with it by "
                f"`{suggestions.command('resume', new.name)}`, or choose another --study."
            ) from None

    def delete_study(self, name: str) -> frozenset[str]:
        """Remove a study with all its rows; the Optuna studies of its targets are the caller's to delete.

        Returns:
            Digests of artifacts that nothing refers to any more, for `forget_artifact`; their rows are marked.

        Raises:
            StudyError: there is no such study.
        """
        study_id, freed = self.study(name).id, frozenset[str]()

        @retried
        def delete_rows() -> frozenset[str]:
            nonlocal freed  # what was freed before the answer to a commit was lost
            with self._writing("delete the study") as connection:
                held = statements.held_by_study(connection, study_id)
                if statements.changed(connection, delete(tables.Study).where(tables.Study.id == study_id)):
                    freed = statements.mark_unused(connection, held)
            return freed

        return delete_rows()

    @retried
    def update_study(self, study_id: int, **fields: Any) -> None:
        """Set columns of a study: state, model_path, config, data, metric, model, environment."""
        self._update("update the study", tables.Study, study_id, fields, STUDY_FIELDS)

    @retried
    def add_target(
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
        with self._writing("add the target") as connection:
            statements.lock(connection, tables.Study, study_id)
            description = {"fingerprint": target.fingerprint, "description": target.to_json()}
            target_id = statements.ensure_row(connection, tables.Target, "fingerprint", description)
            t = tables.StudyTarget
            known = connection.scalar(select(t.id).where(t.study_id == study_id, t.target_id == target_id))
            if known is not None:
                return known
            values = {"study_id": study_id, "target_id": target_id, "optuna_study": optuna_study}
            values["capability"] = None if capability is None else capability.to_json()
            values["options"] = None if options is None else dict(options)
            return statements.insert_row(connection, t, {**values, "details": dict(details or {})})

    @retried
    def settle_target(
        self, study_target_id: int, *, details: Mapping[str, Any] | None = None, **fields: float | str
    ) -> None:
        """Set columns of a study's target, and add to its details, unless one of these columns is set already.

        Of workers that find the same thing out the first one's word stays, also where it was taken for lost: what is
        stored is in use. So read it back afterwards.
        """
        t = tables.StudyTarget
        columns = [t.__table__.c[name] for name in fields]
        with self._writing("store what is once for all workers") as connection:
            statements.lock(connection, t, study_target_id)
            row = connection.execute(select(t.details, *columns).where(t.id == study_target_id)).one_or_none()
            if row is not None and all(value is None for value in row[1:]):
                added = {"details": {**(row[0] or {}), **details}} if details else {}
                connection.execute(update(t).where(t.id == study_target_id).values(**fields, **added))

    @retried
    def add_details(self, study_target_id: int, **details: Any) -> None:
        """Add to a target's details, or replace some of them."""
        t = tables.StudyTarget
        with self._writing("update the target") as connection:
            statements.lock(connection, t, study_target_id)
            known = connection.scalar(select(t.details).where(t.id == study_target_id)) or {}
            connection.execute(update(t).where(t.id == study_target_id).values(details={**known, **details}))

    @retried
    def set_groups(self, study_id: int, groups: Sequence[Group], edges: Sequence[Edge]) -> None:
        """Store groups and edges in the order given, replacing those there; StudyError when the study is gone."""
        with self._writing("store the groups") as connection:
            if not statements.lock(connection, tables.Study, study_id):
                raise StudyError("storing the groups: the study was deleted just now.")
            owner = {"study_id": study_id}
            statements.replace_rows(
                connection, tables.Group, owner, [statements.group_row(i, g) for i, g in enumerate(groups)]
            )
            statements.replace_rows(
                connection, tables.Edge, owner, [{"position": i, **vars(e)} for i, e in enumerate(edges)]
            )

    @retried
    def set_choices(
        self,
        study_target_id: int,
        space_digest: str,
        choices: Sequence[records.Choice],
        ranges_digest: str | None = None,
    ) -> None:
        """Store what each group may take, with the digest of that space, unless the target has a space already.

        Args:
            ranges_digest: of the ranges that the space is made with, stored with it; nothing is stored where the target
                has others.
        """
        t = tables.StudyTarget
        with self._writing("store the search space") as connection:
            statements.lock(connection, t, study_target_id)
            known = select(t.space_digest, t.ranges_digest).where(t.id == study_target_id)
            row = connection.execute(known).one_or_none()
            if row is None or row[0] is not None or row[1] not in (None, ranges_digest):
                return
            if ranges_digest is not None:  # whoever removes them has done so before, or sees that they are in use
                ranges = select(tables.Artifact.digest).where(tables.Artifact.digest == ranges_digest)
                connection.execute(ranges.with_for_update()).all()
            rows = [{**vars(choice), "precision": choice.precision.id} for choice in choices]
            statements.replace_rows(connection, tables.Choice, {"study_target_id": study_target_id}, rows)
            values = {"space_digest": space_digest, "ranges_digest": ranges_digest}
            connection.execute(update(t).where(t.id == study_target_id).values(**values))

    @retried
    def mark_unbuildable(self, study_target_id: int, group: str, precision: Precision) -> None:
        """Remember that the engine's builder refuses this group in this precision; again changes nothing.

        Raises:
            KeyError: `set_choices` stored no such choice.
        """
        c = tables.Choice
        choice = (c.study_target_id == study_target_id, c.group == group, c.precision == precision.id)
        with self._writing("mark a choice as not buildable") as connection:
            if not statements.changed(connection, update(c).where(*choice).values(buildable=False)):
                raise KeyError((study_target_id, group, precision.label))

    @retried
    def set_sensitivities(
        self, study_target_id: int, rows: Sequence[records.SensitivityRecord], *, replace: bool = True
    ) -> None:
        """Store what groups do alone in lower precisions on this target.

        Args:
            replace: what is there; else nothing happens where something is.
        """
        values = [{**vars(row), "precision": row.precision.id} for row in rows]
        s = tables.Sensitivity
        with self._writing("store sensitivities") as connection:
            statements.lock(connection, tables.StudyTarget, study_target_id)
            there = select(s.group).where(s.study_target_id == study_target_id).limit(1)
            if not replace and connection.scalar(there) is not None:
                return
            statements.replace_rows(connection, tables.Sensitivity, {"study_target_id": study_target_id}, values)

    @retried
    def add_repeat(
        self, study_target_id: int, evaluation_id: int, kind: str, latency: Latency, *, worker: str = ""
    ) -> None:
        """Store that a baseline was measured again for the tie band; `kind` as in `RepeatRecord`."""
        values = {"study_target_id": study_target_id, "evaluation_id": evaluation_id, "kind": kind, "worker": worker}
        values |= {"raw_ms": latency.raw_ms, "baseline_ms": latency.baseline_ms}
        with self._writing("store a repetition") as connection:
            connection.execute(insert(tables.Repeat).values(values))

    @retried
    def add_artifact(self, digest: str, kind: str, size_bytes: int, *, key: str | None = None) -> None:
        """Make an artifact known, under a cache key if given; a key that is there moves to this digest."""
        a = tables.Artifact
        with self._writing("store an artifact") as connection:
            if key is not None:
                connection.execute(update(a).where(a.key == key, a.digest != digest).values(key=None))
            row = {"digest": digest, "kind": kind, "key": key, "size_bytes": size_bytes}
            statements.hold_artifact(connection, row)
            if key is not None:
                connection.execute(update(a).where(a.digest == digest).values(key=key))

    def release_artifacts(self, evaluation_ids: Sequence[int]) -> frozenset[str]:
        """Let evaluations drop their engines; digests that nothing refers to any more, as in `delete_study`."""
        e, freed = tables.Evaluation, frozenset[str]()

        @retried
        def release() -> frozenset[str]:
            nonlocal freed  # as in `delete_study`
            held: set[str] = set()
            with self._writing("release engines") as connection:
                for chunk in statements.chunks([int(evaluation_id) for evaluation_id in evaluation_ids]):
                    held |= statements.held_artifacts(connection, e.id.in_(chunk))
                    connection.execute(update(e).where(e.id.in_(chunk)).values(artifact=None))
                if held:
                    freed = statements.mark_unused(connection, held)
            return freed

        return release()

    def _update(
        self, action: str, table: type[Any], row_id: int, fields: Mapping[str, Any], allowed: frozenset[str]
    ) -> None:
        unknown = fields.keys() - allowed
        if unknown:
            raise ValueError(f"cannot set {', '.join(sorted(unknown))}; fields are {', '.join(sorted(allowed))}")
        with self._writing(action) as connection:
            connection.execute(update(table).where(table.id == row_id).values(**fields))
