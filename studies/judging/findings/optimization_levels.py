"""Latencies of trials at optimization levels other than that of the search, from exports.

Latencies of two levels do not compare, so a front has one level and these figures stand beside it, in columns of their
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.measure.latency_scale import scale_latencies
from studies.options.quantities import format_elapsed_s, format_ms
from studies.store.reading.repeats import choose_latencies
from studies.store.records import EvaluationRecord, FinalLevel, TargetRecord
from studies.store.store import Store


def find_final_levels(
    store: Store, target: TargetRecord, reference_ms: float | None, ids: Sequence[int]
) -> dict[int, tuple[FinalLevel, ...]]:
    """Look up the exports of the same assignments at other levels.

    Args:
        reference_ms: what the baseline usually takes.
        ids: of evaluations of the search.

    Returns:
        Evaluation id → the newest export at each level, the lowest level first. Evaluations without one are absent.
    """
    exports = [export for export in store.evaluations.exports(target.id) if export.level != target.optimization_level]
    if not exports:
        return {}
    built: dict[str, dict[int, FinalLevel]] = {}
    for export, latency_ms in zip(exports, _latencies_ms(store, target, exports, reference_ms), strict=True):
        if export.level is not None:
            final_level = FinalLevel(export.id, export.level, float(latency_ms), export.build_s, export.not_obeyed)
            built.setdefault(export.assignment.digest, {})[final_level.level] = (
                final_level  # the newest replaces older ones
            )
    known = {number: built.get(a.digest, {}) for number, a in store.evaluations.assignments(target.id, ids).items()}
    return {number: tuple(levels[level] for level in sorted(levels)) for number, levels in known.items() if levels}


def _latencies_ms(
    store: Store, target: TargetRecord, exports: Sequence[EvaluationRecord], reference_ms: float | None
) -> NDArray[np.float64]:
    """(n,) the latency of each export that counts, as of any evaluation."""
    columns = np.array([(e.raw_ms, e.baseline_ms) for e in exports], dtype=np.float64)  # None becomes NaN
    raw_ms, baseline_ms = columns.T
    ids, doubts = np.array([(e.id, e.doubts) for e in exports], dtype=np.int64).T
    again = choose_latencies(ids, baseline_ms, doubts, store.measurements.rounds(target.id), reference_ms)
    latencies_ms: NDArray[np.float64] = np.where(
        np.isnan(again), scale_latencies(raw_ms, baseline_ms, reference_ms), again
    )
    return latencies_ms


def level_texts(target: TargetRecord) -> list[str]:
    """What a target's optimization level is, and why; nothing on targets without one."""
    level = target.optimization_level
    return [] if level is None else [f"TensorRT's optimization level is {level}: {target.details['level_reason']}"]


def levels_of(final_levels: Iterable[Sequence[FinalLevel]]) -> list[int]:
    """All levels that occur, the lowest first."""
    return sorted({each.level for some in final_levels for each in some})


def final_levels_json(final_levels: Sequence[FinalLevel]) -> dict[str, Any]:
    """`final_level`, the newest export at another level or None, and `final_levels`, one of each level."""
    newest = max(final_levels, key=lambda each: each.evaluation_id, default=None)
    return {
        "final_level": None if newest is None else newest.to_json(),
        "final_levels": [each.to_json() for each in final_levels],
    }


def final_levels_csv(final_levels: Sequence[FinalLevel], levels: Sequence[int]) -> dict[str, Any]:
    """Three columns for each of some levels, empty if there is no export at it."""
    known = {each.level: each.to_json() for each in final_levels}
    return {
        f"level_{level}_{name}": known.get(level, {}).get(name)
        for level in levels
        for name in ("latency_ms", "build_s", "obeyed")
    }


def final_level_cells(final_levels: Sequence[FinalLevel], level: int) -> tuple[str, str]:
    """Latency at a level, with how many groups were not obeyed, and the seconds of the build; empty without one."""
    for each in final_levels:
        if each.level == level:
            marked = f" ({each.not_obeyed} not obeyed)" if each.not_obeyed else ""
            return f"{format_ms(each.latency_ms)}{marked}", _build_text(each.build_s)
    return "", ""


def final_level_text(final_level: FinalLevel) -> str:
    """One export at another level: `at optimization level 4: 0.412 ms, built in 12s`."""
    latency, built = final_level_cells([final_level], final_level.level)
    return f"at optimization level {final_level.level}: {latency}" + (f", built in {built}" if built else "")


def compared_levels_text(manifest: Mapping[str, Any]) -> str:
    """What an exported engine takes at its level, and its trial at the search's; empty if the level is the same."""
    final, search = manifest["final_level"], manifest["search_level"]
    if final is None:
        return ""
    return (
        f"at optimization level {final['level']}: {_figures_text(final)}; in the search, at level "
        f"{search['level']}: {_figures_text(search)}"
    )


def _figures_text(figures: Mapping[str, Any]) -> str:
    built = _build_text(figures["build_s"])
    parts = [format_ms(figures["latency_ms"]), *([f"built in {built}"] if built else [])]
    return ", ".join([*parts, *([] if figures["obeyed"] else ["not all groups obeyed"])])


def _build_text(build_s: float | None) -> str:
    return "" if build_s is None else format_elapsed_s(build_s)
