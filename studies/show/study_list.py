"""The studies of a database as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.show.terminal.text_table import Column, TextTable
from studies.store import target_names
from studies.store.records import StudySummary, TargetRecord

STUDY_COLUMNS = ("name", "state", "ok", "failed", "running", "targets", "created_at", "model_path")


def study_values(study: StudySummary, targets: Sequence[TargetRecord]) -> dict[str, Any]:
    """One study as plain values."""
    row = vars(study) | {"targets": target_names.rows(targets), "created_at": study.created_at.isoformat()}
    return {name: row[name] for name in STUDY_COLUMNS}


def studies_table(rows: Sequence[tuple[StudySummary, Sequence[TargetRecord]]]) -> TextTable:
    """The same for people. Names are whole at every width, as commands are given them."""
    columns = [
        Column("name"),
        Column("state"),
        *(Column(name, right=True, drop=1) for name in ("ok", "failed", "running")),
        Column("targets", drop=3, least=14),
        Column("created at", drop=2),
        Column("model path", drop=4, least=14),
    ]
    return TextTable(columns, [_cells(*row) for row in rows])


def _cells(study: StudySummary, targets: Sequence[TargetRecord]) -> list[str]:
    counts = [str(count) for count in (study.ok, study.failed, study.running)]
    return [
        study.name,
        study.state,
        *counts,
        _names_text(targets),
        f"{study.created_at:%Y-%m-%d %H:%M}",
        study.model_path,
    ]


def _names_text(targets: Sequence[TargetRecord]) -> str:
    """By name, each but the only one with its number."""
    names = target_names.names([record.target for record in targets])
    return "; ".join(names if len(names) < 2 else [f"{number}: {name}" for number, name in enumerate(names, 1)])
