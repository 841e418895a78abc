"""Where the time of a study went: counted by kind of work, wherever it is shown."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from bitfront import verbs
from evaluators import stopwatch
from evaluators.stopwatch import Stopwatch, use_stopwatch
from studies.crew import SharedCrew, presence
from studies.judging.status.time_table import table_of, time_rows, time_table
from studies.options.read_options import read_config
from studies.run_clock import KINDS
from studies.store.records import WorkerTime
from studies.store.store import Store
from tests.support.command_line import DATABASE, invoke, ok, quick, write_inputs

pytestmark = pytest.mark.slow

NOON = datetime(2030, 1, 1, 12, tzinfo=timezone.utc)


def worked(name: str, until_s: float, **seconds: float) -> WorkerTime:
    return WorkerTime(name, NOON + timedelta(seconds=until_s), {k.replace("_", " "): s for k, s in seconds.items()})


def test_workers_are_added_up_and_the_time_between_them_is_left_out() -> None:
    found = table_of(
        [
            worked("a", 10, builds=6.0, timing=4.0),
            worked("b", 15, builds=8.0, waiting=2.0),
            worked("c", 100, tie_band=5.0),
            worked("d", 200, new=1.0),  # of a later bitfront
        ]
    )
    assert dict(found.seconds) == {"builds": 14.0, "timing": 4.0, "tie band": 5.0, "waiting": 2.0, "new": 1.0}
    assert list(found.seconds) == [*(kind for kind in KINDS if kind in found.seconds), "new"]
    assert (found.busy_s, found.wall_s, found.workers, found.began) == (26.0, 21.0, 4, NOON)
    assert found.share("builds") == 14 / 26
    assert time_rows(found)[0] == ("14.0", "53.8%", KINDS["builds"])
    assert time_rows(found)[-1][2] == "new"


def test_nobody_has_worked_yet() -> None:
    found = table_of([])
    assert (dict(found.seconds), found.busy_s, found.wall_s, found.began, time_rows(found)) == ({}, 0, 0, None, [])
    assert found.share("builds") == 0


def test_the_kinds_of_a_real_search_add_up_to_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    options = {"model": "in/model.onnx", "data": "in/data.npz", "study": "s", "trials": "6"}
    with quick():
        verbs.search(read_config(options))
    with Store.open(f"sqlite:///{DATABASE}", write=False) as store:
        [target] = store.targets.of_study(store.studies.load("s").id)
        found = time_table(store, target.id)
    assert found.busy_s == pytest.approx(found.wall_s)
    known = {"start", "calibration", "first builds", "builds", "timing", "running", "scoring", "sampler"}
    assert known | {"sensitivities", "finalists", "database"} <= found.seconds.keys()
    told = json.loads(ok("status", "s", "--json"))["targets"][0]["time"]
    assert (told["seconds"], told["workers"]) == (dict(found.seconds), 1)
    assert "where the time of 1 worker went" in ok("status", "s")
    ok("report", "s", "--out", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "Where the time went" in page
    assert 'data-figure="time"' in page
    assert KINDS["calibration"] in page


def test_a_second_run_is_added_and_the_pause_between_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 2, "--sampler", "random")
    connection = sqlite3.connect(DATABASE)
    connection.execute("update bf_worker set spent_at = datetime(spent_at, '-1 hour')")
    connection.commit()
    connection.close()
    ok("resume", "s", "--trials", 3)
    found = verbs.status("s").targets[0].times
    assert found.workers == 2
    assert found.wall_s == pytest.approx(found.busy_s, abs=0.1)
    assert found.wall_s < 1800


def test_a_worker_that_is_killed_leaves_what_it_stored_every_few_seconds(
    store: Store, target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ends it here, as nobody does after a `kill -9`."""
    now = [1000.0]
    for module in (stopwatch, presence):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with use_stopwatch(Stopwatch(now[0] - 30, "start")) as watch:
        with watch.measure("builds"):
            lease = SharedCrew(store, target, lease_s=60.0)
            lease.name = store.workers.join(target, host="here", device="cpu", pid=1)
            lease.store_time()
            assert store.statistics.worker_times(target) == ()  # the first few seconds are not over
            now[0] += 10
            lease.store_time()
        [found] = store.statistics.worker_times(target)
        assert found.name == lease.name
        assert found.seconds == {"start": 30.0, "builds": 10.0}
        store.workers.beat(lease.name)
        assert store.statistics.worker_times(target) == (found,)
        store.workers.beat(lease.name, {"start": 31.0})
        store.workers.end(lease.name, "failed", {"start": 32.0})
    assert [dict(each.seconds) for each in store.statistics.worker_times(target)] == [{"start": 32.0}]


def test_a_run_that_ends_by_an_error_keeps_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    (tmp_path / "broken.py").write_text(
        "calls = []\n\n\ndef score(outputs, labels):\n    calls.append(1)\n    if len(calls) > 20:\n"
        "        raise ValueError('no more')\n    return (outputs['logits'].argmax(1) == labels).astype(float)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    inputs = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--trials", 8, "--metric", "broken:score")
    assert invoke("search", *inputs).exit_code == 1
    found = verbs.status("s").targets[0].times
    assert found.workers == 1
    assert found.seconds["start"] > 0
    assert found.seconds["calibration"] > 0
