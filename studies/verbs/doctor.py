"""What this machine can run, and what is missing with the command that installs it."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evaluators.backends.nvidia import capability as capabilities
from evaluators.backends.nvidia import device as cuda_device
from evaluators.backends.nvidia.state import GpuState
from evaluators.backends.registry import NAMES, open_backend
from evaluators.measure.latency import DeviceBusyError, device_lock
from search.errors import BitfrontError, ConfigError
from search.values import Precision
from studies import environment

_LOCK_WAIT_S = 3.0
_RUNTIMES = ("onnxruntime", "onnxruntime-gpu")
_DRIVER_ADVICE = "Install NVIDIA's driver; in a container, start it with --gpus all."
_GPU_ADVICE = (
    "Backend tensorrt runs on an NVIDIA GPU alone: use a machine that has one and its driver, start a container with "
    "--gpus all, or search with --backend onnxruntime."
)
_NVML_ADVICE = "In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility."


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report; `advice` says what to do when `good` is False."""

    name: str
    good: bool
    found: str
    advice: str = ""


def checks(backend: str | None = None) -> list[Check]:
    """Versions first, then the GPU and what belongs to it, then every backend with what it runs natively here.

    Args:
        backend: the only one to look at; None for all.

    Raises:
        ConfigError: there is no such backend.
    """
    if backend is not None and backend not in NAMES:
        raise ConfigError(f"--backend {backend}: there is no such backend; known are {', '.join(NAMES)}.")
    facts = environment.collect()
    packages: Mapping[str, str] = facts["packages"]
    lines = [
        Check("python", True, str(facts["python"])),
        Check("processor", True, f"{facts['cpu']['model']}, {facts['cpu']['cores']} cores"),
        *[Check(name, True, str(version)) for name, version in packages.items() if version],
        *_missing_runtime(packages),
        *_gpu_lines(facts["gpus"], packages, needed=backend == "tensorrt"),
        _docker_line(bool(facts["gpus"])),
    ]
    on_gpu = ("onnxruntime", "tensorrt") if facts["gpus"] else ("tensorrt",) if backend == "tensorrt" else ()
    places = [("onnxruntime", "cpu"), *((name, "cuda") for name in on_gpu)]
    return [*lines, *(_backend_line(*place) for place in places if backend in (None, place[0]))]


def _missing_runtime(packages: Mapping[str, str]) -> list[Check]:
    found = [name for name in _RUNTIMES if name in packages]
    if len(found) == len(_RUNTIMES):
        advice = f"They install the same module: pip uninstall {' '.join(_RUNTIMES)}, then install one of them."
        return [Check("onnxruntime", False, "installed twice", advice)]
    if found:
        return []
    return [Check("onnxruntime", False, "not installed", "pip install 'bitfront[cpu]'; it also calibrates.")]


# -- GPU ---------------------------------------------------------------------------------------------------------------


def _gpu_lines(gpus: Sequence[Mapping[str, str]], packages: Mapping[str, str], *, needed: bool) -> list[Check]:
    if not gpus:
        return [_no_gpu_line(needed)]
    lines = [Check("gpu", True, _gpu_text(gpu)) for gpu in gpus]
    lines += [
        Check(f"precisions of {name}", True, precisions_text(capability))
        for name, capability in {gpu["name"]: gpu["compute_cap"] for gpu in gpus}.items()
    ]
    return [*lines, *_cuda_lines(packages), _tensorrt_line(packages), _nvml_line()]


def _no_gpu_line(needed: bool) -> Check:
    driver = cuda_device.driver_version()
    if shutil.which("nvidia-smi") is None and driver is None:
        return Check("gpu", not needed, "none: no nvidia-smi and no NVIDIA driver here", _GPU_ADVICE if needed else "")
    return Check(
        "gpu",
        False,
        "a driver is installed, but nvidia-smi names no GPU",
        "See what `nvidia-smi` says. In a container: start it with --gpus all, where nvidia-container-toolkit is.",
    )


def _gpu_text(gpu: Mapping[str, str]) -> str:
    return (
        f"{gpu['name']}, {gpu['memory.total']}, compute capability {gpu['compute_cap']}, driver {gpu['driver_version']}"
    )


def precisions_text(compute_capability: str) -> str:
    """What a GPU computes each precision in, by its compute capability, say `9.0`."""
    parts = [int(part) for part in compute_capability.split(".") if part.isdigit()]
    if not parts:
        return f"unknown compute capability {compute_capability!r}"
    version = (parts[0], parts[1] if len(parts) > 1 else 0)
    fp32 = "fp32 on TF32 tensor cores unless TF32 is off" if version >= (8, 0) else "fp32"
    further = [name for name, least in (("bf16", (8, 0)), ("fp8", (8, 9)), ("fp4", (10, 0))) if version >= least]
    unused = f"; it also has {', '.join(further)}, which bitfront does not use" if further else ""
    return f"{fp32}, {capabilities.fp16_text(version)}, {capabilities.int8_text(version)}{unused}"


