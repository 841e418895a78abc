"""Made `schema_v3.db`, a database as the third version of the tables left it. Run once; kept to show what is in it.

It writes with the tables of version 3, so it does not run on later versions.

    PYTHONPATH=.:tests/data python tests/data/make_schema_v3.py tests/data/schema_v3.db
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from make_schema_v1 import group, measured
from make_schema_v2 import shrink

from search.model import Edge
from search.values import Assignment, EngineSummary, LayerTime, Precision, Target
from studies import tables
from studies.records import Choice, NewStudy
from studies.store import Store


def make(path: Path) -> None:
    """Write the database at `path`, which must not exist."""
    assert tables.VERSION == 3, "the tables have moved on; schema_v3.db stays as it is"
    with Store.open(f"sqlite:///{path}", create=True) as store:
        fill(store)
    shrink(path)


def fill(store: Store) -> None:
    """One study, one target, a pair that cannot be built, a profiled evaluation with what its engine is made of."""
    study = NewStudy("old", "model.onnx", "a" * 64, {"trials": 1}, {}, {"name": "top1"}, {}, {}, "finished")
    study_id = store.create_study(study)
    store.set_groups(study_id, [group()], [Edge(None, "g000", "x", 3)])
    target = store.add_target(study_id, Target("tensorrt", "NVIDIA H200", {}, {}, "median", False), "old/tensorrt")
    store.set_choices(
        target, "b" * 64, [Choice("g000", Precision.FP16, 1, True), Choice("g000", Precision.INT8, 2, True)]
    )
    store.mark_unbuildable(target, "g000", Precision.INT8)
    assignment = Assignment({"g000": Precision.FP16})
    number = store.begin(target, assignment, assignment.digest, "w0", 0)
    engine = EngineSummary(layers=3, moves=1, opaque=0, sparse=0, moves_ms=0.25, profiled_ms=1.0)
    profile = (
        LayerTime("conv", "CaskConvolution", "g000", False, 0.75),
        LayerTime("copy", "Reformat", None, True, 0.25),
    )
    store.record(number, replace(measured(assignment), engine=engine, profile=profile), "c" * 64)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
