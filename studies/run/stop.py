"""The conditions that end a search: enough evaluations, none left, no time, no prospect, or unreachable limits."""

from __future__ import annotations

from search.errors import RunError
from studies.judging.findings.loss_resolution import is_certain_pick_slow
from studies.judging.standing import Standing
from studies.options.limits import LATENCY_MS, METRIC_VALUE, Limit
from studies.options.quantities import format_duration_s, format_ms
from studies.options.value_kinds import AUTO
from studies.run.claims.claim import Refusals
from studies.run.pace import Pace
from studies.run.work import Work
from studies.store import suggestions
from studies.store.records import NO_PROSPECT, REQUEST, RUNNING, TIME_LIMIT
from studies.store.target_options import config_of
from studies.trials.proposals import Proposals


class Stop:
    """The conditions on which a worker stops searching.

    Attributes:
        trials: how many evaluations the study is to have in all.
        stopped_by: what ended the search before it was complete: `TIME_LIMIT`, `REQUEST`, `NO_PROSPECT`; empty for
            anything else.
    """

    def __init__(self, work: Work, refusals: Refusals, proposals: Proposals) -> None:
        self.stopped_by = ""
        self._work = work
        self._refusals = refusals
        self._proposals = proposals
        self.trials = work.problem.config.trials
        self._uniform = len(work.problem.space.baselines)

    def wanted_count(self, there: int) -> int:
        """How many evaluations there should be; another worker may have raised that.

        Args:
            there: how many there are, or are running.
        """
        if there >= self.trials and not self._work.crew.alone:
            ledger = self._work.ledger
            study = ledger.store.studies.load(ledger.study.name)
            self.trials = max(self.trials, config_of(study, ledger.target).trials)
        return self.trials

    def room(self) -> int:
        """How many more evaluations may be begun; none if all that can be built are there."""
        ledger = self._work.ledger
        counts = ledger.counts() if self._work.crew.alone else ledger.store.statistics.counts(ledger.target.id)
        there = counts.finished + counts.running
        return 0 if self._refusals.all_built(there) else self.wanted_count(there) - there

    def left(self) -> float:
        """How many more evaluations can be begun, and end before the time limit if there is one."""
        pace, room = self._work.pace, float(self.room())
        if pace.limit_s is None:
            return room
        workers = 1 + len(self._work.crew.others())
        return min(room, workers * pace.evaluations_left(self._work.ledger.read_standing()))

    def build_s(self, now: Standing) -> float:
        """How long builds under way may still take; infinite without a time limit."""
        return self._work.pace.build_s(now)

    def is_complete(self, done: int) -> bool:
        """Whether so many finished evaluations are all that are wanted, or all that can be built."""
        return done >= self.trials or self._refusals.all_built(done)

    def reason_to_stop(self, now: Standing) -> str:
        """Why no more evaluations are to be begun, in words; empty while some are.

        Raises:
            UnreachableLimitError: FP32 itself misses the accuracy limit, or the time limit is too short for anything.
        """
        check_float(now, self._work.problem.config.storage)
        if not len(now.table):  # a time limit that is over before anything was evaluated is refused
            refuse_late(self._work.pace, now.study.name, self._work.problem.config.storage)
        in_time = self._work.pace.allows_evaluation(now, uniform=len(now.measures.baselines) < self._uniform)
        if in_time and now.judgement.regainable.any():  # no new ones, so they count towards none of what follows
            return ""
        return self._enough(now, in_time=in_time)

    def _enough(self, now: Standing, *, in_time: bool) -> str:
        done, patience = now.measures.finished_count, self._work.problem.config.patience
        if done >= self.wanted_count(done):
            return f"{done} evaluations are done"
        if self._work.events.wants_end():
            self.stopped_by = REQUEST
            return f"stopped on request, with {done} of {self.trials} evaluations done"
        if done == len(now.table) and self._refusals.all_built(done):
            refused = self._refusals.unbuildable
            size = self._work.problem.space.size_without(refused)
            return f"every one of the {size} assignments{' that can be built' * bool(refused)} has been evaluated"
        if not in_time:
            # Say once how long an evaluation takes here, and which time limit leaves time for the others.
            work, is_repeat = self._work, self.stopped_by == TIME_LIMIT
            self.stopped_by = TIME_LIMIT
            if not is_repeat and done and work.crew.rank() == 0:
                work.events.note(
                    f"the time limit leaves no time for more: {limit_advice(work, now, self.trials - done)}"
                )
            return f"the time limit is reached with {done} of {self.trials} evaluations done"
        if patience == AUTO and (right := self._proposals.deciding_forecasts()) and not is_certain_pick_slow(now):
            self.stopped_by = NO_PROSPECT
            return (
                "no mix is expected to be better than what was found by more than can be measured, and the last "
                f"{right} forecasts were right; {done} of {self.trials} evaluations are done"
            )
        if isinstance(patience, int) and _is_stalled(now, patience):
            return f"the front did not improve during the last {patience} evaluations; {done} are done"
        return ""


