"""The workers of a study with their heartbeats, and tasks that one worker does for all.

Ages are judged by the database's clock alone. Every change of hands is one conditional UPDATE, so that of many who try
one succeeds, whichever database it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from search.errors import StudyError
from studies.store import records
from studies.store.database import column_types, tables
from studies.store.database.retries import is_repeat, retry
from studies.store.database.transactions import Repository
from studies.store.statements import table_rows

Row = Any


class Workers(Repository):
    """The workers of each target."""

    def join(self, study_target_id: int, *, host: str, device: str, pid: int, state: str = "starting") -> str:
        """Add a worker; its name, which no other has."""
        values = {"study_target_id": study_target_id, "host": host[:200], "device": device[:200], "pid": pid}
        while True:
            name = f"w-{secrets.token_hex(3)}"
            try:
                if self._add_worker({**values, "name": name, "state": state}):
                    return name
            except BaseException:  # it may be there all the same, and nobody would know
                with suppress(Exception):
                    self.end(name)
                raise

    @retry
    def _add_worker(self, values: Mapping[str, Any]) -> bool:
        """False where another has this name."""
        try:
            with self._database.begin_write("join the study") as connection:
                connection.execute(insert(tables.WorkerRecord).values(values))
                return True
        except IntegrityError:
            same = tables.WorkerRecord.name == values["name"]
            if not self._database.rows(select(tables.WorkerRecord.id).where(same)):
                raise StudyError("joining a study: it was deleted just now.") from None
            return is_repeat()

    @retry
    def set_state(self, name: str, state: str) -> None:
        """Say what a worker is doing."""
        with self._database.begin_write("say what a worker does") as connection:
            connection.execute(update(tables.WorkerRecord).where(tables.WorkerRecord.name == name).values(state=state))

    @retry
    def set_spent(self, name: str, spent: Mapping[str, float]) -> None:
        """Store where the time of a worker went until now: kind → seconds since its command began."""
        with self._database.begin_write("store where time went") as connection:
            connection.execute(
                update(tables.WorkerRecord).where(tables.WorkerRecord.name == name).values(_spent(spent))
            )

    @retry
    def end(self, name: str, state: str = "ended", spent: Mapping[str, float] | None = None) -> None:
        """End a worker; the tasks that it still holds are free.

        Args:
            spent: as of `set_spent`.
        """
        w, t = tables.WorkerRecord, tables.TaskRecord
        values = {"state": state, "ended_at": column_types.utc_now(), **_spent(spent)}
        with self._database.begin_write("end a worker") as connection:
            connection.execute(update(w).where(w.name == name).values(values))
            connection.execute(delete(t).where(t.worker == name))

    @retry
    def end_others(self, study_target_id: int, name: str) -> None:
        """End all workers but one, which knows that it is alone: on SQLite it holds the study's lock."""
        w, t = tables.WorkerRecord, tables.TaskRecord
        left = (w.study_target_id == study_target_id, w.name != name, w.ended_at.is_(None))
        with self._database.begin_write("end lost workers") as connection:
            connection.execute(update(w).where(*left).values(state="failed", ended_at=w.heartbeat))
            connection.execute(delete(t).where(t.study_target_id == study_target_id, t.worker != name))

    def beat(self, name: str, spent: Mapping[str, float] | None = None) -> None:
        """Say that a worker is alive: renews its own row, the leases of its evaluations and its tasks.

        Args:
            spent: as of `set_spent`.
        """
        with self._database.begin_write("renew a lease") as connection:  # not run again: who beats has its own loop
            w, now = tables.WorkerRecord, {"heartbeat": column_types.utc_now()}
            connection.execute(update(w).where(w.name == name).values({**now, **_spent(spent)}))
            for table in (tables.LeaseRecord, tables.TaskRecord):
                connection.execute(update(table).where(table.worker == name).values(now))

    def of_target(self, study_target_id: int) -> tuple[records.WorkerRecord, ...]:
        """Every worker there was, oldest first."""
        w, e, trials, lease = tables.WorkerRecord, tables.EvaluationRecord, tables.TrialRecord, tables.LeaseRecord
        of_target = e.study_target_id == study_target_id
        made = (
            select(e.worker, func.count().label("evaluations"))
            .where(of_target, e.status.in_((records.OK, records.FAILED)), e.role != records.EXPORT)
            .group_by(e.worker)
            .subquery()
        )
        now = (
            select(lease.worker, func.max(e.id).label("evaluation_id"), func.min(trials.number).label("trial"))
            .join(e, e.id == lease.evaluation_id)
            .outerjoin(trials, trials.evaluation_id == e.id)
            .where(of_target, e.status == records.RUNNING)
            .group_by(lease.worker)
            .subquery()
        )
        query = (
            select(*w.__table__.c, column_types.utc_now().label("now"))
            .add_columns(func.coalesce(made.c.evaluations, 0).label("evaluations"), now.c.evaluation_id, now.c.trial)
            .outerjoin(made, made.c.worker == w.name)
            .outerjoin(now, now.c.worker == w.name)
            .where(w.study_target_id == study_target_id)
            .order_by(w.id)
        )
        return tuple(w(**row._mapping, heartbeat_age_s=_age_s(row)) for row in self._database.rows(query))

    def live(self, study_target_id: int, lease_s: float) -> dict[str, str]:
        """Name → state of the workers that were heard of within a lease and have not ended."""
        w = tables.WorkerRecord
        live = (
            w.study_target_id == study_target_id,
            w.ended_at.is_(None),
            w.heartbeat >= column_types.utc_ago(lease_s),
        )
        return {row.name: row.state for row in self._database.rows(select(w.name, w.state).where(*live).order_by(w.id))}


