"""Evaluations in a few words: their precisions, how they ended, what failed, whose class they change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from search.values import Answer, Assignment, Failure, FlippedSamples, Flips, Precision
from studies.judging.rounding import latency_text, score_name
from studies.options.limits import MetricScale
from studies.options.quantities import format_percent
from studies.store.records import FAILED, DeathRecord, FinishedEvaluation, StoredEvaluation

_MOST_NAMED = 5


def mix_text(assignment: Assignment) -> str:
    """`all int8`, or how many groups run in what."""
    counts = Counter(precision.label for precision in assignment.values())
    if len(counts) == 1:
        return f"all {next(iter(counts))}"
    return ", ".join(f"{counts[label]} {label}" for label in sorted(counts, reverse=True))


def list_text(names: Sequence[object]) -> str:
    """The first few of many: `3, 5, 8, 9, 11, …`."""
    return ", ".join(map(str, names[:_MOST_NAMED])) + (", …" if len(names) > _MOST_NAMED else "")


def obedience_text(counts: Mapping[tuple[Precision, Answer], int]) -> str:
    """How many groups run in the requested precision: `int8: 410 obeyed; fp32: 502 obeyed, 2 not obeyed`."""
    parts = []
    for precision in sorted({precision for precision, _ in counts}, reverse=True):
        answers = [f"{counts[precision, a]} {a.value}" for a in Answer if counts.get((precision, a))]
        parts.append(f"{precision.label}: {', '.join(answers)}")
    return "; ".join(parts) or "none"


# -- how one ended -----------------------------------------------------------------------------------------------------


def outcome_text(record: StoredEvaluation, metric: MetricScale) -> str:
    """How an evaluation ended: its latency and loss, or where it failed."""
    evaluation = record.evaluation
    if evaluation.failure is not None:
        return failure_text(evaluation.failure.stage.value, evaluation.failure.kind.value)
    latency, accuracy = evaluation.latency, evaluation.accuracy
    if latency is None or accuracy is None:
        return record.status
    scores = (accuracy.loss, accuracy.value)
    return _scores_text(latency.value_ms, scores, (accuracy.samples, accuracy.total), record.role, metric)


def finished_text(row: FinishedEvaluation, metric: MetricScale) -> str:
    """How an evaluation ended, as `outcome_text`, of a row that is read for an overview."""
    if row.status == FAILED:
        return failure_text(row.stage or "", row.kind or "")
    if row.latency_ms is None or row.loss is None:
        return row.status
    wrong = row.not_obeyed
    disobeyed = f", {wrong} group{'s' * (wrong > 1)} not in the requested precision" if wrong else ""
    scores = (row.loss, row.metric_value)
    scores_text = _scores_text(row.latency_ms, scores, (row.samples, row.total_samples), row.role, metric)
    return f"{scores_text}{disobeyed}"


def failure_text(stage: str, kind: str) -> str:
    """`failed at build (out of memory)`."""
    return f"failed at {stage} ({kind_text(kind)})"


def kind_text(kind: str) -> str:
    """A kind of failure in words."""
    return kind.replace("_", " ")


def _scores_text(
    latency_ms: float,
    scores: tuple[float, float | None],
    samples: tuple[int | None, int | None],
    role: str,
    metric: MetricScale,
) -> str:
    """`1.2 ms, loss 0.3 %`, or the value of a metric that compares with FP32.

    Args:
        scores: loss and value of the metric.
        samples: that were scored, and all there are.
    """
    loss, value = scores
    seen, total = samples
    early = "" if seen == total else f", stopped after {seen} of {total} samples"
    named = f" ({role.partition(':')[2]} baseline)" if role else ""
    score = f"{score_name(metric)} {metric.text(value if metric.relative else loss, 3)}"
    return f"{latency_text(latency_ms)}, {score}{early}{named}"


# -- failures ----------------------------------------------------------------------------------------------------------


def failures_text(failures: Mapping[tuple[str, str], int]) -> str:
    """How many failed at which stage and how, the most frequent first."""
    ordered = sorted(failures.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} at {stage} ({kind_text(kind)})" for (stage, kind), count in ordered) or "none"


def death_text(death: Failure) -> str:
    """An evaluator process that was replaced, in words."""
    return f"evaluator process replaced at {death.stage.value} ({kind_text(death.kind.value)}): {death.message}"


def replaced_text(deaths: Sequence[DeathRecord]) -> str:
    """How often the evaluator process was replaced, why, and over which trials; empty for never."""
    if not deaths:
        return ""
    kinds = Counter(f"{kind_text(d.death.kind.value)} at {d.death.stage.value}" for d in deaths)
    trials = list(dict.fromkeys(trial for trial in (d.trial for d in deaths) if trial is not None))
    over = f" over trial{'s' * (len(trials) > 1)} {list_text(trials)}" if trials else ""
    many = "once" if len(deaths) == 1 else f"{len(deaths)} times"
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"the evaluator process was replaced {many}{over}: {counts}"


def flip_texts(flips: Flips) -> list[str]:
    """One sentence that counts them, and one for each kind that there is, with the first indices."""
    share = format_percent(flips.count / flips.samples) if flips.samples else "none"
    sentences = [f"{flips.count} of {flips.samples} samples ({share}) have another class than in FP32"]
    if flips.right is None:
        return sentences + _flip_lines("whose class differs and for which the data have no label", flips.moved)
    wrong = flips.samples - flips.right
    sentences += _flip_lines(f"of the {flips.right} that FP32 had right are wrong now", flips.lost)
    sentences += _flip_lines(f"of the {wrong} that FP32 had wrong are right now", flips.gained)
    return sentences + _flip_lines(f"of the {wrong} that FP32 had wrong are wrong in another way", flips.moved)


def _flip_lines(what: str, those: FlippedSamples) -> list[str]:
    if not those.count:
        return []
    more = ", …" if those.count > len(those.first) else ""
    return [f"{those.count} {what}: {', '.join(map(str, those.first))}{more}"]
