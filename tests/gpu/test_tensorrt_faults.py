"""Evaluator processes on a GPU that are killed, hang, or break their device: `pytest -m gpu`."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("tensorrt")

from evaluators.process.connection import ProcessLimits
from evaluators.process.job import StopLimits
from evaluators.process.keeper import EvaluatorProcess
from search.values import Answer, FailureKind, Stage
from tests.support.assignments import THREE
from tests.support.paths import ROOT
from tests.support.tensorrt.gpu_benches import BREAKING, calibrated

pytestmark = pytest.mark.gpu
FP32, FP16, INT8 = THREE


@pytest.fixture(autouse=True)
def _metrics_can_be_imported(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


class Killer:
    """Sends SIGKILL whenever a stage begins, so many times."""

    def __init__(self, process: EvaluatorProcess, stage: Stage, times: int) -> None:
        self.process, self.stage, self.left = process, stage, times

    def __call__(self, event: str, value: object) -> None:
        if event == "stage" and value == self.stage.value and self.left:
            self.left -= 1
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGKILL)


def test_killed_in_its_builds(tmp_path):
    process, space = calibrated(tmp_path)
    with process:
        twice = process.evaluate(
            space.uniform(FP32), tmp_path / "b.plan", StopLimits(), Killer(process, Stage.BUILD, 2)
        )
        assert twice.failure is not None
        assert (twice.failure.kind, twice.failure.stage) == (FailureKind.CRASHED, Stage.BUILD)
        assert not (tmp_path / "b.plan").exists()
        after = process.evaluate(space.uniform(INT8), tmp_path / "c.plan", StopLimits(), profile=True)
    assert after.ok
    assert {row.answer for row in after.audit} == {Answer.OBEYED}
    assert after.engine is not None
    assert after.engine.moves_ms is not None
    assert after.profile
    assert after.latency is not None
    assert after.latency.conditions["before"]["sm_clock_mhz"] > 0


def test_a_build_beyond_its_time_limit(tmp_path):
    process, space = calibrated(tmp_path)
    with process:
        process.ask().calibrations.find_key("minmax")  # started, so that the limit is the build's alone
        process.limits = ProcessLimits(timeout_s=1)
        found = process.evaluate(space.uniform(FP16), tmp_path / "a.plan", StopLimits())
        assert found.failure is not None
        assert found.failure.kind is FailureKind.TIMEOUT
        process.limits = ProcessLimits(timeout_s=300)
        assert process.evaluate(space.uniform(FP16), tmp_path / "a.plan", StopLimits()).ok


def test_an_illegal_memory_access_costs_one_process(tmp_path, monkeypatch):
    breaking = tmp_path / "breaking"
    monkeypatch.setenv(BREAKING, str(breaking))
    process, space = calibrated(tmp_path, metric="tests.support.tensorrt.gpu_benches:breaks_memory")
    with process:
        assert process.evaluate(space.uniform(FP32), tmp_path / "a.plan", StopLimits()).ok
        before = process.pid
        breaking.touch()
        found = process.evaluate(space.uniform(FP32), tmp_path / "b.plan", StopLimits())
        assert found.failure is not None
        assert (found.failure.kind, found.failure.stage) == (FailureKind.CRASHED, Stage.ACCURACY)
        assert "CUDA error" in found.failure.message
        assert process.pid != before
        breaking.unlink()
        assert process.evaluate(space.uniform(FP32), tmp_path / "c.plan", StopLimits()).ok


@pytest.mark.alone
def test_a_full_device_is_out_of_memory_and_a_fresh_process_goes_on(tmp_path):
    process, space = calibrated(tmp_path, metric="tests.support.tensorrt.gpu_benches:hogs_memory")
    with process:
        first = process.evaluate(space.uniform(FP32), tmp_path / "a.plan", StopLimits())
        assert first.ok
        pid = process.pid
        second = process.evaluate(space.uniform(FP16), tmp_path / "b.plan", StopLimits())
        assert second.attempts == 2 or second.failure is not None
        assert process.pid != pid
        if second.failure is not None:
            assert second.failure.kind is FailureKind.OUT_OF_MEMORY
