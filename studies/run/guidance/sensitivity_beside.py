"""The sensitivity pass of a GPU target, run on the CPU in its own process while engines are built."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

from evaluators.cores import usable_processors
from evaluators.diagnose.group_error import SensitivityPass
from evaluators.process.keeper import EvaluatorProcess
from evaluators.stopwatch import time_spent
from search.errors import EvaluatorError
from studies.judging.standing import Standing
from studies.run.guidance import sensitivities
from studies.run.hooks.hook import Hook
from studies.run.noise.background import BackgroundCall
from studies.run.work import Work
from studies.trials.proposals import Proposals

# The first mix waits for the pass once the uniform assignments are done: it changes what all mixes are. So long, or a
# share of the time that the mixes will take.
GRACE_S, _GRACE_SHARE = 10.0, 0.1
_POLL_S = 0.1
_TASK = "sensitivity beside"


class SensitivityBeside:
    """Measures sensitivities beside the uniform assignments' builds; one worker of a target does it for all.

    What a GPU's builder leaves of the processor is used, so the pass costs the search nothing, and latencies, measured
    on the GPU, do not change. On a target that is the processor itself nothing may run beside a measurement.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._call: BackgroundCall | None = None
        self._held = ExitStack()
        self._grace_ends: float | None = None

    def begin(self) -> None:
        """Start the pass, unless it was made, is under way here or elsewhere, or there is nothing to measure."""
        if self._call is not None or self._is_settled():
            return
        held = ExitStack()
        if held.enter_context(self._work.crew.try_hold(_TASK)) and not self._is_settled():
            self._held = held
            self._call = self._start_call()
        else:
            held.close()

    @time_spent("sensitivities")
    def wait(self, now: Standing) -> bool:
        """Wait for the pass as long as that pays, the first time. Returns whether the sampler can use its result.

        Raises:
            EvaluatorError: ONNX Runtime cannot run the model, or the process that measures dies.
        """
        if self._grace_ends is None:
            self._grace_ends = time.monotonic() + max(GRACE_S, _GRACE_SHARE * self._mixes_s(now))
        while not self._is_over():
            if time.monotonic() >= self._grace_ends:
                return False
            done, total = self._call.progress if self._call is not None else (0, 1)
            self._work.events.step("sensitivity of the groups", done, total)
            time.sleep(_POLL_S)
        return True

    def close(self) -> None:
        """End the process if it is still measuring; another worker, or a later run, begins again."""
        call, self._call = self._call, None
        if call is not None:
            call.close()
        self._held.close()

    def _mixes_s(self, now: Standing) -> float:
        """Seconds that the evaluations to come will take, within the time limit."""
        pace, left = self._work.pace, self._work.problem.config.trials - len(now.table)
        return max(0.0, min(left * pace.evaluation_s(now), pace.left_s))

    def _is_settled(self) -> bool:
        return sensitivities.is_known(self._work.ledger) or not self._work.problem.space.lower_pairs()

    def _is_over(self) -> bool:
        if self._call is None:
            return self._is_settled()
        if not self._call.wait(0):
            return False
        call = self._call
        self.close()
        if call.failure():
            raise EvaluatorError(sensitivities.failure_text(call.failure()))
        for note in call.result():
            self._work.events.detail(f"sensitivity: {note}")
        return True

    def _start_call(self) -> BackgroundCall:
        work = self._work
        folder = work.bench.folder / "sensitivity"
        job = replace(
            work.bench.keeper.job,
            backend="onnxruntime",
            device="cpu",
            options={"threads": max(1, usable_processors() - 1)},
            folder=str(folder),
        )
        seconds, pairs = (
            sensitivities.seconds_beside(work.problem.config),
            work.problem.space.lower_pairs(),
        )
        placement = work.bench.keeper.description.placement
        process = EvaluatorProcess(job, work.bench.folder / "sensitivity.log", work.bench.keeper.limits)
        return BackgroundCall(
            process, lambda line: line.diagnoses.measure_sensitivity(seconds, pairs, placement), self._store
        )

    def _store(self, sensitivity_pass: SensitivityPass) -> tuple[str, ...]:
        """Store the sensitivities as soon as they are there; returns the notes on them."""
        self._work.ledger.store.spaces.set_sensitivities(
            self._work.ledger.target.id, sensitivity_pass.rows, replace=False
        )
        return tuple(sensitivity_pass.notes)


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
        uniform = len(self._work.problem.space.baselines)
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
