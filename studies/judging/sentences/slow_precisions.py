"""Sentences about why a lower precision is not faster on a target, from the layers of the uniform engines."""

from __future__ import annotations

from evaluators.backends.registry import known_kind
from search.values import EngineSummary, Evaluation, Precision
from studies.judging.sentences.evaluations import mix_text
from studies.judging.standing import Standing
from studies.options.quantities import format_ms
from studies.store.store import Store


def slower_texts(store: Store, now: Standing) -> list[str]:
    """A sentence for every uniform baseline that takes longer than one of a higher precision, beyond the tie band.

    Baselines are named by their mixes, as in every table: groups that are held back keep another precision.
    """
    rows = {precision: now.measures.row_of(precision.role) for precision in sorted(Precision)}
    there = {precision: row for precision, row in rows.items() if row is not None}
    found = []
    for precision, row in there.items():
        others = [other for other in there if other < precision]
        best = min(others, key=lambda other: now.measures.latency_ms[there[other]], default=precision)
        ratio = float(now.measures.latency_ms[row] / now.measures.latency_ms[there[best]])
        if ratio > 1 + now.target.band:
            slow, fast = (store.evaluations.load(int(now.table.id[each])).evaluation for each in (row, there[best]))
            kind = known_kind(now.target.target.backend) if precision.quantized else None
            reasons = [] if kind is None else kind.slow_reasons(now.target.target, slow.engine)
            why = "".join(f". {reason}" for reason in reasons)
            found.append(f"{mix_text(slow.assignment)} takes {ratio:.2f} times as long as {_made_of(slow, fast)}{why}")
    return found


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


def _layers(engine: EngineSummary) -> str:
    took = "" if engine.moves_ms is None else f" ({format_ms(engine.moves_ms)})"
    return f"{engine.layers} layers, {engine.moves} of them to move or convert data{took}"
