"""The front with its picks and baselines as rows: for tables, JSON and CSV alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from search.values import Assignment
from studies.judging.findings.optimization_levels import (
    final_level_cells,
    final_levels_csv,
    final_levels_json,
    levels_of,
)
from studies.judging.point_lists import best_point, table_points
from studies.judging.points import Point
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.final_split import disagreement_text, final_notes, final_text
from studies.judging.sentences.no_pick import nearest_text
from studies.judging.sentences.picks import ties_text
from studies.judging.sentences.unrelated_outputs import MARK, pick_warnings
from studies.judging.standing import Standing
from studies.options.limits import MetricScale
from studies.options.quantities import format_ms
from studies.store.records import OK


def front_rows(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """The best, then front, other picks, what the final split ruled out, and baselines, fastest first.

    None stands where nothing was measured.
    """
    return [evaluation_row(now, point, mixes) for point in _ordered(now)]


def front_csv(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """As `front_rows`, with columns of their own for other optimization levels, none where no export is at one."""
    levels, rows = levels_of(now.details.final_levels.values()), []
    for point in _ordered(now):
        row = evaluation_row(now, point, mixes)
        for name in final_levels_json(()):
            del row[name]
        rows.append(row | final_levels_csv(point.final_levels, levels))
    return rows


def _ordered(now: Standing) -> list[Point]:
    best = now.picks.best
    return sorted(table_points(now), key=lambda p: (p.row != best, math.isnan(p.latency_ms), p.latency_ms))


def evaluation_row(now: Standing, point: Point, mixes: Mapping[int, str]) -> dict[str, Any]:
    """One evaluation as plain values; None where something was not measured."""
    final = point.final
    return {
        "trial": point.trial,
        "status": point.status,
        "role": point.role,
        "latency_ms": _number(point.latency_ms),
        "speedup": point.speedup,
        "warnings": list(point.doubts),
        "metric": _number(point.value),
        "loss": _number(point.loss),
        "loss_low": _number(point.loss_low),
        "loss_high": _number(point.loss_high),
        "final_metric": _number(final.value),
        "final_loss": _number(final.loss),
        "resemblance": _number(point.resemblance),
        "unrelated": point.unrelated,
        "final_low": _number(final.low),
        "final_high": _number(final.high),
        "final_tries": final.tries if final.scored else None,
        "final": final.verdict.value,
        "final_holds": final.verdict.holds,
        "disagreement": disagreement_text(now, point) or None,
        "final_failure": final.failure or None,
        "memory_bytes": _count(point.memory_bytes),
        "size_bytes": _count(point.size_bytes),
        "opaque": max(0, point.opaque),
        "moves": _count(point.moves),
        "on_front": point.on_front,
        "feasible": point.feasible,
        "not_as_asked": point.mismatch or None,
        "not_sure": point.not_sure,
        "picks": list(point.picks),
        "ties": [f"{name} {text}" for name in point.picks if (text := ties_text(now, point, name))],
        **final_levels_json(point.final_levels),
        "mix": mixes[point.id],
    }


def front_json(
    now: Standing, mixes: Mapping[int, str], assignments: Mapping[int, Assignment] | None = None
) -> dict[str, Any]:
    """The whole answer of `bitfront front --json`.

    Args:
        assignments: of evaluations by their id; `best` is told its own by it.
    """
    best = best_point(now)
    return {
        "best": None if best is None else evaluation_row(now, best, mixes) | _assignment(best, assignments),
        "best_is": now.picks.aim.value,
        "scores": {
            name: {"trial": int(now.table.trial[row]), "score": now.score(row, name)}
            for name, row in now.picks.scored.items()
        },
        "study": now.study.name,
        "state": now.study.state,
        "target": now.target.target.to_json(),
        "metric": now.study.metric,
        "limits": now.limits.to_json(),
        "optimization_level": now.target.optimization_level,
        "latency_tie_band": now.target.band,
        "latency_tie_band_provisional": now.target.band_is_provisional,
        "evaluations": len(now.table),
        "rows": front_rows(now, mixes),
        "warnings": pick_warnings(now),
        "notes": final_notes(now),
        "nearest": [] if best is not None else [nearest_text(now, near) for near in now.judgement.nearest()],
        "stopped_early": [int(trial) for trial in now.table.trial[now.judgement.regained]],
    }


def _assignment(point: Point, assignments: Mapping[int, Assignment] | None) -> dict[str, Any]:
    return {} if assignments is None else {"assignment": assignments[point.id].to_json()}


def front_table(now: Standing, mixes: Mapping[int, str]) -> tuple[list[str], list[list[str]]]:
    """Header and cells for people."""
    levels = levels_of(now.details.final_levels.values())
    others = [name for level in levels for name in (f"level {level}", "built in")]
    header = ["trial", "latency", "× fp32", *others, f"loss ({now.metric.name})", "final loss", "mix", ""]
    return header, [_cells(now, point, levels, mixes[point.id]) for point in _ordered(now)]


def _cells(now: Standing, point: Point, levels: Sequence[int], mix: str) -> list[str]:
    timed = not math.isnan(point.latency_ms)
    return [
        str(point.trial),
        format_ms(point.latency_ms) if timed else point.status,
        f"{point.speedup:.2f}" if point.speedup is not None and timed else "",
        *(cell for level in levels for cell in final_level_cells(point.final_levels, level)),
        _loss_text(point, now.metric),
        final_text(now, point) or (point.final.verdict.value if point.picks else ""),
        mix,
        ", ".join(_marks(now, point)),
    ]


def _marks(now: Standing, point: Point) -> Iterator[str]:
    """What an evaluation is there for, and what is noteworthy of it."""
    if point.role:
        yield f"{point.baseline} baseline"
    if point.unrelated:
        yield MARK
    yield from _pick_marks(now, point)
    if not point.on_front and (why := _why_off(point)):
        yield why
    if point.opaque > 0:
        yield f"{point.opaque} opaque"
    if point.doubts:
        yield "latency doubtful"


def _pick_marks(now: Standing, point: Point) -> Iterator[str]:
    """Names of the picks, each with what ties with it, and whether the search alone is sure of the limits."""
    for name in point.picks:
        score = now.score(point.row, name)
        if score is not None:
            name = f"{name} is {score:.3g}"
        text = ties_text(now, point, name)
        yield f"{name} ({text})" if text else name
    if point.picks and point.not_sure and point.final.verdict is not Verdict.SURELY:
        yield "not sure"


def _why_off(point: Point) -> str:
    if point.status != OK:
        return ""
    if point.picks:
        return "not on the front"
    if point.final.failure:
        return "fails on the final data"
    return point.mismatch or ("beaten" if point.feasible else "misses the limits")


def _loss_text(point: Point, metric: MetricScale) -> str:
    if math.isnan(point.loss):
        return ""
    return f"{metric.text(point.loss)} ± {metric.text((point.loss_high - point.loss_low) / 2, 2)}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _count(value: int) -> int | None:
    return None if value < 0 else value
