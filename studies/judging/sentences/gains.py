"""Sentences about what precisions gain: no mix faster than FP32, slow precisions, INT8 everywhere."""

from __future__ import annotations

import numpy as np

from evaluators.backends.registry import kind_named, known_kind
from search.values import REFERENCE, EngineSummary, Evaluation, Precision
from studies.judging.points import Point
from studies.judging.rounding import estimate_text, latency_text, score_verb, speedup_text
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.evaluations import mix_text
from studies.judging.sentences.final_split import final_shown_text
from studies.judging.sentences.picks import is_faster
from studies.judging.standing import Standing, best_point
from studies.options.quantities import format_ms
from studies.store import suggestions
from studies.store.records import AS_GIVEN
from studies.store.store import Store


def no_gain_text(now: Standing) -> str:
    """That no mix which keeps the limits is faster than uniform FP32 by more than the tie band.

    Returns:
        The sentence without its full stop; empty where a mix is faster, where FP32 was not measured or does not keep
        the limits, and where nothing else was measured.
    """
    base = now.measures.row_of(REFERENCE.role)
    feasible = now.judgement.feasible
    others = np.flatnonzero(feasible & (now.table.role != REFERENCE.role))
    if base is None or not feasible[base] or not len(others):
        return ""
    least = float(now.measures.latency_ms[others].min())
    if least * (1 + now.target.band) < now.measures.latency_ms[base]:
        return ""
    which = "No mix that keeps the limits" if now.limits else "No mix"
    return (
        f"{which} is measurably faster than FP32 here (tie band {100 * now.target.band:.2g} %); you can stay with FP32"
    )


def other_runtime_text(now: Standing) -> str:
    """The command that tries another installed runtime of processors where no mix gains anything; else empty."""
    kind = known_kind(now.target.target.backend)
    if kind is None or not kind.rival or not now.target.target.relative or now.details.target_name:
        return ""
    if not no_gain_text(now) or kind_named(kind.rival).explain_missing():
        return ""
    words = ("--new-target", "--backend", kind.rival)
    way = suggestions.command("worker", now.study.name, *words, storage=now.details.storage)
    return f"Another runtime is installed, in which INT8 may be faster: `{way}` tries {kind.rival}"


def slower_texts(store: Store, now: Standing) -> list[str]:
    """A sentence for every uniform baseline that takes longer than one of a higher precision, beyond the tie band.

    Baselines are named by their mixes, as in every table: groups that are held back keep another precision.
    """
    rows = {precision: now.measures.row_of(precision.role) for precision in sorted(Precision)}
    there = {precision: row for precision, row in rows.items() if row is not None}
    sentences = []
    for precision, row in there.items():
        others = [other for other in there if other < precision]
        best = min(others, key=lambda other: now.measures.latency_ms[there[other]], default=precision)
        ratio = float(now.measures.latency_ms[row] / now.measures.latency_ms[there[best]])
        if ratio > 1 + now.target.band:
            slow, fast = (store.evaluations.load(int(now.table.id[each])).evaluation for each in (row, there[best]))
            kind = known_kind(now.target.target.backend) if precision.quantized else None
            reasons = [] if kind is None else kind.slow_reasons(now.target.target, slow.engine)
            why = "".join(f". {reason}" for reason in (_computing_text(slow.engine, fast.engine), *reasons) if reason)
            sentences.append(
                f"{mix_text(slow.assignment)} takes {ratio:.2f} times as long as {_made_of(slow, fast)}{why}"
            )
    return sentences


def _made_of(slow: Evaluation, fast: Evaluation) -> str:
    """The faster one by name, and where both are known what the two engines run."""
    other, of_slow, of_fast = mix_text(fast.assignment), slow.engine, fast.engine
    if of_slow is None or of_fast is None:
        return other
    text = f"{other}: its engine runs {_layers(of_slow)}; that of {other} {_layers(of_fast)}"
    return (
        f"{text}, which are fused in regions that the mix splits"
        if of_fast.opaque and of_slow.layers > of_fast.layers
        else text
    )


def _computing_text(slow: EngineSummary | None, fast: EngineSummary | None) -> str:
    """That the layers which compute take longer by themselves, where the profiles of both engines show it."""
    if slow is None or fast is None or slow.computing_ms is None or not fast.computing_ms:
        return ""
    ratio, both = slow.computing_ms / fast.computing_ms, (slow.computing_ms, fast.computing_ms)
    if round(ratio, 2) <= 1:
        return ""
    return "Without these its layers still take {:.2f} times as long ({} against {})".format(
        ratio, *map(format_ms, both)
    )


def _layers(engine: EngineSummary) -> str:
    took = "" if engine.moves_ms is None else f" ({format_ms(engine.moves_ms)})"
    return f"{engine.layers} layers, {engine.moves} of them to move or convert data{took}"


_JUDGED = {
    Verdict.SURELY: "it keeps the limits there with 95 % certainty, which the search samples left open",
    Verdict.HOLDS: "that keeps the limits by the estimate, but not with 95 % certainty: it is likely good enough, "
    "not surely",
    Verdict.FAILS: "that misses the limits",
}


def as_given_text(now: Standing) -> str:
    """How fast and how good the file as given is, beside FP32 and the best, without the full stop; empty if unknown."""
    figures = now.target.details.get(AS_GIVEN)
    if figures is None:
        return ""
    latency_ms = figures.get("latency_ms")
    if latency_ms is None:
        return f"The file as given was not measured: {figures['failure']}"
    base, best = now.measures.row_of(REFERENCE.role), best_point(now)
    fp32 = "" if base is None else f" ({speedup_text(now.measures.latency_ms[base] / latency_ms)} × FP32)"
    loss = estimate_text(figures.get("loss"), figures.get("loss_low"), figures.get("loss_high"), now.metric)
    lost = f"loses {loss} on the final samples" if loss else f"gives no finite outputs there: {figures['failure']}"
    if (most := figures.get("loss_high")) is not None and most < 0:
        lost += ", so it is surely more accurate than the FP32 made of it, which losses are held against"
    beside = "" if best is None else f"; the best is {speedup_text(best.over_file)} times as fast"
    return f"The file as given takes {latency_text(latency_ms, now.target.band)}{fp32} and {lost}{beside}"


def int8_everywhere_text(now: Standing) -> str:
    """What the final samples say of uniform INT8, beside the recommended mix.

    Returns:
        The sentence without its full stop; empty where INT8 is not faster by more than the tie band, is what is
        recommended, or was not scored on the final samples.
    """
    row, best = now.near_int8, best_point(now)
    if row is None or best is None or row == best.row:
        return ""
    int8 = now.point(row)
    if not int8.final.scored or not is_faster(int8, best, now.target.band):
        return ""
    judged = _JUDGED.get(int8.final.verdict)
    if judged is None:
        return ""
    take = "" if int8.final.verdict is Verdict.FAILS else f"; --trial {int8.trial} exports it"
    return (
        f"All INT8 (trial {int8.trial}) is faster than the best: {latency_text(int8.latency_ms, now.target.band)} "
        f"against {latency_text(best.latency_ms, now.target.band)}. On the final samples it "
        f"{score_verb(now.metric)} {final_shown_text(now, int8)}{_beside(now, best)}; {judged}{take}"
    )


def _beside(now: Standing, best: Point) -> str:
    return f", the best {final_shown_text(now, best)}" if best.final.scored else ""
