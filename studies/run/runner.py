"""Run a study: ask, evaluate, record, tell, until there is enough; nothing is lost when anything dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from evaluators.process.job import Limits as EarlyLimits
from evaluators.stopwatch import time_spent
from search.sampler.registry import sampler_named
from search.values import Assignment, Evaluation, Failure, FailureKind, Stage
from studies.artifacts import leftovers
from studies.judging.findings.loss_resolution import coarse_texts, find_resolutions, resolution_text
from studies.judging.sentences.descriptions import death_text
from studies.judging.standing import Standing, standing
from studies.run import upkeep
from studies.run.finishing import Finish
from studies.run.guidance.sensitivity_beside import SensitivityBeside
from studies.run.noise.tie_band import TieBand
from studies.run.reaching import check_float, check_time, warn_of_budget
from studies.run.repair import Repairs
from studies.run.rescoring import Rescoring
from studies.run.work import Work
from studies.run_clock import count_parts
from studies.store.records import EXPORT, RUNNING, EvaluationRecord, Taken
from studies.store.store import FullStudyError, KnownEvaluationError, LostEvaluationError
from studies.store.target_options import config_of
from studies.trials.open_trials import OpenTrials
from studies.trials.outcomes import asked_unless_built, digest_in, outcome
from studies.trials.proposals import Proposals

if TYPE_CHECKING:
    import optuna

_DRIFT_EVERY = 20
_PRUNE_EVERY = 10
_SAME_IN_A_ROW = 3
_MOST_TAKEOVERS = 3


class Runner:
    """One worker of a study."""

    def __init__(self, work: Work, proposals: Proposals) -> None:
        self.work = work
        self.proposals = proposals
        self._roles = {a.digest: f"baseline:{label}" for label, a in work.problem.space.baselines().items()}
        self._trials = work.problem.config.trials
        self._finished = 0
        self._unguided = sampler_named(work.problem.config.sampler).guided
        self._repeats = 0
        self._next_look = 0.0
        self._asked_at = self.work.pace.passed_s
        self._looked_at_budget = False
        self._quality = upkeep.Quality(work, proposals)
        self.repairs = Repairs(work)
        self.open_trials = OpenTrials(work, proposals, self.repairs)
        self._resolution_told = False
        self._rescoring = Rescoring(work, proposals)
        self._beside = SensitivityBeside(work)
        self.band = TieBand(work)

    # -- before the loop -------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Close what lost workers left open; their assignments are proposed again.

        On SQLite that is all there is, for this process holds the study's lock; elsewhere what other workers may still
        be at is left alone.
        """
        store = self.work.ledger.store
        if not store.shared:
            for running in store.claims.running(self.work.ledger.target.id):
                store.claims.abandon(running.id)
        self.open_trials.settle(alone=not store.shared)

    def enqueue_baselines(self) -> None:
        """Every uniform assignment that has not been evaluated goes first."""
        if not self._missing_baselines():
            return  # workers that come later need not wait for one another
        with self.work.crew.hold("baselines"):
            for assignment in self._missing_baselines():
                self.proposals.enqueue(assignment)

    def _missing_baselines(self) -> list[Assignment]:
        work = self.work
        baselines = [(a, digest_in(work, self.repairs.buildable(a))) for a in work.problem.space.baselines().values()]
        return [
            a for a, digest in baselines if work.ledger.store.evaluations.find(work.ledger.target.id, digest) is None
        ]

    def settle_sensitivities(self, now: Standing) -> None:
        """Let the guided sampler know what each group adds to the error, before it first proposes by itself.

        That is when the uniform assignments are begun. On a processor one that is finished says how long an evaluation
        takes, and so how long the measurement may. On a GPU it is made beside the uniform assignments; where it is not
        finished soon after them the sampler goes on without it, and is told later.
        """
        if not self._unguided or self._trials <= len(self._roles):
            return
        beside = not self.work.ledger.target.target.relative
        if beside:
            self._beside.begin()
        if not now.done or len(now.table) < len(self._roles) or (beside and not self._beside.wait()):
            return
        from studies.run.guidance.guidance import measured  # takes a while, and other samplers do without

        self.proposals.guide(lambda guidance: measured(self.work, guidance))
        self._unguided = False

    # -- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Evaluate until the study has its trials; why it stopped, in words.

        Raises:
            UnreachableLimitError: FP32 itself misses the accuracy limit, or the time limit is too short for anything.
        """
        now = self.standing()
        while True:
            check_float(self.work, now)
            check_time(self.work, now)
            self._tell_resolution(now)
            self._look_at_budget(now)
            if self.work.pace.allows_evaluation(now):
                now = self._rescoring.run(self.band.go_on(now, evaluated=self._finished))
            self.work.crew.store_time()
            reason = self._enough(now)
            if reason:
                self._quality.note_last()
                return reason
            now = self._next(now)

    def _tell_resolution(self, now: Standing) -> None:
        """Say once, as soon as it is known, how small a loss the samples can tell, and whether that is too coarse."""
        found = () if self._resolution_told else find_resolutions(self.work.ledger.store, now)
        if found:
            self._resolution_told = True
            self.work.progress.note(resolution_text(found, now))
            for text in coarse_texts(found, now):
                self.work.progress.note(f"WARNING: {text}")

    def _look_at_budget(self, now: Standing) -> None:
        """Once the uniform assignments are there, warn of a latency budget that is out of reach."""
        running = any(now.table.status[row] == RUNNING for row in now.baselines())
        if self._looked_at_budget or running or now.done < len(self._roles):
            return
        self._looked_at_budget = True
        if not self.work.ledger.store.shared or self.work.crew.rank() == 0:  # one worker says it for all
            warn_of_budget(self.work, self.proposals, now)

    def standing(self) -> Standing:
        return standing(
            self.work.ledger.store, self.work.ledger.study, self.work.ledger.target, self.work.ledger.limits
        )

    def _enough(self, now: Standing) -> str:
        config, done = self.work.problem.config, now.done
        if done >= self._wanted(done):
            return f"{done} evaluations are done"
        if done == len(now.table) and self.repairs.all_built(done):
            size, refused = (
                self.work.problem.space.size_without(self.repairs.unbuildable),
                bool(self.repairs.unbuildable),
            )
            return f"every one of the {size} assignments{' that can be built' * refused} has been evaluated"
        if not self.work.pace.allows_evaluation(now):
            return f"the time limit is reached with {done} of {self._trials} evaluations done"
        if config.patience is not None and _stalled(now, config.patience):
            return f"the last {config.patience} evaluations gained no hypervolume; {done} are done"
        return ""

    def _wanted(self, there: int) -> int:
        """How many evaluations there should be; another worker may have raised that."""
        if there >= self._trials and self.work.ledger.store.shared:
            study = self.work.ledger.store.studies.load(self.work.ledger.study.name)
            self._trials = max(self._trials, config_of(study, self.work.ledger.target).trials)
        return self._trials

    def _next(self, now: Standing) -> Standing:
        """Do what is next: what a lost worker left, a trial, or waiting; where the study stands afterwards."""
        work = self.work
        if work.ledger.store.shared and work.crew.steady:
            taken = work.ledger.store.claims.take_over(work.ledger.target.id, work.crew.name, work.crew.lease_s)
            if taken is not None:
                return self._go_on_with(taken, now)
            self._look_around()
        there = len(now.table)
        if there >= self._wanted(there) or self.repairs.all_built(there):
            return self._waited(now)
        self.settle_sensitivities(now)
        work.crew.state("searching")
        return self._one_trial(now)

    def _one_trial(self, now: Standing) -> Standing:
        """Ask, evaluate, record, tell; repair what is refused; where the study stands afterwards."""
        self._asked_at = self.work.pace.passed_s
        trial, asked = self.proposals.ask()
        self._quality.note_change()
        self.repairs.refresh()
        return self._pursue(trial, asked, self.repairs.buildable(asked), now)

    def _pursue(
        self, trial: optuna.Trial, asked: Assignment, first: Assignment, now: Standing, number: int | None = None
    ) -> Standing:
        """Evaluate what a trial asked for, and its repairs.

        Args:
            first: what is built for it.
            number: the evaluation of that, where it was begun already.
        """
        wanted: Assignment | None = first
        left = min(self.work.problem.config.repair, self._trials - len(now.table) - 1)
        while wanted is not None:
            with self._given_up_when_interrupted(trial):
                if number is None:
                    number = self._begun(trial, asked, wanted)
                if number is None:
                    return self.standing() if self.work.ledger.store.shared else now
                record, wanted = self._carry_out(trial, asked, wanted, number, left)
            number, left = None, left - 1
            if record is None:
                return self.standing()
            if wanted is None:
                self.proposals.tell(trial, outcome(self.work, record))
                self.open_trials.tell_others(record, trial.number)
            now = self.standing()
            self.work.progress.evaluation(record, now, self._trials)
            self._finished += 1
            self.work.pace.note(record.evaluation, self.work.pace.passed_s - self._asked_at)
            self._asked_at = self.work.pace.passed_s
        self._now_and_then(now)
        return now

    def _begun(self, trial: optuna.Trial, asked: Assignment, wanted: Assignment) -> int | None:
        """A new evaluation of a trial; None where one that is there answers it, or no more are wanted."""
        store, target, digest = self.work.ledger.store, self.work.ledger.target.id, digest_in(self.work, wanted)
        known = store.evaluations.find(target, digest)
        if known is None:
            role, proposed = self._roles.get(asked.digest, ""), asked if asked != wanted else None
            worker, most = self.work.crew.name, self._trials
            try:
                return store.claims.begin(target, wanted, digest, worker, trial.number, role, asked=proposed, most=most)
            except KnownEvaluationError:  # another worker began it just now
                known = store.evaluations.find(target, digest)
            except FullStudyError:  # others began the last ones
                known = None
        if known is None or not self._answered(trial, asked, known):
            self.proposals.put_back(trial)
        return None

    def _carry_out(
        self, trial: optuna.Trial, asked: Assignment, wanted: Assignment, number: int, left: int
    ) -> tuple[EvaluationRecord | None, Assignment | None]:
        """Evaluate and record one assignment of a trial; with its repair, where it is refused and repairs are left."""
        self._repeats = 0
        role = self._roles.get(asked.digest, "")
        evaluation = self._evaluate(number, trial.number, wanted, role)
        for death in evaluation.deaths:
            self.work.progress.note(f"trial {trial.number}: {death_text(death)}")
        repaired = self.repairs.learn(trial.number, evaluation, left)
        if not self._record(number, evaluation, repaired=repaired is not None):
            return None, None
        return replace(self.work.ledger.store.evaluations.load(number), trial=trial.number), repaired

    def _record(self, number: int, evaluation: Evaluation, *, repaired: bool = False) -> bool:
        """Store a result; False where another worker, which took this one for lost, was faster."""
        store, worker = self.work.ledger.store, self.work.crew.name
        try:
            with leftovers.kept_engine(
                store, self.work.ledger.artifacts, upkeep.engine_of(self.work, evaluation)
            ) as artifact:
                store.claims.record(number, evaluation, artifact, worker=worker, repaired=repaired)
        except LostEvaluationError:
            note = store.claims.note_late(number, worker) or "a result came late, of an evaluation that was given up"
            self.work.progress.note(f"evaluation {number}: {note}")
            return False
        return True

    def _answered(self, trial: optuna.Trial, asked: Assignment, known: EvaluationRecord) -> bool:
        """Let an evaluation that is there answer a trial, at once or when it is finished; False where it is gone."""
        store, target = self.work.ledger.store, self.work.ledger.target.id
        try:
            store.trials.link(target, trial.number, known.id, asked=asked_unless_built(asked, known))
            # Read again: whoever finishes it tells those trials that are linked to it by then.
            known = store.evaluations.load(known.id) if known.status == RUNNING else known
        except (LostEvaluationError, KeyError):
            return False
        if known.status != RUNNING:
            self.proposals.tell(trial, outcome(self.work, known))
        self._escape_repeats(known.evaluation.assignment)
        return True

    # -- other workers ---------------------------------------------------------------------------------------------

    def _go_on_with(self, taken: Taken, now: Standing) -> Standing:
        """Carry out what another worker began, unless it was lost with too many."""
        try:
            record = self.work.ledger.store.evaluations.load(taken.id)
        except KeyError:
            return self.standing()
        if record.role == EXPORT or record.trial is None:
            self.work.ledger.store.claims.abandon(taken.id)  # of an export that was killed: nobody waits for it
            return self.standing()
        self.work.crew.state("searching")
        self.work.progress.note(f"trial {record.trial}: going on with it, worker {taken.worker} is gone")
        trial, assignment = self.proposals.handle(record.trial), record.evaluation.assignment
        if taken.takeovers > _MOST_TAKEOVERS:
            self._give_up(trial, taken.id, assignment, taken.takeovers)
            return self.standing()
        return self._pursue(trial, record.asked or assignment, assignment, now, taken.id)

    def _give_up(self, trial: optuna.Trial, number: int, assignment: Assignment, times: int) -> None:
        said = f"lost with its worker {times} times, at which stage is not known"
        failure = Failure(Stage.LOWER, FailureKind.CRASHED, said)
        if self._record(number, Evaluation(assignment, failure)):
            record = replace(self.work.ledger.store.evaluations.load(number), trial=trial.number)
            self.proposals.tell(trial, outcome(self.work, record))
            self.open_trials.tell_others(record, trial.number)
            self.work.progress.evaluation(record, self.standing(), self._trials)

    def _look_around(self) -> None:
        """Now and then, see to the trials of lost workers."""
        if time.monotonic() >= self._next_look:
            self.open_trials.settle()
            self._next_look = time.monotonic() + self.work.crew.lease_s / 2

    def _waited(self, now: Standing) -> Standing:
        """Nothing is left to begin: wait a moment for what others are at, which may be lost with them."""
        work = self.work
        work.crew.state("waiting")
        work.crew.wait("waiting for evaluations of other workers", now.done, self._trials)
        self.open_trials.settle()
        counts = work.ledger.store.statistics.counts(work.ledger.target.id)
        same = (counts.finished, counts.running) == (now.done, len(now.table) - now.done)
        return now if same else self.standing()

    def finish(self) -> bool:
        """Confirm the finalists, or wait for the worker that does; whether the study is done now.

        Raises:
            EvaluatorError: the evaluator process dies over it.
        """
        self.work.crew.state("finishing")
        self.close()
        done = self.standing().done
        complete = done >= self._trials or self.repairs.all_built(done)
        return Finish(self.work, self.proposals, self.open_trials).run(complete=complete)

    def close(self) -> None:
        """End what runs beside the search."""
        self._beside.close()
        self.band.close()

    # -- one evaluation --------------------------------------------------------------------------------------------

    def _evaluate(self, number: int, trial: int, assignment: Assignment, role: str) -> Evaluation:
        out = self.work.bench.folder / f"{number}.engine"
        # The rest is held against the baselines, whatever the limits are now or later: they are never stopped early.
        reference_ms = self.work.ledger.store.measurements.reference_ms(self.work.ledger.target.id)
        limits = EarlyLimits(reference_ms=reference_ms) if role else self._early_limits(reference_ms)
        with time_spent("evaluator"):
            evaluation = self.work.bench.keeper.evaluate(
                assignment,
                out,
                limits,
                lambda event, value: self._on_event(trial, event, value),
                profile=bool(role),
            )
        count_parts(evaluation, uniform=bool(role))
        return evaluation

    def _on_event(self, trial: int, event: str, value: Any) -> None:
        if event == "stage":
            self.work.progress.stage(trial, Stage(value).value)

    def _early_limits(self, reference_ms: float | None) -> EarlyLimits:
        ledger = self.work.ledger
        return EarlyLimits(**ledger.limits.early(ledger.target.band), reference_ms=reference_ms)

    @contextmanager
    def _given_up_when_interrupted(self, trial: optuna.Trial) -> Iterator[None]:
        """An evaluation that Ctrl-C or an error cuts off leaves no row, and its assignment is proposed again.

        It is looked up in the database: whoever is cut off just after beginning it does not know its number.
        """
        try:
            yield
        except BaseException:
            with suppress(Exception):  # what cannot be cleaned up now, on a full disk say, `recover` will
                self._give_up_held(trial)
            raise

    def _give_up_held(self, trial: optuna.Trial) -> None:
        store, worker = self.work.ledger.store, self.work.crew.name
        for running in store.claims.running(self.work.ledger.target.id, worker):
            others = {*store.evaluations.load(running.id).trials} - {trial.number}
            if store.claims.abandon(running.id, worker):
                self.proposals.give_up(trial)
                for other in others:
                    self.proposals.give_up(self.proposals.handle(other))

    def _escape_repeats(self, assignment: Assignment) -> None:
        """A sampler that has converged proposes the same again and again: look around the repeated one."""
        self._repeats += 1
        if self._repeats % _SAME_IN_A_ROW == 0:
            self.proposals.enqueue_neighbour(assignment)

    def _now_and_then(self, now: Standing) -> None:
        work = self.work
        if self._finished % _DRIFT_EVERY == 0:
            upkeep.check_drift(self.work, now)
        if self._finished % _PRUNE_EVERY == 0:
            with self.work.crew.try_hold("prune") as mine:
                if mine:
                    upkeep.prune(work.ledger.store, work.ledger.artifacts, now, keep=work.problem.config.keep_engines)


def _stalled(now: Standing, patience: int) -> bool:
    volumes = now.hypervolumes()[now.table.status != RUNNING]
    return len(volumes) > patience and bool(volumes[-1] <= volumes[-1 - patience])
