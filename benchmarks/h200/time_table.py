"""Where the time of one search went, read from its database; trees of different ages are read alike."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from statistics import median
from typing import Any

STEP_S = 60
_OUR_ROLES = ("", "baseline")  # of a search's own evaluations; exports are others


def of_study(database: Path, started: float, ended: float) -> dict[str, Any]:
    """Times in seconds since the command's start, of the first study in a database.

    Args:
        started, ended: of the command, seconds since the epoch.

    Returns:
        `ok` and `failed` evaluations, `uniform_end_s`, `first_mix_s` (start of the first that is not uniform),
        `first_mix_end_s`, `ok_by_minute` (after 60 s, 120 s, …), `finalists_s` (first and last that was measured
        again), `stages` (median and sum over mixes of every time that is stored), and `evaluations`, one by one.
    """
    with sqlite3.connect(f"file:{database}?mode=ro", uri=True) as connection:
        connection.row_factory = sqlite3.Row
        rows = [_evaluation(row, started) for row in connection.execute("select * from bf_evaluation order by id")]
        finalists = _finalists(connection, started)
    rows = [row for row in rows if row["role"].partition(":")[0] in _OUR_ROLES]
    uniform = [row for row in rows if row["role"].startswith("baseline:")]
    mixes = [row for row in rows if not row["role"].startswith("baseline:")]
    ok = [row for row in rows if row["status"] == "ok"]
    minutes = range(1, max(1, round((ended - started) // STEP_S)) + 1)
    return {
        "ok": len(ok),
        "failed": sum(row["status"] == "failed" for row in rows),
        "uniform_end_s": max((row["end_s"] for row in uniform if row["end_s"] is not None), default=None),
        "first_mix_s": min((row["start_s"] for row in mixes), default=None),
        "first_mix_end_s": min((row["end_s"] for row in mixes if row["end_s"] is not None), default=None),
        "ok_by_minute": [sum(row["end_s"] <= STEP_S * minute for row in ok) for minute in minutes],
        "finalists_s": finalists,
        "stages": {"uniform": _stages(uniform), "mixes": _stages(mixes)},
        "evaluations": rows,
    }


def _evaluation(row: sqlite3.Row, started: float) -> dict[str, Any]:
    """What is told of one evaluation; `clock_ms` is its latency by the clock, `stage_s` what its parts took."""
    end = row["finished_at"]
    return {
        "role": row["role"],
        "status": row["status"],
        "start_s": _since(row["started_at"], started),
        "end_s": None if end is None else _since(end, started),
        "clock_ms": row["raw_ms"],
        "loss": row["loss"],
        "samples": row["samples"],
        "stage_s": dict(_times(row)),
    }


def _times(row: sqlite3.Row) -> Iterable[tuple[str, float]]:
    """Stage → seconds: columns that end in `_s`, and what a column of JSON by that name holds."""
    for name in row.keys():  # noqa: SIM118 - a Row iterates over its values
        value = row[name]
        if not name.endswith("_s") or value is None:
            continue
        if isinstance(value, str):
            yield from ((stage, float(seconds)) for stage, seconds in (json.loads(value) or {}).items())
        elif isinstance(value, (int, float)):
            yield name.removesuffix("_s"), float(value)


def _since(text: str, started: float) -> float:
    moment = datetime.fromisoformat(text).replace(tzinfo=timezone.utc)
    return round(moment.timestamp() - started, 2)


def _finalists(connection: sqlite3.Connection, started: float) -> list[float]:
    """When the first and the last finalist were measured again; empty where none was."""
    found = connection.execute(
        "select min(created_at), max(created_at) from bf_sample where round > 0 and evaluation_id in "
        "(select evaluation_id from bf_score where split = 'final')"
    ).fetchone()
    return [] if found[0] is None else [_since(text, started) for text in found]


def _stages(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    names = dict.fromkeys(name for row in rows for name in row["stage_s"])
    found = {name: [row["stage_s"][name] for row in rows if name in row["stage_s"]] for name in names}
    return {name: {"median": round(median(v), 3), "sum": round(sum(v), 2), "of": len(v)} for name, v in found.items()}


def text(found: Sequence[Mapping[str, Any]]) -> str:
    """The tables of several runs beside each other, in Markdown."""
    heads = [f"{run['network']}, {run['label']}" for run in found]
    lines = [_line(["", *heads]), _line(["---"] * (len(heads) + 1))]
    lines += [_line([name, *(_cell(value(run)) for run in found)]) for name, value in _ROWS.items()]
    last = max((len(run.get("ok_by_minute", [])) for run in found), default=0)
    for minute in range(last):
        counts = [run.get("ok_by_minute", []) for run in found]
        lines.append(_line([f"ok after {STEP_S * (minute + 1)} s", *(_at(count, minute) for count in counts)]))
    for kind in ("uniform", "mixes"):
        stages = [run.get("stages", {}).get(kind, {}) for run in found]
        for name in dict.fromkeys(name for each in stages for name in each):
            cells = [f"{each[name]['median']:.2f} / {each[name]['sum']:.1f}" if name in each else "" for each in stages]
            lines.append(_line([f"{kind}: {name}, median / sum, s", *cells]))
    return "\n".join(lines)


_ROWS = {
    "command, s (exit code)": lambda run: f"{run['command_s']:.0f} ({run['exit']})",
    "uniform assignments end, s": lambda run: run.get("uniform_end_s"),
    "first other mix begins, s": lambda run: run.get("first_mix_s"),
    "first other mix ends, s": lambda run: run.get("first_mix_end_s"),
    "ok, failed": lambda run: f"{run.get('ok', 0)}, {run.get('failed', 0)}",
    "finalists measured again, s": lambda run: " to ".join(f"{s:.0f}" for s in run.get("finalists_s", [])) or None,
    "picks": lambda run: picks_of(run.get("front", {})) or None,
}


def picks_of(front: Mapping[str, Any]) -> str:
    """The picks as `front --json` has them: trial, latency and loss, in the search and on the final split."""
    parts = []
    for row in front.get("rows", []):
        if row.get("picks"):
            final = row.get("final_loss")
            last = "" if final is None else f", final {final:.4f}"
            numbers = f"{row['latency_ms']:.3f} ms, loss {row['loss']:.4f}{last}"
            parts.append(f"{' '.join(row['picks'])}: trial {row['trial']} ({numbers})")
    return "; ".join(parts)


def _at(counts: Sequence[int], minute: int) -> str:
    return str(counts[minute]) if minute < len(counts) else ""


def _cell(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.0f}" if isinstance(value, float) else str(value)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
