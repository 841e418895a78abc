"""Finding NVIDIA GPUs by index, UUID and CUDA_VISIBLE_DEVICES, with the driver, nvidia-smi and NVML.

An index of CUDA counts the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; one of nvidia-smi and NVML counts all
of the host. The driver is asked through ctypes, so that nothing has to be installed, and no runtime is started.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from search.errors import ConfigError, TargetError

VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU_FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
_SMI_TIMEOUT_S = 10  # without its persistence daemon a host with many GPUs takes seconds
_VISIBLE_ENTRY = re.compile(r"[0-9]+|GPU-[0-9A-Fa-f-]+|MIG-[0-9A-Za-z/-]+")
_MOST_NAME = 256  # bytes


# -- one GPU, by CUDA's index ------------------------------------------------------------------------------------------


Version = tuple[int, int]
_CAPABILITY = (75, 76)  # the driver's numbers of the attributes of a compute capability


def cuda_index(device: str) -> int | None:
    """N of a device that is spelled `cuda:N`, 0 of `cuda`; None of any other."""
    kind, colon, index = device.partition(":")
    if kind != "cuda" or (colon and not index.isdigit()):
        return None
    return int(index or 0)


def gpu_uuid(index: int) -> str | None:
    """The UUID of a GPU as NVML and nvidia-smi spell it, `GPU-…`; None if the driver does not tell.

    Args:
        index: CUDA's.
    """
    raw = (ctypes.c_ubyte * 16)()
    success = _ask_driver(index, "cuDeviceGetUuid", lambda device: (ctypes.byref(raw), device))
    return f"GPU-{uuid.UUID(bytes=bytes(raw))}" if success else None


def gpu_name(index: int) -> str | None:
    """The model of a GPU, for example `NVIDIA H200`; None if the driver does not tell.

    Args:
        index: CUDA's.
    """
    name = ctypes.create_string_buffer(_MOST_NAME)
    success = _ask_driver(index, "cuDeviceGetName", lambda device: (name, _MOST_NAME, device))
    return name.value.decode() if success else None


def compute_capability(index: int) -> Version | None:
    """The compute capability of a GPU, for example `(9, 0)`; None if the driver does not tell.

    Args:
        index: CUDA's.
    """
    parts = ctypes.c_int(), ctypes.c_int()
    successes = [
        _ask_driver(index, "cuDeviceGetAttribute", lambda device, p=part, a=attribute: (ctypes.byref(p), a, device))
        for part, attribute in zip(parts, _CAPABILITY, strict=True)
    ]
    return (parts[0].value, parts[1].value) if all(successes) else None


def lock_name(index: int) -> str:
    """Names a GPU for the latency lock: one name per GPU, whatever index a process knows it by."""
    return gpu_uuid(index) or f"cuda:{index}"


def _ask_driver(index: int, function: str, arguments: Any) -> bool:
    """Call a function of the driver on a GPU; whether it answered.

    Args:
        arguments: gives the function's arguments, told the driver's handle of the GPU.
    """
    with suppress(OSError, AttributeError):
        driver, device = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            return bool(getattr(driver, function)(*arguments(device)) == 0)
    return False


# -- this machine ------------------------------------------------------------------------------------------------------


def driver_version() -> str | None:
    """The newest CUDA that the installed driver knows, for example `13.0`; None without a driver."""
    with suppress(OSError, AttributeError):
        driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
            return f"{version.value // 1000}.{version.value % 1000 // 10}"
    return None


def why_no_gpu() -> str:
    """Why this process has no GPU; empty if it may have one."""
    setting = os.environ.get(VISIBLE)
    if setting is not None and not _usable_entries(setting):
        return f"{VISIBLE}={setting!r} hides every GPU"
    if Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None:
        return ""
    return "there is no NVIDIA GPU here (no nvidia-smi, no /dev/nvidiactl)"


def has_traces(root: Path = Path("/")) -> bool:
    """Whether anything of an NVIDIA GPU shows here, without any of its libraries: device files, driver, nvidia-smi.

    Args:
        root: below which the files of devices and drivers lie.
    """
    files = any((root / "dev").glob("nvidia*")) or (root / "proc/driver/nvidia").exists()
    return files or shutil.which("nvidia-smi") is not None


def list_gpus() -> list[dict[str, str]]:
    """Every GPU of the host in nvidia-smi's words, `GPU_FIELDS` by name; empty where nvidia-smi names none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [dict(zip(GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(GPU_FIELDS)]


