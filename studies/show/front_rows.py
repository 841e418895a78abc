"""The front with its picks and baselines as plain values: for JSON and CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from search.values import Assignment
from studies.judging.findings.optimization_levels import (
    final_levels_csv,
    final_levels_json,
    levels_of,
)
from studies.judging.points import Point
from studies.judging.sentences.cautions import pick_warnings
from studies.judging.sentences.final_split import disagreement_text, final_notes
from studies.judging.sentences.gains import as_given_text, int8_everywhere_text
from studies.judging.sentences.no_pick import nearest_text
from studies.judging.sentences.picks import faster_text, ties_text
from studies.judging.standing import Standing, best_point, table_points
from studies.judging.status.early_end import early_end


def front_rows(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """The best, then front, other picks, what the final split ruled out, and baselines, fastest first.

    None stands where nothing was measured.
    """
    return [evaluation_row(now, point, mixes) for point in ordered_points(now)]


def front_csv(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """As `front_rows`, with columns of their own for other optimization levels, none if no export is at one."""
    return points_csv(now, ordered_points(now), mixes)


def points_csv(now: Standing, points: Sequence[Point], mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """Rows for CSV of some evaluations, in this order, with columns for each optimization level of exports."""
    levels, rows = levels_of(point.final_levels for point in points), []
    for point in points:
        row = evaluation_row(now, point, mixes)
        for name in final_levels_json(()):
            del row[name]
        rows.append(row | final_levels_csv(point.final_levels, levels))
    return rows


def ordered_points(now: Standing) -> list[Point]:
    """The best, then front, other picks, what the final split ruled out, and baselines, fastest first."""
    best = now.picks.best
    return sorted(table_points(now), key=lambda p: (p.row != best, p.latency_ms or math.inf))


def evaluation_row(now: Standing, point: Point, mixes: Mapping[int, str]) -> dict[str, Any]:
    """One evaluation as plain values; None where something was not measured."""
    final = point.final
    return {
        "trial": point.trial,
        "status": point.status,
        "role": point.role,
        "latency_ms": point.latency_ms,
        "samples_per_s": point.samples_per_s,
        "speedup": point.speedup,
        "speedup_over_file": point.over_file,
        "latency_doubtful": point.latency_doubtful,
        "speedup_doubtful": point.speedup_doubtful,
        "warnings": list(point.doubt_texts),
        "metric": point.value,
        "loss": point.loss,
        "loss_low": point.loss_low,
        "loss_high": point.loss_high,
        "final_metric": final.value,
        "final_loss": final.loss,
        "resemblance": point.correlation,
        "unrelated": point.is_unrelated,
        "final_low": final.low,
        "final_high": final.high,
        "final_bound": final.bound,
        "final_metric_bound": final.value_bound,
        "final_tries": final.tries if final.scored else None,
        "final": final.verdict.value,
        "final_holds": final.verdict.holds,
        "disagreement": disagreement_text(now, point) or None,
        "final_failure": final.failure or None,
        "memory_bytes": point.memory_bytes,
        "size_bytes": point.size_bytes,
        "opaque": point.opaque,
        "moves": point.moves,
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
        "notes": [*final_notes(now), *filter(None, [as_given_text(now), int8_everywhere_text(now), faster_text(now)])],
        "nearest": [] if best is not None else [nearest_text(now, near) for near in now.judgement.nearest()],
        "ended_early": None if (early := early_end(now)) is None else early.to_json(),
        "stopped_early": [int(trial) for trial in now.table.trial[now.judgement.regainable]],
    }


def trials_json(now: Standing, points: Sequence[Point], mixes: Mapping[int, str]) -> dict[str, Any]:
    """The whole answer of `bitfront front --all --json`."""
    return {
        "study": now.study.name,
        "state": now.study.state,
        "target": now.target.target.to_json(),
        "metric": now.study.metric,
        "limits": now.limits.to_json(),
        "rows": [evaluation_row(now, point, mixes) for point in points],
    }


def _assignment(point: Point, assignments: Mapping[int, Assignment] | None) -> dict[str, Any]:
    return {} if assignments is None else {"assignment": assignments[point.id].to_json()}
