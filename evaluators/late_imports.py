"""Importing onnx_ir without SymPy until it is used, which saves 0.4 s at the start of processes that read models.

onnx_ir computes with symbolic dimensions by SymPy, which we never do, and imports it at its own start (since 0.2.0).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

LATE = ("sympy", "onnx_ir._symbolic_shapes")  # the latter takes functions of the former at its start


class _StandIn(ModuleType):
    """What onnx_ir has for a module of `LATE`: imports it when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Loader(Loader):
    """Loads onnx_ir with stand-ins, which nobody else gets to see: any other import is of the module itself."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        stand_ins = {name: _StandIn(name) for name in LATE if name not in sys.modules}
        sys.modules.update(stand_ins)
        try:
            self._loader.exec_module(module)
        finally:
            for name, stand_in in stand_ins.items():
                if sys.modules.get(name) is stand_in:
                    del sys.modules[name]


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "onnx_ir" else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def import_late() -> None:
    """Have onnx_ir, which is not imported yet, import SymPy when it uses it, in this process.

    For the start of processes of our own: while onnx_ir is imported, no other thread may import SymPy.
    """
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
