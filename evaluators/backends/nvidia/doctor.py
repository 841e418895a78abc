"""The doctor's checks of NVIDIA GPUs: which there are, their native precisions, their driver and their state."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from evaluators.backends.kind import Check, Machine
from evaluators.backends.nvidia import discovery
from evaluators.backends.nvidia.state import GpuState

_DRIVER_ADVICE = "Install NVIDIA's driver; in a container, start it with --gpus all."
_NVML_ADVICE = "In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility."


def gpu_checks(machine: Machine, needed_by: str = "") -> list[Check]:
    """The GPUs, what they compute natively, the CUDA of the driver, and whether their state can be read.

    Args:
        needed_by: name of the backend that runs on a GPU alone; empty if none does.
    """
    if not machine.gpus:
        return [_no_gpu_check(needed_by)]
    lines = [Check("gpu", True, _gpu_text(gpu)) for gpu in machine.gpus]
    lines += [
        Check(f"precisions of {name}", True, precisions_text(capability))
        for name, capability in {gpu["name"]: gpu["compute_cap"] for gpu in machine.gpus}.items()
    ]
    return [*lines, _driver_check(), _nvml_check()]


def _no_gpu_check(needed_by: str) -> Check:
    driver = discovery.driver_version()
    if shutil.which("nvidia-smi") is None and driver is None:
        advice = (
            f"Backend {needed_by} runs only on an NVIDIA GPU. Use a machine with a GPU and its driver, start a "
            "container with --gpus all, or search with --backend onnxruntime."
        )
        finding = "none: no nvidia-smi and no NVIDIA driver here"
        return Check("gpu", not needed_by, finding, advice if needed_by else "")
    return Check(
        "gpu",
        False,
        "a driver is installed, but nvidia-smi shows no GPU",
        "Run `nvidia-smi` to see why. Start a container with --gpus all, which needs nvidia-container-toolkit.",
    )


def _gpu_text(gpu: Mapping[str, str]) -> str:
    return (
        f"{gpu['name']}, {gpu['memory.total']}, compute capability {gpu['compute_cap']}, driver {gpu['driver_version']}"
    )


def precisions_text(compute_capability: str) -> str:
    """What a GPU computes each precision in, by its compute capability, for example `9.0`."""
    parts = [int(part) for part in compute_capability.split(".") if part.isdigit()]
    if not parts:
        return f"unknown compute capability {compute_capability!r}"
    version = (parts[0], parts[1] if len(parts) > 1 else 0)
    fp32 = "fp32 on TF32 tensor cores unless TF32 is off" if version >= (8, 0) else "fp32"
    unused = "; it also has fp4, which bitfront does not use" if version >= (10, 0) else ""
    return ", ".join([fp32, *discovery.native_texts(version)]) + unused


def _driver_check() -> Check:
    driver = discovery.driver_version()
    if driver is None:
        return Check("cuda of the driver", False, "libcuda.so.1 does not load", _DRIVER_ADVICE)
    return Check("cuda of the driver", True, driver)


def _nvml_check() -> Check:
    """Whether clocks, throttling and other processes show while latency is measured."""
    state = GpuState(0)
    try:
        if state.note:
            return Check("nvml", False, state.note, "pip install nvidia-ml-py")
        readings = ", ".join(f"{name} {value}" for name, value in state.read().items())
        return Check("nvml", True, readings) if readings else Check("nvml", False, "reads nothing", _NVML_ADVICE)
    finally:
        state.close()
