"""A record of the environment of a study: versions, CPU, memory and GPUs, without names of hosts and users."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from evaluators.backends.nvidia.discovery import list_gpus
from evaluators.backends.registry import shipped_kinds
from evaluators.cores import usable_processors
from search.values import flatten

PACKAGES = ("bitfront", "numpy", "onnx", "onnx-ir", "onnxscript", "optuna", "sqlalchemy", "torch")  # of all backends
_TOLD = ("python", "packages", "gpus")  # whose change is worth a warning
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni", "amx_int8", "asimddp", "i8mm")


def collect() -> dict[str, Any]:
    """Describe this machine and installation, JSON-serialisable. What cannot be found out is left empty."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),  # unlike platform.uname() it has no host name
        "cpu": _cpu(),
        "memory_bytes": psutil.virtual_memory().total,
        "packages": _packages(),
        "gpus": list_gpus(),
        "container": _container(),
    }


def changed_text(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between the environment of a study and this one, in a sentence; empty if nothing does.

    Memory, cores and flags of the processor are left out: they differ between equal installations.
    """
    mine, theirs = (flatten({key: environment.get(key) for key in _TOLD}) for environment in (now, before))
    keys = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
    if not keys or not before:
        return ""
    differences = "; ".join(f"{key.removeprefix('packages.')} {theirs.get(key)}, now {mine.get(key)}" for key in keys)
    return (
        f"exported in another environment than the study was made in, so its figures may not hold here: {differences}"
    )


def _cpu() -> dict[str, Any]:
    info = _read("/proc/cpuinfo")
    flags = set(_read_field(info, "flags", "Features").split())
    return {
        "model": _read_field(info, "model name") or platform.processor() or platform.machine(),
        "architecture": platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "cores": psutil.cpu_count(logical=False),
        "threads": psutil.cpu_count(),
        "usable_threads": usable_processors(),
    }


def _read_field(info: str, *names: str) -> str:
    """The first value of one of these keys in the text of /proc/cpuinfo."""
    for line in info.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""


def _packages() -> dict[str, str]:
    named: tuple[str, ...] = (*PACKAGES, *(package for kind in shipped_kinds() for package in kind.packages))
    return {package: version for package in dict.fromkeys(named) if (version := _version(package))}


def _version(package: str) -> str:
    """From the installation's metadata: importing an inference runtime would open the device."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


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
