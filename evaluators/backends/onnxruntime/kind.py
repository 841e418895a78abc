"""The description of the backend ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from evaluators.backends.kind import SOURCE_FILE, BackendKind, Check, ExportedRun, Machine, Recipe
from evaluators.backends.nvidia import discovery
from evaluators.backends.onnxruntime.device import NAME, SESSION_ENTRIES
from search.installation import install_command
from search.values import EngineSummary, Target

if TYPE_CHECKING:
    from evaluators.engine import Backend, OpenEngine


class OnnxRuntimeKind(BackendKind):
    """ONNX Runtime on the processor, or with its CUDA provider.

    Attributes:
        session_entries: of a session's configuration. A subclass with a name of its own is another backend, which may
            have others.
    """

    name = NAME
    engine_file = SOURCE_FILE
    engine_suffixes = (".onnx",)
    export_files = MappingProxyType({f"{SOURCE_FILE}.data": "the weights that one ONNX file cannot hold"})
    module = "onnxruntime"
    extra = "cpu"
    packages = ("onnxruntime", "onnxruntime-gpu")
    triton_platform = "onnxruntime_onnx"
    automatic = True
    rival = "openvino"
    # The picks of `benchmarks/results/weight_blocks.md`, of five networks each; of the others 1.1 to 1.8 times.
    rival_merit = "took 0.33 to 0.84 of its time for four of five networks with AMX, 0.63 to 0.83 for three on a Zen 4"
    session_entries: ClassVar[Mapping[str, str]] = SESSION_ENTRIES

    def open(self, device: str, options: Mapping[str, Any]) -> Backend:
        from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
        from evaluators.backends.processor import check_threads

        backend = OnnxRuntimeBackend(device, **options, name=self.name, entries=self.session_entries)
        if not backend.cuda:
            check_threads(backend.device.threads)
        return backend

    def open_symmetric(self, device: str, options: Mapping[str, Any]) -> Backend:
        return self.open(device, {**options, "symmetric": True})

    def open_engine(self, backend: Backend, path: Path, batch: int | None) -> OpenEngine:
        from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend, open_engine_file

        assert isinstance(backend, OnnxRuntimeBackend)
        return open_engine_file(backend.device, path, batch)

    def gpu_of(self, device: str) -> int | None:
        return discovery.cuda_index(device)

    def devices(self, machine: Machine) -> tuple[str, ...]:
        return ("cpu", "cuda") if machine.gpus else ("cpu",)

    def recipe_files(self, recipe: Recipe) -> Mapping[str, str]:
        from evaluators.backends.onnxruntime.export import script_text
        from evaluators.backends.run_script import RUN_SCRIPT

        return {RUN_SCRIPT: script_text(recipe, self.gpu_of(recipe.device), self.session_entries)}

    def open_export(
        self, folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None
    ) -> ExportedRun:
        from evaluators.backends.onnxruntime.export import open_export

        return open_export(folder, manifest, device, threads, self.session_entries)

    def deployment_code(self, target: Target, inputs: Any, folder: str) -> str:
        from evaluators.backends.onnxruntime.export import deployment_code

        return deployment_code(target, inputs, folder, self.session_entries)

    def slow_reasons(self, target: Target, engine: EngineSummary | None) -> list[str]:
        from evaluators.backends import processor

        return processor.slow_reasons(target, engine)

    def checks(self, machine: Machine) -> Sequence[Check]:
        """Check that exactly one of its packages is installed."""
        distributions = [name for name in self.packages if name in machine.packages]
        if len(distributions) > 1:
            advice = f"They install the same module: pip uninstall {' '.join(distributions)}, then install one of them."
            return [Check("onnxruntime", False, "installed twice", advice)]
        if distributions:
            return []
        return [Check("onnxruntime", False, "not installed", f"{install_command('cpu')}; it also calibrates.")]
