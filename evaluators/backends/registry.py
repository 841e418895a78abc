"""Backends by name."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluators.backends.nvidia import device as cuda_device
from evaluators.cores import usable_processors
from evaluators.engine import Backend
from search.errors import TargetError

NAMES = ("tensorrt", "onnxruntime")  # `auto` takes the first that is installed and has a device


def open_backend(name: str, device: str | None, options: Mapping[str, Any]) -> Backend:
    """Open a backend on a device.

    Args:
        name: one of `NAMES`, or `auto` for the first of them that is installed and has a device.
        device: in the backend's own spelling; None for its default.
        options: keyword arguments of the backend, say `threads`.

    Raises:
        TargetError: no such backend, it is not installed, there is no such device, or a processor has fewer threads.
    """
    chosen = resolve(name)
    if chosen == "onnxruntime":
        from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend

        backend = OnnxRuntimeBackend(device or "cpu", **options)
        if not backend.cuda:
            _check_threads(backend.threads)
        return backend
    from evaluators.backends.tensorrt.backend import TensorRTBackend

    return TensorRTBackend(device or "cuda", **options)


def prepare_backend(name: str, device: str | None) -> str:
    """Import what a backend on a GPU needs, which takes seconds and no GPU; names the device for `device_lock`.

    Raises:
        TargetError: its package is not installed or does not load.
    """
    if resolve(name) == "tensorrt":
        from evaluators.backends.tensorrt.api import import_tensorrt
        from evaluators.backends.tensorrt.device import import_cuda

        import_tensorrt()
        import_cuda()
    index = (device or "cuda").partition(":")[2]
    return cuda_device.lock_name(int(index) if index.isdigit() else 0)


def _check_threads(asked: int) -> None:
    """Refuse threads that would wait for each other: latencies of such a session are those of the waiting."""
    most = usable_processors()
    if asked > most:
        raise TargetError(
            f"--threads {asked}: expected at most {most}, the processor threads that this process may run on. "
            f"Give --threads {most}, or let it run on more."
        )


def resolve(name: str) -> str:
    """The backend that `auto` stands for here; any other name is checked and returned.

    Raises:
        TargetError: no such backend, or `auto` with none that is installed and has a device.
    """
    if name == "auto":
        installed = [known for known in NAMES if importlib.util.find_spec(known) is not None]
        usable = [known for known in installed if _has_device(known)]
        if not usable:
            found = "none is installed"
            if installed:
                found = (
                    "TensorRT is installed, but there is no NVIDIA GPU here (no nvidia-smi, no /dev/nvidiactl), and "
                    "ONNX Runtime is not installed"
                )
            raise TargetError(
                f"choosing a backend: {found}. Install ONNX Runtime with pip install 'bitfront[cpu]', or "
                "'bitfront[gpu]' for a machine with an NVIDIA GPU."
            )
        return usable[0]
    if name not in NAMES:
        raise TargetError(f"--backend {name}: there is no such backend; known are auto, {', '.join(NAMES)}.")
    return name


def _has_device(name: str) -> bool:
    """Whether the device of a backend is there at all; TensorRT imports on machines without a GPU too."""
    return name != "tensorrt" or Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None
