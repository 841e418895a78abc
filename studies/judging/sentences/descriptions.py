"""Evaluations and standings in a few words, for progress, tables and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from search.values import Answer, Assignment, Failure, Precision
from studies.judging.rules.feasibility import Near
from studies.judging.sentences.final_split import best_numbers
from studies.judging.sentences.unrelated_outputs import MARK
from studies.judging.standing import Standing
from studies.options.quantities import format_metric, format_ms
from studies.store import suggestions
from studies.store.records import FAILED, DeathRecord, EvaluationRecord

_MOST_NAMED = 5


def mix_text(assignment: Assignment) -> str:
    """`all int8`, or how many groups run in what."""
    counts = Counter(precision.label for precision in assignment.values())
    if len(counts) == 1:
        return f"all {next(iter(counts))}"
    return ", ".join(f"{counts[label]} {label}" for label in sorted(counts, reverse=True))


def nearest_text(now: Standing, near: Near) -> str:
    """One row that misses limits, in words."""
    misses = ", ".join(f"{name} by {share:.1%}" for name, share in near.misses)
    early = " (stopped early)" if now.stopped[near.row] else ""
    return f"trial {now.table.trial[near.row]} misses {misses}{early}"


def regained_text(now: Standing) -> str:
    """Which evaluations the limits may let stand although others stopped them early, and what to do; empty for none."""
    rows = np.flatnonzero(now.regained)
    if not len(rows):
        return ""
    trials = now.table.trial[rows[:_MOST_NAMED]]
    named = ", ".join(map(str, trials)) + (", …" if len(rows) > _MOST_NAMED else "")
    many = len(rows) > 1
    return (
        f"{len(rows)} evaluation{'s' * many} may keep these limits but {'were' if many else 'was'} stopped early "
        f"under other ones (trial{'s' * many} {named}); `{suggestions.command('resume', now.study.name)}` "
        f"with these limits scores {'them' if many else 'it'} to the end"
    )


def obedience_text(counts: Mapping[tuple[Precision, Answer], int]) -> str:
    """How many groups run in what was asked, per precision: `int8: 410 obeyed; fp32: 502 obeyed, 2 not obeyed`."""
    parts = []
    for precision in sorted({asked for asked, _ in counts}, reverse=True):
        answers = [f"{counts[precision, a]} {a.value}" for a in Answer if counts.get((precision, a))]
        parts.append(f"{precision.label}: {', '.join(answers)}")
    return "; ".join(parts) or "none"


def outcome_text(record: EvaluationRecord, standing: Standing) -> str:
    """One evaluation in a few words."""
    evaluation, metric = record.evaluation, standing.study.metric
    if evaluation.failure is not None:
        return f"failed at {evaluation.failure.stage.value} ({evaluation.failure.kind.value})"
    latency, accuracy = evaluation.latency, evaluation.accuracy
    if latency is None or accuracy is None:
        return record.status
    loss = format_metric(accuracy.loss, metric["unit"], metric["ratio"])
    early = "" if accuracy.complete else f", stopped after {accuracy.samples} of {accuracy.total} samples"
    named = f" ({record.role.partition(':')[2]} baseline)" if record.role else ""
    return f"{format_ms(latency.value_ms)}, loss {loss}{early}{named}"


def band_text(standing: Standing) -> str:
    """How far two latencies may differ and count as equal, and whether the study has measured that itself."""
    text = f"latencies within {standing.band:.1%} of each other count as a tie"
    if not standing.band_is_provisional:
        return text
    return f"{text}: a provisional band, the study has not finished measuring its own"


def best_text(standing: Standing) -> str:
    """The recommended evaluation with its loss in the search and on the final split; `none yet` where there is none."""
    row = standing.picks.best
    if row is None:
        return "none yet"
    broken = f", {MARK}" if standing.unrelated[row] else ""
    return f"trial {standing.table.trial[row]}: {best_numbers(standing, row)}{broken}"


def death_text(death: Failure) -> str:
    """An evaluator process that was replaced, in words."""
    how = death.kind.value.replace("_", " ")
    return f"evaluator process replaced at {death.stage.value} ({how}): {death.message}"


def replaced_text(deaths: Sequence[DeathRecord]) -> str:
    """How often the evaluator process was replaced, why, and over which trials; empty for never."""
    if not deaths:
        return ""
    kinds = Counter(f"{d.death.kind.value.replace('_', ' ')} at {d.death.stage.value}" for d in deaths)
    trials = list(dict.fromkeys(str(d.trial) for d in deaths if d.trial is not None))
    named = ", ".join(trials[:_MOST_NAMED]) + (", …" if len(trials) > _MOST_NAMED else "")
    over = f" over trial{'s' * (len(trials) > 1)} {named}" if trials else ""
    many = "once" if len(deaths) == 1 else f"{len(deaths)} times"
    return f"the evaluator process was replaced {many}{over}: " + ", ".join(
        f"{count} {kind}" for kind, count in kinds.most_common()
    )


def failures_text(standing: Standing) -> str:
    kinds = Counter(str(kind) for kind in standing.table.kind[standing.table.status == FAILED])
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()) or "none"
