"""One target's evaluations as limits judge them, by rows: fronts, picks, and scores on the final split."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.values import BOUND_TRIES, REFERENCE, LossEstimate
from search.values.score import loss_unit
from studies.judging.details import TargetDetails
from studies.judging.judgement import FinalSplit, Judgement
from studies.judging.measures import FLOATS, Measures
from studies.judging.rules import verdicts
from studies.judging.rules.candidates import Candidates, aim_of
from studies.judging.rules.picks import Picks, choose, score_of, ties
from studies.judging.rules.verdicts import Disagreement, FinalBounds, Verdict, quantile
from studies.options.limits import LATENCY_MS, Limits, MetricScale
from studies.store.columns import EvaluationTable
from studies.store.records import AS_GIVEN, OK, RUNNING, StudyRecord, TargetRecord

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
_WIDEST_BAND = 0.25  # a tie band beyond which no latency of the target says how fast an engine is


@dataclass(frozen=True)
class FinalScore:
    """The scores of an evaluation on the final split; None if it was not `scored` there.

    Attributes:
        value: the value of the metric.
        loss: the loss against FP32, in the metric's unit.
        low, high: the 95 % interval of the loss, which accounts for the number of candidates that were tried.
        bound, value_bound: the loss is at most this, and the metric at worst this, with 95 % certainty, also for that
            number of candidates: what the verdict is given by. None where there are too few samples for it.
        tries: the number of candidates that were tried until this one was taken, including it.
        failure: why it could not be scored there; empty if it was, or was not tried.
        disagreement: the disagreement with the loss of the search, if chance does not explain it.
    """

    verdict: Verdict
    tries: int
    value: float | None = None
    loss: float | None = None
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    value_bound: float | None = None
    failure: str = ""
    disagreement: Disagreement | None = None
    scored: bool = False

    def loss_estimate(self, samples: int) -> LossEstimate | None:
        """The loss with its interval; None if it was not scored there."""
        return estimate_of(self.loss, self.low, self.high, samples, self.value)


@dataclass(frozen=True)
class JudgedTarget:
    """One target's evaluations, judged by limits. Row numbers index `table`.

    With other limits, `dataclasses.replace` judges the same evaluations again.

    Attributes:
        scored_picks: picks by a score such as `score:0.6,0.4`, beside the usual ones.
    """

    study: StudyRecord
    target: TargetRecord
    limits: Limits
    measures: Measures
    final: FinalSplit
    details: TargetDetails
    scored_picks: tuple[str, ...] = ()

    @property
    def table(self) -> EvaluationTable:
        """The evaluations as they are stored."""
        return self.measures.table

    @cached_property
    def metric(self) -> MetricScale:
        return MetricScale.of(self.study.metric)

    @cached_property
    def judgement(self) -> Judgement:
        return Judgement(self.measures, self.final, self.limits, self.metric, self.target.band)

    @cached_property
    def picks(self) -> Picks:
        aim = aim_of(self.limits, relative=self.metric.relative)
        return choose(self._candidates, aim, self.scored_picks)

    @cached_property
    def only_fp32(self) -> bool:
        """Whether uniform FP32 is all that was evaluated so far, and it went well: then no pick says anything."""
        done = self.table.status != RUNNING
        float_only = (self.table.role[done] == REFERENCE.role) & (self.table.status[done] == OK)
        return bool(done.any()) and bool(float_only.all())

    @cached_property
    def near_int8(self) -> int | None:
        """The row of uniform INT8, if there are limits of the accuracy that it keeps or might keep."""
        row = self.measures.quantized_row
        return row if row is not None and self.limits.bound_accuracy and self.judgement.near[row] else None

    @property
    def as_given_ms(self) -> float | None:
        """What the user's own file takes, where FP32 is not quite that and it was measured."""
        latency_ms: float | None = self.target.details.get(AS_GIVEN, {}).get("latency_ms")
        return latency_ms

    @cached_property
    def doubtful(self) -> Bools:
        """(n,) rows whose latency is doubtful: it was disturbed, or any two may differ by much by chance."""
        measured = np.isfinite(self.measures.latency_ms)
        return measured if self.target.band > _WIDEST_BAND else self.measures.doubtful

    def is_speedup_doubtful(self, row: int) -> bool:
        """Whether the latency of a row is doubtful, or that of uniform FP32 beside it."""
        base = self.measures.row_of(REFERENCE.role)
        return bool(self.doubtful[row] or (base is not None and self.doubtful[base]))

    def score(self, row: int, pick: str) -> float | None:
        """The score of a row by the weights of a pick; None of other picks, and where FP32 was not measured."""
        weights = score_of(pick)
        scores = None if weights is None else self._candidates.scores(weights)
        return None if scores is None else float(scores[row])

    # -- candidates for the picks ------------------------------------------------------------------------------------

    @cached_property
    def _candidates(self) -> Candidates:
        t, judged, tried = self.table, self.judgement, self.final.tried_rows
        error = verdicts.search_error(t.loss, t.loss_low, t.loss_high, t.loss_upper)
        return Candidates(
            latency_ms=self.measures.latency_ms,
            loss=t.loss,
            loss_error=error,
            loss_band=self.measures.loss_band,
            margin=judged.margins(t.loss, error, t.metric_value, self.study.clusters("search") or t.samples),
            latency_band=self.target.band,
            eligible=self._eligible,
            fails=tried & ~judged.keeps_final,
            holds=tried & judged.keeps_final,
            final_margin=self._final_margins,
            on_front=judged.front,
            fp32=self.measures.row_of(REFERENCE.role),
            floats=tuple(map(self.measures.row_of, FLOATS)),
            doubtful=self.doubtful,
            loss_unit=loss_unit(self.metric.ratio, t.loss[self.measures.baselines].tolist()),
        )

    @cached_property
    def _eligible(self) -> Bools:
        """(n,) feasible rows; where one keeps the budget surely, without those whose doubtful latency may miss it."""
        feasible, budget_ms = self.judgement.feasible, self.limits.most(LATENCY_MS)
        if budget_ms is None:
            return feasible
        near = self.measures.latency_ms * (1 + self.target.band) > budget_ms
        sure = feasible & ~(self.doubtful & near)
        fails = self.final.tried_rows & ~self.judgement.keeps_final
        return sure if (sure & ~fails).any() else feasible

    @cached_property
    def _final_margins(self) -> Floats:
        """The `FinalBounds.margin` of each row, (n,) float64; NaN if it was not scored on the final split."""
        margins = np.full(len(self.table), np.nan)
        for row in np.flatnonzero(np.isfinite(self.final.column("loss"))):
            margins[row] = self._final_bounds(int(row)).margin(
                self.limits, higher_is_better=self.metric.higher_is_better
            )
        return margins

    def _final_bounds(self, row: int) -> FinalBounds:
        """The bounds of a row's final score; uniform FP32 loses nothing against itself, which needs no samples."""
        bounds = self.final.bounds(row)
        return replace(bounds, loss=[0.0] * len(BOUND_TRIES)) if row == self.measures.row_of(REFERENCE.role) else bounds

    def is_not_sure(self, row: int) -> bool:
        """Whether a row keeps the limits in the search, but not by a bound; the final split knows better."""
        if not self.judgement.feasible[row] or not self.limits.bound_accuracy:
            return False
        if self._final_margins[row] >= quantile(self._tries(row)) and self.judgement.keeps_final[row]:
            return False
        return not (self._candidates.sure[row] and np.isfinite(self.table.loss_upper[row]))

    def ties(self, pick: str) -> tuple[int, ...]:
        """The rows that a pick beats only by noise."""
        return tuple(ties(self._candidates, self.picks, pick))

    def correlation(self, row: int) -> float:
        """Least correlation of a row's outputs with FP32's, on the search and the final split; NaN if not known."""
        place, searched = self.final.place(row), float(self.table.resemblance[row])
        return searched if place is None else float(np.fmin(searched, self.final.scores.resemblance[place]))

    # -- the final split -----------------------------------------------------------------------------------------------

    def final_score(self, row: int, tries: int | None = None) -> FinalScore:
        """The scores of a row on the final split, with its verdict.

        Args:
            tries: how many were looked at there until this one was taken, where another row was the choice.
        """
        place, tries = self.final.place(row), self._tries(row) if tries is None else tries
        verdict = self._verdict(row, tries)
        if place is None or self.final.unscorable[row]:
            failure = "" if place is None else str(self.final.scores.failure[place])
            return FinalScore(verdict, tries, failure=failure)
        scores = self.final.scores
        wider = quantile(tries, two_sided=True) / quantile(two_sided=True)
        loss, low, high = (float(column[place]) for column in (scores.loss, scores.loss_low, scores.loss_high))
        bound, value_bound = self._final_bounds(row).at(tries)
        return FinalScore(
            verdict,
            tries,
            value=known(scores.value[place]),
            loss=known(loss),
            low=known(loss - wider * (loss - low)),
            high=known(loss + wider * (high - loss)),
            bound=known(bound),
            value_bound=known(value_bound),
            disagreement=self._find_disagreement(row, place),
            scored=True,
        )

    def _verdict(self, row: int, tries: int) -> Verdict:
        """Whether this row keeps all limits with its numbers of the final split."""
        if self.final.unscorable[row]:
            return Verdict.FAILS
        if not self.final.tried_rows[row]:
            # FP32 loses nothing on whatever samples, and a metric that compares outputs with FP32's has its best value
            # there: nothing has to be scored for that.
            is_reference = self.table.role[row] == REFERENCE.role and bool(self.limits)
            known = self.metric.relative or not self.limits.needs_reference
            return Verdict.SURELY if is_reference and known and self.judgement.feasible[row] else Verdict.UNCONFIRMED
        if not self.limits:
            return Verdict.UNLIMITED
        if not self.judgement.keeps_final[row]:
            return Verdict.FAILS
        surely = bool(self._final_margins[row] >= quantile(tries))
        return Verdict.SURELY if surely else Verdict.HOLDS

    def _tries(self, row: int) -> int:
        """How many rows were looked at on the final split until this one was taken, itself included.

        Of a row that stands in the line of `best` those before it. Uniform INT8 was not chosen among many: it is only
        compared with `best`, so it counts as one more than those of `best`. Of any other row all that were looked at.
        """
        line, tried = self.picks.line, self.final.tried_rows
        if row in line:
            return max(1, sum(bool(tried[each]) for each in line[: line.index(row) + 1]))
        if row == self.near_int8 and self.picks.best in line:
            return self._tries(self.picks.best) + 1
        return max(1, int(tried.sum()))

    def _find_disagreement(self, row: int, place: int) -> verdicts.Disagreement | None:
        t, f = self.table, self.final.scores
        search_error = float(verdicts.standard_error(t.loss_low[row], t.loss_high[row]))
        final_error = float(verdicts.standard_error(f.loss_low[place], f.loss_high[place]))
        losses = float(t.loss[row]), float(f.loss[place])
        return verdicts.find_disagreement(losses[0], search_error, losses[1], final_error, self.final.scored_count)


def known(value: Any) -> Any:
    """A value of a column as Python has it; None for what the columns hold for nothing, NaN and -1."""
    plain = value.item() if hasattr(value, "item") else value
    missing = math.isnan(plain) if isinstance(plain, float) else isinstance(plain, int) and plain == -1
    return None if missing else plain


def estimate_of(
    loss: float | None, low: float | None, high: float | None, samples: int, value: float | None
) -> LossEstimate | None:
    """A loss with its interval, of which ends may be missing; None without a loss."""
    ends = [math.nan if end is None else end for end in (low, high)]
    return None if loss is None else LossEstimate(loss, ends[0], ends[1], samples, value)
