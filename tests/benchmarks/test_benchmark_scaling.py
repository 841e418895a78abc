"""What the scaling benchmark makes of its runs, and that it says what this host has no devices for."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from benchmarks.h200 import scaling, tables

START = datetime(2026, 1, 1)


def moments(*seconds: float) -> list[datetime]:
    return [START + timedelta(seconds=each) for each in seconds]


def test_only_the_time_in_which_all_are_at_work_counts() -> None:
    # The first evaluations of each worker are left out; from 30 s to 60 s there are 3 + 3.
    an_hour, counted = scaling.steady({"a": moments(10, 20, 30, 40, 50, 60), "b": moments(20, 30, 40, 50, 61)})
    assert (an_hour, counted) == (3600 * 5 / 30, 5)
    with pytest.raises(RuntimeError, match="fewer than three"):
        scaling.steady({"a": moments(10, 20)})


def test_runs_are_held_against_one_worker() -> None:
    runs = {
        "1": {"an_hour": 500.0, "latency_ms": {"x": 1.0, "y": 2.0, "z": 4.0}},
        "2": {"an_hour": 975.0, "latency_ms": {"x": 1.01, "y": 2.0, "new": 9.0}},
    }
    found = scaling.compared(runs)["2"]
    assert (found["ratio"], found["wanted"], found["assignments"]) == (1.95, 1.9, 2)
    assert found["latency_median"] == pytest.approx(1.005)
    assert found["latency_within"] == 1.0


def test_numbers_of_workers_are_shown_with_those_that_were_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    runs: dict[str, dict[str, Any]] = {"1": {"an_hour": 500.0, "counted": 12, "latency_ms": {"x": 1.0}}}
    runs["2"] = {"an_hour": 975.0, "counted": 24, "latency_ms": {"x": 1.0}}
    found = {"runs": runs, "left_out": {"4": "this host has 2 GPUs"}, "against_one": scaling.compared(runs)}
    shown = tables.scaling([{"network": "resnet18", "scaling": found}])
    assert "| ResNet-18, 2 | 975 (over 24) | 1.950× |" in shown
    assert "| ResNet-18, 4 | not measured: this host has 2 GPUs |" in shown
    scaling.shown({count: {**run, "evaluations": 20, "seconds": 9.0, "failed": 0} for count, run in runs.items()})
    assert "1.95 times as many as one (wanted 1.9)" in capsys.readouterr().out


def test_the_assignments_are_the_same_every_time_and_never_uniform() -> None:
    codes = {f"g{i}": [0, 1, 2] for i in range(4)}
    found = scaling.listed(codes, 23)
    assert found == scaling.listed(codes, 23)
    assert len({tuple(each.values()) for each in found}) == 20
    assert all(len(set(each.values())) > 1 for each in found)