def gpu_uuids(nvml: Any = None) -> list[str]:
    """UUIDs (`GPU-…`) of the GPUs that this process may use, in the order of nvidia-smi.

    CUDA_VISIBLE_DEVICES is not regarded; a container's limits are.

    Args:
        nvml: the pynvml module; imported where it is not given.

    Raises:
        TargetError: there is no GPU, pynvml is not installed, there is no driver, or it finds no GPU.
    """
    if nvml is None and not has_traces():
        raise TargetError(
            "counting GPUs: there is no NVIDIA GPU here (no nvidia-smi, no /dev/nvidia*, no /proc/driver/nvidia). In a "
            "container, start it with --gpus all. For several workers on the CPU give --workers N."
        )
    try:
        nvml = nvml or import_nvml()
    except ImportError as error:
        raise TargetError(f"counting GPUs: {error}. Install NVML's module: pip install nvidia-ml-py.") from None
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise TargetError(f"counting GPUs: NVML says: {error}. `bitfront doctor` shows what is missing.") from None
    if not uuids:
        raise TargetError("counting GPUs: there is none. `bitfront doctor` shows what is missing.")
    return uuids


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # older versions of pynvml give bytes


# -- CUDA_VISIBLE_DEVICES ----------------------------------------------------------------------------------------------


def visible_text() -> str:
    """`CUDA_VISIBLE_DEVICES='…'` as it is set, for messages; empty if it is not set."""
    visible = os.environ.get(VISIBLE)
    return "" if visible is None else f"{VISIBLE}={visible!r}"


def visible_gpus(nvml: Any = None) -> Sequence[str]:
    """What CUDA_VISIBLE_DEVICES may be set to for each GPU: what stands in it now, else all by UUID.

    Args:
        nvml: the pynvml module; imported where it is not given.

    Raises:
        ConfigError: CUDA_VISIBLE_DEVICES hides every GPU, names one twice, or cannot be read.
        TargetError: GPUs cannot be counted.
    """
    setting = os.environ.get(VISIBLE)
    if setting is None:
        return gpu_uuids(nvml)
    entries = _usable_entries(setting)
    if not entries:
        raise ConfigError(f"--gpus: {VISIBLE}={setting!r} hides every GPU. Unset the variable, or name GPUs in it.")
    _check_entries(entries, setting)
    return entries


def _usable_entries(setting: str) -> list[str]:
    """Those of CUDA_VISIBLE_DEVICES in front of the first that CUDA cannot use, say -1, where it stops."""
    entries = [entry.strip() for entry in setting.split(",")]
    return list(itertools.takewhile(lambda entry: bool(entry) and not entry.startswith("-"), entries))


def _check_entries(entries: Sequence[str], setting: str) -> None:
    """Refuse what is neither a number nor the beginning of a UUID, and what is named twice."""
    for i, entry in enumerate(entries):
        if not _VISIBLE_ENTRY.fullmatch(entry):
            raise ConfigError(
                f"--gpus: {VISIBLE}={setting!r} names {entry!r}; expected numbers, or UUIDs as nvidia-smi -L shows "
                "them."
            )
        if _plain(entry) in map(_plain, entries[:i]):
            raise ConfigError(f"--gpus: {VISIBLE}={setting!r} names {entry} twice. Two workers would share one GPU.")


def _plain(entry: str) -> str:
    return str(int(entry)) if entry.isdecimal() else entry.lower()


def import_nvml() -> Any:
    """The pynvml module; raises ImportError where nvidia-ml-py is not installed."""
    import pynvml

    return pynvml


# As in TensorRT's support matrix ("Hardware and Precision") and the CUDA programming guide.
# By label: the first version with tensor cores for it, and those without that have instructions for its products.
_NATIVE: Mapping[str, tuple[Version, Collection[Version]]] = {
    "fp16": ((7, 0), ((5, 3), (6, 0), (6, 2))),
    "bf16": ((8, 0), ()),
    "fp8": ((8, 9), ()),
    "int8": ((7, 2), ((6, 1), (7, 0))),
}


def is_native(label: str, version: Version) -> bool:
    """Whether a precision is quicker than FP32, by tensor cores or without."""
    tensor_cores, others = _NATIVE[label]
    return version >= tensor_cores or version in others


def native_texts(version: Version) -> list[str]:
    """`fp16 on tensor cores`, `no native int8`: a text for each precision."""
    return [_native_text(label, version) for label in _NATIVE]


def _native_text(label: str, version: Version) -> str:
    if version >= _NATIVE[label][0]:
        return f"{label} on tensor cores"
    return f"{label} without tensor cores" if is_native(label, version) else f"no native {label}"
