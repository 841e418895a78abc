"""Reading verbs as rows: for tables, JSON and CSV alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from studies.results import Layers
from studies.standing import Standing
from studies.units import format_metric, format_ms
from studies.unrelated import MARK, pick_warnings
from studies.words import holds, nearest_text


def front_rows(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """Front, picks, what the final split ruled out, and baselines, fastest first; None where nothing was measured."""
    ordered = sorted(now.told_rows(), key=lambda row: (math.isnan(now.latency_ms[row]), float(now.latency_ms[row])))
    return [_front_row(now, row, mixes) for row in ordered]


def _front_row(now: Standing, row: int, mixes: Mapping[int, str]) -> dict[str, Any]:
    t, final = now.table, now.final_of(row)
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
        "final_holds": holds(now, row),
        "resemblance": _number(now.resemblance[row]),
        "unrelated": bool(now.unrelated[row]),
        "final_failure": now.final_failure(row) or None,
        "memory_bytes": int(t.memory_bytes[row]) if t.memory_bytes[row] >= 0 else None,
        "size_bytes": int(t.size_bytes[row]) if t.size_bytes[row] >= 0 else None,
        "opaque": max(0, int(t.opaque[row])),
        "moves": int(t.moves[row]) if t.moves[row] >= 0 else None,
        "on_front": bool(now.front[row]),
        "feasible": bool(now.feasible[row]),
        "picks": now.picks.names(row),
        "mix": mixes[int(t.id[row])],
    }


def front_json(now: Standing, mixes: Mapping[int, str]) -> dict[str, Any]:
    """The whole answer of `bitfront front --json`."""
    return {
        "study": now.study.name,
        "state": now.study.state,
        "target": now.target.target.to_json(),
        "metric": now.study.metric,
        "limits": vars(now.limits),
        "latency_tie_band": now.band,
        "evaluations": now.evaluations,
        "rows": front_rows(now, mixes),
        "nearest": [] if now.picks.accurate is not None else [nearest_text(now, near) for near in now.nearest()],
        "warnings": pick_warnings(now),
        "stopped_early": [int(trial) for trial in now.table.trial[now.regained]],
    }


def front_table(now: Standing, mixes: Mapping[int, str]) -> tuple[list[str], list[list[str]]]:
    """Header and cells for people."""
    metric = now.study.metric
    header = ["trial", "latency", "× fp32", f"loss ({metric['name']})", "final loss", "mix", ""]
    cells = []
    for row in front_rows(now, mixes):
        marks = [*([MARK] if row["unrelated"] else []), *row["picks"], *([] if row["on_front"] else [_why_off(row)])]
        marks += [f"{row['opaque']} opaque"] if row["opaque"] else []
        marks += ["latency doubtful"] if row["warnings"] else []
        marks = [f"{row['role'].partition(':')[2]} baseline", *marks] if row["role"] else marks
        cells.append(
            [
                str(row["trial"]),
                format_ms(row["latency_ms"]) if row["latency_ms"] is not None else row["status"],
                f"{row['speedup']:.2f}" if row["speedup"] is not None and row["latency_ms"] is not None else "",
                _loss_text(row, metric),
                _final_text(row, metric),
                row["mix"],
                ", ".join(filter(None, marks)),
            ]
        )
    return header, cells


def _why_off(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return ""
    if row["picks"]:
        return "not on the front"
    if row["final_failure"]:
        return "fails on the final data"
    return "beaten" if row["feasible"] else "misses the limits"


def _loss_text(row: dict[str, Any], metric: dict[str, Any]) -> str:
    if row["loss"] is None:
        return ""
    half = (row["loss_high"] - row["loss_low"]) / 2
    unit, ratio = metric["unit"], metric["ratio"]
    return f"{format_metric(row['loss'], unit, ratio)} ± {format_metric(half, unit, ratio, 2)}"


def _final_text(row: dict[str, Any], metric: dict[str, Any]) -> str:
    if row["final_failure"]:
        return "NaN or infinity"
    if row["final_loss"] is None:
        return ""
    missed = " (limit missed)" if row["final_holds"] is False else ""
    return format_metric(row["final_loss"], metric["unit"], metric["ratio"]) + missed


def layer_rows(found: Layers) -> list[dict[str, Any]]:
    """Every group with what it may run in, and why not."""
    rows = []
    for group in found.model.groups:
        choices = found.space.choices[group.id]
        rows.append(
            {
                "group": group.id,
                "node": group.name,
                "op": group.op,
                "nodes": list(group.nodes),
                "block": group.block,
                "shape": list(group.shape),
                "weight_shape": list(group.weight_shape),
                "may": [choice.precision.label for choice in choices if choice.offered],
                "why_not": {c.precision.label: c.reason for c in choices if not c.offered},
            }
        )
    return rows


def edge_rows(found: Layers) -> list[dict[str, Any]]:
    return [vars(edge) for edge in found.model.edges]


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