def _cuda_lines(packages: Mapping[str, str]) -> list[Check]:
    driver = cuda_device.driver_version()
    lines = [Check("cuda of the driver", True, driver)] if driver else []
    if driver is None:
        lines = [Check("cuda of the driver", False, "libcuda.so.1 does not load", _DRIVER_ADVICE)]
    bindings = packages.get("cuda-bindings")
    major = (driver or "12").split(".")[0]
    install = f"pip install 'cuda-bindings=={major}.*'"
    if bindings is None:
        return [*lines, Check("cuda-bindings", False, "not installed; backend tensorrt needs it", install)]
    if driver is not None and int(bindings.split(".")[0]) > int(major):
        found = f"{bindings} is for a newer driver than this, which knows CUDA {driver}"
        return [*lines, Check("cuda-bindings", False, found, f"{install}, or update the driver.")]
    return lines


def _tensorrt_line(packages: Mapping[str, str]) -> Check:
    """Whether TensorRT is installed, and for a CUDA that the driver knows."""
    driver = cuda_device.driver_version()
    major = int((driver or "12").split(".")[0])
    install = f"pip install 'tensorrt-cu{major}' 'cuda-bindings=={major}.*' nvidia-ml-py"
    found = [name for name in environment.TENSORRT_PACKAGES if name in packages]
    for name in found:
        cuda = re.search(r"-cu(\d+)", name)
        if driver is not None and cuda is not None and int(cuda[1]) > major:
            said = f"{name} {packages[name]} is for a newer driver than this, which knows CUDA {driver}"
            advice = f"pip uninstall {' '.join(found)}; {install}; or update the driver."
            return Check("tensorrt package", False, said, advice)
    if found:
        return Check("tensorrt package", True, f"{found[0]} {packages[found[0]]}")
    if importlib.util.find_spec("tensorrt") is not None:
        return Check("tensorrt package", True, "importable, of no Python package with a version")
    return Check("tensorrt package", False, "not installed", f"{install}; docs/tensorrt.md has the other versions.")


def _nvml_line() -> Check:
    """Whether clocks, throttling and other processes show while latency is measured."""
    state = GpuState(0)
    try:
        if state.note:
            return Check("nvml", False, state.note, "pip install nvidia-ml-py")
        found = ", ".join(f"{name} {value}" for name, value in state.read().items())
        return Check("nvml", True, found) if found else Check("nvml", False, "reads nothing", _NVML_ADVICE)
    finally:
        state.close()


def _docker_line(gpu: bool) -> Check:
    docker, toolkit = shutil.which("docker"), shutil.which("nvidia-ctk")
    if docker is None:
        return Check("docker", True, "not found; only needed for the images of docker/")
    missing = "; nvidia-container-toolkit, which --gpus needs, was not found" if gpu and toolkit is None else ""
    return Check("docker", True, f"{docker}{missing}")


# -- backends ----------------------------------------------------------------------------------------------------------


def _backend_line(name: str, device: str) -> Check:
    """Open a backend, but not while another process measures on that device: that would show in its numbers."""
    title = f"backend {name} on {device}"
    try:
        if device == "cpu":
            return _opened(title, name, device)
        with device_lock(cuda_device.lock_name(0), timeout_s=_LOCK_WAIT_S):
            return _opened(title, name, device)
    except DeviceBusyError:
        return Check(title, True, "another bitfront process is measuring on it, so it was not opened")
    except BitfrontError as error:
        return Check(title, False, "cannot run", str(error))
    except Exception as error:  # a broken package may raise anything, and the other lines must still be told
        return Check(title, False, "cannot run", f"{type(error).__name__}: {error}. Its installation may be broken.")


def _opened(title: str, name: str, device: str) -> Check:
    backend = open_backend(name, device, {})
    backend.check()
    target, capability = backend.target(), backend.capability()
    native = [p.label for p in capability.precisions]
    emulated = [p.label for p in Precision if p not in capability.precisions]
    offered = f"native precisions: {', '.join(native)}"
    if emulated:
        offered += f" ({', '.join(emulated)} not native here, so not offered)"
    versions = ", ".join(f"{key} {value}" for key, value in target.versions.items())
    return Check(title, True, f"{target.device}; {versions}; {offered}; options {_options(target.options)}")


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items())