class Tasks(Repository):
    """What one worker of a target does for all of them, named by a word."""

    @retry
    def take(self, study_target_id: int, task: str, worker: str, lease_s: float) -> bool:
        """Give a worker a task unless another has it and is alive; False when it does not get it."""
        t, now = tables.TaskRecord, column_types.utc_now()
        this = (t.study_target_id == study_target_id, t.name == task)
        values = {"worker": worker, "heartbeat": now}
        try:
            with self._database.begin_write("take a task") as connection:
                free = table_rows.is_free(t, worker, lease_s)
                if table_rows.meets_row(connection, update(t).where(*this, free).values(values)):
                    return True
                if connection.scalar(select(t.worker).where(*this)) is not None:
                    return False
                row = {"study_target_id": study_target_id, "name": task, "worker": worker}
                connection.execute(insert(t).values(row))
                return True
        except IntegrityError:  # another one took it just now
            return False

    @retry
    def release(self, study_target_id: int, task: str, worker: str) -> None:
        """Let others have a task; nothing happens when it has been taken over."""
        t = tables.TaskRecord
        this = (t.study_target_id == study_target_id, t.name == task, t.worker == worker)
        with self._database.begin_write("release a task") as connection:
            connection.execute(delete(t).where(*this))

    def of_target(self, study_target_id: int) -> tuple[records.TaskRecord, ...]:
        """The tasks that workers hold, by name; also those that a lost worker left."""
        t = tables.TaskRecord
        query = select(*t.__table__.c, column_types.utc_now().label("now"))
        rows = self._database.rows(query.where(t.study_target_id == study_target_id).order_by(t.name))
        return tuple(t(**row._mapping, heartbeat_age_s=_age_s(row)) for row in rows)


def _spent(spent: Mapping[str, float] | None) -> dict[str, Any]:
    """The columns of a worker that say where its time went; none if nothing is known of it."""
    seconds = {kind: round(each, 3) for kind, each in (spent or {}).items()}
    return {"spent": seconds, "spent_at": column_types.utc_now()} if seconds else {}


def _age_s(row: Row) -> float:
    return float((row.now - row.heartbeat).total_seconds())
