"""Studies with a few rows, for the tests of the store."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine, func, select

from search.values import Accuracy, Assignment, AuditRow, Evaluation, Latency, Precision, Target
from studies import tables
from studies.records import NewStudy
from studies.store import Store

SERVER = os.environ.get("BITFRONT_TEST_URL")  # a PostgreSQL or MySQL database whose bf_ tables may be dropped
TARGET = Target("onnxruntime", "CPU", {"onnxruntime": "1.23"}, {"threads": "1"}, "p20", True)
STUDY = NewStudy("demo", "model.onnx", "a" * 64, {"trials": 3}, {"n": 1}, {"name": "top1"}, {"ü": [1]}, {"python": "3"})
KINDS = ["sqlite", *(["server"] if SERVER else [])]


def fresh_url(kind: str, tmp_path: Path) -> str:
    """An empty database: a file, or the server's with our tables dropped."""
    if kind == "sqlite" or SERVER is None:
        return f"sqlite:///{tmp_path / 'a.db'}"
    engine = create_engine(SERVER)
    tables.Base.metadata.drop_all(engine)
    engine.dispose()
    return SERVER


def assignment(*codes: int) -> Assignment:
    return Assignment({f"g{i:03}": Precision(code) for i, code in enumerate(codes)})


def measured(chosen: Assignment, **changes: Any) -> Evaluation:
    audit = tuple(AuditRow(group, asked, asked, f"kernel of {group}") for group, asked in chosen.items())
    latency = Latency(1.5, 1.25, 0.5, 2.0, np.array([1.25, 1.5]), np.array([2.0, 2.0]), ("clocks moved",))
    accuracy = Accuracy("top1", 0.75, 0.25, 0.125, 0.5, 4, 8, np.array([1.0, 1.0, 1.0, 0.0]))
    whole = Evaluation(chosen, None, audit, latency, accuracy, 1000, 2 << 40, 1.5, 2.5, 2, None, ("note",))
    return replace(whole, **changes)


def finish(store: Store, target: int, trial: int, *codes: int, artifact: str | None = None, **changes: Any) -> int:
    chosen = assignment(*codes)
    evaluation_id = store.begin(target, chosen, chosen.digest, "w0", trial)
    store.record(evaluation_id, measured(chosen, **changes), artifact)
    return evaluation_id


def plain(value: Any) -> Any:
    """Dataclasses with arrays as something that `==` compares."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


def count(store: Store, table: type[tables.Base]) -> int:
    with store._engine.connect() as connection:
        return connection.scalar(select(func.count()).select_from(table)) or 0
