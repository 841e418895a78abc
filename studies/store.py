"""The store of studies: every write is one transaction, so killing a process loses at most the evaluation in flight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from search.errors import StudyError
from search.values import (
    Accuracy,
    Assignment,
    Capability,
    Evaluation,
    Latency,
    LayerTime,
    Precision,
    Target,
)
from studies import database, records, statements, tables
from studies.database import (
    artifact_folder,
    check_usable,
    close_optuna,
    default_url,
    hide_password,
    optuna_reported,
    optuna_storage,
)
from studies.queries import Reader
from studies.records import KnownEvaluationError, LostEvaluationError, NewStudy

if TYPE_CHECKING:
    from search.model import Edge, Group

__all__ = [
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
TARGET_FIELDS = frozenset({"space_digest", "ranges_digest", "latency_band", "reference_ms", "details"})
MAX_NAME = 200


class Store(Reader):
    """Writes studies and, as a Reader, reads them. Safe to use from several threads and processes.

    Every method that writes is one transaction: it happens as a whole or, when it raises, not at all. Besides what a
    method names, each may raise RunError (disk full, server lost) and StudyError (database read-only).
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
        """Close all connections."""
        self._engine.dispose()

    def create_study(self, new: NewStudy) -> int:
        """Add a study; its id. StudyError when the name is taken or unusable."""
        if not new.name.strip() or len(new.name) > MAX_NAME:
            raise StudyError(f"The study name {new.name[:40]!r} cannot be used: expected 1 to {MAX_NAME} characters.")
        try:
            with self._writing("create the study") as connection:
                return statements.insert_row(connection, tables.Study, vars(new))
        except IntegrityError:
            raise StudyError(
                f"There is a study {new.name!r} in {self.url} already. Go on with it by `bitfront resume {new.name}`, "
                "or choose another --study."
            ) from None

    def delete_study(self, name: str) -> frozenset[str]:
        """Remove a study with all its rows; the Optuna studies of its targets are the caller's to delete.

        Returns:
            Digests of artifacts that nothing refers to any more; their rows are gone, their files are the caller's.

        Raises:
            StudyError: there is no such study.
        """
        study_id = self.study(name).id
        with self._writing("delete the study") as connection:
            targets = select(tables.StudyTarget.id).where(tables.StudyTarget.study_id == study_id)
            held = statements.held_artifacts(connection, tables.Evaluation.study_target_id.in_(targets))
            ranges = select(tables.StudyTarget.ranges_digest).where(tables.StudyTarget.study_id == study_id)
            held |= {digest for digest in connection.scalars(ranges) if digest}
            connection.execute(delete(tables.Study).where(tables.Study.id == study_id))
            return statements.forget_unused(connection, held)

    def update_study(self, study_id: int, **fields: Any) -> None:
        """Set columns of a study: state, model_path, config, data, metric, model, environment."""
        self._update("update the study", tables.Study, study_id, fields, STUDY_FIELDS)

    def add_target(
        self,
        study_id: int,
        target: Target,
        optuna_study: str,
        *,
        capability: Capability | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> int:
        """Add a target to a study, or find it there unchanged; the study-target id."""
        with self._writing("add the target") as connection:
            description = {"fingerprint": target.fingerprint, "description": target.to_json()}
            target_id = statements.ensure_row(connection, tables.Target, "fingerprint", description)
            t = tables.StudyTarget
            known = connection.scalar(select(t.id).where(t.study_id == study_id, t.target_id == target_id))
            if known is not None:
                return known
            values = {"study_id": study_id, "target_id": target_id, "optuna_study": optuna_study}
            values["capability"] = None if capability is None else capability.to_json()
            return statements.insert_row(connection, t, {**values, "details": dict(details or {})})

    def update_target(self, study_target_id: int, **fields: Any) -> None:
        """Set columns of a study's target: space_digest, ranges_digest, latency_band, reference_ms, details."""
        self._update("update the target", tables.StudyTarget, study_target_id, fields, TARGET_FIELDS)

    def set_groups(self, study_id: int, groups: Sequence[Group], edges: Sequence[Edge]) -> None:
        """Store groups and edges in the order given, replacing those there."""
        with self._writing("store the groups") as connection:
            owner = {"study_id": study_id}
            statements.replace_rows(
                connection, tables.Group, owner, [statements.group_row(i, g) for i, g in enumerate(groups)]
            )
            statements.replace_rows(
                connection, tables.Edge, owner, [{"position": i, **vars(e)} for i, e in enumerate(edges)]
            )

    def set_choices(self, study_target_id: int, space_digest: str, choices: Sequence[records.Choice]) -> None:
        """Store what each group may take, with the digest of that space, replacing what is there."""
        with self._writing("store the search space") as connection:
            rows = [{**vars(choice), "precision": int(choice.precision)} for choice in choices]
            statements.replace_rows(connection, tables.Choice, {"study_target_id": study_target_id}, rows)
            t = tables.StudyTarget
            connection.execute(update(t).where(t.id == study_target_id).values(space_digest=space_digest))

    def mark_unbuildable(self, study_target_id: int, group: str, precision: Precision) -> None:
        """Remember that the engine's builder refuses this group in this precision; again changes nothing.

        Raises:
            KeyError: `set_choices` stored no such choice.
        """
        c = tables.Choice
        choice = (c.study_target_id == study_target_id, c.group == group, c.precision == int(precision))
        with self._writing("mark a choice as not buildable") as connection:
            if not statements.changed(connection, update(c).where(*choice).values(buildable=False)):
                raise KeyError((study_target_id, group, precision.label))

    def begin(
        self,
        study_target_id: int,
        assignment: Assignment,
        digest: str,
        worker: str,
        trial: int | None,
        role: str = "",
        *,
        asked: Assignment | None = None,
    ) -> int:
        """Claim an evaluation: a running row, its lease, and the link from the Optuna trial. Its id.

        Args:
            digest: of assignment, ranges and builder knobs.
            worker: names the participant that holds the lease; no host or user names.
            trial: Optuna number; None for what no trial asked for, such as a rebuild at export.
            asked: what was proposed, where `assignment` is its repair.

        Raises:
            KnownEvaluationError: the digest is running or finished on this target; nothing was written.
            ValueError: the trial has another evaluation already.
        """
        values = {
            "study_target_id": study_target_id,
            "digest": digest,
            "status": records.RUNNING,
            "role": role,
            "worker": worker[:MAX_NAME],
            "assignment": assignment.to_json(),
            "asked_assignment": None if asked is None else asked.to_json(),
        }
        try:
            with self._writing("begin an evaluation") as connection:
                evaluation_id = statements.insert_row(connection, tables.Evaluation, values)
                lease = {"evaluation_id": evaluation_id, "worker": values["worker"]}
                connection.execute(insert(tables.Lease).values(lease))
                if trial is not None:
                    statements.link(connection, study_target_id, trial, evaluation_id, reused=False)
                return evaluation_id
        except IntegrityError:
            known = self.find(study_target_id, digest)
            if known is None:
                raise ValueError(f"trial {trial} has an evaluation already, or there is no such target") from None
            raise KnownEvaluationError(known.id, known.status) from None

    def heartbeat(self, evaluation_id: int, worker: str) -> bool:
        """Say that the worker is alive; False when it no longer holds the lease."""
        with self._writing("renew a lease") as connection:
            held = (tables.Lease.evaluation_id == evaluation_id, tables.Lease.worker == worker[:MAX_NAME])
            return statements.changed(connection, update(tables.Lease).where(*held).values(heartbeat=tables.utc_now()))

    def record(
        self, evaluation_id: int, evaluation: Evaluation, artifact: str | None = None, *, repaired: bool = False
    ) -> None:
        """Finish a running evaluation: measures, audit, profile, search scores, samples of round 0; its lease goes.

        Call it before Optuna is told.

        Args:
            artifact: digest of the engine file, when `Artifacts` keeps it.
            repaired: its trial and its role go on to a repair of the assignment, so the row is left without them.

        Raises:
            LostEvaluationError: the row is no longer running; nothing was written.
        """
        with self._writing("record an evaluation") as connection:
            e = tables.Evaluation
            running = update(e).where(e.id == evaluation_id, e.status == records.RUNNING)
            if not statements.changed(connection, running.values(**statements.measures(evaluation), artifact=artifact)):
                raise LostEvaluationError(f"evaluation {evaluation_id} is not running any more")
            if repaired:
                connection.execute(update(e).where(e.id == evaluation_id).values(role=""))
                connection.execute(delete(tables.Trial).where(tables.Trial.evaluation_id == evaluation_id))
            statements.insert_audit(connection, evaluation_id, evaluation)
            if evaluation.profile:
                statements.replace_profile(connection, evaluation_id, evaluation.profile)
            if evaluation.latency is not None:
                statements.insert_samples(connection, evaluation_id, 0, evaluation.latency)
            if evaluation.accuracy is not None:
                statements.insert_score(connection, evaluation_id, "search", evaluation.accuracy)
            if artifact is not None:
                engine = statements.engine_row(artifact, evaluation.size_bytes or 0)
                statements.ensure_row(connection, tables.Artifact, "digest", engine)
            connection.execute(delete(tables.Lease).where(tables.Lease.evaluation_id == evaluation_id))

    def abandon(self, evaluation_id: int) -> bool:
        """Remove a running evaluation with its lease and trial link; False when it is not running."""
        e = tables.Evaluation
        with self._writing("abandon an evaluation") as connection:
            return statements.changed(connection, delete(e).where(e.id == evaluation_id, e.status == records.RUNNING))

    def link_trial(
        self, study_target_id: int, trial: int, evaluation_id: int, *, asked: Assignment | None = None
    ) -> None:
        """Let an evaluation that is there already answer another Optuna trial too.

        Args:
            asked: what the trial proposed, where the evaluation is of its repair.
        """
        with self._writing("link a trial") as connection:
            statements.link(connection, study_target_id, trial, evaluation_id, reused=True, asked=asked)

    def add_samples(self, evaluation_id: int, round_number: int, latency: Latency) -> None:
        """Store a measurement made again; `round_number` ≥ 1, once per evaluation, from `next_round`."""
        with self._writing("store a measurement") as connection:
            statements.insert_samples(connection, evaluation_id, round_number, latency)

    def set_final(self, evaluation_id: int, accuracy: Accuracy) -> None:
        """Store the accuracy on the final split, replacing one that is there."""
        s = tables.Score
        with self._writing("store a final score") as connection:
            connection.execute(delete(s).where(s.evaluation_id == evaluation_id, s.split == "final"))
            statements.insert_score(connection, evaluation_id, "final", accuracy)

    def set_profile(self, evaluation_id: int, layers: Sequence[LayerTime]) -> None:
        """Store what each layer of an evaluation's engine takes, in the order they run, replacing what is there."""
        with self._writing("store a profile") as connection:
            statements.replace_profile(connection, evaluation_id, layers)

    def set_sensitivities(self, study_target_id: int, rows: Sequence[records.SensitivityRecord]) -> None:
        """Store what groups do alone in lower precisions on this target, replacing all that is there."""
        values = [{**vars(row), "precision": int(row.precision)} for row in rows]
        with self._writing("store sensitivities") as connection:
            statements.replace_rows(connection, tables.Sensitivity, {"study_target_id": study_target_id}, values)

    def add_artifact(self, digest: str, kind: str, size_bytes: int, *, key: str | None = None) -> None:
        """Make an artifact known, under a cache key if given; a key that is there moves to this digest."""
        a = tables.Artifact
        with self._writing("store an artifact") as connection:
            if key is not None:
                connection.execute(update(a).where(a.key == key, a.digest != digest).values(key=None))
            row = {"digest": digest, "kind": kind, "key": key, "size_bytes": size_bytes}
            statements.ensure_row(connection, a, "digest", row)
            if key is not None:
                connection.execute(update(a).where(a.digest == digest).values(key=key))

    def attach_artifact(self, evaluation_id: int, digest: str, size_bytes: int) -> None:
        """Give a finished evaluation its engine, say one that was rebuilt."""
        e = tables.Evaluation
        with self._writing("attach an engine") as connection:
            engine = statements.engine_row(digest, size_bytes)
            statements.ensure_row(connection, tables.Artifact, "digest", engine)
            connection.execute(update(e).where(e.id == evaluation_id).values(artifact=digest))

    def release_artifacts(self, evaluation_ids: Sequence[int]) -> frozenset[str]:
        """Let evaluations drop their engines; digests that nothing refers to any more, as in `delete_study`."""
        e = tables.Evaluation
        held: set[str] = set()
        with self._writing("release engines") as connection:
            for chunk in statements.chunks([int(evaluation_id) for evaluation_id in evaluation_ids]):
                held |= statements.held_artifacts(connection, e.id.in_(chunk))
                connection.execute(update(e).where(e.id.in_(chunk)).values(artifact=None))
            return statements.forget_unused(connection, held)

    @contextmanager
    def _writing(self, action: str) -> Iterator[Connection]:
        with database.reported(action, self._url), database.writing(self._engine) as connection:
            yield connection

    def _update(
        self, action: str, table: type[Any], row_id: int, fields: Mapping[str, Any], allowed: frozenset[str]
    ) -> None:
        unknown = fields.keys() - allowed
        if unknown:
            raise ValueError(f"cannot set {', '.join(sorted(unknown))}; fields are {', '.join(sorted(allowed))}")
        with self._writing(action) as connection:
            connection.execute(update(table).where(table.id == row_id).values(**fields))
