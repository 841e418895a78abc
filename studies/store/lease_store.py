"""Who works on a study: workers with their heartbeats, leases on evaluations, and tasks that one worker does for all.

Ages are judged by the database's clock alone. Every change of hands is one conditional UPDATE, so that of many who try
one succeeds, whichever database it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from search.errors import StudyError
from search.values import Latency
from studies.store import records, statements
from studies.store.database import database, tables
from studies.store.database.retries import repeated, retried
from studies.store.reading.queries import Reader

Row = Any


class LeaseStore(Reader):
    """The part of the store that workers share a study by. Methods that write are one transaction each."""

    @property
    def shared(self) -> bool:
        """Whether several processes may work on one study: on servers, not on SQLite."""
        return self._url.get_backend_name() != "sqlite"

    # -- workers ---------------------------------------------------------------------------------------------------

    def join_worker(self, study_target_id: int, *, host: str, device: str, pid: int, state: str = "starting") -> str:
        """Add a worker; its name, which no other has."""
        values = {"study_target_id": study_target_id, "host": host[:200], "device": device[:200], "pid": pid}
        while True:
            name = f"w-{secrets.token_hex(3)}"
            try:
                if self._add_worker({**values, "name": name, "state": state}):
                    return name
            except BaseException:  # it may be there all the same, and nobody would know
                with suppress(Exception):
                    self.end_worker(name)
                raise

    @retried
    def _add_worker(self, values: Mapping[str, Any]) -> bool:
        """False where another has this name."""
        try:
            with self._writing("join the study") as connection:
                connection.execute(insert(tables.Worker).values(values))
                return True
        except IntegrityError:
            same = tables.Worker.name == values["name"]
            if not self._rows(select(tables.Worker.id).where(same)):
                raise StudyError("joining a study: it was deleted just now.") from None
            return repeated()

    @retried
    def set_worker(self, name: str, state: str) -> None:
        """Say what a worker is doing."""
        with self._writing("say what a worker does") as connection:
            connection.execute(update(tables.Worker).where(tables.Worker.name == name).values(state=state))

    @retried
    def set_spent(self, name: str, spent: Mapping[str, float]) -> None:
        """Store where the time of a worker went until now: kind → seconds since its command began."""
        with self._writing("store where time went") as connection:
            connection.execute(update(tables.Worker).where(tables.Worker.name == name).values(_spent(spent)))

    @retried
    def end_worker(self, name: str, state: str = "ended", spent: Mapping[str, float] | None = None) -> None:
        """End a worker; the tasks that it still holds are free.

        Args:
            spent: as of `set_spent`.
        """
        w, t = tables.Worker, tables.Task
        values = {"state": state, "ended_at": tables.utc_now(), **_spent(spent)}
        with self._writing("end a worker") as connection:
            connection.execute(update(w).where(w.name == name).values(values))
            connection.execute(delete(t).where(t.worker == name))

    @retried
    def end_others(self, study_target_id: int, name: str) -> None:
        """End all workers but one, which knows that it is alone: on SQLite it holds the study's lock."""
        w, t = tables.Worker, tables.Task
        left = (w.study_target_id == study_target_id, w.name != name, w.ended_at.is_(None))
        with self._writing("end lost workers") as connection:
            connection.execute(update(w).where(*left).values(state="failed", ended_at=w.heartbeat))
            connection.execute(delete(t).where(t.study_target_id == study_target_id, t.worker != name))

    def beat(self, name: str, spent: Mapping[str, float] | None = None) -> None:
        """Say that a worker is alive: renews its own row, the leases of its evaluations and its tasks.

        Args:
            spent: as of `set_spent`.
        """
        with self._writing("renew a lease") as connection:  # not run again: who beats has its own loop
            for table, column in ((tables.Worker, "name"), (tables.Lease, "worker"), (tables.Task, "worker")):
                mine = table.__table__.c[column] == name
                also = _spent(spent) if table is tables.Worker else {}
                connection.execute(update(table).where(mine).values({"heartbeat": tables.utc_now(), **also}))

    def workers(self, study_target_id: int) -> tuple[records.WorkerRecord, ...]:
        """Every worker there was, oldest first."""
        w, e, trials = tables.Worker, tables.Evaluation, tables.Trial
        of_target = e.study_target_id == study_target_id
        made = (
            select(e.worker, func.count().label("evaluations"))
            .where(of_target, e.status.in_((records.OK, records.FAILED)), e.role != records.EXPORT)
            .group_by(e.worker)
            .subquery()
        )
        now = (
            select(tables.Lease.worker, func.max(e.id).label("evaluation_id"), func.min(trials.number).label("trial"))
            .join(e, e.id == tables.Lease.evaluation_id)
            .outerjoin(trials, trials.evaluation_id == e.id)
            .where(of_target, e.status == records.RUNNING)
            .group_by(tables.Lease.worker)
            .subquery()
        )
        names = ("id", "study_target_id", "name", "host", "device", "pid", "state", "started_at", "ended_at")
        query = (
            select(*(w.__table__.c[name] for name in names), w.heartbeat, tables.utc_now().label("now"))
            .add_columns(func.coalesce(made.c.evaluations, 0).label("evaluations"), now.c.evaluation_id, now.c.trial)
            .outerjoin(made, made.c.worker == w.name)
            .outerjoin(now, now.c.worker == w.name)
            .where(w.study_target_id == study_target_id)
            .order_by(w.id)
        )
        return tuple(_worker(row) for row in self._rows(query))

    def worker_times(self, study_target_id: int) -> tuple[records.WorkerTime, ...]:
        """What the workers of a target spent their time on, oldest first; those that did not say are absent."""
        w = tables.Worker
        told = (w.study_target_id == study_target_id, w.spent_at.is_not(None))
        rows = self._rows(select(w.name, w.spent_at, w.spent).where(*told).order_by(w.id))
        return tuple(records.WorkerTime(*row) for row in rows)

    def finish_times(self, study_target_id: int) -> tuple[records.FinishRecord, ...]:
        """When the evaluations of a target ran, in the order in which they were finished; exports left out."""
        e = tables.Evaluation
        query = (
            select(e.id, e.role, e.status == records.OK, e.started_at, e.finished_at)
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT, e.finished_at.is_not(None))
            .order_by(e.finished_at, e.id)
        )
        rows = self._rows(query)
        return tuple(records.FinishRecord(row[0], row[1], bool(row[2]), row[3], row[4]) for row in rows)

    def live_workers(self, study_target_id: int, lease_s: float) -> dict[str, str]:
        """Name → state of the workers that were heard of within a lease and have not ended."""
        w = tables.Worker
        live = (w.study_target_id == study_target_id, w.ended_at.is_(None), w.heartbeat >= tables.utc_ago(lease_s))
        return {row.name: row.state for row in self._rows(select(w.name, w.state).where(*live).order_by(w.id))}

    # -- evaluations -----------------------------------------------------------------------------------------------

    def counts(self, study_target_id: int) -> records.Counts:
        """How many evaluations are finished, and how many are running."""
        e = tables.Evaluation
        query = (
            select(e.status, func.count())
            .where(e.study_target_id == study_target_id, e.role != records.EXPORT)
            .group_by(e.status)
        )
        by_status = {row[0]: int(row[1]) for row in self._rows(query)}
        running = by_status.pop(records.RUNNING, 0)
        return records.Counts(sum(by_status.values()), running)

    def links(self, study_target_id: int, *trials: int) -> dict[int, tuple[int, str]]:
        """Optuna trial → id and status of the evaluation that answers it, or will; trials without one are absent."""
        t, e = tables.Trial, tables.Evaluation
        query = select(t.number, e.id, e.status).join(e, e.id == t.evaluation_id)
        found = [
            row
            for chunk in statements.chunks(trials)
            for row in self._rows(query.where(t.study_target_id == study_target_id, t.number.in_(chunk)))
        ]
        return {row[0]: (row[1], row[2]) for row in found}

    @retried
    def take_over(self, study_target_id: int, worker: str, lease_s: float) -> records.Taken | None:
        """Give a worker one running evaluation whose lease has expired; None when there is none, or others were faster.

        Its row, its trial and what it asked for stay as they are. What the worker holds by its name is given to it too:
        it asks between evaluations, so that is one which it does not know it has.
        """
        e, lease = tables.Evaluation, tables.Lease
        query = (
            select(e.id)
            .outerjoin(lease, lease.evaluation_id == e.id)
            .where(e.study_target_id == study_target_id, e.status == records.RUNNING)
            .where(or_(lease.heartbeat.is_(None), _free(lease, worker, lease_s)))
            .order_by(e.id)
        )
        for row in self._rows(query):
            with self._writing("take an evaluation over") as connection:
                taken = _take(connection, row.id, worker, lease_s)
            if taken is not None:
                return taken
        return None

    @retried
    def note_late(self, evaluation_id: int, worker: str) -> str:
        """Add to a finished evaluation's notes that another result came late and was dropped; the note.

        Empty, with nothing changed, where the evaluation is gone.
        """
        e = tables.Evaluation
        with self._writing("note a late result") as connection:
            statements.lock(connection, e, evaluation_id)
            query = select(e.notes, e.finished_at, tables.utc_now().label("now")).where(e.id == evaluation_id)
            row: Row = connection.execute(query).one_or_none()
            if row is None or row.finished_at is None:
                return ""
            note = f"a second result, of worker {worker}, came "
            if repeated() and row.notes and row.notes[-1].startswith(note):
                return str(row.notes[-1])
            note += f"{(row.now - row.finished_at).total_seconds():.1f} s later and was dropped"
            connection.execute(update(e).where(e.id == evaluation_id).values(notes=[*(row.notes or ()), note]))
            return note

    @retried
    def add_round(self, study_target_id: int, latencies: Mapping[int, Latency]) -> int:
        """Store measurements made again side by side, evaluation id → latency; the number of their round."""
        s, e = tables.Sample, tables.Evaluation
        with self._writing("store measurements") as connection:
            statements.lock(connection, tables.StudyTarget, study_target_id)
            of_target = e.study_target_id == study_target_id
            last = connection.scalar(select(func.max(s.round)).join(e, e.id == s.evaluation_id).where(of_target))
            if repeated() and last and statements.is_round(connection, last, latencies):
                return int(last)
            number = max(last or 0, 0) + 1
            for evaluation_id, latency in latencies.items():
                statements.insert_samples(connection, evaluation_id, number, latency)
            return number

    # -- tasks -----------------------------------------------------------------------------------------------------

    @retried
    def take_task(self, study_target_id: int, task: str, worker: str, lease_s: float) -> bool:
        """Give a worker a task unless another has it and is alive; False when it does not get it."""
        t, now = tables.Task, tables.utc_now()
        this = (t.study_target_id == study_target_id, t.name == task)
        values = {"worker": worker, "acquired": now, "heartbeat": now}
        try:
            with self._writing("take a task") as connection:
                if statements.changed(connection, update(t).where(*this, _free(t, worker, lease_s)).values(values)):
                    return True
                if connection.scalar(select(t.worker).where(*this)) is not None:
                    return False
                row = {"study_target_id": study_target_id, "name": task, "worker": worker}
                connection.execute(insert(t).values(row))
                return True
        except IntegrityError:  # another one took it just now
            return False

    @retried
    def release_task(self, study_target_id: int, task: str, worker: str) -> None:
        """Let others have a task; nothing happens when it has been taken over."""
        t = tables.Task
        this = (t.study_target_id == study_target_id, t.name == task, t.worker == worker)
        with self._writing("release a task") as connection:
            connection.execute(delete(t).where(*this))

    def tasks(self, study_target_id: int) -> tuple[records.TaskRecord, ...]:
        """The tasks that workers hold, by name; also those that a lost worker left."""
        t = tables.Task
        query = select(t.name, t.worker, t.heartbeat, tables.utc_now().label("now"))
        rows = self._rows(query.where(t.study_target_id == study_target_id).order_by(t.name))
        return tuple(records.TaskRecord(row.name, row.worker, _age_s(row)) for row in rows)

    @contextmanager
    def _writing(self, action: str) -> Iterator[Connection]:
        with database.reported(action, self._url), database.writing(self._engine) as connection:
            yield connection


