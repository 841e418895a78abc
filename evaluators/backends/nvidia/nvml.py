"""NVML's Python module, imported here alone (https://docs.nvidia.com/deploy/nvml-api/)."""

from __future__ import annotations

from typing import Any


def import_nvml() -> Any:
    """The pynvml module; raises ImportError where nvidia-ml-py is not installed."""
    import pynvml

    return pynvml
