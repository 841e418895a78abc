"""Made `schema_v2.db`, a database as the second version of the tables left it. Run once; kept to show what is in it.

It writes with the tables of version 2, so it does not run on later versions.

    PYTHONPATH=.:tests/data python tests/data/make_schema_v2.py tests/data/schema_v2.db
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

from make_schema_v1 import group, measured

from search.model import Edge
from search.values import Assignment, Precision, Target
from studies import tables
from studies.records import Choice, NewStudy
from studies.store import Store


def make(path: Path) -> None:
    """Write the database at `path`, which must not exist."""
    assert tables.VERSION == 2, "the tables have moved on; schema_v2.db stays as it is"
    with Store.open(f"sqlite:///{path}", create=True) as store:
        fill(store)
    shrink(path)


def fill(store: Store) -> None:
    """One study, one target, an evaluation with memory and a warning, that of a repaired assignment."""
    study = NewStudy("old", "model.onnx", "a" * 64, {"trials": 1}, {}, {"name": "top1"}, {}, {}, "finished")
    study_id = store.create_study(study)
    store.set_groups(study_id, [group()], [Edge(None, "g000", "x", 3)])
    target = store.add_target(study_id, Target("tensorrt", "NVIDIA H200", {}, {}, "median", False), "old/tensorrt")
    store.set_choices(
        target, "b" * 64, [Choice("g000", Precision.FP16, 1, True), Choice("g000", Precision.INT8, 2, True)]
    )
    assignment = Assignment({"g000": Precision.INT8})
    asked = assignment.replace({"g000": Precision.FP16})
    whole = measured(assignment)
    assert whole.latency is not None
    latency = replace(whole.latency, warnings=("spread 12.0% of the median, more than 2%",))
    number = store.begin(target, assignment, assignment.digest, "w0", 0, asked=asked)
    store.record(number, replace(whole, latency=latency, memory_bytes=4096), "c" * 64)


def shrink(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("PRAGMA page_size=512")
    connection.execute("VACUUM")
    connection.close()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
