"""What is made of NVML's answers, with a module of its shape in its place: this machine may have no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from evaluators.backends.nvidia.state import GpuState, others, slowdowns


class NvmlError(Exception):
    """What pynvml raises."""


class Nvml:
    """Answers as pynvml does; those named in `refused` raise."""

    NVMLError = NvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *refused: str, reasons: int = 0, pids: tuple[int, ...] = ()) -> None:
        self.refused = refused
        self.found: list[tuple[str, Any]] = []
        self.answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetTemperature": 41,
            "nvmlDeviceGetPowerUsage": 310_500,
            "nvmlDeviceGetCurrentClocksEventReasons": reasons,
            "nvmlDeviceGetCurrentClocksThrottleReasons": reasons,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=pid) for pid in pids],
        }

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if name in self.refused:
                raise NvmlError("Not Supported")
            if name.startswith("nvmlDeviceGetHandleBy"):
                self.found.append((name.removeprefix("nvmlDeviceGetHandleBy"), arguments[0]))
                return "handle"
            if name == "nvmlDeviceGetClockInfo":
                return {1: 1980, 2: 3201}[arguments[1]]
            return self.answers[name]

        return call


def test_everything_is_read_in_its_unit() -> None:
    state = GpuState(0, Nvml(pids=(os.getpid(),)))
    assert state.note == ""
    assert state.read() == {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 41,
        "power_w": 310.5,
        "throttled": [],
        "other_processes": 0,
    }


@pytest.mark.parametrize(
    ("device", "way"), [(1, "Index"), ("GPU-33f7137f-2577", "UUID"), ("00000000:1B:00.0", "PciBusId")]
)
def test_the_gpu_is_found_by_index_uuid_or_bus(device: str | int, way: str) -> None:
    nvml = Nvml()
    GpuState(device, nvml)
    assert nvml.found == [(way, device)]


def test_only_what_costs_speed_is_throttling() -> None:
    idle, set_clocks, sync_boost, display = 0x1, 0x2, 0x10, 0x100
    assert slowdowns(idle | set_clocks | sync_boost | display) == []
    assert slowdowns(0x4 | idle) == ["power cap by software"]
    assert slowdowns(0xE8) == [
        "hardware slowdown",
        "thermal slowdown by software",
        "thermal slowdown by hardware",
        "power brake",
    ]


def test_a_driver_that_knows_reasons_by_their_old_name() -> None:
    state = GpuState(0, Nvml("nvmlDeviceGetCurrentClocksEventReasons", reasons=0x80))
    assert state.read()["throttled"] == ["power brake"]


def test_what_cannot_be_read_is_left_out() -> None:
    refused = ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo", "nvmlDeviceGetComputeRunningProcesses")
    assert GpuState(0, Nvml(*refused)).read() == {"temperature_c": 41, "throttled": []}


@pytest.fixture
def child() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process.pid
    process.communicate()


def test_neither_we_nor_our_children_are_others(child: int) -> None:
    assert GpuState(0, Nvml(pids=(os.getpid(), child, 1))).read()["other_processes"] == 1


def test_of_foreign_ids_one_is_ours_and_no_ids_say_nothing() -> None:
    assert others({7, 8, 9}, [1, 2]) == 2
    assert others({7}, [1, 2]) == 0
    assert others({1, 2}, [1, 2]) == 0
    assert others(set(), [1, 2]) is None


@pytest.mark.parametrize("missing", ["nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_without_a_driver_or_such_a_gpu_there_is_a_note(missing: str) -> None:
    state = GpuState("GPU-33f7137f", Nvml(missing))
    assert state.read() == {}
    assert state.note == (
        "clocks, temperature and other processes of the GPU are not recorded (NVML, GPU GPU-33f7137f: Not Supported)"
    )
    state.close()


def test_without_the_package_the_note_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    state = GpuState(0)
    assert state.read() == {}
    assert "pip install nvidia-ml-py" in state.note


def test_closed_it_reads_nothing() -> None:
    state = GpuState(0, Nvml())
    state.close()
    assert (state.read(), state.note) == ({}, "")
