"""Run a study: ask, evaluate, record, tell, until there is enough; nothing is lost when anything dies."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluators.job import Limits as EarlyLimits
from evaluators.process import EvaluatorProcess
from search.model import Model
from search.space import Space
from search.values import Assignment, Evaluation, Stage, digest_of
from studies import pareto, repeatability
from studies.artifacts import Artifacts
from studies.config import Limits, SearchConfig
from studies.forecasts import poor_text, quality_text
from studies.progress import Progress
from studies.proposals import Outcome, Proposals
from studies.records import FAILED, OK, EvaluationRecord, StudyRecord, TargetRecord
from studies.repair import Repairs
from studies.standing import Standing, standing
from studies.store import Store

if TYPE_CHECKING:
    import optuna

_DRIFT_EVERY = 20
_PRUNE_EVERY = 10
_SAME_IN_A_ROW = 3
_NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution


@dataclass
class Work:
    """What a run holds open.

    Attributes:
        knobs: of the backend; part of every evaluation's digest.
        engine_file: what an exported engine is called.
        folder: of this run alone; engines are built here before they are kept.
    """

    store: Store
    artifacts: Artifacts
    keeper: EvaluatorProcess
    study: StudyRecord
    target: TargetRecord
    config: SearchConfig
    limits: Limits
    space: Space
    model: Model
    knobs: dict[str, str]
    engine_file: str
    folder: Path
    progress: Progress


class Runner:
    """One worker of a study."""

    def __init__(self, work: Work, proposals: Proposals) -> None:
        self.work = work
        self.proposals = proposals
        self.worker = f"pid-{os.getpid()}"
        self._roles = {a.digest: f"baseline:{label}" for label, a in work.space.baselines().items()}
        self._repeats = 0
        self._poor = False
        self.repairs = Repairs(work)

    # -- before the loop -------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Close what a killed run left open; its assignments are proposed again."""
        store, target = self.work.store, self.work.target
        for running in store.running(target.id):
            store.abandon(running.id)
        for trial in self.proposals.open_trials():
            record = self._record_of(trial)
            if record is None:
                self.proposals.give_up(trial)
            else:
                if trial.number not in record.trials:
                    asked = self._asked_by(trial)
                    store.link_trial(target.id, trial.number, record.id, asked=_unless(asked, record))
                self.proposals.tell(self.proposals.reopened(trial), self._outcome(record))

    def _record_of(self, trial: optuna.trial.FrozenTrial) -> EvaluationRecord | None:
        """The finished evaluation of a trial that was killed between being recorded, or found known, and being told."""
        target = self.work.target.id
        record = self.work.store.answer(target, trial.number)
        if record is None and all(variable.id in trial.params for variable in self.work.space.variables):
            record = self.work.store.find(target, self._digest(self.repairs.buildable(self._asked_by(trial))))
        return record if record is not None and record.status in (OK, FAILED) else None

    def _asked_by(self, trial: optuna.trial.FrozenTrial) -> Assignment:
        return self.work.space.assignment({name: int(code) for name, code in trial.params.items()})

    def enqueue_baselines(self) -> None:
        """Every uniform assignment that has not been evaluated goes first."""
        for assignment in self.work.space.baselines().values():
            if self.work.store.find(self.work.target.id, self._digest(self.repairs.buildable(assignment))) is None:
                self.proposals.enqueue(assignment)

    def settle_reference(self) -> None:
        """Measure the float baseline that relative latencies are scaled to, once for the whole study."""
        repeatability.settle_reference(self.work)

    def settle_band(self, now: Standing) -> Standing:
        """Once the baselines are there, measure how repeatable a latency is."""
        due = self.work.target.latency_band is None and len(now.table) >= len(self._roles)
        return self.standing() if due and repeatability.settle_band(self.work, now) else now

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Evaluate until the study has its trials; why it stopped, in words."""
        deadline = None
        if self.work.config.time_limit_s is not None:
            deadline = time.monotonic() + self.work.config.time_limit_s
        now = self.standing()
        while True:
            now = self.settle_band(now)
            reason = self._enough(now, deadline)
            if reason:
                self._note_quality()
                self._prune(now)
                return reason
            now = self._one_trial(now)

    def standing(self) -> Standing:
        return standing(self.work.store, self.work.study, self.work.target, self.work.limits)

    def _enough(self, now: Standing, deadline: float | None) -> str:
        config, done = self.work.config, len(now.table)
        if done >= config.trials:
            return f"{done} evaluations are done"
        if self.repairs.all_built(done):
            size, refused = self.work.space.size_without(self.repairs.unbuildable), bool(self.repairs.unbuildable)
            return f"every one of the {size} assignments{' that can be built' * refused} has been evaluated"
        if deadline is not None and time.monotonic() >= deadline:
            return f"the time limit is reached with {done} of {config.trials} evaluations done"
        if config.patience is not None and _stalled(now, config.patience):
            return f"the last {config.patience} evaluations gained no hypervolume; {done} are done"
        return ""

    def _one_trial(self, now: Standing) -> Standing:
        """Ask, evaluate, record, tell; repair what is refused; where the study stands afterwards."""
        trial, asked = self.proposals.ask()
        self._note_change()
        wanted: Assignment | None = self.repairs.buildable(asked)
        left = min(self.work.config.repair, self.work.config.trials - len(now.table) - 1)
        while wanted is not None:
            known = self.work.store.find(self.work.target.id, self._digest(wanted))
            if known is not None:
                self._answer_again(trial, asked, known)
                return now
            record, wanted = self._carry_out(trial, asked, wanted, left)
            left -= 1
            if wanted is None:
                self.proposals.tell(trial, self._outcome(record))
            now = self.standing()
            self.work.progress.finished(record, now, self.work.config.trials)
        self._now_and_then(now)
        return now

    def _carry_out(
        self, trial: optuna.Trial, asked: Assignment, wanted: Assignment, left: int
    ) -> tuple[EvaluationRecord, Assignment | None]:
        """Evaluate and record one assignment of a trial; with its repair, where it is refused and repairs are left."""
        self._repeats = 0
        store, target, role = self.work.store, self.work.target.id, self._roles.get(asked.digest, "")
        proposed = asked if asked != wanted else None
        number = store.begin(target, wanted, self._digest(wanted), self.worker, trial.number, role, asked=proposed)
        with self._abandoned_when_interrupted(number, trial):
            evaluation = self._evaluate(number, trial.number, wanted, role)
            repaired = self.repairs.learn(trial.number, evaluation, left)
            store.record(number, evaluation, self._keep(evaluation), repaired=repaired is not None)
        return replace(store.load(number), trial=trial.number), repaired

    def _answer_again(self, trial: optuna.Trial, asked: Assignment, known: EvaluationRecord) -> None:
        """Tell a trial what is stored of an evaluation that is there already."""
        self.work.store.link_trial(self.work.target.id, trial.number, known.id, asked=_unless(asked, known))
        self.proposals.tell(trial, self._outcome(known))
        self._escape_repeats(known.evaluation.assignment)

    def _evaluate(self, number: int, trial: int, assignment: Assignment, role: str) -> Evaluation:
        out = self.work.folder / f"{number}.engine"
        # The rest is held against the baselines, whatever the limits are now or later: they are never stopped early.
        limits = EarlyLimits() if role else self._early_limits()
        return self.work.keeper.evaluate(
            assignment,
            out,
            limits,
            lambda event, value: self._on_event(trial, event, value),
            profile=bool(role),
        )

    def _on_event(self, trial: int, event: str, value: Any) -> None:
        if event == "stage":
            self.work.progress.stage(trial, Stage(value).value)

    def _early_limits(self) -> EarlyLimits:
        limits, band = self.work.limits, self.work.target.latency_band or 0.0
        budget = limits.latency_budget_ms
        late = None if budget is None else budget * (1 + band)
        return EarlyLimits(late, limits.max_drop, limits.accuracy_limit)

    def _keep(self, evaluation: Evaluation) -> str | None:
        """Keep the engine of an evaluation that may stand on the front, else throw it away."""
        if evaluation.artifact is None:
            return None
        path, accuracy = Path(evaluation.artifact), evaluation.accuracy
        wanted = self.work.config.keep_engines
        keep = wanted == "all" or (wanted == "front" and accuracy is not None and accuracy.complete)
        digest = self.work.artifacts.put_file(path, "engine") if keep else None
        path.unlink(missing_ok=True)
        return digest

    @contextmanager
    def _abandoned_when_interrupted(self, number: int, trial: optuna.Trial) -> Iterator[None]:
        """An evaluation that Ctrl-C or an error cuts off leaves no row, and its assignment is proposed again."""
        try:
            yield
        except BaseException:
            with suppress(Exception):  # what cannot be cleaned up now, on a full disk say, `recover` will
                if self.work.store.abandon(number):  # else it was recorded just before, and `recover` will tell it
                    self.proposals.give_up(trial)
            raise

    def _escape_repeats(self, assignment: Assignment) -> None:
        """A sampler that has converged proposes the same again and again: look around the repeated one."""
        self._repeats += 1
        if self._repeats % _SAME_IN_A_ROW == 0:
            self.proposals.enqueue_neighbour(assignment)

    def _now_and_then(self, now: Standing) -> None:
        done = len(now.table)
        if done % _DRIFT_EVERY == 0:
            self._check_drift(now)
        if done % _PRUNE_EVERY == 0:
            self._prune(now)

    def _note_change(self) -> None:
        """Say when the sampler's forecasts turn poor, and when they are good again."""
        if self.proposals.poor == self._poor:
            return
        self._poor = self.proposals.poor
        found = self.proposals.quality()
        if found is not None:
            self.work.progress.note(
                poor_text(found) if self._poor else f"forecasts are good again: {quality_text(found)}"
            )

    def _note_quality(self) -> None:
        found = self.proposals.quality()
        if found is not None:
            self.work.progress.note(f"forecasts of the latency: {quality_text(found)}")

    def _check_drift(self, now: Standing) -> None:
        """Time the FP32 baseline again, as a further round of its own evaluation."""
        row = now.row_of("baseline:fp32")
        if row is None:
            return
        drift = repeatability.drift(self.work, now, row)
        if abs(drift) > 0.1:
            how = "scaled by it, so they stay comparable" if self.work.target.target.relative else "affected"
            self.work.progress.note(f"the FP32 baseline runs {drift:+.0%} against the start; latencies are {how}")

    def _prune(self, now: Standing) -> None:
        """Let go of engines that are on no front any more."""
        if self.work.config.keep_engines == "all":
            return
        held = now.table.artifact != ""
        kept = now.front | _unlimited_front(now) if self.work.config.keep_engines == "front" else np.zeros_like(held)
        released = self.work.store.release_artifacts([int(number) for number in now.table.id[held & ~kept]])
        for digest in released:
            self.work.artifacts.remove(digest)

    # -- what Optuna is told ---------------------------------------------------------------------------------------

    def _digest(self, assignment: Assignment) -> str:
        return evaluation_digest(assignment, self.work.target.ranges_digest or "", self.work.knobs)

    def _outcome(self, record: EvaluationRecord) -> Outcome:
        evaluation = record.evaluation
        if record.status != OK or evaluation.latency is None or evaluation.accuracy is None:
            return Outcome(None, {})
        refused = sum(row.got is not None and row.got != row.asked for row in evaluation.audit)
        amounts = {"obeyed": float(refused)}
        limits, latency_ms, accuracy = self.work.limits, evaluation.latency.value_ms, evaluation.accuracy
        if limits.latency_budget_ms is not None:
            amounts["latency"] = latency_ms - limits.latency_budget_ms
        if limits.max_drop is not None:
            amounts["drop"] = accuracy.loss - limits.max_drop
        if limits.accuracy_limit is not None:
            better = bool(self.work.study.metric["higher_is_better"])
            amounts["accuracy"] = (limits.accuracy_limit - accuracy.value) * (1 if better else -1)
        if limits.max_memory_bytes is not None and evaluation.memory_bytes is not None:
            amounts["memory"] = float(evaluation.memory_bytes - limits.max_memory_bytes)
        loss_std = (accuracy.loss_high - accuracy.loss_low) / (2 * _NORMAL_95)
        measured = (evaluation.latency.spread, loss_std, float(accuracy.complete))
        return Outcome((latency_ms, accuracy.loss), amounts, measured)


def evaluation_digest(assignment: Assignment, ranges_digest: str, knobs: dict[str, str]) -> str:
    """Names an evaluation on its target: assignment, ranges and builder knobs."""
    return digest_of({"assignment": assignment.digest, "ranges": ranges_digest, "knobs": knobs})


def _unless(asked: Assignment, record: EvaluationRecord) -> Assignment | None:
    """What was asked, where the evaluation is of its repair."""
    return asked if asked != record.evaluation.assignment else None


def _stalled(now: Standing, patience: int) -> bool:
    volumes = now.hypervolumes()
    return len(volumes) > patience and bool(volumes[-1] <= volumes[-1 - patience])


def _unlimited_front(now: Standing) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Limits may be changed later, so the front without them keeps its engines too."""
    return pareto.front(now.latency_ms, now.table.loss, now.band, now.loss_band, now.complete)
