"""What `status` says of a study, on every database; its front and picks are those of `front`, read another way."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import update

from bitfront import verbs
from search.values import Accuracy, Evaluation, Failure, FailureKind, Latency, Precision, Stage
from studies.judging.rules.picks import NAMES
from studies.judging.standing import Standing, read_standing
from studies.judging.status.study_status import TargetStatus, study_status
from studies.options.limits import Limits, MetricScale
from studies.options.read_options import read_config
from studies.options.resolve_limits import resolve_limits
from studies.run.search_result import Mixes
from studies.show.front_rows import front_json
from studies.show.status_text import blocks, finished_lines
from studies.show.terminal.front_table import front_table
from studies.store.database import column_types, tables
from studies.store.database.database import begin_write
from studies.store.store import Store
from tests.support.command_line import child, copy_finished, invoke, ok
from tests.support.study_rows import add, assignment, evaluated, fresh_url, make_study

LIMITS: list[dict[str, str]] = [
    {},
    {"max-drop": "4%"},
    {"latency-budget": "2ms"},
    {"max-memory": "999B"},
    {"accuracy-limit": "85%", "latency-budget": "3ms"},
    {"max-drop": "0.01%"},
]


def many(store: Store, target: int, count: int, seed: int) -> None:
    """Evaluations of every kind, many of them tied, some measured again, exported or failed."""
    rng = np.random.default_rng(seed)
    for trial in range(count):
        codes = tuple(int(bit) for bit in f"{trial:09b}")
        loss = round(float(rng.uniform(0, 0.1)), 3)
        latency_ms = round(3.5 - 25 * loss + float(rng.exponential(0.5)), 2)  # accurate ones are slow
        half = float(rng.choice([0.0, 0.0005, 0.004]))
        made = evaluated(codes, latency_ms, loss, half)
        kind = int(rng.integers(10))
        if kind == 0:
            made = evaluated(codes, latency_ms, loss, half, got=Precision.FP16.id)
        elif kind == 1:
            made = Evaluation(assignment(*codes), Failure(Stage.BUILD, FailureKind.REFUSED, "no kernel", ""))
        elif kind == 2:
            early = Accuracy("top1", 0.9 - loss, loss, loss, loss, 4, 8, np.ones(4))
            made = evaluated(codes, latency_ms, loss, half, accuracy=early)
        role = {0: "baseline:fp32"}.get(trial, "export" if kind == 3 else "")
        number = add(store, target, trial, made, role)
        if kind == 4 and made.latency is not None:
            for again in range(2):
                value = round(float(rng.uniform(0.5, 4)), 2)
                latency = Latency(value, value, 0.01, 2.0, np.ones(2), np.ones(2), ())
                store.measurements.add_round(target, {number: latency} if again else {number: made.latency})


def shown(now: TargetStatus) -> dict[str, Any]:
    return {"front": now.front, **{name: (point.trial, point.speedup) for name, point in now.picks.items()}}


def expected(store: Store, target: int, limits: Limits) -> dict[str, Any]:
    study = store.studies.load("s")
    record = next(t for t in store.targets.of_study(study.id) if t.id == target)
    found = read_standing(store, study, record, limits)
    rows = {name: getattr(found.picks, name) for name in NAMES}
    picks = {
        name: (found.table.trial[row], found.measures.speedup(row)) for name, row in rows.items() if row is not None
    }
    return {"front": int(found.judgement.front.sum()), **picks}


def fronted(store: Store, target: int, limits: Limits, read: Callable[..., Standing]) -> dict[str, Any]:
    """What `front` prints, from a whole standing or from one of what may be on the front."""
    study = store.studies.load("s")
    record = next(t for t in store.targets.of_study(study.id) if t.id == target)
    now = read(store, study, record, limits)
    return front_json(now, Mixes(store.evaluations.assignments(target)))


@pytest.mark.slow
def test_front_and_picks_are_those_of_front(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store)
        many(store, target, 250, seed=0)
        study, sizes = store.studies.load("s"), set()
        for band in (None, 0.0, 0.01, 0.2):
            with begin_write(store.database.engine) as connection:
                connection.execute(update(tables.TargetRecord).values(latency_band=band))
            for given in LIMITS:
                config = read_config({"model": "m", "data": "d", **given})
                store.studies.update(study.id, config=config.to_json())
                limits = resolve_limits(config.limits, MetricScale("top1", ratio=True), 1)
                found = study_status(store, "s").targets[0]
                assert shown(found) == expected(store, target, limits), (band, given)
                sizes.add(found.front)
        assert {0, 1} < sizes
        assert max(sizes) > 3
        assert store.statistics.obedience(target) == Counter(
            (row.asked, row.answer) for _, row in store.engines.audits(target)
        )


def test_a_doubtful_latency_is_marked_in_the_front(tmp_path: Path) -> None:
    url = fresh_url("sqlite", tmp_path)
    with Store.open(url, create=True) as store:
        target = make_study(store)
        add(store, target, 0, evaluated((0, 0), 4.0, 0.0, 0.0), "baseline:fp32")
        sound = evaluated((2, 2), 2.0, 0.01, 0.0)
        assert sound.latency is not None
        add(store, target, 1, replace(sound, latency=replace(sound.latency, warnings=("unsteady",))))
    for whole in (True, False):
        found = verbs.front("s", storage=url, every=whole)
        now, mixes = found.standing, found.mixes
        assert [row["warnings"] for row in front_json(now, mixes)["rows"]] == [["unsteady"], []]
        doubtful, steady = front_table(now, mixes).rows
        assert "latency doubtful" in doubtful[-1]
        assert "doubtful" not in steady[-1]


def test_times_fp32_are_of_its_latest_measurement_as_in_front(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store)
        base = add(store, target, 0, evaluated((0, 0), 4.0, 0.0, 0.0), "baseline:fp32")
        number = add(store, target, 1, evaluated((2, 2), 2.0, 0.01, 0.0))
        speedups = [study_status(store, "s").targets[0].picks["fast"].speedup]
        for value in (5.0, 6.0):
            latency = Latency(value, value, 0.01, 2.0, np.ones(2), np.ones(2), ())
            store.measurements.add_round(target, {base: latency})
            speedups.append(study_status(store, "s").targets[0].picks["fast"].speedup)
        store.measurements.add_round(target, {number: replace(latency, raw_ms=1.5)})
        speedups.append(study_status(store, "s").targets[0].picks["fast"].speedup)
        rows = fronted(store, target, Limits(), read_standing)["rows"]
    assert speedups == [2.0, 2.5, 3.0, 4.0]
    assert [row["speedup"] for row in rows if "fast" in row["picks"]] == [4.0]


def aged(store: Store, name: str, seconds: float) -> None:
    """Let a worker have started, been heard of and finished its evaluations so long ago."""
    ago = column_types.utc_ago(seconds)
    w, e, lease = tables.WorkerRecord, tables.EvaluationRecord, tables.LeaseRecord
    with store.database.engine.begin() as connection:
        connection.execute(update(w).where(w.name == name).values(started_at=ago, heartbeat=ago))
        finished = e.finished_at.is_not(None)
        connection.execute(update(e).where(e.worker == name, finished).values(started_at=ago, finished_at=ago))
        connection.execute(update(lease).where(lease.worker == name).values(heartbeat=ago))


def test_workers_running_tasks_and_failures(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store, trials="20", lease="30s")
        alive, lost, ended = (
            store.workers.join(target, host=f"host{i}", device="cpu", pid=i, state="searching") for i in range(3)
        )
        for trial in range(6):
            add(
                store,
                target,
                trial,
                evaluated((trial & 1, trial >> 1), 2.0, 0.01, 0.0),
                worker=(alive, ended)[trial % 2],
            )
        failure = Failure(Stage.LATENCY, FailureKind.TIMEOUT, "too long", "")
        add(store, target, 6, Evaluation(assignment(1, 1, 1), failure), worker=alive)
        store.claims.begin(target, assignment(0, 1, 1), assignment(0, 1, 1).digest, alive, 7)
        store.claims.begin(target, assignment(1, 0, 1), assignment(1, 0, 1).digest, lost, 8)
        assert store.tasks.take(target, "band", alive, 30)
        aged(store, lost, 100)
        aged(store, ended, 7200)
        store.workers.end(ended)
        now = study_status(store, "s")
    [found] = now.targets
    assert (found.tally.finished, found.wanted, found.tally.failures) == (7, 20, {("latency", "timeout"): 1})
    assert [[w.name for w in which] for which in (found.alive, found.lost, found.ended_workers)] == [
        [alive],
        [lost],
        [ended],
    ]
    assert [(w.evaluations, w.trial) for w in found.workers] == [(4, 7), (0, 8), (3, None)]
    assert found.tally.recent == 4, "the ended one worked two hours ago"
    assert found.left_s is not None
    lines = "\n".join(block if isinstance(block, str) else str(block.rows) for block in blocks(now))
    for part in ("7 of 20; 2 running", "1 at latency (timeout)", "lost (searching)", "host1", "band, trial 7 (lease ",
                 "trial 8 (lease 1", "1 worker ended, after 3 evaluations"):  # fmt: skip
        assert part in lines
    assert "s3cret" not in lines + json.dumps(now.to_json(), default=str)
    assert "measuring repeatability" in lines
    data = json.loads(json.dumps(now.to_json(), default=str))
    assert [worker["live"] for worker in data["targets"][0]["workers"]] == [True, False, False]
    assert not now.over


def test_the_stage_of_a_worker_is_its_task_or_its_state(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store)
        name = store.workers.join(target, host="h", device="cpu", pid=1, state="starting")

        def stages(state: str, task: str = "") -> str:
            store.workers.set_state(name, state)
            assert not task or store.tasks.take(target, task, name, 30)
            now = study_status(store, "s")
            [block] = [block for block in blocks(now) if not isinstance(block, str) and block.header]
            [worker] = now.to_json()["targets"][0]["workers"]
            assert block.rows[0][1] == worker["stage"]
            store.tasks.release(target, task, name)
            return str(worker["stage"])

        assert stages("starting") == "starting"
        assert stages("calibrating", "calibration") == "calibrating"
        assert stages("calibrating", "sensitivity") == "measuring sensitivities"
        assert stages("searching", "band") == "measuring repeatability"
        assert stages("calibrating") == "starting", "it is done with that, and the search has not begun"
        assert stages("searching", "prune") == "searching"
        assert stages("finishing") == "waiting for finalists"
        assert stages("finishing", "finalists") == "confirming finalists"


def test_rates_leave_a_pause_out(tmp_path: Path) -> None:
    """What was done before the present workers began says nothing of how fast they are."""
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store, trials="20")
        before, after = (store.workers.join(target, host="h", device="cpu", pid=1) for _ in range(2))
        for trial in range(8):
            add(store, target, trial, evaluated(tuple(map(int, f"{trial:03b}")), 2.0, 0.01, 0.0), worker=before)
        aged(store, before, 3000)
        store.workers.end(before)
        aged(store, after, 20)
        quiet = study_status(store, "s").targets[0]
        for trial in range(8, 12):
            add(store, target, trial, evaluated(tuple(map(int, f"{trial:04b}")), 2.0, 0.01, 0.0), worker=after)
        busy = study_status(store, "s").targets[0]
    assert (quiet.tally.recent, quiet.left_s) == (0, None)
    assert busy.tally.recent == 4
    assert 20 <= busy.window_s < 60
    assert busy.rate_recent == pytest.approx(4 * 3600 / busy.window_s)
    assert busy.left_s == pytest.approx(8 * busy.window_s / 4)
    assert busy.rate_overall is not None
    assert busy.rate_overall < 12 * 3600 / 2990


def test_a_study_that_has_not_begun(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store)
        [found] = study_status(store, "s").targets
        assert (found.tally.finished, found.front, found.picks, found.left_s) == (0, 0, {}, None)
        assert found.rate_overall is None
        text = str([block if isinstance(block, str) else block.rows for block in blocks(study_status(store, "s"))])
        assert "nothing is finished yet" in text
        assert target == found.target.id


def test_lines_of_what_was_finished(tmp_path: Path) -> None:
    with Store.open(fresh_url("sqlite", tmp_path), create=True) as store:
        target = make_study(store, trials="9")
        add(store, target, 0, evaluated((0,), 2.5, 0.0, 0.0), "baseline:fp32", worker="w-1")
        add(
            store,
            target,
            1,
            Evaluation(assignment(1), Failure(Stage.BUILD, FailureKind.REFUSED, "no", "")),
            worker="w-2",
        )
        early = Accuracy("top1", 0.5, 0.25, 0.2, 0.3, 4, 8, np.ones(4))
        add(store, target, 2, evaluated((1, 1), 1.5, 0.25, 0.0, accuracy=early), worker="w-1")
        lines = list(finished_lines(study_status(store, "s"), store.statistics.finished_since(target, 60)))
        assert store.statistics.finished_since(target, -60) == ()
    assert lines == [
        "1/9 trial 0 by w-1: 2.50 ms, loss 0 % (fp32 baseline)",
        "2/9 trial 1 by w-2: failed at build (refused)",
        "3/9 trial 2 by w-1: 1.50 ms, loss 25 %, stopped after 4 of 8 samples",
    ]


# The command line ---------------------------------------------------------------------------------------------------


@pytest.fixture
def studied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    return tmp_path


def test_status_of_a_finished_study(studied: Path) -> None:
    text = ok("status", "small")
    for part in ("study 'small'", "done", "4 of 4", "nobody works on it now", "1 worker ended, after 4 evaluations"):
        assert part in text
    data = json.loads(ok("status", "small", "--json"))
    front = json.loads(ok("front", "small", "--json"))
    [target] = data["targets"]
    assert target["front"] == sum(row["on_front"] for row in front["rows"])
    picked = {name: row["trial"] for row in front["rows"] for name in row["picks"]}
    assert {name: point["trial"] for name, point in target["picks"].items()} == picked
    assert [target.front for target in verbs.status("small").targets] == [data["targets"][0]["front"]]


def test_reading_changes_nothing(studied: Path) -> None:
    database = studied / "bitfront.db"
    before = database.read_bytes()
    database.chmod(0o444)
    ok("status", "small")
    assert database.read_bytes() == before


def test_watch_ends_when_the_study_is_done(studied: Path) -> None:
    assert "study 'small'" in ok("status", "small", "--watch")
    lines = ok("status", "small", "--watch", "--json").splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["done"]


def test_a_study_that_is_not_there(studied: Path) -> None:
    result = invoke("status", "smal")
    assert (result.exit_code, "Did you mean 'small'" in result.stderr) == (2, True)
    os.remove(studied / "bitfront.db")
    assert invoke("status", "small").exit_code == 2
    assert not (studied / "bitfront.db").exists()


@pytest.mark.slow
def test_the_database_of_the_environment_is_the_default(studied: Path) -> None:
    (studied / "bitfront.db").rename(studied / "other.db")
    done = child("status", "small", cwd=studied, env={"BITFRONT_STORAGE": f"sqlite:///{studied}/other.db"})
    assert (done.returncode, "4 of 4" in done.stdout) == (0, True), done
