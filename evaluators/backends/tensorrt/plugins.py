"""Plugins: TensorRT's own, and libraries of the user's, each loaded once per process."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from search.errors import ConfigError

# What TensorRT's registry calls in a library that it loads: from version 10 on, and before.
_ENTRY_POINTS = ("getCreators", "getPluginCreators")
# The registry belongs to the process, and refuses a library whose plugins it has. Nothing here is ever unloaded: the
# registry would keep pointers into what is gone.
_opened: dict[Path, ctypes.CDLL] = {}


def load_plugins(trt: Any, log: Any, libraries: Sequence[str]) -> None:
    """TensorRT's own plugins, and those libraries that this process has not loaded yet.

    Args:
        log: has to live as long as the process, since TensorRT's library of plugins keeps its address.

    Raises:
        ConfigError: a library cannot be loaded.
    """
    trt.init_libnvinfer_plugins(log, "")
    for library in libraries:
        path = Path(library).resolve()
        if path not in _opened:
            _opened[path] = _loaded(trt, log, library, path)


def _loaded(trt: Any, log: Any, library: str, path: Path) -> ctypes.CDLL:
    """Open a library, and have the registry ask it for its plugins unless it registered some by being opened."""
    registry = trt.get_plugin_registry()
    before, logged = _creator_count(registry), len(log.errors)
    try:
        opened = ctypes.CDLL(str(path))
        if _creator_count(registry) > before or not any(hasattr(opened, name) for name in _ENTRY_POINTS):
            return opened
        handle = registry.load_library(str(path))
    except Exception as error:
        raise ConfigError(f"--plugin {library}: TensorRT cannot load it: {error}. Check its path and build.") from error
    if handle is None:
        said = next(iter(log.errors[logged:]), "TensorRT gives no reason")
        raise ConfigError(
            f"--plugin {library}: TensorRT cannot load it: {said}. Its plugins may be registered already, say by "
            "another library, or it may be built for another version."
        )
    return opened


def _creator_count(registry: Any) -> int:
    every = "all_creators" if hasattr(registry, "all_creators") else "plugin_creator_list"  # before version 10
    return len(getattr(registry, every))
