"""Importing NVML's Python module, which happens only here (https://docs.nvidia.com/deploy/nvml-api/)."""

from __future__ import annotations

from typing import Any


def import_nvml() -> Any:
    """The pynvml module; raises ImportError where nvidia-ml-py is not installed."""
    import pynvml

    return pynvml
