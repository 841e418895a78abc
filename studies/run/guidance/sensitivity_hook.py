"""The hook that runs the sensitivity pass before the guided sampler's first own proposal."""

from __future__ import annotations

from studies.judging.standing import Standing
from studies.run.guidance.sensitivity_beside import SensitivityBeside
from studies.run.hooks.hook import Hook
from studies.run.work import Work
from studies.trials.proposals import Proposals


class SensitivityHook(Hook):
    """Measures sensitivities once the uniform assignments are begun.

    On a processor one that is finished says how long an evaluation takes, and so how long the measurement may. On a GPU
    it is made beside the uniform assignments; where it is not finished soon after them the sampler goes on without it,
    and is told later.
    """

    optional = "measuring the sensitivity of the groups"

    def __init__(self, work: Work, proposals: Proposals) -> None:
        self._work = work
        self._proposals = proposals
        self._beside = SensitivityBeside(work)
        kind = work.problem.config.sampler_kind()
        self._wanted = kind.guided and kind.wants_sensitivities

    def prepare(self, now: Standing) -> None:
        uniform = len(self._work.problem.space.baselines())
        if not self._wanted or self._work.problem.config.trials <= max(uniform, len(now.table)):
            return  # nothing is left to propose that is not enqueued
        beside = not self._work.ledger.target.target.relative
        if beside:
            self._beside.begin()
        if not now.measures.finished_count or len(now.table) < uniform or (beside and not self._beside.wait(now)):
            return
        from studies.run.guidance.guidance import measure_noise  # takes a while, and other samplers do without

        self._proposals.guide(lambda guidance: measure_noise(self._work, guidance))
        self._wanted = False

    def close(self) -> None:
        self._beside.close()
