"""How many evaluations a search makes in an hour, and what each of them spends its time on, from its database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.h200.network_folder import NetworkFolder
from search.values import Evaluation
from studies.judging.status.time_table import end_times

_STAGES = {"build_s": ("lower", "build"), "load_s": ("load", "audit"), "latency_s": ("latency",), "run_s": ("run",)}
_APART = 5.0  # a pause between evaluations that is so many times as long as usual: something else was measured in it


def throughput(network: NetworkFolder, study: str) -> dict[str, Any]:
    """Of a search, from the start of its command to its last evaluation; the finalists are not in it.

    `per_hour` counts checks, start of the evaluator process, calibration, baselines and tie band as well; `shares` are
    of the evaluations alone.
    """
    with network.reading(study) as (store, _, target):
        ended = end_times(store, target.id)
        mixes = [each for each in ended if not each.role]
        measured = [(each.seconds, store.evaluations.load(each.evaluation_id).evaluation) for each in mixes if each.ok]
    made = [each for each in ended if each.role != "export"]
    seconds = max(each.seconds for each in made)
    figures = {"evaluations": len(made), "seconds": seconds, "per_hour": 3600 * len(made) / seconds}
    return {**figures, "shares": shares(measured)}


def shares(measured: Sequence[tuple[float, Evaluation]]) -> dict[str, Any]:
    """Means of evaluations that followed each other at once, empty without any.

    TensorRT's own: `build_s` (parser and builder), `load_s` (load and audit), `latency_s`, `run_s` (inference for
    accuracy, with transfers); `other_s` is the rest: data, metric, database, sampler. `between_s` of it lies between
    evaluations. `steady_per_hour` is of the median evaluation.

    Args:
        measured: seconds at which each evaluation ended, and the evaluation, in that order.
    """
    ends = [end for end, _ in measured]
    evaluations = [evaluation for _, evaluation in measured[1:]]
    within_s = np.array([evaluation.total_s or np.nan for evaluation in evaluations])
    between_s = np.diff(ends) - within_s
    usual = between_s <= _APART * np.median(between_s) if len(between_s) else np.zeros(0, bool)
    if not usual.any():
        return {}
    stages = {name: _mean_of(evaluations, parts, usual) for name, parts in _STAGES.items()}
    wall_s = (within_s + between_s)[usual]
    other_s = float(wall_s.mean()) - sum(stages.values())
    return {
        **stages,
        "wall_s": float(wall_s.mean()),
        "between_s": float(between_s[usual].mean()),
        "other_s": other_s,
        "other_share": other_s / float(wall_s.mean()),
        "steady_per_hour": 3600 / float(np.median(wall_s)),
        "timed": int(usual.sum()),
    }


def _mean_of(evaluations: Sequence[Evaluation], parts: Sequence[str], usual: Any) -> float:
    seconds = [sum(evaluation.stage_s.get(part, 0.0) for part in parts) for evaluation in evaluations]
    return float(np.mean(np.array(seconds)[usual]))
