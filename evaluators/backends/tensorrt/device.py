"""CUDA calls for TensorRT: the GPU of this process, and whether it is the reason that TensorRT failed."""

from __future__ import annotations

import re
from typing import Any

from evaluators.backends.nvidia import discovery
from evaluators.backends.tensorrt import api
from evaluators.engine import DeviceError, OutOfMemoryError, RefusedError
from search.errors import BitfrontError, TargetError

_LEAST_FREE_BYTES = 64 * 2**20  # with less than that no builder gets far
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation
_INSUFFICIENT_DRIVER, _NO_DEVICE = 35, 100  # of cudaError_t


def cudart() -> Any:
    """The CUDA runtime bindings."""
    from cuda.bindings import runtime

    return runtime


def check_cuda(result: tuple[Any, ...]) -> Any:
    """The values of a CUDA call; raises OutOfMemoryError, or DeviceError since CUDA errors may be sticky."""
    error, *values = result
    if int(error) == 0:
        return values[0] if len(values) == 1 else tuple(values)
    _, name = cudart().cudaGetErrorString(error)
    message = f"CUDA error {int(error)}: {name.decode() if isinstance(name, bytes) else name}"
    raise OutOfMemoryError(message) if int(error) == OUT_OF_MEMORY else DeviceError(message)


def import_cuda() -> Any:
    """The CUDA runtime bindings; raises TargetError where they are not installed or do not load."""
    try:
        return cudart()
    except Exception as error:
        how = "is not installed" if isinstance(error, ImportError) else f"does not load ({type(error).__name__})"
        raise TargetError(
            f"starting backend tensorrt: cuda-bindings {how}: {error}. Install the one for the driver's CUDA, say "
            "pip install 'cuda-bindings==12.*'; `bitfront doctor` names it."
        ) from error


def select(cuda: Any, index: int) -> Any:
    """Make a GPU the current one of this process; its properties.

    Raises:
        TargetError: there is no such GPU, or no driver that works.
        DeviceError, OutOfMemoryError: it is there and cannot be used now.
    """
    error, count = cuda.cudaGetDeviceCount()
    if int(error) != 0:
        raise TargetError(f"--device cuda:{index}: {_why_none(cuda, error)}")
    if index >= count:
        raise TargetError(
            f"--device cuda:{index}: this process sees {count} GPU{'s' if count != 1 else ''}, counted from cuda:0"
            f"{_hidden()}."
        )
    try:
        check_cuda(cuda.cudaSetDevice(index))
        return check_cuda(cuda.cudaGetDeviceProperties(index))
    except (DeviceError, OutOfMemoryError) as error:
        raise type(error)(
            f"opening cuda:{index}: {error}. Check with nvidia-smi whether another process uses all its memory or "
            "has exclusive use of the GPU."
        ) from error


def make_current(cuda: Any, index: int) -> None:
    """Make a GPU the current one of this thread, if it is not: each thread has one of its own, at first number 0.

    Raises:
        DeviceError, OutOfMemoryError: it cannot be used now.
    """
    if check_cuda(cuda.cudaGetDevice()) != index:
        check_cuda(cuda.cudaSetDevice(index))


def _why_none(cuda: Any, error: Any) -> str:
    code = int(error)
    if code == _NO_DEVICE:
        return (
            f"no CUDA device is visible (CUDA error {code}{_hidden()}): check CUDA_VISIBLE_DEVICES and what "
            "nvidia-smi lists. A container needs --gpus all."
        )
    if code == _INSUFFICIENT_DRIVER:
        known = discovery.driver_version()
        reason = f"the driver, which supports CUDA {known}, is too old for this CUDA" if known else "there is no driver"
        return (
            f"{reason} (CUDA error {code}): install a newer NVIDIA driver, or the cuda-bindings and TensorRT for the "
            "CUDA that the driver supports (see docs/tensorrt.md)."
        )
    _, name = cuda.cudaGetErrorString(error)
    return (
        f"the driver does not work (CUDA error {code}: {name.decode() if isinstance(name, bytes) else name}). Check "
        "whether nvidia-smi runs. If it does not, restart the machine or the container."
    )


def _hidden() -> str:
    visible = discovery.visible_text()
    return f", with {visible}" if visible else ""


def check_device(cuda: Any) -> None:
    """See whether the device itself is why TensorRT gave up.

    Raises:
        DeviceError: it is out of order.
        OutOfMemoryError: it is full, which version 8.6 may report as nothing but `1: `.
    """
    check_cuda(cuda.cudaDeviceSynchronize())
    free, total = check_cuda(cuda.cudaMemGetInfo())
    if free < _LEAST_FREE_BYTES:
        raise OutOfMemoryError(f"TensorRT failed with {free >> 20} MiB of the GPU's {total >> 20} MiB left")


def no_context(errors: list[str]) -> BitfrontError:
    """What it means that TensorRT made no execution context.

    Args:
        errors: what it logged of that.

    Raises:
        DeviceError, OutOfMemoryError: the device says so itself.
    """
    check_device(cudart())
    meant: type[BitfrontError] = type(api.refusal(errors, ()))
    if meant is RefusedError and re.search(r"memory|alloc", "\n".join(errors), re.IGNORECASE):
        meant = OutOfMemoryError
    return meant(f"TensorRT could not create an execution context: {api.first_error(errors)}")
