"""Which GPU a CUDA index means, from the driver alone: neither a runtime nor nvidia-smi, whose order may differ."""

from __future__ import annotations

import ctypes
import shutil
import uuid
from contextlib import suppress
from pathlib import Path


def gpu_uuid(index: int) -> str | None:
    """The UUID of a GPU as NVML and nvidia-smi spell it, `GPU-…`; None where the driver does not tell.

    CUDA_VISIBLE_DEVICES is obeyed, so index 0 of two processes may be two GPUs.
    """
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        device, raw = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
            return None
        if driver.cuDeviceGetUuid(ctypes.byref(raw), device) == 0:
            return f"GPU-{uuid.UUID(bytes=bytes(raw))}"
    return None


def lock_name(index: int) -> str:
    """Names a GPU for the latency lock: one name per GPU, whatever index a process knows it by."""
    return gpu_uuid(index) or f"cuda:{index}"


def traces(root: Path = Path("/")) -> bool:
    """Whether anything of an NVIDIA GPU shows here, without any of its libraries: device files, driver, nvidia-smi.

    Args:
        root: below which the files of devices and drivers lie.
    """
    files = any((root / "dev").glob("nvidia*")) or (root / "proc/driver/nvidia").exists()
    return files or shutil.which("nvidia-smi") is not None


def driver_version() -> str | None:
    """The newest CUDA that the installed driver knows, say `13.0`; None without a driver."""
    with suppress(OSError, AttributeError):
        driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
        if driver.cuDriverGetVersion(ctypes.byref(version)) == 0:
            return f"{version.value // 1000}.{version.value % 1000 // 10}"
    return None
