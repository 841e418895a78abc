"""Studies in the database: making, finding, changing and deleting them, with the groups of their model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, and_, case, delete, distinct, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from search.errors import StudyError
from studies.store import records, suggestions
from studies.store.database import tables
from studies.store.database.retries import is_repeat, retry
from studies.store.database.transactions import Repository
from studies.store.records import FileRecord, StudyRecord, TargetRecord
from studies.store.repositories.files import insert_files
from studies.store.repositories.targets import ensure_fingerprint
from studies.store.statements import artifacts, table_rows

if TYPE_CHECKING:
    from search.graph.model import Group

Row = Any
STUDY_FIELDS = frozenset({"state", "model_path", "config", "data", "metric", "model", "environment"})
MAX_NAME = 200


class Studies(Repository):
    """The studies of a database; of each its options, its groups and the clusters of its samples."""

    def summaries(self) -> tuple[records.StudySummary, ...]:
        """All studies, oldest first."""
        s, t, e = tables.StudyRecord, tables.TargetRecord, tables.EvaluationRecord
        searched = e.role != records.EXPORT
        states = (records.OK, records.FAILED, records.RUNNING)
        counts = [func.count(case((and_(e.status == status, searched), 1))).label(status) for status in states]
        query = (
            select(s.id, func.count(distinct(t.id)).label("targets"), *counts)
            .outerjoin(t, t.study_id == s.id)
            .outerjoin(e, e.study_target_id == t.id)
            .group_by(s.id)
            .subquery()
        )
        rows = select(*s.__table__.c, *list(query.c)[1:]).join(query, query.c.id == s.id).order_by(s.id)
        return tuple(records.StudySummary.of(row) for row in self._database.rows(rows))

    def load(self, name: str) -> records.StudyRecord:
        """The study of this name; StudyError naming close ones when there is none."""
        s = tables.StudyRecord
        rows = self._database.rows(table_rows.select_all(s, s.name == name))
        if not rows:
            raise StudyError(self._unknown_study(name))
        return tables.StudyRecord.of(rows[0])

    def name_renewed(self, study: records.StudyRecord) -> str | None:
        """The name of the study that one renews; None if it renews none, or that one was deleted."""
        s = tables.StudyRecord
        rows = self._database.rows(select(s.name).where(s.id == study.renewed_from)) if study.renewed_from else []
        return rows[0].name if rows else None

    def _unknown_study(self, name: str) -> str:
        s = tables.StudyRecord
        names = [row.name for row in self._database.rows(select(s.name).order_by(s.id))]
        url = self._database.shown_url
        close = difflib.get_close_matches(name, names, cutoff=0.5)
        if close:
            return f"There is no study {name!r} in {url}. Did you mean {' or '.join(map(repr, close))}?"
        there = f"It holds {', '.join(map(repr, names[-10:]))}" if names else "It holds no study yet"
        return f"There is no study {name!r} in {url}. {there}; give another database with --storage."

    @retry
    def create(
        self,
        new: StudyRecord,
        clusters: Mapping[str, NDArray[np.int64]] = MappingProxyType({}),
        *,
        groups: Sequence[Group] = (),
        files: Sequence[FileRecord] = (),
        target: TargetRecord | None = None,
    ) -> int:
        """Add a study with all that it begins with, in one transaction; its id.

        Args:
            clusters: `search` and `final` → one integer code per score, the same for scores that belong together;
                empty if the data have no clusters.
            groups: of the model, in topological order.
            files: of its inputs, that lie among the artifacts.
            target: the first one, with `target`, `optuna_study` and what else is known of it.

        Raises:
            StudyError: the name is taken or unusable.
        """
        if not new.name.strip() or len(new.name) > MAX_NAME:
            raise StudyError(f"The study name {new.name[:40]!r} cannot be used: expected 1 to {MAX_NAME} characters.")
        try:
            with self._database.begin_write("create the study") as connection:
                number = _insert_study(connection, new, clusters)
                of_group = tables.GroupRecord.of_group
                rows = [{"study_id": number, **of_group(group, place).values()} for place, group in enumerate(groups)]
                if rows:
                    connection.execute(insert(tables.GroupRecord), rows)
                insert_files(connection, number, files)
                if target is not None:
                    keys = {"study_id": number, "target_id": ensure_fingerprint(connection, target.target)}
                    table_rows.insert_row(connection, tables.TargetRecord, {**target.values(), **keys})
                return number
        except IntegrityError:
            known = self.load(new.name)
            if (
                is_repeat()
                and known.model_digest == new.model_digest
                and known.state == vars(new).get("state", "created")
            ):
                return known.id
            way = suggestions.command("resume", new.name, storage=self._database.shown_url)
            raise StudyError(
                f"There is a study {new.name!r} in {self._database.shown_url} already. Continue it with "
                f"`{way}`, or choose another --study."
            ) from None

    @retry
    def update(self, study_id: int, **fields: Any) -> None:
        """Set columns of a study: state, model_path, config, data, metric, model, environment."""
        unknown = fields.keys() - STUDY_FIELDS
        if unknown:
            raise ValueError(f"cannot set {', '.join(sorted(unknown))}; fields are {', '.join(sorted(STUDY_FIELDS))}")
        with self._database.begin_write("update the study") as connection:
            connection.execute(update(tables.StudyRecord).where(tables.StudyRecord.id == study_id).values(**fields))

    @retry
    def add_options(self, study_id: int, changes: Mapping[str, Any], *, seen: Mapping[str, Any] | None = None) -> None:
        """Put some options of a study in the place of what is there, in one transaction.

        Args:
            seen: the options as this run read them, when it began; see `table_rows.merge_options`.
        """
        s = tables.StudyRecord
        with self._database.begin_write("store the options of the study") as connection:
            table_rows.lock(connection, s, study_id)
            known = connection.scalar(select(s.config).where(s.id == study_id)) or {}
            changed = table_rows.merge_options(known, changes, seen)
            path = {"model_path": changed["model"]} if "model" in changed else {}
            if changed:
                connection.execute(update(s).where(s.id == study_id).values(config={**known, **changed}, **path))

    def delete(self, name: str) -> frozenset[str]:
        """Remove a study with all its rows; the Optuna studies of its targets are the caller's to delete.

        Returns:
            Digests of artifacts that nothing refers to any more, for `files.forget`; their rows are marked.

        Raises:
            StudyError: there is no such study.
        """
        study_id, freed = self.load(name).id, frozenset[str]()

        @retry
        def delete_rows() -> frozenset[str]:
            nonlocal freed  # what was freed before the answer to a commit was lost
            with self._database.begin_write("delete the study") as connection:
                held = artifacts.held_by_study(connection, study_id)
                if table_rows.meets_row(
                    connection, delete(tables.StudyRecord).where(tables.StudyRecord.id == study_id)
                ):
                    freed = artifacts.mark_unused(connection, held)
            return freed

        return delete_rows()

    def score_clusters(self, study_id: int) -> dict[str, NDArray[np.int64]]:
        """`search` and `final` → (scores,) the same code for scores that belong together; empty without clusters."""
        c = tables.ClusterRecord
        rows = self._database.rows(select(c.split, c.codes).where(c.study_id == study_id))
        return {row.split: np.frombuffer(row.codes, dtype="<i4").astype(np.int64) for row in rows}

    def groups(self, study_id: int) -> tuple[records.GroupRecord, ...]:
        """The groups in topological order."""
        g = tables.GroupRecord
        query = table_rows.select_all(g, g.study_id == study_id).order_by(g.position)
        return tuple(g.of(row) for row in self._database.rows(query))


def _insert_study(connection: Connection, new: records.StudyRecord, clusters: Mapping[str, NDArray[Any]]) -> int:
    """Add a study and the cluster of each of its scores; its id."""
    number = table_rows.insert_row(connection, tables.StudyRecord, new.values())
    for split, codes in clusters.items():
        values = {"study_id": number, "split": split, "codes": codes.astype("<i4").tobytes()}
        connection.execute(insert(tables.ClusterRecord).values(values))
    return number
