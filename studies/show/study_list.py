"""The studies of a database as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.store import target_names
from studies.store.records import StudySummary, TargetRecord

STUDY_COLUMNS = ("name", "state", "ok", "failed", "running", "targets", "created_at", "model_path")


def study_values(study: StudySummary, targets: Sequence[TargetRecord]) -> dict[str, Any]:
    """One study as plain values."""
    row = vars(study) | {"targets": target_names.rows(targets), "created_at": study.created_at.isoformat()}
    return {name: row[name] for name in STUDY_COLUMNS}


def study_cells(study: StudySummary, targets: Sequence[TargetRecord]) -> dict[str, Any]:
    """The same for people."""
    texts = {"created_at": f"{study.created_at:%Y-%m-%d %H:%M}", "targets": _names_text(targets)}
    return {**vars(study), **texts}


def _names_text(targets: Sequence[TargetRecord]) -> str:
    """By name, each but the only one with its number."""
    names = target_names.names([record.target for record in targets])
    return "; ".join(names if len(names) < 2 else [f"{number}: {name}" for number, name in enumerate(names, 1)])
