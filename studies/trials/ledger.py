"""The evaluations of one target: where they are stored, what decides whether two are the same, how they are judged."""

from __future__ import annotations

from dataclasses import dataclass

from studies.artifacts.folder import Artifacts
from studies.judging.standing import Standing, standing
from studies.options.limits import Limits
from studies.store.records import StudyRecord, TargetRecord
from studies.store.store import Store


@dataclass
class Ledger:
    """The rows of one target as a run finds, records and judges them.

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

    def standing(self, *, exports: bool = False) -> Standing:
        """Where the target stands now, judged by the limits of this run; `exports` as of `judging.standing`."""
        return standing(self.store, self.study, self.target, self.limits, exports=exports)

    def reload_target(self) -> TargetRecord:
        """Read the target's own row again, which other workers may have changed."""
        self.target = next(t for t in self.store.targets.of_study(self.study.id) if t.id == self.target.id)
        return self.target
