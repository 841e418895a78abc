"""Writing evaluations: begun under a lease, recorded once, abandoned, and what is measured of them later."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from search.values import Accuracy, Assignment, Evaluation, LayerTime
from studies.store import records, statements
from studies.store.database import tables
from studies.store.database.retries import repeated, retried
from studies.store.lease_store import LeaseStore
from studies.store.records import KnownEvaluationError, LostEvaluationError

MAX_NAME = 200


class EvaluationStore(LeaseStore):
    """The part of the store that the results of a search go through."""

    @retried
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
        most: int | None = None,
    ) -> int:
        """Claim an evaluation: a running row, its lease, and the link from the Optuna trial. Its id.

        Args:
            digest: of assignment, ranges and builder knobs.
            worker: names the participant that holds the lease; no host or user names.
            trial: Optuna number; None for what no trial asked for, such as a rebuild at export.
            asked: what was proposed, where `assignment` is its repair.
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
            "assignment": assignment.to_json(),
            "asked_assignment": None if asked is None else asked.to_json(),
        }
        try:
            with self._writing("begin an evaluation") as connection:
                if most is not None:
                    statements.check_room(connection, study_target_id, digest, most)
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
            if repeated() and (known.status, known.worker) == (records.RUNNING, worker):
                return known.id
            raise KnownEvaluationError(known.id, known.status) from None

    @retried
    def record(
        self,
        evaluation_id: int,
        evaluation: Evaluation,
        artifact: str | None = None,
        *,
        worker: str = "",
        repaired: bool = False,
    ) -> None:
        """Finish a running evaluation: measures, audit, profile, search scores, samples of round 0; its lease goes.

        Call it before Optuna is told. The first result counts, whoever holds the lease.

        Args:
            artifact: digest of the engine file, when `Artifacts` keeps it.
            worker: whose result it is; empty for the one that the row names already.
            repaired: its trial and its role go on to a repair of the assignment, so the row is left without them.

        Raises:
            LostEvaluationError: the row is no longer running; nothing was written.
        """
        values = {**statements.measures(evaluation), "artifact": artifact, **({"worker": worker} if worker else {})}
        with self._writing("record an evaluation") as connection:
            e = tables.Evaluation
            running = update(e).where(e.id == evaluation_id, e.status == records.RUNNING)
            if not statements.changed(connection, running.values(values)):
                if repeated() and statements.is_result_of(connection, evaluation_id, worker):
                    return
                raise LostEvaluationError(f"evaluation {evaluation_id} is not running any more")
            if repaired:
                connection.execute(update(e).where(e.id == evaluation_id).values(role=""))
                connection.execute(delete(tables.Trial).where(tables.Trial.evaluation_id == evaluation_id))
            statements.insert_result(connection, evaluation_id, evaluation, artifact)
            connection.execute(delete(tables.Lease).where(tables.Lease.evaluation_id == evaluation_id))

    @retried
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
        e = tables.Evaluation
        values = {**statements.unmeasured(), **statements.measures(evaluation), "artifact": artifact, "worker": worker}
        del values["finished_at"]
        with self._writing("store an evaluation scored to the end") as connection:
            stopped = (e.id == evaluation_id, e.status == records.OK, e.samples < e.total_samples)
            if not statements.changed(connection, update(e).where(*stopped).values(values)):
                if repeated() and statements.is_result_of(connection, evaluation_id, worker):
                    return
                raise LostEvaluationError(f"evaluation {evaluation_id} is not one that was stopped early any more")
            statements.delete_result(connection, evaluation_id)
            statements.insert_result(connection, evaluation_id, evaluation, artifact)

    @retried
    def abandon(self, evaluation_id: int, worker: str | None = None) -> bool:
        """Remove a running evaluation with its lease and trial links; False when it is not running.

        Args:
            worker: who abandons it; then nothing happens where another one has taken it over.
        """
        e, lease = tables.Evaluation, tables.Lease
        with self._writing("abandon an evaluation") as connection:
            if worker is not None:
                statements.lock(connection, e, evaluation_id)
                if connection.scalar(select(lease.worker).where(lease.evaluation_id == evaluation_id)) != worker:
                    return repeated() and connection.scalar(select(e.id).where(e.id == evaluation_id)) is None
            gone = statements.changed(connection, delete(e).where(e.id == evaluation_id, e.status == records.RUNNING))
            return gone or (repeated() and connection.scalar(select(e.id).where(e.id == evaluation_id)) is None)

    @retried
    def link_trial(
        self, study_target_id: int, trial: int, evaluation_id: int, *, asked: Assignment | None = None
    ) -> None:
        """Let an evaluation that is there already, perhaps running, answer another Optuna trial too.

        Args:
            asked: what the trial proposed, where the evaluation is of its repair.

        Raises:
            LostEvaluationError: the evaluation is gone, or another one answers the trial; nothing was written.
        """
        try:
            with self._writing("link a trial") as connection:
                statements.link(connection, study_target_id, trial, evaluation_id, reused=True, asked=asked)
        except IntegrityError:
            if self.links(study_target_id, trial).get(trial, (None,))[0] != evaluation_id:
                raise LostEvaluationError(f"evaluation {evaluation_id} cannot answer trial {trial}") from None

    @retried
    def set_final(self, evaluation_id: int, accuracy: Accuracy) -> None:
        """Store the accuracy on the final split, replacing what is there of it."""
        with self._writing("store a final score") as connection:
            statements.replace_final(connection, evaluation_id, accuracy)

    @retried
    def set_final_failure(self, evaluation_id: int, metric: str, message: str) -> None:
        """Store that it could not be scored on the final split, replacing what is there of it.

        Args:
            metric: name of the metric that it should have been scored by.
            message: why; not empty.
        """
        nothing = Accuracy(metric, math.nan, math.nan, math.nan, math.nan, 0, 0, np.empty(0))
        with self._writing("store a failure on the final data") as connection:
            statements.replace_final(connection, evaluation_id, nothing, message)

    @retried
    def set_profile(self, evaluation_id: int, layers: Sequence[LayerTime], note: str = "") -> None:
        """Store what each layer of an evaluation's engine takes, in the order they run, replacing what is there.

        Args:
            note: what is noteworthy of this profile; it stands among the evaluation's notes, instead of an earlier one.
        """
        with self._writing("store a profile") as connection:
            statements.replace_profile(connection, evaluation_id, layers)
            statements.replace_note(connection, evaluation_id, records.OF_PROFILE, note)
