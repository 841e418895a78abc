"""Write the chosen engine with its manifest, and prove that what was written works."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluators.process import ProcessDiedError
from search.errors import ArtifactError, ConfigError, EvaluatorError
from studies import __version__
from studies.finalists import confirm, engine_of
from studies.records import EvaluationRecord
from studies.runner import Work
from studies.standing import Standing, standing

MODEL, RANGES, MANIFEST = "model.onnx", "ranges.json", "manifest.json"


@dataclass(frozen=True)
class Exported:
    """What was written, and whether the limits hold on the final split (None where there are none)."""

    folder: Path
    trial: int
    manifest: dict[str, Any]
    holds: bool | None
    notes: tuple[str, ...]


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something or cannot be written; creates nothing.

    Raises:
        ConfigError: it is a file, not empty, or not writable.
    """
    advice = "Name a new or empty folder with --out."
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--out {folder}: it is a file. {advice}")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--out {folder}: the folder is not empty. {advice}")
    parent = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"--out {folder}: {parent} is no folder that can be written. {advice}")


def write(work: Work, now: Standing, row: int, pick: str, folder: Path) -> Exported:
    """Export one evaluation: engine, ranges and manifest, checked after writing.

    Args:
        pick: how it was chosen, for the manifest: `accurate`, `fast`, `knee` or `trial 17`.

    Raises:
        ArtifactError: the engine's outputs in a fresh process are not those of the engine that was measured, or the
            folder cannot be written; nothing stays behind.
    """
    notes = _make_ready(work, now, row)
    now = standing(work.store, work.study, work.target, work.limits)
    record = work.store.load(int(now.table.id[row]))
    engine = engine_of(work, now, row)
    manifest = _manifest(work, now, row, record, pick, engine)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise ArtifactError(f"exporting to {folder}: {error}.") from error
    try:
        _fill(staging, engine, work, manifest)
        _check(work, engine, staging / work.engine_file)
        staging.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    except OSError as error:
        raise ArtifactError(f"exporting to {folder}: {error}. Make room and export again.") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Exported(folder, int(now.table.trial[row]), manifest, manifest["final"]["limits_hold"], tuple(notes))


def _make_ready(work: Work, now: Standing, row: int) -> list[str]:
    """An engine that was let go, or was never scored on the final split, is built and measured again."""
    kept = str(now.table.artifact[row]) in work.artifacts if now.table.artifact[row] else False
    if kept and now.final_of(row) is not None:
        return []
    notes = [] if kept else [f"trial {now.table.trial[row]}: its engine was not kept; it was built and measured again"]
    for note in notes:
        work.progress.note(note)
    confirm(work, now, [row])
    if standing(work.store, work.study, work.target, work.limits).final_of(row) is None:
        raise ArtifactError(
            f"exporting trial {now.table.trial[row]}: its outputs on the final data are not finite, so it cannot be "
            "trusted. Choose another with --trial."
        )
    return notes


def _fill(staging: Path, engine: Path, work: Work, manifest: dict[str, Any]) -> None:
    shutil.copyfile(engine, staging / work.engine_file)
    if work.engine_file != MODEL:
        work.model.save(staging / MODEL)
    ranges = json.loads(work.artifacts.read_bytes(work.target.ranges_digest or ""))
    (staging / RANGES).write_text(json.dumps(ranges, indent=1), encoding="utf-8")
    manifest["files"] = {path.name: _sha256(path) for path in sorted(staging.iterdir())}
    (staging / MANIFEST).write_text(json.dumps(manifest, indent=2, ensure_ascii=False), encoding="utf-8")


def _check(work: Work, measured: Path, written: Path) -> None:
    """Load what was written in a fresh process and compare its outputs bit for bit with the measured engine's."""
    outputs = []
    for path in (measured, written):
        work.keeper.close()
        try:
            outputs.append(work.keeper.call("check_outputs", {"engine": str(path)}))
        except ProcessDiedError as death:
            raise EvaluatorError(f"checking the exported engine: {death.told()}.") from death
    different = [name for name in outputs[0] if not np.array_equal(outputs[0][name], outputs[1][name], equal_nan=True)]
    if different:
        raise ArtifactError(
            f"checking the exported engine: outputs {', '.join(different)} are not those of the engine that was "
            "measured. The export was removed; this is a bug or a broken disk."
        )


def _manifest(work: Work, now: Standing, row: int, record: EvaluationRecord, pick: str, engine: Path) -> dict[str, Any]:
    names = {group.id: group for group in work.store.groups(work.study.id)}
    evaluation = record.evaluation
    groups = [
        {
            "id": audit.group,
            "node": names[audit.group].name,
            "op": names[audit.group].op,
            "asked": audit.asked.label,
            "got": audit.got.label if audit.got is not None else None,
            "answer": audit.answer.value,
            "kernel": audit.kernel,
        }
        for audit in evaluation.audit
    ]
    return {
        "bitfront": __version__,
        "study": work.study.name,
        "trial": int(now.table.trial[row]),
        "pick": pick,
        "model": {"path": work.study.model_path, "digest": work.study.model_digest, **work.study.model},
        "precision": {node: evaluation.assignment[g.id].label for g in names.values() for node in g.anchors},
        "groups": groups,
        "ranges_digest": work.target.ranges_digest,
        "metric": work.study.metric,
        "latency": _latency_part(now, row, record),
        "search": _accuracy_part(evaluation.accuracy),
        "final": {**_accuracy_part(record.final), "limits_hold": _holds(work, now, row, record)},
        "limits": asdict(work.limits),
        "target": work.target.target.to_json(),
        "target_fingerprint": work.target.target.fingerprint,
        "knobs": work.knobs,
        "engine_bytes": engine.stat().st_size,
        "memory_bytes": evaluation.memory_bytes,
        "environment": work.study.environment,
    }


def _latency_part(now: Standing, row: int, record: EvaluationRecord) -> dict[str, Any]:
    return {
        "value_ms": float(now.latency_ms[row]),
        "statistic": now.target.target.statistic,
        "search_ms": float(now.table.latency_ms[row]),
        "spread": float(now.table.spread[row]),
        "tie_band": now.band,
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


def _accuracy_part(accuracy: Any) -> dict[str, Any]:
    names = ("metric", "value", "loss", "loss_low", "loss_high", "samples", "total")
    return {name: getattr(accuracy, name) for name in names} if accuracy is not None else {}


def _holds(work: Work, now: Standing, row: int, record: EvaluationRecord) -> bool | None:
    """Whether every limit holds on the final split, with the latency measured again."""
    limits, final = work.limits, record.final
    if not any(value is not None for value in asdict(limits).values()) or final is None:
        return None
    kept = [
        limits.latency_budget_ms is None or now.latency_ms[row] <= limits.latency_budget_ms,
        limits.max_drop is None or final.loss <= limits.max_drop,
        limits.max_memory_bytes is None or 0 <= now.table.memory_bytes[row] <= limits.max_memory_bytes,
    ]
    if limits.accuracy_limit is not None:
        better = final.value >= limits.accuracy_limit
        kept.append(better if now.higher_is_better else final.value <= limits.accuracy_limit)
    return bool(all(kept))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