def _take(connection: Connection, evaluation_id: int, worker: str, lease_s: float) -> records.Taken | None:
    """As `take_over`, of one evaluation. Rows are locked in the order of `record`: the evaluation, then its lease."""
    e, lease = tables.Evaluation, tables.Lease
    running = and_(e.id == evaluation_id, e.status == records.RUNNING)
    row: Row = connection.execute(select(e.worker, e.takeovers).where(running).with_for_update()).one_or_none()
    if row is None:
        return None
    now = tables.utc_now()
    free = (lease.evaluation_id == evaluation_id, _free(lease, worker, lease_s))
    renewed = update(lease).where(*free).values(worker=worker, acquired=now, heartbeat=now)
    if not statements.changed(connection, renewed):
        if connection.scalar(select(lease.worker).where(lease.evaluation_id == evaluation_id)) is not None:
            return None
        connection.execute(insert(lease).values(evaluation_id=evaluation_id, worker=worker))
    takeovers = int(row.takeovers) + (row.worker != worker)
    connection.execute(update(e).where(running).values(worker=worker, takeovers=takeovers))
    return records.Taken(evaluation_id, row.worker, takeovers)


def _spent(spent: Mapping[str, float] | None) -> dict[str, Any]:
    """The columns of a worker that say where its time went; none where nothing is known of it."""
    seconds = {kind: round(each, 3) for kind, each in (spent or {}).items()}
    return {"spent": seconds, "spent_at": tables.utc_now()} if seconds else {}


def _free(table: Any, worker: str, lease_s: float) -> Any:
    """Of a lease or a task: its worker has not renewed it for too long, has ended, or is the one that asks."""
    ended = select(tables.Worker.name).where(tables.Worker.ended_at.is_not(None))
    return or_(table.worker == worker, table.heartbeat < tables.utc_ago(lease_s), table.worker.in_(ended))


def _worker(row: Row) -> records.WorkerRecord:
    fields = dict(row._mapping)
    del fields["now"], fields["heartbeat"]
    return records.WorkerRecord(**fields, heartbeat_age_s=_age_s(row))


def _age_s(row: Row) -> float:
    return float((row.now - row.heartbeat).total_seconds())
