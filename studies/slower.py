"""Why a lower precision is not faster as a whole on a target, told from what the uniform engines are made of."""

from __future__ import annotations

from search.values import EngineSummary, Precision
from studies.standing import Standing
from studies.store import Store
from studies.units import format_ms


def slower_texts(store: Store, now: Standing) -> list[str]:
    """A sentence for every uniform assignment that takes longer than one of a higher precision, beyond the tie band."""
    rows = {precision: now.row_of(f"baseline:{precision.label}") for precision in Precision}
    there = {precision: row for precision, row in rows.items() if row is not None}
    found = []
    for precision, row in there.items():
        others = [other for other in there if other < precision]
        best = min(others, key=lambda other: now.latency_ms[there[other]], default=precision)
        ratio = float(now.latency_ms[row] / now.latency_ms[there[best]])
        if ratio > 1 + now.band:
            slow, fast = (store.load(int(now.table.id[each])).evaluation.engine for each in (row, there[best]))
            made_of = "" if slow is None or fast is None else f": {_compared(slow, fast, best.label)}"
            found.append(f"all {precision.label} takes {ratio:.2f} times as long as all {best.label}{made_of}")
    return found


def _compared(slow: EngineSummary, fast: EngineSummary, other: str) -> str:
    text = f"its engine runs {_layers(slow)}; that of all {other} {_layers(fast)}"
    return f"{text}, fused in regions that it breaks up" if fast.opaque and slow.layers > fast.layers else text


def _layers(engine: EngineSummary) -> str:
    took = "" if engine.moves_ms is None else f" ({format_ms(engine.moves_ms)})"
    return f"{engine.layers} layers, {engine.moves} of them to move or convert data{took}"
