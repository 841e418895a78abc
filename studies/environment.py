"""What a study ran on, for reading later: versions, processor, memory, GPUs. No host names and no user names."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from evaluators.cores import usable_processors

# `tensorrt` fetches the one for the newest CUDA; those with a CUDA in their names are installed by themselves, too.
TENSORRT_PACKAGES = (
    *("tensorrt", "tensorrt-bindings"),
    *("tensorrt-cu12", "tensorrt-cu12-bindings", "tensorrt-cu13", "tensorrt-cu13-bindings"),
)
PACKAGES = (
    *("bitfront", "numpy", "onnx", "onnx-ir", "onnxscript", "optuna", "sqlalchemy", "torch"),
    *("onnxruntime", "onnxruntime-gpu", "cuda-bindings", "nvidia-ml-py"),
    *TENSORRT_PACKAGES,
)
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_int8", "asimddp", "i8mm")
GPU_FIELDS = ("name", "driver_version", "memory.total", "compute_cap")
SMI_TIMEOUT_S = 10  # without its persistence daemon a host with many GPUs takes seconds


def collect() -> dict[str, Any]:
    """Describe this machine and installation, JSON-serialisable. What cannot be found out is left empty."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),  # unlike platform.uname() it has no host name
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "packages": _packages(),
        "gpus": _gpus(),
        "container": _container(),
    }


def _cpu() -> dict[str, Any]:
    info = _read("/proc/cpuinfo")
    flags = set(_field(info, "flags", "Features").split())
    return {
        "model": _field(info, "model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": usable_processors(),
    }


def _field(info: str, *names: str) -> str:
    """The first value of one of these keys in the text of /proc/cpuinfo."""
    for line in info.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""


def _packages() -> dict[str, str]:
    return {package: version for package in PACKAGES if (version := _version(package))}


def _version(package: str) -> str:
    """From the installation's metadata: importing an inference runtime would open the device."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _gpus() -> list[dict[str, str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [dict(zip(GPU_FIELDS, row, strict=True)) for row in rows if len(row) == len(GPU_FIELDS)]


def _container() -> str:
    """The kind of container this runs in, empty when none shows."""
    if Path("/run/.containerenv").exists():
        return "podman"
    if Path("/.dockerenv").exists():
        return "docker"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    return "container" if "container" in os.environ else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
