"""One finished evaluation in a line, for progress and logs."""

from __future__ import annotations

import numpy as np

from studies.judging.details import mismatch_text
from studies.judging.rounding import estimate_text, half_width, latency_text, speedup_text, value_text
from studies.judging.sentences.evaluations import failure_text
from studies.judging.sentences.picks import DOUBTFUL
from studies.judging.standing import Standing
from studies.store.records import StoredEvaluation


def ended_text(record: StoredEvaluation, now: Standing) -> str:
    """How an evaluation ended: `0.83 ms, 2.65 × FP32, top1 95.9 %, loss 0.08 ± 0.15 %`, or where it failed."""
    evaluation = record.evaluation
    if evaluation.failure is not None:
        return failure_text(evaluation.failure.stage.value, evaluation.failure.kind.value)
    accuracy = evaluation.accuracy
    if evaluation.latency is None or accuracy is None:
        return record.status
    half = half_width(accuracy.loss_low, accuracy.loss_high)
    parts = [latency_text(evaluation.latency.value_ms, now.target.band)]
    rows = np.flatnonzero(now.table.id == record.id)
    if len(rows) and (speedup := speedup_text(now.measures.speedup(int(rows[0])))):
        parts.append(f"latency {DOUBTFUL}" if now.is_speedup_doubtful(int(rows[0])) else f"{speedup} × FP32")
    parts.append(f"{now.metric.name} {value_text(accuracy.value, half, now.metric)}")
    parts.append(f"loss {estimate_text(accuracy.loss, accuracy.loss_low, accuracy.loss_high, now.metric)}")
    if not accuracy.complete:
        parts.append(f"stopped after {accuracy.samples} of {accuracy.total} samples")
    if wrong := [(row.group, row.got) for row in evaluation.audit if row.got is not None and row.got != row.asked]:
        parts.append(mismatch_text(wrong))
    name = f" ({record.role.partition(':')[2].upper()} baseline)" if record.role else ""
    return f"{', '.join(parts)}{name}"
