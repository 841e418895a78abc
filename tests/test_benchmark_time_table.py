"""The time table of a search is read from its database, of this tree or of one with other columns."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.h200 import before_after, time_table, unseen_data
from searched import DATABASE, finished, ok


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return Path(shutil.copy(finished() / DATABASE, tmp_path / DATABASE))


def ends(database: Path) -> list[tuple[str, float]]:
    """(role, end) of every evaluation, in order."""
    with closing(sqlite3.connect(database)) as connection:
        found = connection.execute("select role, finished_at from bf_evaluation order by finished_at").fetchall()
    return [(role, moment(end)) for role, end in found]


def test_a_study_is_told_in_seconds_since_its_start(database: Path) -> None:
    every = ends(database)
    start = every[0][1] - 30.5
    found = time_table.of_study(database, start, every[-1][1] + 200)
    assert found["ok"] == len(every) == 4
    uniform = [end for role, end in every if role.startswith("baseline:")]
    assert found["uniform_end_s"] == pytest.approx(max(uniform) - start, abs=0.01)
    mixes = [end for role, end in every if not role]
    assert found["first_mix_end_s"] == pytest.approx(min(mixes) - start, abs=0.01)
    assert found["first_mix_s"] < found["first_mix_end_s"]
    assert found["ok_by_minute"][0] >= 1
    assert found["ok_by_minute"][-1] == 4
    assert found["stages"]["mixes"]["total"]["of"] == len(mixes)
    assert found["finalists_s"][1] > found["first_mix_end_s"]
    assert {each["status"] for each in found["evaluations"]} == {"ok"}


def test_times_of_any_column_are_told(database: Path) -> None:
    """A tree may keep one column per part, or all parts as JSON."""
    start = ends(database)[0][1]
    with closing(sqlite3.connect(database)) as connection:
        names = {row[1] for row in connection.execute("pragma table_info(bf_evaluation)")}
        if "stage_s" not in names:
            connection.execute("alter table bf_evaluation add column stage_s text")
        connection.execute("alter table bf_evaluation add column wait_s float")
        connection.execute("update bf_evaluation set wait_s = 0.5, stage_s = ?", [json.dumps({"audit": 2.0})])
        connection.commit()
    stages = time_table.of_study(database, start, start + 60)["stages"]["mixes"]
    assert stages["wait"]["median"] == 0.5
    assert stages["audit"] == {"median": 2.0, "sum": 2.0 * stages["audit"]["of"], "of": stages["audit"]["of"]}


def test_a_study_without_an_evaluation_has_a_table(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("delete from bf_sample")
        connection.execute("delete from bf_evaluation")
        connection.commit()
    found = time_table.of_study(database, 0.0, 130.0)
    assert found["ok_by_minute"] == [0, 0]
    assert found["uniform_end_s"] is None
    assert "none" in time_table.text([{"network": "silu", "label": "before", "command_s": 130.0, "exit": 1, **found}])


def test_picks_of_the_front_are_named(tmp_path: Path) -> None:
    storage = f"sqlite:///{finished() / DATABASE}"
    front: Any = json.loads(ok("front", "small", "--json", "--storage", storage))
    told = time_table.picks_of(front)
    assert "fast" in told
    assert "final" in told


def test_runs_of_several_trees_stand_beside_each_other(database: Path) -> None:
    start = ends(database)[0][1]
    found = time_table.of_study(database, start, start + 70)
    runs = [{"network": "silu", "label": label, "command_s": 70.0, "exit": 0, **found} for label in ("before", "after")]
    lines = time_table.text(runs).splitlines()
    assert lines[0] == "|  | silu, before | silu, after |"
    assert {line.count("|") for line in lines} == {4}


def test_searches_side_by_side_share_the_processors() -> None:
    two = before_after.shares(2)
    assert all(two)
    assert before_after.shares(1) == [None]


def detections() -> tuple[dict[str, Any], Any]:
    """Logits of two images on grids of 4 and 1 cells that find exactly the labels."""
    labels = np.array([[0, 1, 0, 6, 2], [0, 0, 0, 0, 0]], np.uint8)
    logits = np.full((2, unseen_data.CLASSES, 5), -3.0, np.float32)
    for image, cell in zip(*np.nonzero(labels), strict=True):
        logits[image, labels[image, cell] - 1, cell] = 2.0
    return {"fine": logits[:, :, :4].reshape(2, -1, 2, 2), "coarse": logits[:, :, 4:].reshape(2, -1, 1, 1)}, labels


def test_the_metrics_of_the_detector() -> None:
    outputs, labels = detections()
    assert unseen_data.detection_f1(outputs, labels).tolist() == [1.0, 1.0]
    outputs["fine"][0, :, 0, 1] = -3.0  # misses the first object
    outputs["fine"][1, 2, 1, 1] = 1.0  # finds what is not there
    assert unseen_data.detection_f1(outputs, labels).tolist() == pytest.approx([2 * 2 / (2 + 3), 0.0])
    metric = unseen_data.DetectionF1()
    metric.update(outputs, labels)
    # Class 1 was missed, class 3 found in vain, classes 2 and 6 found; the others are nowhere.
    assert metric.compute() == pytest.approx((0 + 1 + 0 + 1) / 4)
