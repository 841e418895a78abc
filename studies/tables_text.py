"""Reading verbs as rows: for tables, JSON and CSV alike."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from search.values import Answer
from studies.commands import Layers, Shown
from studies.standing import Standing
from studies.units import format_bytes, format_duration_s, format_metric, format_ms
from studies.words import holds, mix_text, nearest_text


def front_rows(now: Standing, mixes: Mapping[int, str]) -> list[dict[str, Any]]:
    """Front and baselines, fastest first; plain numbers, None where nothing was measured."""
    rows = dict.fromkeys([*now.front_rows(), *now.baselines()])
    ordered = sorted(rows, key=lambda row: (math.isnan(now.latency_ms[row]), float(now.latency_ms[row])))
    return [_front_row(now, row, mixes) for row in ordered]


def _front_row(now: Standing, row: int, mixes: Mapping[int, str]) -> dict[str, Any]:
    t, final = now.table, now.final_of(row)
    picks = [name for name in ("accurate", "fast", "knee") if getattr(now.picks, name) == row]
    return {
        "trial": int(t.trial[row]),
        "status": str(t.status[row]),
        "role": str(t.role[row]),
        "latency_ms": _number(now.latency_ms[row]),
        "speedup": now.speedup(row),
        "metric": _number(t.metric_value[row]),
        "loss": _number(t.loss[row]),
        "loss_low": _number(t.loss_low[row]),
        "loss_high": _number(t.loss_high[row]),
        "final_metric": _number(now.finals.value[final]) if final is not None else None,
        "final_loss": _number(now.finals.loss[final]) if final is not None else None,
        "final_holds": holds(now, row),
        "memory_bytes": int(t.memory_bytes[row]) if t.memory_bytes[row] >= 0 else None,
        "size_bytes": int(t.size_bytes[row]) if t.size_bytes[row] >= 0 else None,
        "opaque": max(0, int(t.opaque[row])),
        "on_front": bool(now.front[row]),
        "feasible": bool(now.feasible[row]),
        "picks": picks,
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
        "evaluations": len(now.table),
        "rows": front_rows(now, mixes),
        "nearest": [] if now.picks.accurate is not None else [nearest_text(now, near) for near in now.nearest()],
    }


def front_table(now: Standing, mixes: Mapping[int, str]) -> tuple[list[str], list[list[str]]]:
    """Header and cells for people."""
    metric = now.study.metric
    header = ["trial", "latency", "× fp32", f"loss ({metric['name']})", "final loss", "mix", ""]
    cells = []
    for row in front_rows(now, mixes):
        marks = [*row["picks"], *([] if row["on_front"] else [_why_off(row)])]
        marks += [f"{row['opaque']} opaque"] if row["opaque"] else []
        baseline = f"{row['role'].partition(':')[2]} baseline" if row["role"] else ""
        cells.append(
            [
                str(row["trial"]),
                format_ms(row["latency_ms"]) if row["latency_ms"] is not None else row["status"],
                f"{row['speedup']:.2f}" if row["speedup"] is not None and row["latency_ms"] is not None else "",
                _loss_text(row, metric),
                _final_text(row, metric),
                row["mix"],
                ", ".join([*([baseline] if baseline else []), *marks]),
            ]
        )
    return header, cells


def _why_off(row: dict[str, Any]) -> str:
    if row["status"] != "ok":
        return ""
    return "beaten" if row["feasible"] else "misses the limits"


def _loss_text(row: dict[str, Any], metric: dict[str, Any]) -> str:
    if row["loss"] is None:
        return ""
    half = (row["loss_high"] - row["loss_low"]) / 2
    unit, ratio = metric["unit"], metric["ratio"]
    return f"{format_metric(row['loss'], unit, ratio)} ± {format_metric(half, unit, ratio, 2)}"


def _final_text(row: dict[str, Any], metric: dict[str, Any]) -> str:
    if row["final_loss"] is None:
        return ""
    missed = " (limit missed)" if row["final_holds"] is False else ""
    return format_metric(row["final_loss"], metric["unit"], metric["ratio"]) + missed


def shown_json(shown: Shown) -> dict[str, Any]:
    """The whole answer of `bitfront show --json`."""
    record, evaluation = shown.record, shown.record.evaluation
    latency, accuracy, failure = evaluation.latency, evaluation.accuracy, evaluation.failure
    return {
        "trial": record.trial,
        "trials": list(record.trials),
        "status": record.status,
        "role": record.role,
        "digest": record.digest,
        "attempts": evaluation.attempts,
        "failure": None
        if failure is None
        else {
            "stage": failure.stage.value,
            "kind": failure.kind.value,
            "message": failure.message,
            "log": failure.log,
        },
        "latency": None
        if latency is None
        else {
            "value_ms": latency.value_ms,
            "raw_ms": latency.raw_ms,
            "baseline_ms": latency.baseline_ms,
            "spread": latency.spread,
            "samples": len(latency.samples_ms),
            "warnings": list(latency.warnings),
        },
        "accuracy": None if accuracy is None else _accuracy_json(accuracy),
        "final": None if record.final is None else _accuracy_json(record.final),
        "rounds": [{"round": r.number, "value_ms": r.latency.value_ms} for r in record.rounds],
        "size_bytes": evaluation.size_bytes,
        "memory_bytes": evaluation.memory_bytes,
        "build_s": evaluation.build_s,
        "total_s": evaluation.total_s,
        "groups": group_rows(shown),
        "notes": list(evaluation.notes),
    }


def _accuracy_json(accuracy: Any) -> dict[str, Any]:
    names = ("metric", "value", "loss", "loss_low", "loss_high", "samples", "total")
    return {name: getattr(accuracy, name) for name in names}


def group_rows(shown: Shown) -> list[dict[str, Any]]:
    """Asked and got per group; of a failed build only what was asked."""
    audit = {row.group: row for row in shown.record.evaluation.audit}
    rows = []
    for group in shown.groups.values():
        row = audit.get(group.id)
        rows.append(
            {
                "group": group.id,
                "node": group.name,
                "op": group.op,
                "asked": shown.record.evaluation.assignment[group.id].label,
                "got": row.got.label if row is not None and row.got is not None else None,
                "answer": row.answer.value if row is not None else None,
                "kernel": row.kernel if row is not None else None,
            }
        )
    return rows


def shown_lines(shown: Shown) -> list[str]:
    """One evaluation in sentences, above the table of its groups."""
    record, evaluation, metric = shown.record, shown.record.evaluation, shown.standing.study.metric
    lines = [f"trial {record.trial}: {mix_text(evaluation.assignment)}, {record.status}"]
    if len(record.trials) > 1:
        lines.append(f"proposed again as trials {', '.join(map(str, record.trials[1:]))}")
    if evaluation.failure is not None:
        failure = evaluation.failure
        lines.append(f"failed at {failure.stage.value} ({failure.kind.value}): {failure.message}")
        lines += [f"  | {line}" for line in failure.log.splitlines()[-20:]]
    if evaluation.latency is not None:
        latency = evaluation.latency
        scaled = f", {format_ms(latency.raw_ms)} as timed" if latency.baseline_ms is not None else ""
        lines.append(
            f"latency {format_ms(latency.value_ms)}{scaled}; spread {latency.spread:.1%} over "
            f"{len(latency.samples_ms)} samples"
        )
        lines += [f"  warning: {warning}" for warning in latency.warnings]
    for again in record.rounds:
        if again.number > 0:
            lines.append(f"measured again: {format_ms(again.latency.value_ms)} (round {again.number})")
    for name, accuracy in (("search", evaluation.accuracy), ("final", record.final)):
        if accuracy is not None:
            lines.append(_accuracy_line(name, accuracy, metric))
    sizes = [("engine", evaluation.size_bytes), ("memory", evaluation.memory_bytes)]
    facts = [f"{name} {format_bytes(size)}" for name, size in sizes if size is not None]
    times = [("built in", evaluation.build_s), ("took", evaluation.total_s)]
    facts += [f"{name} {format_duration_s(value)}" for name, value in times if value is not None]
    answers = Counter(row.answer for row in evaluation.audit)
    facts += [f"{answers[answer]} groups {answer.value}" for answer in Answer if answers[answer]]
    return [*lines, ", ".join(facts), *evaluation.notes]


def _accuracy_line(name: str, accuracy: Any, metric: dict[str, Any]) -> str:
    unit, ratio = metric["unit"], metric["ratio"]
    low, high = (format_metric(v, unit, ratio) for v in (accuracy.loss_low, accuracy.loss_high))
    early = "" if accuracy.complete else " (stopped early)"
    return (
        f"{name}: {metric['name']} {format_metric(accuracy.value, unit, ratio)}, loss "
        f"{format_metric(accuracy.loss, unit, ratio)} [{low}, {high}] on {accuracy.samples} of {accuracy.total} "
        f"samples{early}"
    )


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
