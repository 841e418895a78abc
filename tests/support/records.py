"""Rows of the store's tables and judged points, made without a database."""

from __future__ import annotations

from typing import Any

from search.values import Precision
from studies.judging.judged_target import FinalScore
from studies.judging.points import Point
from studies.judging.rules.verdicts import Verdict
from studies.store.records import ChoiceRecord, FileRecord, GroupRecord, RepeatRecord, StudyRecord

CONFIG = {"study": "demo", "model": "model.onnx", "data": "data.npz", "trials": 3}  # the rest as by default
DIGESTS = dict.fromkeys(("digest", "final_digest", "calibration_digest"), "d" * 64)
DATA = {**DIGESTS, "calibration": 8, "search": 16, "final": 16, "clusters": {}}
SCALE = {"name": "top1", "unit": "", "higher_is_better": True, "ratio": True, "relative": False}
METRIC = {**SCALE, "kind": "per_sample", "notes": []}
MODEL = {"inputs": [["image", "float32", [8, 3, 16, 16]]]}


def study_record(name: str, **columns: Any) -> StudyRecord:
    known: dict[str, Any] = {"config": CONFIG, "data": DATA, "metric": METRIC, "model": MODEL, "environment": {}}
    return StudyRecord(
        **{"name": name, "state": "created", "model_path": "model.onnx", "model_digest": "a" * 64, **known, **columns}
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


class PlantedPoint(Point):
    """A judged evaluation whose facts are given; those that are not are as of one that was not measured."""

    def __init__(
        self,
        trial: int,
        latency_ms: float | None = None,
        metric_value: float | None = None,
        loss: float | None = None,
        loss_low: float | None = None,
        loss_high: float | None = None,
        **facts: Any,
    ) -> None:
        numbers = {"metric_value": metric_value, "loss": loss, "loss_low": loss_low, "loss_high": loss_high}
        missing = ("spread", "build_s", "size_bytes", "memory_bytes", "moves", "speedup", "correlation")
        state = {"now": None, "row": trial, "status": "ok", "role": "", "samples": 500, "total_samples": 500}
        judged = {"feasible": False, "on_front": False, "not_sure": False, "speedup_doubtful": False}
        texts = {"mismatch": "", "mix": "", "picks": (), "ties": {}, "final_levels": (), "opaque": 0}
        rate = {"samples_per_s": None if latency_ms is None else 8000 / latency_ms}
        final = {"final": FinalScore(Verdict.UNCONFIRMED, 0)}
        known: dict[str, Any] = {**dict.fromkeys(missing), **state, **judged, **texts, **rate, **final, **facts}
        Point.__init__(self, trial=trial, latency_ms=latency_ms, **numbers, **known)
