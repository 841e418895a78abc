"""Reading verbs as rows: for tables, JSON and CSV alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from studies.judging.findings.optimization_levels import (
    final_level_cells,
    final_levels_csv,
    final_levels_json,
    levels_of,
)
from studies.judging.rules.verdicts import Verdict
from studies.judging.sentences.descriptions import nearest_text
from studies.judging.sentences.final_split import disagreement_text, final_notes, final_text, ties_text
from studies.judging.sentences.unrelated_outputs import MARK, pick_warnings
from studies.judging.standing import Standing
from studies.options.quantities import format_metric, format_ms


def front_rows(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """The best, then front, other picks, what the final split ruled out, and baselines, fastest first.

    None stands where nothing was measured.
    """
    return [_front_row(now, row, mixes) for row in _ordered(now)]


def front_csv(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """As `front_rows`, with columns of their own for other optimization levels, none where no export is at one."""
    levels, rows = levels_of(now.final_levels.values()), []
    for place in _ordered(now):
        row = _front_row(now, place, mixes)
        for name in final_levels_json(()):
            del row[name]
        rows.append(row | final_levels_csv(now.final_levels_of(place), levels))
    return rows


def _ordered(now: Standing) -> list[int]:
    latency = now.latency_ms
    return sorted(now.told_rows(), key=lambda row: (row != now.picks.best, math.isnan(latency[row]), latency[row]))


def _front_row(now: Standing, row: int, mixes: Mapping[int, str]) -> dict[str, Any]:
    t, final, verdict = now.table, now.final_of(row), now.verdict(row)
    low, high = now.final_interval(row) or (None, None)
    names = now.picks.names(row)
    return {
        "trial": int(t.trial[row]),
        "status": str(t.status[row]),
        "role": str(t.role[row]),
        "latency_ms": _number(now.latency_ms[row]),
        "speedup": now.speedup(row),
        "warnings": list(now.doubts.get(int(t.id[row]), ())),
        "metric": _number(t.metric_value[row]),
        "loss": _number(t.loss[row]),
        "loss_low": _number(t.loss_low[row]),
        "loss_high": _number(t.loss_high[row]),
        "final_metric": _number(now.finals.value[final]) if final is not None else None,
        "final_loss": _number(now.finals.loss[final]) if final is not None else None,
        "resemblance": _number(now.resemblance[row]),
        "unrelated": bool(now.unrelated[row]),
        "final_low": low,
        "final_high": high,
        "final_tries": now.tries(row) if final is not None else None,
        "final": verdict.value,
        "final_holds": verdict.holds,
        "disagreement": disagreement_text(now, row) or None,
        "final_failure": now.final_failure(row) or None,
        "memory_bytes": int(t.memory_bytes[row]) if t.memory_bytes[row] >= 0 else None,
        "size_bytes": int(t.size_bytes[row]) if t.size_bytes[row] >= 0 else None,
        "opaque": max(0, int(t.opaque[row])),
        "moves": int(t.moves[row]) if t.moves[row] >= 0 else None,
        "on_front": bool(now.front[row]),
        "feasible": bool(now.feasible[row]),
        "not_as_asked": now.mismatches.get(int(t.id[row])),
        "not_sure": now.not_sure(row),
        "picks": names,
        "ties": [f"{name} {text}" for name in names if (text := ties_text(now, name))],
        **final_levels_json(now.final_levels_of(row)),
        "mix": mixes[int(t.id[row])],
    }


def front_json(now: Standing, mixes: Mapping[int, str]) -> dict[str, Any]:
    """The whole answer of `bitfront front --json`."""
    best = now.picks.best
    return {
        "best": None if best is None else _front_row(now, best, mixes),
        "best_is": now.aim.value,
        "study": now.study.name,
        "state": now.study.state,
        "target": now.target.target.to_json(),
        "metric": now.study.metric,
        "limits": now.limits.to_json(),
        "optimization_level": now.target.optimization_level,
        "latency_tie_band": now.band,
        "latency_tie_band_provisional": now.band_is_provisional,
        "evaluations": now.evaluations,
        "rows": front_rows(now, mixes),
        "warnings": pick_warnings(now),
        "notes": final_notes(now),
        "nearest": [] if now.picks.best is not None else [nearest_text(now, near) for near in now.nearest()],
        "stopped_early": [int(trial) for trial in now.table.trial[now.regained]],
    }


def front_table(now: Standing, mixes: Mapping[int, str]) -> tuple[list[str], list[list[str]]]:
    """Header and cells for people."""
    metric = now.study.metric
    levels = levels_of(now.final_levels.values())
    others = [name for level in levels for name in (f"level {level}", "built in")]
    header = ["trial", "latency", "× fp32", *others, f"loss ({metric['name']})", "final loss", "mix", ""]
    cells = []
    for place in _ordered(now):
        row = _front_row(now, place, mixes)
        marks = [
            *([MARK] if row["unrelated"] else []),
            *_pick_marks(row),
            *([] if row["on_front"] else [_why_off(row)]),
        ]
        marks += [f"{row['opaque']} opaque"] if row["opaque"] else []
        marks += ["latency doubtful"] if row["warnings"] else []
        marks = [f"{row['role'].partition(':')[2]} baseline", *marks] if row["role"] else marks
        cells.append(
            [
                str(row["trial"]),
                format_ms(row["latency_ms"]) if row["latency_ms"] is not None else row["status"],
                f"{row['speedup']:.2f}" if row["speedup"] is not None and row["latency_ms"] is not None else "",
                *(cell for level in levels for cell in final_level_cells(now.final_levels_of(place), level)),
                _loss_text(row, metric),
                final_text(now, place) or (row["final"] if row["picks"] else ""),
                row["mix"],
                ", ".join(filter(None, marks)),
            ]
        )
    return header, cells


def _pick_marks(row: dict[str, Any]) -> list[str]:
    """Names of the picks, each with what ties with it, and whether the search alone is sure of the limits."""
    tied = {text.partition(" ")[0]: text.partition(" ")[2] for text in row["ties"]}
    marks = [f"{name} ({tied[name]})" if name in tied else name for name in row["picks"]]
    return [*marks, "not sure"] if marks and row["not_sure"] and row["final"] != Verdict.SURELY.value else marks


def _why_off(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return ""
    if row["picks"]:
        return "not on the front"
    if row["final_failure"]:
        return "fails on the final data"
    if row["not_as_asked"]:
        return str(row["not_as_asked"])
    return "beaten" if row["feasible"] else "misses the limits"


def _loss_text(row: dict[str, Any], metric: dict[str, Any]) -> str:
    if row["loss"] is None:
        return ""
    half = (row["loss_high"] - row["loss_low"]) / 2
    unit, ratio = metric["unit"], metric["ratio"]
    return f"{format_metric(row['loss'], unit, ratio)} ± {format_metric(half, unit, ratio, 2)}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
