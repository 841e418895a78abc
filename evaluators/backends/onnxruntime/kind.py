"""The description of the backend ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators.backends.kind import SOURCE_FILE, BackendKind, Check, Machine, Recipe
from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime.device import NAME
from search.errors import TargetError

if TYPE_CHECKING:
    from evaluators.engine import Backend, OpenEngine


class OnnxRuntimeKind(BackendKind):
    """ONNX Runtime on the processor, or with its CUDA provider."""

    name = NAME
    engine_file = SOURCE_FILE
    module = "onnxruntime"
    extra = "cpu"
    packages = ("onnxruntime", "onnxruntime-gpu")
    triton_platform = "onnxruntime_onnx"
    automatic = True

    def open(self, device: str, options: Mapping[str, Any]) -> Backend:
        from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend

        backend = OnnxRuntimeBackend(device, **options)
        if not backend.cuda:
            _check_threads(backend.device.threads)
        return backend

    def open_symmetric(self, device: str, options: Mapping[str, Any]) -> Backend:
        return self.open(device, {**options, "symmetric": True})

    def open_engine(self, backend: Backend, path: Path, batch: int | None) -> OpenEngine:
        from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
        from evaluators.backends.onnxruntime.engine_file import open_engine_file

        assert isinstance(backend, OnnxRuntimeBackend)
        return open_engine_file(backend.device, path, batch)

    def gpu_of(self, device: str) -> int | None:
        return discovery.cuda_index(device)

    def devices(self, machine: Machine) -> tuple[str, ...]:
        return ("cpu", "cuda") if machine.gpus else ("cpu",)

    def copy_engine(self, engine: Path, out: Path) -> None:
        """Weights that one ONNX file cannot hold go to `NAME.data` beside it."""
        from search.graph.packed_file import copy_as_onnx

        copy_as_onnx(engine, out)

    def recipe_files(self, recipe: Recipe) -> Mapping[str, str]:
        from evaluators.backends.onnxruntime.device import (
            SESSION_ENTRIES,
            clock_of,
            provider_settings,
            session_settings,
        )
        from evaluators.backends.run_script import RUN_SCRIPT, run_script

        threads = int(recipe.options.get("threads", 1))
        on_gpu = self.gpu_of(recipe.device) is not None
        settings = {
            "ENGINE": self.engine_file,
            "PROVIDERS": provider_settings(0 if on_gpu else None),  # its GPU has another number elsewhere
            "SESSION_OPTIONS": session_settings(threads),
            "SESSION_ENTRIES": SESSION_ENTRIES,
            "CLOCK": clock_of(self.gpu_of(recipe.device), threads),
        }
        needs = "onnxruntime-gpu and numpy" if on_gpu else "onnxruntime and numpy"
        return {RUN_SCRIPT: run_script("onnxruntime_engine.py", needs, settings, recipe.inputs, recipe.profiles)}

    def checks(self, machine: Machine) -> Sequence[Check]:
        from evaluators.backends.onnxruntime.doctor import package_checks

        return package_checks(machine, self.packages)


def _check_threads(asked: int) -> None:
    """Refuse threads that would wait for each other: latencies of such a session are those of the waiting."""
    from evaluators.cores import usable_processors

    most = usable_processors()
    if asked > most:
        raise TargetError(
            f"--threads {asked}: expected at most {most}, the processor threads that this process may run on. "
            f"Give --threads {most}, or let the process use more cores."
        )
