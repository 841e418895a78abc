"""Running evaluations: claimed with a lease, taken over, recorded once or abandoned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, or_, select, true, update
from sqlalchemy.exc import IntegrityError

from search.values import Assignment, Correction, Evaluation, MixBias, Recovery
from studies.store import records
from studies.store.database import column_types, tables
from studies.store.database.retries import is_repeat, retry
from studies.store.database.transactions import Repository
from studies.store.reading import evaluation_rows
from studies.store.records import KnownEvaluationError, LostEvaluationError
from studies.store.statements import results, table_rows

Row = Any
MAX_NAME = 200


class Claims(Repository):
    """The way of an evaluation from its claim by a worker to its result."""

    @retry
    def begin(
        self,
        study_target_id: int,
        assignment: Assignment,
        digest: str,
        worker: str,
        trial: int | None,
        role: str = "",
        *,
        most: int | None = None,
    ) -> int:
        """Claim an evaluation: a running row, its lease, and the link from the Optuna trial. Its id.

        Args:
            digest: of assignment, ranges and builder knobs.
            worker: names the participant that holds the lease; no host or user names.
            trial: Optuna number; None for what no trial asked for, such as a rebuild at export.
            most: how many evaluations the target may have, running ones included and those of exports not.

        Raises:
            KnownEvaluationError: the digest is running or finished on this target; nothing was written.
            FullStudyError: there are `most` already; nothing was written.
            ValueError: the trial has another evaluation already.
        """
        values = {
            "study_target_id": study_target_id,
            "digest": digest,
            "status": records.RUNNING,
            "role": role,
            "worker": worker[:MAX_NAME],
            "assignment": assignment,
        }
        try:
            with self._database.begin_write("begin an evaluation") as connection:
                if most is None or results.has_room(connection, study_target_id, digest, most):
                    evaluation_id = table_rows.insert_row(connection, tables.EvaluationRecord, values)
                    lease = {"evaluation_id": evaluation_id, "worker": values["worker"]}
                    connection.execute(insert(tables.LeaseRecord).values(lease))
                    if trial is not None:
                        results.link(connection, study_target_id, trial, evaluation_id, reused=False)
                    return evaluation_id
        except IntegrityError:
            pass
        return self._find_own(study_target_id, digest, worker, trial)

    def _find_own(self, study_target_id: int, digest: str, worker: str, trial: int | None) -> int:
        """The evaluation that stands in the way of a new one, where this worker began it in a transaction cut off."""
        e = tables.EvaluationRecord
        this = (e.study_target_id == study_target_id, e.digest == digest)
        known = next(iter(self._database.rows(select(e.id, e.status, e.worker).where(*this))), None)
        if known is None:
            raise ValueError(f"trial {trial} has an evaluation already, or there is no such target") from None
        if is_repeat() and (known.status, known.worker) == (records.RUNNING, worker):
            return int(known.id)
        raise KnownEvaluationError(known.id, known.status) from None

    @retry
    def take_over(
        self, study_target_id: int, worker: str, lease_s: float, *, held: Collection[int] = ()
    ) -> records.TakenOver | None:
        """Give a worker one running evaluation whose lease has expired; None when there is none, or others were faster.

        Its row, its trial and what it asked for stay as they are. What the worker holds by its name is given to it too,
        for that is an evaluation which it does not know it has.

        Args:
            held: evaluations that the worker knows it has.
        """
        e, lease = tables.EvaluationRecord, tables.LeaseRecord
        query = (
            select(e.id)
            .outerjoin(lease, lease.evaluation_id == e.id)
            .where(e.study_target_id == study_target_id, e.status == records.RUNNING)
            .where(or_(lease.heartbeat.is_(None), table_rows.is_free(lease, worker, lease_s)))
            .order_by(e.id)
        )
        for row in self._database.rows(query):
            if row.id in held:
                continue
            with self._database.begin_write("take an evaluation over") as connection:
                taken = _take(connection, row.id, worker, lease_s)
            if taken is not None:
                return taken
        return None

    def find_running(self, study_target_id: int, worker: str | None = None) -> tuple[records.RunningRecord, ...]:
        """Evaluations in flight, or left behind by a worker that died; oldest first.

        Args:
            worker: only those that it is at.
        """
        e, lease, trials = tables.EvaluationRecord, tables.LeaseRecord, results.lowest_trials(study_target_id)
        query = (
            select(e.id, e.digest, trials.c.trial, e.worker, e.takeovers, lease.heartbeat)
            .add_columns(column_types.utc_now().label("now"))
            .outerjoin(lease, lease.evaluation_id == e.id)
            .outerjoin(trials, trials.c.evaluation_id == e.id)
            .where(e.study_target_id == study_target_id, e.status == records.RUNNING)
            .where(true() if worker is None else e.worker == worker)
            .order_by(e.id)
        )
        return tuple(_running_record(row) for row in self._database.rows(query))

    @retry
    def abandon(self, evaluation_id: int, worker: str | None = None) -> bool:
        """Remove a running evaluation with its lease and trial links; False when it is not running.

        Args:
            worker: who abandons it; then nothing happens where another one has taken it over.
        """
        e, lease = tables.EvaluationRecord, tables.LeaseRecord
        with self._database.begin_write("abandon an evaluation") as connection:
            if worker is not None:
                table_rows.lock(connection, e, evaluation_id)
                if connection.scalar(select(lease.worker).where(lease.evaluation_id == evaluation_id)) != worker:
                    return is_repeat() and connection.scalar(select(e.id).where(e.id == evaluation_id)) is None
            gone = table_rows.meets_row(connection, delete(e).where(e.id == evaluation_id, e.status == records.RUNNING))
            return gone or (is_repeat() and connection.scalar(select(e.id).where(e.id == evaluation_id)) is None)

    @retry
    def record(
        self,
        evaluation_id: int,
        evaluation: Evaluation,
        artifact: str | None = None,
        *,
        worker: str = "",
    ) -> records.StoredEvaluation:
        """Finish a running evaluation: measures, audit, profile, search scores, samples of round 0; its lease goes.

        Call it before Optuna is told. The first result counts, whoever holds the lease.

        Args:
            artifact: digest of the engine file, when `Artifacts` keeps it.
            worker: whose result it is; empty for the one that the row names already.

        Returns:
            What is stored of it now; its latency is on the scale that the evaluator knew.

        Raises:
            LostEvaluationError: the row is no longer running; nothing was written.
        """
        values = {**results.measures(evaluation), "artifact": artifact, **({"worker": worker} if worker else {})}
        with self._database.begin_write("record an evaluation") as connection:
            e = tables.EvaluationRecord
            running = update(e).where(e.id == evaluation_id, e.status == records.RUNNING)
            if not table_rows.meets_row(connection, running.values(values)):
                if is_repeat() and results.is_result_of(connection, evaluation_id, worker):
                    return evaluation_rows.read_stored(connection, evaluation_id, evaluation)
                raise LostEvaluationError(f"evaluation {evaluation_id} is not running any more")
            results.insert_result(connection, evaluation_id, evaluation, artifact)
            connection.execute(delete(tables.LeaseRecord).where(tables.LeaseRecord.evaluation_id == evaluation_id))
            results.raise_revision(connection, evaluation_id)
            return evaluation_rows.read_stored(connection, evaluation_id, evaluation)

    @retry
    def replace_stopped(
        self, evaluation_id: int, evaluation: Evaluation, artifact: str | None = None, *, worker: str
    ) -> None:
        """Put a new result of the same assignment in the place of one that was stopped early; its trials stay.

        The first such result counts. It keeps the time at which the evaluation was first finished, for it is no new
        one. What was the engine's before is left for `leftovers.drop`.

        Args:
            evaluation: of all samples, or a failure.
            artifact, worker: as of `record`.

        Raises:
            LostEvaluationError: the evaluation is gone, or not one that was stopped early any more; nothing was
                written.
        """
        e = tables.EvaluationRecord
        with self._database.begin_write("store an evaluation scored to the end") as connection:
            stopped = (e.id == evaluation_id, e.status == records.OK, e.samples < e.total_samples)
            changed = update(e).where(*stopped).values(_new_result(evaluation, artifact, worker))
            if not table_rows.meets_row(connection, changed):
                if is_repeat() and results.is_result_of(connection, evaluation_id, worker):
                    return
                raise LostEvaluationError(f"evaluation {evaluation_id} is not one that was stopped early any more")
            results.delete_result(connection, evaluation_id)
            results.insert_result(connection, evaluation_id, evaluation, artifact)
            results.raise_revision(connection, evaluation_id)

    @retry
    def replace_corrected(
        self,
        evaluation_id: int,
        evaluation: Evaluation,
        artifact: str | None,
        bias: MixBias,
        means: Mapping[str, Correction],
        *,
        worker: str,
    ) -> None:
        """Put the result of an engine with biases of its mix's own in the place of that without; its trials stay.

        What was measured again and scored on the final split was of the other engine, and goes. What was the engine's
        before is left for `leftovers.drop`.

        Args:
            bias: what came of correcting them.
            means: scales and offsets by op that the engine has.
            artifact, worker: as of `record`.

        Raises:
            LostEvaluationError: the evaluation is gone, or its biases were tried already; nothing was written.
        """
        values = _new_result(evaluation, artifact, worker)
        values |= {"mix_bias": bias, "mix_corrections": Recovery(corrections=means)}
        with self._database.begin_write("store an evaluation with corrected biases") as connection:
            if not self._set_untried(connection, evaluation_id, values):
                return
            results.delete_result(connection, evaluation_id)
            results.delete_confirmation(connection, evaluation_id)
            results.insert_result(connection, evaluation_id, evaluation, artifact)
            results.raise_revision(connection, evaluation_id)

    @retry
    def set_mix_bias(self, evaluation_id: int, bias: MixBias) -> None:
        """Store what came of correcting an evaluation's biases for its mix, where its engine stays as it is.

        Raises:
            LostEvaluationError: the evaluation is gone, or its biases were tried already; nothing was written.
        """
        with self._database.begin_write("store that biases stay as they are") as connection:
            self._set_untried(connection, evaluation_id, {"mix_bias": bias})

    @staticmethod
    def _set_untried(connection: Connection, evaluation_id: int, values: dict[str, Any]) -> bool:
        """Set columns of an evaluation whose biases were not tried; False if a transaction cut off has done so."""
        e = tables.EvaluationRecord
        untried = (e.id == evaluation_id, e.status == records.OK, e.mix_bias.is_(None))
        if table_rows.meets_row(connection, update(e).where(*untried).values(values)):
            return True
        if is_repeat() and connection.scalar(select(e.mix_bias).where(e.id == evaluation_id)) == values["mix_bias"]:
            return False
        raise LostEvaluationError(f"the biases of evaluation {evaluation_id} were corrected by another worker")

    @retry
    def note_late(self, evaluation_id: int, worker: str) -> str:
        """Add to a finished evaluation's notes that another result came late and was dropped; the note.

        Empty, with nothing changed, where the evaluation is gone.
        """
        e = tables.EvaluationRecord
        with self._database.begin_write("note a late result") as connection:
            table_rows.lock(connection, e, evaluation_id)
            query = select(e.notes, e.finished_at, column_types.utc_now().label("now")).where(e.id == evaluation_id)
            row: Row = connection.execute(query).one_or_none()
            if row is None or row.finished_at is None:
                return ""
            note = f"a second result, of worker {worker}, came "
            if is_repeat() and row.notes and row.notes[-1].startswith(note):
                return str(row.notes[-1])
            note += f"{(row.now - row.finished_at).total_seconds():.1f} s later and was dropped"
            connection.execute(update(e).where(e.id == evaluation_id).values(notes=[*(row.notes or ()), note]))
            return note


def _new_result(evaluation: Evaluation, artifact: str | None, worker: str) -> dict[str, Any]:
    """The columns of a result that takes the place of another one, but the time at which that was finished."""
    values = {**results.empty_measures(), **results.measures(evaluation), "artifact": artifact, "worker": worker}
    del values["finished_at"]
    return values


def _take(connection: Connection, evaluation_id: int, worker: str, lease_s: float) -> records.TakenOver | None:
    """As `take_over`, of one evaluation. Rows are locked in the order of `record`: the evaluation, then its lease."""
    e, lease = tables.EvaluationRecord, tables.LeaseRecord
    running = and_(e.id == evaluation_id, e.status == records.RUNNING)
    row: Row = connection.execute(select(e.worker, e.takeovers).where(running).with_for_update()).one_or_none()
    if row is None:
        return None
    free = (lease.evaluation_id == evaluation_id, table_rows.is_free(lease, worker, lease_s))
    renewed = update(lease).where(*free).values(worker=worker, heartbeat=column_types.utc_now())
    if not table_rows.meets_row(connection, renewed):
        if connection.scalar(select(lease.worker).where(lease.evaluation_id == evaluation_id)) is not None:
            return None
        connection.execute(insert(lease).values(evaluation_id=evaluation_id, worker=worker))
    takeovers = int(row.takeovers) + (row.worker != worker)
    connection.execute(update(e).where(running).values(worker=worker, takeovers=takeovers))
    return records.TakenOver(evaluation_id, row.worker, takeovers)


def _running_record(row: Row) -> records.RunningRecord:
    age = None if row.heartbeat is None else (row.now - row.heartbeat).total_seconds()
    return records.RunningRecord(row.id, row.digest, row.trial, row.worker, age, row.takeovers)
