"""`manifest.json`, the description of an export."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from search.values import Assignment
from studies import __version__
from studies.environment import changed_text, collect
from studies.judging.points import Point
from studies.judging.sentences.cautions import caution_text, unlike_float_text, unrelated_text
from studies.judging.sentences.final_split import disagreement_text, final_loss_text
from studies.judging.sentences.gains import no_gain_text
from studies.judging.standing import Standing
from studies.store.records import FinalLevel, GroupRecord, StoredEvaluation
from studies.trials.ledger import Ledger


def manifest(ledger: Ledger, now: Standing, point: Point, trial: int, pick: str, engine: Path) -> dict[str, Any]:
    """Everything but the digests of the exported files, as JSON values.

    Args:
        point: the exported evaluation, which may be a rebuild.
        trial: number of the trial that was chosen.
        pick: how it was chosen.
    """
    record = ledger.store.evaluations.load(point.id)
    names = {group.id: group for group in ledger.store.studies.groups(ledger.study.id)}
    evaluation, here = record.evaluation, collect()
    changed = changed_text(ledger.study.environment, here)
    return {
        "bitfront": __version__,
        "study": ledger.study.name,
        "trial": trial,
        "pick": pick,
        "evaluation": {
            "id": record.id,
            "digest": record.digest,
            "rebuilt": record.role == "export",
            "build_s": evaluation.build_s,
        },
        "model": {
            "path": ledger.study.model_path,
            "digest": ledger.study.model_digest,
            **ledger.study.model,
        },
        "precision": {node: evaluation.assignment[g.id].label for g in names.values() for node in g.anchors},
        "groups": _groups(record, names),
        "ranges_digest": ledger.target.ranges_digest,
        "recovery": None if ledger.target.recovery is None else ledger.target.recovery.to_json(),
        "mix_bias": _mix_bias(ledger, evaluation.assignment),
        "metric": ledger.study.metric,
        "latency": {**_latency(now, point, record), "doubts": list(point.doubt_texts)},
        **_levels(now, point, trial, record),
        "search": _accuracy(evaluation.accuracy, ledger.study.clusters("search")),
        "unrelated_to_fp32": point.is_unrelated,
        "not_as_asked": point.mismatch or None,
        "warnings": [text for text in (*_warnings(now, point), changed) if text],
        "final": {**_accuracy(record.final, ledger.study.clusters("final")), **_final_verdict(now, point)},
        "no_gain": no_gain_text(now),
        "limits": ledger.limits.to_json(),
        "target": ledger.target.target.to_json(),
        "target_fingerprint": ledger.target.target.fingerprint,
        "knobs": ledger.knobs,
        "engine_bytes": engine.stat().st_size,
        "memory_bytes": evaluation.memory_bytes,
        "environment": here,
        "study_environment": ledger.study.environment,
    }


def _groups(record: StoredEvaluation, names: Mapping[str, GroupRecord]) -> list[dict[str, Any]]:
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


def _latency(now: Standing, point: Point, record: StoredEvaluation) -> dict[str, Any]:
    return {
        "value_ms": point.latency_ms,
        "samples_per_s": point.samples_per_s,
        "statistic": now.target.target.statistic,
        "clock": now.target.target.clock,
        "search_ms": point.search_ms,
        "spread": point.spread,
        "tie_band": now.target.band,
        "tie_band_provisional": now.target.band_is_provisional,
        "speedup_over_fp32": point.speedup,
        "speedup_over_file": point.over_file,
        "speedup_doubtful": point.speedup_doubtful,
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


def _warnings(now: Standing, point: Point) -> tuple[str, ...]:
    """What must not be missed of the engine; empty where there is nothing."""
    disobeyed = f"this engine does not run as asked, {point.mismatch}" if point.mismatch else ""
    return caution_text(now.target.target), unlike_float_text(now), unrelated_text(now, point), disobeyed


def _levels(now: Standing, point: Point, trial: int, record: StoredEvaluation) -> dict[str, Any]:
    """Figures at the exported engine's level and of its trial at the search's; None if the levels are the same."""
    engine, level = record.evaluation.engine, now.target.optimization_level
    final = None if engine is None else engine.optimization_level
    if level is None or final is None or final == level:
        return {"final_level": None, "search_level": None}
    of_trial = now.point(int(np.flatnonzero(now.table.trial == trial)[0]))
    return {"final_level": _figures(point, final), "search_level": _figures(of_trial, level)}


def _figures(point: Point, level: int) -> dict[str, Any]:
    latency_ms = math.nan if point.latency_ms is None else point.latency_ms
    return FinalLevel(point.id, level, latency_ms, point.build_s, point.not_obeyed).to_json()


def _mix_bias(ledger: Ledger, assignment: Assignment) -> dict[str, Any] | None:
    """What came of correcting the biases of a mix for itself, in whatever evaluation of it; None if not tried."""
    mix_biases = ledger.store.evaluations.mix_biases(ledger.target.id)
    return next(
        (each.mix_bias.to_json() for each in mix_biases if each.mix_bias and each.assignment == assignment), None
    )


def _accuracy(accuracy: Any, clusters: int | None) -> dict[str, Any]:
    names = ("metric", "value", "loss", "loss_low", "loss_high", "samples", "total", "resemblance")
    score = {name: getattr(accuracy, name) for name in names} if accuracy is not None else {}
    return score | ({"clusters": clusters} if score else {})


def _final_verdict(now: Standing, point: Point) -> dict[str, Any]:
    """What the final split says of the limits; interval and bounds allow for how many were tried there."""
    final = point.final
    return {
        "loss_low": final.low,
        "loss_high": final.high,
        "loss_text": final_loss_text(now, point),
        "loss_bound": final.bound,
        "metric_bound": final.value_bound,
        "limits_hold": final.verdict.holds,
        "verdict": final.verdict.value,
        "tried": final.tries,
        "disagreement": _describe_disagreement(now, point),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _describe_disagreement(now: Standing, point: Point) -> dict[str, Any] | None:
    """Where the losses of search and final split differ by more than chance explains: both together, and in words."""
    disagreement = point.final.disagreement
    if disagreement is None:
        return None
    return {
        "pooled_loss": disagreement.pooled,
        "pooled_half_width": disagreement.half,
        "text": disagreement_text(now, point),
    }
