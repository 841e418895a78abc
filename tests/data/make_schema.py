"""Make `schema_v1.db`, a study in the tables of version 1, from which tests read and upgrade.

Until the first release, run it again whenever the tables change. After that the file stays as it is, a change of the
tables is a step in `studies/store/database/database.py`, and a copy of this script makes the file of
the next version.

    PYTHONPATH=. python tests/data/make_schema.py
"""

from __future__ import annotations

import sqlite3
from dataclasses import fields
from pathlib import Path

from evaluators.diagnose.group_error import GroupError
from search.graph.model import Group
from search.values import Evaluation, Failure, FailureKind, Precision, Stage
from studies.store.database import tables
from studies.store.store import Store
from tests.support.records import choice_record
from tests.support.study_rows import LAYERS, STUDY, TARGET, assignment, finish, measured

FILE = Path(__file__).parent / f"schema_v{tables.VERSION}.db"


def make(path: Path) -> None:
    """Write the database at `path`, in place of what is there."""
    path.unlink(missing_ok=True)
    with Store.open(f"sqlite:///{path}", create=True) as store:
        fill(store)
    shrink(path)


def fill(store: Store) -> None:
    """One study on one target: an evaluation that ended well, one that failed, and one that a worker has in hand."""
    study = store.studies.create(STUDY, groups=[group("g000"), group("g001")])
    target = store.targets.add(study, TARGET, "demo/onnxruntime")
    offered = [(f"g00{g}", p) for g in range(2) for p in (Precision.FP32, Precision.INT8)]
    store.spaces.set_choices(
        target, "b" * 64, [choice_record(name, p, int(p is Precision.INT8), True) for name, p in offered]
    )
    store.spaces.set_sensitivities(target, [GroupError("g000", Precision.INT8, 1e-3, 0.0, 30.0, 0.01, 0.9, 0.0, 16)])
    good = finish(store, target, 0, 0, 2, artifact="c" * 64)
    store.engines.set_profile(good, LAYERS)
    scored = measured(assignment(0, 2)).accuracy
    assert scored is not None
    store.evaluations.set_final(good, scored)
    failure = Failure(Stage.BUILD, FailureKind.REFUSED, "no such kernel")
    bad = assignment(2, 0)
    store.claims.record(store.claims.begin(target, bad, bad.digest, "w0", 1), Evaluation(bad, failure))
    worker = store.workers.join(target, host="here", device="CPU", pid=1)
    store.tasks.take(target, "band", worker, 60)
    open_ = assignment(2, 2)
    store.claims.begin(target, open_, open_.digest, worker, 2)


def group(name: str) -> Group:
    """A convolution."""
    texts = {"id": name, "name": f"/{name}/Conv", "op": "Conv", "output": "y", "block": "", "pinned": ""}
    empty = {field.name: () for field in fields(Group) if field.name not in texts}
    return Group(**{**empty, **texts, "anchors": (f"/{name}/Conv",), "nodes": (f"/{name}/Conv",)})


def shrink(path: Path) -> None:
    """One small file instead of a large one with a log beside it."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode=DELETE", "PRAGMA page_size=512", "VACUUM"):
        connection.execute(statement)
    connection.close()


if __name__ == "__main__":
    make(FILE)
