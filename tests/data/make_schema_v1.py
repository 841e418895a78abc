"""Made `schema_v1.db`, a database as the first version of the tables left it. Run once; kept to show what is in it.

It works from the tables of version 2 and takes away what came with them, so it does not run on later versions.

    PYTHONPATH=. python tests/data/make_schema_v1.py tests/data/schema_v1.db
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np

from search.model import Group
from search.values import (
    Accuracy,
    Assignment,
    AuditRow,
    Evaluation,
    Failure,
    FailureKind,
    Latency,
    Precision,
    Stage,
    Target,
)
from studies import tables
from studies.records import Choice, NewStudy
from studies.store import Store


def make(path: Path) -> None:
    """Write the database at `path`, which must not exist."""
    assert tables.VERSION == 2, "the tables have moved on; schema_v1.db stays as it is"
    with Store.open(f"sqlite:///{path}", create=True) as store:
        fill(store)
    age(path)


def fill(store: Store) -> None:
    """One study, one target, an evaluation that ended well and one that failed."""
    study = NewStudy("old", "model.onnx", "a" * 64, {"trials": 2}, {}, {"name": "top1"}, {}, {}, "finished")
    study_id = store.create_study(study)
    store.set_groups(study_id, [group()], [])
    target = store.add_target(study_id, Target("onnxruntime", "CPU", {}, {}, "p20", True), "old/onnxruntime")
    store.set_choices(target, "b" * 64, [Choice("g000", Precision.INT8, 1, True)])
    good, bad = Assignment({"g000": Precision.INT8}), Assignment({"g000": Precision.FP16})
    store.record(store.begin(target, good, good.digest, "w0", 0), measured(good), "c" * 64)
    failure = Failure(Stage.BUILD, FailureKind.REFUSED, "no such kernel")
    store.record(store.begin(target, bad, bad.digest, "w0", 1), Evaluation(bad, failure))


def group() -> Group:
    texts = {"id": "g000", "name": "/conv/Conv", "op": "Conv", "output": "y", "block": "", "pinned": ""}
    empty = {field.name: () for field in fields(Group) if field.name not in texts}
    return Group(**{**empty, **texts, "anchors": ("/conv/Conv",), "nodes": ("/conv/Conv", "/relu/Relu")})


def measured(assignment: Assignment) -> Evaluation:
    latency = Latency(1.5, 1.25, 0.01, 2.0, np.array([1.25, 1.5]), np.array([2.0]))
    accuracy = Accuracy("top1", 0.75, 0.25, 0.0, 0.5, 4, 4, np.array([1.0, 1.0, 1.0, 0.0]))
    audit = (AuditRow("g000", Precision.INT8, Precision.INT8, "qlinearconv"),)
    return Evaluation(assignment, None, audit, latency, accuracy, size_bytes=1000)


def age(path: Path) -> None:
    """Take away what version 2 added, and shrink the file."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("DROP TABLE bf_edge")
    connection.execute("ALTER TABLE bf_sample DROP COLUMN warnings")
    connection.execute("ALTER TABLE bf_evaluation DROP COLUMN memory_bytes")
    connection.execute("UPDATE bf_schema SET version = 1")
    connection.execute("PRAGMA page_size=512")
    connection.execute("VACUUM")
    connection.close()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
