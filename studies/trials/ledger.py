"""The evaluations of one target, as a run finds, records and judges them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from search.values import Assignment, Correction, Evaluation, MixBias, Ranges, digest_of
from studies.artifacts import leftovers
from studies.artifacts.folder import Artifacts
from studies.artifacts.target_ranges import load_ranges
from studies.judging.standing import Standing, standing
from studies.options.limits import Limits
from studies.store.columns import EvaluationTable
from studies.store.records import Counts, StoredEvaluation, StudyRecord, TargetRecord
from studies.store.store import Store


@dataclass
class Ledger:
    """The rows of one target, and the engines that belong to them.

    Attributes:
        artifacts: where engines are kept.
        target: as it was stored when it was last read.
        limits: that evaluations are judged by.
        knobs: of the backend; part of every evaluation's digest.
    """

    store: Store
    artifacts: Artifacts
    study: StudyRecord
    target: TargetRecord
    limits: Limits
    knobs: dict[str, str]
    _table: EvaluationTable | None = field(default=None, init=False, repr=False)

    def standing(self, *, exports: bool = False) -> Standing:
        """Where the target stands now, judged by the limits of this run; `exports` as of `judging.standing`.

        Of the evaluations only those are read that changed since the last time.
        """
        self._table = self.store.evaluations.table(self.target.id, self._table)
        return standing(self.store, self.study, self.target, self.limits, exports=exports, table=self._table)

    def counts(self) -> Counts:
        """How many evaluations of the target are finished, and how many are running."""
        return self.store.statistics.counts(self.target.id)

    def reload_target(self) -> TargetRecord:
        """Read the target's own row again, which other workers may have changed."""
        targets = self.store.targets.of_study(self.study.id)
        self.target = next(target for target in targets if target.id == self.target.id)
        return self.target

    def digest(self, assignment: Assignment) -> str:
        """Names the evaluation of an assignment as it is built now."""
        return evaluation_digest(assignment, self.target.ranges_digest or "", self.knobs)

    def find(self, assignment: Assignment) -> StoredEvaluation | None:
        """The evaluation of an assignment as it is built now, running or finished; None if there is none."""
        return self.store.evaluations.find(self.target.id, self.digest(assignment))

    def ranges(self) -> Ranges:
        """What engines are built with: calibrated ranges, and the corrections of mixes that have their own.

        Raises:
            ArtifactError: they are gone.
        """
        return load_ranges(self.store, self.artifacts, self.target.id, self.target.ranges_digest or "")

    def reference_ms(self) -> float | None:
        """What the baseline usually takes, on relative targets; None before that is known."""
        return self.store.measurements.reference_ms(self.target.id)

    def record(
        self, number: int, evaluation: Evaluation, engine: Path | None, *, worker: str, repaired: bool = False
    ) -> StoredEvaluation:
        """Finish a running evaluation with its result, in one transaction; the first result counts.

        Args:
            engine: file to keep, which goes from there; None for none.
            worker, repaired: as of `Claims.record`.

        Raises:
            LostEvaluationError: another worker, which took this one for lost, was faster.
        """
        with leftovers.kept_engine(self.store, self.artifacts, engine) as artifact:
            self.store.claims.record(number, evaluation, artifact, worker=worker, repaired=repaired)
        return self.store.evaluations.load(number)

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
        return self.store.evaluations.load(stopped.id).changed(trial=stopped.trial)

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


def layer_names(ledger: Ledger) -> dict[str, str]:
    """Group id → name of its weighted layer."""
    return {group.id: group.name for group in ledger.store.studies.groups(ledger.study.id)}


def evaluation_digest(assignment: Assignment, ranges_digest: str, knobs: dict[str, str]) -> str:
    """Names an evaluation on its target: assignment, ranges and builder knobs."""
    return digest_of({"assignment": assignment.digest, "ranges": ranges_digest, "knobs": knobs})
