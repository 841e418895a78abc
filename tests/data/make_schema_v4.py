"""Made `schema_v4.db`, a database as the fourth version of the tables left it. Run once; kept to show what is in it.

It writes with the tables of version 4, so it does not run on later versions.

    PYTHONPATH=.:tests/data python tests/data/make_schema_v4.py tests/data/schema_v4.db
"""

from __future__ import annotations

import sys
from pathlib import Path

from make_schema_v1 import group, measured
from make_schema_v2 import shrink

from search.model import Edge
from search.values import Assignment, Precision, Target
from studies import tables
from studies.records import Choice, NewStudy, SensitivityRecord
from studies.store import Store


def make(path: Path) -> None:
    """Write the database at `path`, which must not exist."""
    assert tables.VERSION == 4, "the tables have moved on; schema_v4.db stays as it is"
    with Store.open(f"sqlite:///{path}", create=True) as store:
        fill(store)
    shrink(path)


def fill(store: Store) -> None:
    """One study, one target, a finished evaluation and one that a killed process left running, with its lease."""
    study = NewStudy("old", "model.onnx", "a" * 64, {"trials": 3}, {}, {"name": "top1"}, {}, {}, "running")
    study_id = store.create_study(study)
    store.set_groups(study_id, [group()], [Edge(None, "g000", "x", 3)])
    target = store.add_target(study_id, Target("onnxruntime", "CPU", {}, {}, "p20", True), "old/onnxruntime")
    choices = [Choice("g000", Precision.FP32, 0, True), Choice("g000", Precision.INT8, 1, True)]
    store.set_choices(target, "b" * 64, choices)
    row = SensitivityRecord("g000", Precision.INT8, 1e-3, 0.0, 30.0, 0.01, 0.9, 0.0, 16)
    store.set_sensitivities(target, [row])
    good, cut_off = Assignment({"g000": Precision.FP32}), Assignment({"g000": Precision.INT8})
    number = store.begin(target, good, good.digest, "pid-1", 0, "baseline:fp32")
    store.record(number, measured(good), "c" * 64)
    store.begin(target, cut_off, cut_off.digest, "pid-1", 1, "baseline:int8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
