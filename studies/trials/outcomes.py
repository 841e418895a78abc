"""The results that Optuna receives for an evaluation."""

from __future__ import annotations

from search.values import Assignment
from studies.store.records import OK, StoredEvaluation
from studies.trials.ledger import Ledger
from studies.trials.proposals import Outcome

_NORMAL_95 = 1.96  # standard deviations to either side that hold 95 % of a normal distribution


def asked_unless_built(asked: Assignment, record: StoredEvaluation) -> Assignment | None:
    """What was asked, where the evaluation is of its repair."""
    return asked if asked != record.evaluation.assignment else None


def outcome(ledger: Ledger, record: StoredEvaluation) -> Outcome:
    """What Optuna is told of a finished evaluation: measures, and how far they are above the limits."""
    evaluation = record.evaluation
    if record.status != OK or evaluation.latency is None or evaluation.accuracy is None:
        return Outcome(None, {})
    refused = sum(row.got is not None and row.got != row.asked for row in evaluation.audit)
    amounts = {"obeyed": float(refused)}
    latency_ms, accuracy = evaluation.latency.value_ms, evaluation.accuracy
    for limit, bound in ledger.limits.rows():
        measure = limit.measure(evaluation)
        if measure is not None:
            amounts[limit.word] = limit.sign(ledger.study.metric["higher_is_better"]) * (measure - bound)
    loss_std = (accuracy.loss_high - accuracy.loss_low) / (2 * _NORMAL_95)
    measured = (evaluation.latency.spread, loss_std, float(accuracy.complete))
    return Outcome((latency_ms, accuracy.loss), amounts, measured)
