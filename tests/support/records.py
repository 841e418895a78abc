"""Rows of the store's tables, made without a database."""

from __future__ import annotations

from typing import Any

from search.values import Precision
from studies.store.records import ChoiceRecord, FileRecord, GroupRecord, RepeatRecord, StudyRecord


def study_record(name: str, **columns: Any) -> StudyRecord:
    empty: dict[str, Any] = {"config": {}, "data": {}, "metric": {}, "model": {}, "environment": {}}
    return StudyRecord(
        **{"name": name, "state": "created", "model_path": "model.onnx", "model_digest": "a" * 64, **empty, **columns}
    )


def group_record(group: str, name: str, **columns: Any) -> GroupRecord:
    empty: dict[str, Any] = {"nodes": (), "anchors": (), "shape": (), "weight_shape": (), "block": ""}
    return GroupRecord(**{"group": group, "name": name, "op": "Conv", **empty, **columns})


def choice_record(
    group: str, precision: Precision, code: int | None, offered: bool, reason: str = "", buildable: bool = True
) -> ChoiceRecord:
    return ChoiceRecord(
        group=group, precision=precision, code=code, offered=offered, reason=reason, buildable=buildable
    )


def file_record(digit: str) -> FileRecord:
    return FileRecord(role="model", position=0, name="model.onnx", digest=digit * 64, size_bytes=10)


def repeat(kind: str, raw_ms: float, baseline_ms: float | None = None) -> RepeatRecord:
    return RepeatRecord(evaluation_id=1, kind=kind, raw_ms=raw_ms, baseline_ms=baseline_ms)
