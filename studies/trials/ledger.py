"""The evaluations of one target, as a run finds, records and judges them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from search.values import Assignment, Correction, Evaluation, MixBias, Precision, Ranges, digest_of
from studies.artifacts import leftovers
from studies.artifacts.folder import Artifacts
from studies.artifacts.kept_ranges import load_ranges
from studies.judging.standing import Standing, read_standing
from studies.options.limits import Limits
from studies.store.columns import Columns, EvaluationTable
from studies.store.reading.evaluation_rows import rescale
from studies.store.records import Counts, StoredEvaluation, StudyRecord, TargetRecord
from studies.store.store import Store


@dataclass
class Ledger:
    """The rows of one target, and the engines that belong to them.

    Attributes:
        artifacts: where engines are kept.
        target: as it was stored when it was last read.
        limits: that evaluations are judged by, with FP32's value as it was when the standing was last read.
        knobs: of the backend; part of every evaluation's digest.
    """

    store: Store
    artifacts: Artifacts
    study: StudyRecord
    target: TargetRecord
    limits: Limits
    knobs: dict[str, str]
    _table: EvaluationTable | None = field(default=None, init=False, repr=False)
    _finals: Columns | None = field(default=None, init=False, repr=False)
    _latest: Standing | None = field(default=None, init=False, repr=False)
    _begun: int = field(default=0, init=False, repr=False)  # since that
    _unbuildable: frozenset[tuple[str, Precision]] | None = field(default=None, init=False, repr=False)

    def read_standing(self, *, exports: bool = False) -> Standing:
        """Where the target stands now, judged by the limits of this run; `exports` as of `judging.standing`.

        Of the evaluations only those are read that changed since the last time.
        """
        before, self._table = self._table, self.store.evaluations.table(self.target.id, self._table)
        if self._finals is None or before is None or before.revision != self._table.revision:
            self._finals = self.store.evaluations.finals(self.target.id)
        self._begun, self._unbuildable = 0, None
        parts = self.store, self.study, self.target, self.limits
        now = read_standing(*parts, exports=exports, table=self._table, finals=self._finals)
        self._latest, self.limits = None if exports else now, now.limits
        return now

    def latest(self) -> Standing:
        """Where the target stood when that was last read, or a result of this process was last recorded."""
        return self._latest or self.read_standing()

    def counts(self) -> Counts:
        """How many evaluations are finished and how many run, as of `latest` and by what this process began since."""
        now = self.latest()
        finished = now.measures.finished_count
        return Counts(finished, len(now.table) - finished + self._begun)

    def latencies(self) -> dict[int, float]:
        """Optuna trial → latency in ms that counts of the evaluation that answers it, where one has been measured."""
        now, (trials, ids) = self.latest(), self.store.trials.answers(self.target.id)
        places = np.searchsorted(now.table.id, ids)
        known = np.isin(ids, now.table.id)
        latency_ms = now.measures.latency_ms[places[known]]
        timed = np.isfinite(latency_ms)
        return dict(zip(trials[known][timed].tolist(), latency_ms[timed].tolist(), strict=True))

    def unbuildable(self) -> frozenset[tuple[str, Precision]]:
        """(group id, precision) that this and other workers have learnt that nothing is built with."""
        if self._unbuildable is None:
            self._unbuildable = self.store.spaces.unbuildable(self.target.id)
        return self._unbuildable

    def mark_unbuildable(self, group: str, precision: Precision) -> None:
        """Learn, for other workers too, that nothing is built with it."""
        self.store.spaces.mark_unbuildable(self.target.id, group, precision)
        self._unbuildable = None

    def reload_target(self) -> TargetRecord:
        """Read the target's own row again, which other workers may have changed."""
        self.target = self.store.targets.load(self.target.id)
        return self.target

    def digest(self, assignment: Assignment) -> str:
        """Names the evaluation of an assignment as it is built now."""
        return evaluation_digest(assignment, self.target.ranges_digest or "", self.knobs)

    def find(self, assignment: Assignment) -> StoredEvaluation | None:
        """The evaluation of an assignment as it is built now, running or finished; None if there is none."""
        return self.store.evaluations.find(self.target.id, self.digest(assignment))

    def find_missing(self, assignments: Iterable[Assignment]) -> set[Assignment]:
        """The assignments that no evaluation, running or finished, has built as they are built now."""
        digests = {assignment: self.digest(assignment) for assignment in assignments}
        known = self.store.evaluations.known(self.target.id, list(digests.values()))
        return {assignment for assignment, digest in digests.items() if digest not in known}

    def ranges(self) -> Ranges:
        """What engines are built with: calibrated ranges, and the corrections of mixes that have their own.

        Raises:
            ArtifactError: they are gone.
        """
        return load_ranges(self.store, self.artifacts, self.target.id, self.target.ranges_digest or "")

    def reference_ms(self) -> float | None:
        """What the baseline usually takes, on relative targets; None before that is known."""
        return self.latest().table.reference_ms

    def begin(
        self,
        assignment: Assignment,
        worker: str,
        trial: int,
        role: str,
        *,
        most: int | None = None,
    ) -> int:
        """Claim the evaluation of an assignment as it is built now; as `Claims.begin`."""
        digest = self.digest(assignment)
        begin = self.store.claims.begin
        number = begin(self.target.id, assignment, digest, worker, trial, role, most=most)
        self._begun += 1
        return number

    def record(self, number: int, evaluation: Evaluation, engine: Path | None, *, worker: str) -> StoredEvaluation:
        """Finish a running evaluation with its result, in one transaction; the first result counts.

        Args:
            engine: file to keep, which goes from there; None for none.
            worker: as of `Claims.record`.

        Raises:
            LostEvaluationError: another worker, which took this one for lost, was faster.
        """
        with leftovers.kept_engine(self.store, self.artifacts, engine) as artifact:
            record = self.store.claims.record(number, evaluation, artifact, worker=worker)
        reference_ms = self.read_standing().table.reference_ms
        rounds = tuple(replace(r, latency=rescale(r.latency, reference_ms)) for r in record.rounds)
        latency = rounds[0].latency if rounds else None
        return record.with_values(rounds=rounds, evaluation=replace(record.evaluation, latency=latency))

    def complete(
        self, stopped: StoredEvaluation, evaluation: Evaluation, engine: Path | None, *, worker: str
    ) -> StoredEvaluation:
        """Put a result of all samples in the place of one that limits stopped early; its trials and digest stay.

        Args:
            engine, worker: as of `record`.

        Raises:
            LostEvaluationError: another worker did so meanwhile.
        """
        with leftovers.kept_engine(self.store, self.artifacts, engine) as artifact:
            self.store.claims.replace_stopped(stopped.id, evaluation, artifact, worker=worker)
        if stopped.artifact:
            leftovers.drop(self.store, self.artifacts, [stopped.artifact])
        return self.store.evaluations.load(stopped.id).with_values(trial=stopped.trial)

    def correct(
        self,
        record: StoredEvaluation,
        evaluation: Evaluation,
        engine: Path | None,
        bias: MixBias,
        means: Mapping[str, Correction],
        *,
        worker: str,
    ) -> None:
        """Put the result of an engine with corrections of its own in the place of that without; its trials stay.

        Args:
            bias, means: as of `Claims.replace_corrected`.
            engine, worker: as of `record`.

        Raises:
            LostEvaluationError: another worker did so meanwhile.
        """
        with leftovers.kept_engine(self.store, self.artifacts, engine) as artifact:
            self.store.claims.replace_corrected(record.id, evaluation, artifact, bias, means, worker=worker)
        if record.artifact:
            leftovers.drop(self.store, self.artifacts, [record.artifact])


def evaluation_digest(assignment: Assignment, ranges_digest: str, knobs: dict[str, str]) -> str:
    """Names an evaluation on its target: assignment, ranges and builder knobs."""
    return digest_of({"assignment": assignment.digest, "ranges": ranges_digest, "knobs": knobs})
