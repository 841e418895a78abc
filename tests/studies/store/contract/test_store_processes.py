"""The store when processes are killed, race, or run out of disk: a transaction happens as a whole or not at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from search.errors import RunError, StudyError
from studies.store.database import database, tables
from studies.store.store import Store
from tests.support.command_line import environment
from tests.support.forks.processes import popen
from tests.support.paths import ROOT
from tests.support.study_rows import STUDY, TARGET, assignment, count, finish, measured

pytestmark = pytest.mark.slow


def start_child(code: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", code, *arguments]
    return popen(command, cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


KILLED = """
import sys
from search.values import Assignment, Precision
from studies.store.statements import artifacts, results, table_rows
from studies.store.database import database, tables
from studies.store.store import Store
store, target = Store.open(sys.argv[1]), int(sys.argv[2])
chosen = Assignment({"g000": Precision.INT8})
evaluation_id = store.claims.begin(target, chosen, chosen.digest, "killed", 0)
with database.begin_write(store.database.engine) as connection:
    results.link(connection, target, 99, evaluation_id, reused=True)
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_killed_worker_leaves_one_running_row_and_half_of_nothing(store: Store, target: int, url: str) -> None:
    child = start_child(KILLED, url, str(target))
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=400)
    (running,) = store.claims.find_running(target)
    assert (running.worker, running.trial) == ("killed", 0)
    with pytest.raises(StudyError, match="trials 0 to 0"):
        store.trials.load(target, 99)
    assert store.claims.abandon(running.id)
    finish(store, target, 1, 2)


RACE = """
import json, sys
from search.values import Assignment, Evaluation, Precision
from studies.store.store import KnownEvaluationError, Store
store, target, me = Store.open(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
won = []
print("ready", flush=True)
sys.stdin.readline()
for code in range(27):
    chosen = Assignment({f"g{i}": Precision.of_id(code // 3**i % 3) for i in range(3)})
    try:
        evaluation_id = store.claims.begin(target, chosen, chosen.digest, str(me), code * 4 + me)
    except KnownEvaluationError as known:
        store.trials.link(target, code * 4 + me, known.evaluation_id)
        continue
    store.claims.record(evaluation_id, Evaluation(chosen))
    won.append(code)
print(json.dumps(won))
"""


def test_processes_that_race_share_the_work(store: Store, target: int, url: str) -> None:
    children = [start_child(RACE, url, str(target), str(me)) for me in range(3)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    won = [json.loads(child.communicate(timeout=400)[0]) for child in children]
    assert sorted(code for part in won for code in part) == list(range(27))
    assert (list(store.evaluations.table(target).status), count(store, tables.TrialRecord)) == (["ok"] * 27, 81)


FULL_DISK = """
import resource, sys
import numpy as np
from search.errors import RunError
from search.values import Assignment, Evaluation, Latency, Precision
from studies.store.store import Store
store, target = Store.open(sys.argv[1]), int(sys.argv[2])
chosen = Assignment({"g000": Precision.INT8})
evaluation_id = store.claims.begin(target, chosen, chosen.digest, "w0", 0)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
many = Latency(1.0, 1.0, 0.1, None, np.ones(1_000_000), np.empty(0))
try:
    store.claims.record(evaluation_id, Evaluation(chosen, latency=many))
except RunError as error:
    print(error)
"""


def test_a_full_disk_stops_the_run_and_spoils_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with Store.open(url, create=True) as store:
        target = store.targets.add(store.studies.create(STUDY), TARGET, "demo/cpu")
    said, _ = start_child(FULL_DISK, url, str(target)).communicate(timeout=400)
    assert "Could not record an evaluation" in said
    assert "Try again when" in said
    with Store.open(url) as store:
        (running,) = store.claims.find_running(target)
        store.claims.record(running.id, measured(assignment(2)))
        assert list(store.evaluations.table(target).status) == ["ok"]


def test_a_database_that_went_away_is_a_failed_run(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = Store.open(f"sqlite:///{path}", create=True)
    with database.begin_write(store.database.engine) as connection:
        connection.execute(insert(tables.SchemaRecord).values(version=0))
        tables.Base.metadata.drop_all(connection)
    with pytest.raises(RunError, match="Could not read the study in sqlite"):
        store.studies.summaries()
    store.close()