def _is_stalled(now: Standing, patience: int) -> bool:
    volumes = now.measures.hypervolumes()[now.table.status != RUNNING]
    return len(volumes) > patience and bool(volumes[-1] <= volumes[-1 - patience])


class UnreachableLimitError(RunError):
    """A limit cannot be kept. The message says how to go on; the same command would end in the same way."""


def check_float(now: Standing, storage: str) -> None:
    """Refuse an accuracy limit that uniform FP32 itself misses on the search split, once FP32 has been evaluated.

    Raises:
        UnreachableLimitError: naming what FP32 reaches and the limit; or it is a percentage of an FP32 value of 0.
    """
    if now.limits.of_fp32 and (problem := now.limits.share_problem()):
        way = suggestions.command("resume", now.study.name, "--max-drop", "LOSS", storage=storage)
        raise UnreachableLimitError(
            f"searching study {now.study.name!r}: {problem}. Continue with a loss in the unit of the metric: {way}"
        )
    value = now.measures.fp32_value
    for limit, bound in now.limits.rows():
        if limit.column == METRIC_VALUE and limit.sign(now.metric.higher_is_better) * (value - bound) > 0:
            raise UnreachableLimitError(_float_misses(now, storage, limit, value, bound))


def warn_of_budget(work: Work, proposals: Proposals, now: Standing) -> None:
    """Say where the latency budget is below what forecasts call reachable, by what the uniform assignments showed."""
    budget_ms, measured_ms = now.limits.most(LATENCY_MS), now.measures.latency_ms[now.measures.complete]
    if budget_ms is None or not len(measured_ms) or measured_ms.min() <= budget_ms:
        return
    from studies.run.guidance.guidance import make_guidance  # takes a while, and a search without a budget does without

    least_ms = proposals.least_ms(lambda: make_guidance(work))
    if least_ms is not None and budget_ms < (least_ms := min(least_ms, float(measured_ms.min()))):
        work.events.note(
            f"warning: the budget {format_ms(budget_ms)} is below {format_ms(least_ms)}, which the forecasts call the "
            "least "
            "that can be reached on this target. The search continues, and shows the nearest mixes if none keeps the "
            "budget"
        )


def limit_advice(work: Work, now: Standing, left: int) -> str:
    """How long an evaluation takes, and the limit that leaves time for so many more."""
    each = format_duration_s(max(1, round(work.pace.evaluation_s(now))))
    limit = format_duration_s(work.pace.enough_s(now, left))
    many = "the one that is" if left == 1 else f"the {left} that are"
    return f"an evaluation takes about {each} here; to resume with --time-limit {limit} leaves time for {many} left"


def refuse_late(pace: Pace, study: str, storage: str) -> None:
    """Refuse to begin a run whose time limit is over.

    Raises:
        UnreachableLimitError: naming the limit, and what the start took.
    """
    if pace.left_s > 0:
        return
    limit, took = (format_duration_s(each) for each in (pace.limit_s or 0.0, pace.passed_s))
    way = suggestions.command("resume", study, "--time-limit", "TIME", storage=storage)
    raise UnreachableLimitError(
        f"running study {study!r}: --time-limit {limit} is too short to evaluate anything. Starting, checking the "
        f"inputs and calibrating took {took}. Nothing was evaluated. Continue with more time: {way}"
    )


def _float_misses(now: Standing, storage: str, limit: Limit, value: float, bound: float) -> str:
    metric, option = now.metric, f"--{limit.option}"
    side = "at least" if limit.sign(now.metric.higher_is_better) < 0 else "at most"
    reached, required = limit.format(value, metric), limit.format(bound, metric)
    way = suggestions.command("resume", now.study.name, option, limit.metavar, storage=storage)
    return (
        f"searching study {now.study.name!r}: FP32 itself misses {option}. It reaches {metric.name} {reached} on the "
        f"search samples, and {side} {required} is required, so no mix of lower precisions can be expected to keep "
        f"it. Nothing else is evaluated. Continue with a limit that FP32 keeps: {way}"
    )
