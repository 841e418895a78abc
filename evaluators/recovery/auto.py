"""Choosing recovery steps: each is tried on all INT8, together with the steps that were kept before."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from evaluators.engine import Runner
from evaluators.recovery.context import RecoveryContext
from evaluators.recovery.held_out import HeldOut, HeldOutErrors
from evaluators.recovery.step import Proposal, RecoveryStep
from search.errors import BitfrontError, EvaluatorError
from search.values import NOT_TRIED, Ranges, Recovery, StepRecord

EQUAL_DB = 80.0  # signal to noise, from which on two float models are equal but for rounding

NO_TIME = "it was not tried, because the time for recovery was over: see --recover-time"
TOO_SLOW = "it was not tried, because the model takes {:.3g} s over the samples: see --recover-time"
_PASSES = 3.0  # an exact step looks at the samples and calibrates on them again, both slower than the model runs
_EXACT_SHARE = 0.5  # of the time that is left, which that may take: ranges and biases often gain more

Done = Callable[[int, int], None]


@dataclass(frozen=True)
class KeptSteps:
    """Ranges with all that was kept.

    Attributes:
        ranges: of the last kept proposal; those that recovery began with where none was kept.
        steps: every step that was tried, in their order.
        stages: the ranges after each kept step, in their order.
        notes: what holds for all of it.
    """

    ranges: Ranges
    steps: tuple[StepRecord, ...]
    stages: tuple[Ranges, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _KeptSoFar:
    """What is kept so far."""

    ranges: Ranges
    outcome: HeldOutErrors
    records: list[StepRecord] = field(default_factory=list)
    stages: list[Ranges] = field(default_factory=list)


class StepTrials:
    """Tries steps on one model.

    Args:
        context: what steps work with.
        held_out: the samples that decide.
        forced: whether every step is kept that proposes something, whatever it does to the error.
        done: told how many of how many steps are tried.
        pass_s: seconds that the float model takes over all samples that steps fit to, by the clock of the context.
    """

    def __init__(
        self, context: RecoveryContext, held_out: HeldOut, *, forced: bool, done: Done, pass_s: float = 0.0
    ) -> None:
        self._pass_s = pass_s
        self._context = context
        self._held_out = held_out
        self._forced = forced
        self._done = done

    def run(self, steps: Sequence[RecoveryStep], ranges: Ranges) -> KeptSteps:
        """Try steps in this order and keep those that lower the error of the outputs.

        Args:
            ranges: of plain INT8, calibrated on the samples that steps fit to.

        Raises:
            EvaluatorError: ONNX Runtime cannot run plain INT8, or a step that is forced fails.
        """
        whole_s = self._context.seconds_left()
        plain = self._held_out.measure(self._context.open_quantized(ranges))
        now = _KeptSoFar(ranges, plain)
        for place, step in enumerate(steps):
            self._done(place, len(steps))
            start = time.monotonic()
            record = self._try(step, self._with_time(step.least_share * whole_s), now)
            now.records.append(replace(record, seconds=time.monotonic() - start))
            self._context.alive()
        self._done(len(steps), len(steps))
        notes = list(self._held_out.notes)
        if not self._forced and now.stages and self._held_out.is_worse(plain, now.outcome):
            notes.append("nothing is kept, because all steps together increase the loss by more than chance")
            return KeptSteps(ranges, tuple(map(_drop_step, now.records)), (), tuple(notes))
        return KeptSteps(now.ranges, tuple(now.records), tuple(now.stages), tuple(notes))

    def _with_time(self, least_s: float) -> RecoveryContext:
        """The context, with so many seconds at least from now on."""
        left = self._context.seconds_left
        more_s = least_s - left()
        return replace(self._context, seconds_left=lambda: left() + more_s) if more_s > 0 else self._context

    def _try(self, step: RecoveryStep, context: RecoveryContext, now: _KeptSoFar) -> StepRecord:
        """One step; what it proposes becomes part of `now` where it is kept."""
        before, left_s = now.outcome, context.seconds_left()
        dear = step.exact and _PASSES * self._pass_s > _EXACT_SHARE * left_s
        if (left_s <= 0 or dear) and not self._forced:
            reason = TOO_SLOW.format(self._pass_s) if left_s > 0 else NO_TIME
            return replace(_record(step, before, reason), cut=NOT_TRIED)
        try:
            proposal = step.propose(context, now.ranges)
            if proposal is None or proposal.ranges == now.ranges:
                cut = "" if proposal is None else proposal.cut
                return replace(_record(step, before, _why_nothing(proposal)), cut=cut)
            self._check_exact(proposal.ranges, now.ranges)
            after = self._held_out.measure(self._context.open_quantized(proposal.ranges))
        except Exception as error:  # a step may be the user's own; the search can go on without it
            cause = f"{error}" if isinstance(error, BitfrontError) else f"{type(error).__name__}: {error}"
            if self._forced:
                raise EvaluatorError(f"recovering with --recover {step.name}: {cause}") from error
            return _record(step, before, f"it failed: {cause}")
        comparison = self._held_out.compare(before, after)
        kept = self._forced or comparison.better
        if kept:
            now.ranges, now.outcome = proposal.ranges, after
            now.stages.append(proposal.ranges)
        reason = f"as asked for; {comparison.reason}" if self._forced else comparison.reason
        return _record(step, before, reason, after, proposal, kept=kept)

    def _check_exact(self, proposed: Ranges, known: Ranges) -> None:
        """Refuse factors that change the outputs of the float model by more than rounding.

        Raises:
            EvaluatorError: they do.
        """
        if Recovery(proposed.recovery.factors) == Recovery(known.recovery.factors):
            return
        check_equal(self._context.open_float(proposed.recovery), self._held_out)


def check_equal(session: Runner, held_out: HeldOut) -> None:
    """Refuse a float model whose outputs are not those of the user's within rounding.

    Raises:
        EvaluatorError: they differ.
    """
    error = held_out.distance(session)
    if not error <= 10 ** (-EQUAL_DB / 10):
        level = f"{-10 * math.log10(error):.0f} dB" if math.isfinite(error) else "not finite"
        raise EvaluatorError(
            f"its float model does not give the outputs of the model it was made of: expected a signal-to-noise ratio "
            f"of {EQUAL_DB:.0f} dB at least, got {level}. This is an error of the step"
        )


def _record(
    step: RecoveryStep,
    before: HeldOutErrors,
    reason: str,
    after: HeldOutErrors | None = None,
    proposal: Proposal | None = None,
    *,
    kept: bool = False,
) -> StepRecord:
    return StepRecord(
        name=step.name,
        exact=step.exact,
        kept=kept,
        reason=reason,
        error_before=_finite(before.error),
        error_after=None if after is None else _finite(after.error),
        loss_before=before.loss,
        loss_after=None if after is None else after.loss,
        notes=() if proposal is None else tuple(proposal.notes),
        cut="" if proposal is None else proposal.cut,
    )


def _why_nothing(proposal: Proposal | None) -> str:
    """Why a step changes nothing: that its time ran out, else by its notes, if it has some."""
    if proposal is None or not (proposal.notes or proposal.cut):
        return "there is nothing for it to do"
    notes = "; ".join(filter(None, (proposal.cut, *proposal.notes)))
    return notes if proposal.cut else f"it found nothing to change: {notes}"


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def _drop_step(record: StepRecord) -> StepRecord:
    return replace(record, kept=False)
