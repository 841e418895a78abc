"""What an export says of itself: `manifest.json`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from studies import __version__
from studies.judging.sentences.cautions import caution_text
from studies.judging.sentences.final_split import disagreement_text
from studies.judging.sentences.unrelated_outputs import unrelated_text
from studies.judging.standing import Standing
from studies.run.work import Work
from studies.store.records import EvaluationRecord, FinalLevel, GroupRecord


def manifest(work: Work, now: Standing, row: int, trial: int, pick: str, engine: Path) -> dict[str, Any]:
    """Everything but the digests of the exported files, as JSON values.

    Args:
        row: of the exported evaluation in `now`, which may be a rebuild.
        trial: number of the trial that was chosen.
        pick: how it was chosen.
    """
    record = work.ledger.store.evaluations.load(int(now.table.id[row]))
    names = {group.id: group for group in work.ledger.store.studies.groups(work.ledger.study.id)}
    evaluation = record.evaluation
    return {
        "bitfront": __version__,
        "study": work.ledger.study.name,
        "trial": trial,
        "pick": pick,
        "evaluation": {
            "id": record.id,
            "digest": record.digest,
            "rebuilt": record.role == "export",
            "build_s": evaluation.build_s,
        },
        "model": {
            "path": work.ledger.study.model_path,
            "digest": work.ledger.study.model_digest,
            **work.ledger.study.model,
        },
        "precision": {node: evaluation.assignment[g.id].label for g in names.values() for node in g.anchors},
        "groups": _groups(record, names),
        "ranges_digest": work.ledger.target.ranges_digest,
        "metric": work.ledger.study.metric,
        "latency": _latency(now, row, record),
        **_levels(now, row, trial, record),
        "search": _accuracy(evaluation.accuracy, work.ledger.study.clusters("search")),
        "unrelated_to_fp32": bool(now.unrelated[row]),
        "warnings": [text for text in (caution_text(now.target.target), unrelated_text(now, row)) if text],
        "final": {**_accuracy(record.final, work.ledger.study.clusters("final")), **_judged(now, row)},
        "limits": work.ledger.limits.to_json(),
        "target": work.ledger.target.target.to_json(),
        "target_fingerprint": work.ledger.target.target.fingerprint,
        "knobs": work.ledger.knobs,
        "engine_bytes": engine.stat().st_size,
        "memory_bytes": evaluation.memory_bytes,
        "environment": work.ledger.study.environment,
    }


def _groups(record: EvaluationRecord, names: Mapping[str, GroupRecord]) -> list[dict[str, Any]]:
    return [
        {
            "id": audit.group,
            "node": names[audit.group].name,
            "op": names[audit.group].op,
            "asked": audit.asked.label,
            "got": audit.got.label if audit.got is not None else None,
            "answer": audit.answer.value,
            "kernel": audit.kernel,
        }
        for audit in record.evaluation.audit
    ]


def _latency(now: Standing, row: int, record: EvaluationRecord) -> dict[str, Any]:
    return {
        "value_ms": float(now.latency_ms[row]),
        "statistic": now.target.target.statistic,
        "search_ms": float(now.table.latency_ms[row]),
        "spread": float(now.table.spread[row]),
        "tie_band": now.band,
        "tie_band_provisional": now.band_is_provisional,
        "speedup_over_fp32": now.speedup(row),
        "rounds": [
            {
                "round": r.number,
                "value_ms": r.latency.value_ms,
                "raw_ms": r.latency.raw_ms,
                "baseline_ms": r.latency.baseline_ms,
            }
            for r in record.rounds
        ],
    }


def _levels(now: Standing, row: int, trial: int, record: EvaluationRecord) -> dict[str, Any]:
    """Figures at the exported engine's level and of its trial at the search's; None where the levels are the same."""
    engine, level = record.evaluation.engine, now.target.optimization_level
    final = None if engine is None else engine.optimization_level
    if level is None or final is None or final == level:
        return {"final_level": None, "search_level": None}
    of_trial = int(np.flatnonzero(now.table.trial == trial)[0])
    return {
        "final_level": _figures(now, row, final),
        "search_level": _figures(now, of_trial, level),
    }


def _figures(now: Standing, row: int, level: int) -> dict[str, Any]:
    t, build_s = now.table, float(now.table.build_s[row])
    known_s = None if math.isnan(build_s) else build_s
    return FinalLevel(int(t.id[row]), level, float(now.latency_ms[row]), known_s, int(t.not_obeyed[row])).to_json()


def _accuracy(accuracy: Any, clusters: int | None) -> dict[str, Any]:
    names = ("metric", "value", "loss", "loss_low", "loss_high", "samples", "total", "resemblance")
    found = {name: getattr(accuracy, name) for name in names} if accuracy is not None else {}
    return found | ({"clusters": clusters} if found else {})


def _judged(now: Standing, row: int) -> dict[str, Any]:
    """What the final split says of the limits; the interval allows for how many were tried there."""
    verdict, interval = now.verdict(row), now.final_interval(row)
    low, high = interval or (None, None)
    return {
        "loss_low": low,
        "loss_high": high,
        "limits_hold": verdict.holds,
        "verdict": verdict.value,
        "tried": now.tries(row),
        "disagreement": _disagreement(now, row),
    }


def _disagreement(now: Standing, row: int) -> dict[str, Any] | None:
    """Where the losses of search and final split differ by more than chance explains: both together, and in words."""
    found = now.disagreement(row)
    if found is None:
        return None
    return {"pooled_loss": found.pooled, "pooled_half_width": found.half, "text": disagreement_text(now, row)}
