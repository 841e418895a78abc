"""What state an NVIDIA GPU is in, through NVML: a latency measured at reduced clocks, or beside another process, is
doubtful.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from evaluators.backends.nvidia.discovery import import_nvml

# Bits of NVML's clocks event reasons (nvml.h), which older drivers call throttle reasons. The others, such as an idle
# GPU or clocks that somebody set, tell why clocks are what they are, not that they were taken away.
_SLOWDOWNS = {
    0x04: "power cap by software",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}


class GpuState:
    """Reads one GPU. Nothing raises: what cannot be read is left out, and why nothing can be read is `note`.

    Args:
        device: UUID (`GPU-…`), PCI bus id (`0000:1b:00.0`), or index among all GPUs of the host in NVML's order, which
            is CUDA's only under CUDA_DEVICE_ORDER=PCI_BUS_ID without CUDA_VISIBLE_DEVICES.
        nvml: the pynvml module; imported where it is not given.

    Attributes:
        note: why nothing can be read; empty if it can.
    """

    def __init__(self, device: str | int, nvml: Any = None) -> None:
        self.note = ""
        self._handle: Any = None
        try:
            self._nvml = nvml or import_nvml()
        except ImportError as error:
            self.note = _unread_note(f"{error}; pip install nvidia-ml-py")
            return
        try:
            self._nvml.nvmlInit()
            self._handle = _find(self._nvml, device)
        except self._nvml.NVMLError as error:
            self.note = _unread_note(f"NVML, GPU {device}: {error}")

    def read(self) -> dict[str, Any]:
        """The state right now, with the keys of `Backend.device_state`; call it while this process holds the device.

        `other_processes` counts compute processes apart from this one and its children. In a container NVML may give
        process ids of the host: when ours is not among them, one of them is taken for us. It may also hide processes:
        an empty list, on a device that we hold, says nothing, and the key is left out.
        """
        if self._handle is None:
            return {}
        nvml, handle = self._nvml, self._handle
        fields: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,  # from milliwatts
            "throttled": lambda: slowdowns(self._reasons()),
            "other_processes": self._others,
        }
        values = {name: self._value(read) for name, read in fields.items()}
        return {name: value for name, value in values.items() if value is not None}

    def close(self) -> None:
        """Let go of NVML; `read` gives nothing afterwards."""
        if self._handle is not None:
            self._handle = None
            self._value(self._nvml.nvmlShutdown)

    def _value(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self._nvml.NVMLError:
            return None

    def _reasons(self) -> int:
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))
        except nvml.NVMLError:  # drivers before 535 know it by its old name only
            return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))

    def _others(self) -> int | None:
        running = {process.pid for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)}
        return others(running, _own_pids())


def slowdowns(reasons: int) -> list[str]:
    """The reasons in NVML's bit mask of clocks event reasons that cost speed, in words."""
    return [words for bit, words in _SLOWDOWNS.items() if reasons & bit]


def others(running: set[int], own: Iterable[int]) -> int | None:
    """How many of the processes on a device that we hold are not ours; None if that cannot be known."""
    if not running:
        return None
    foreign = running.difference(own)
    return len(foreign) - (foreign == running)


def _own_pids() -> list[int]:
    """This process, what it started, and what else its keeper started, which measures in turn with it."""
    own = psutil.Process()
    parent = own.parent() if os.getsid(0) == own.pid else None  # only an evaluator process has a session of its own
    started = (parent or own).children(recursive=True)
    return [own.pid, *(process.pid for process in started)]


def _find(nvml: Any, device: str | int) -> Any:
    if isinstance(device, int):
        return nvml.nvmlDeviceGetHandleByIndex(device)
    if ":" in device:
        return nvml.nvmlDeviceGetHandleByPciBusId(device)
    return nvml.nvmlDeviceGetHandleByUUID(device)


def _unread_note(reason: str) -> str:
    return f"clocks, temperature and other processes of the GPU are not recorded ({reason})"
