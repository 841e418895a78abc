"""The description of the backend OpenVINO."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evaluators.backends.kind import SOURCE_FILE, BackendKind, ExportedRun, Recipe
from search.values import EngineSummary, Target

if TYPE_CHECKING:
    from evaluators.engine import Backend, OpenEngine


class OpenVinoKind(BackendKind):
    """OpenVINO on the processor."""

    name = "openvino"
    engine_file = SOURCE_FILE
    export_files = MappingProxyType({f"{SOURCE_FILE}.data": "the weights that one ONNX file cannot hold"})
    module = "openvino"
    extra = "openvino"
    packages = ("openvino",)
    automatic = True
    rival = "onnxruntime"

    def open(self, device: str, options: Mapping[str, Any]) -> Backend:
        from evaluators.backends.openvino.backend import OpenVinoBackend
        from evaluators.backends.processor import check_threads

        backend = OpenVinoBackend(device, **options)
        check_threads(backend.device.threads)
        return backend

    def open_symmetric(self, device: str, options: Mapping[str, Any]) -> Backend:
        return self.open(device, {**options, "symmetric": True})

    def open_engine(self, backend: Backend, path: Path, batch: int | None) -> OpenEngine:
        from evaluators.backends.openvino.backend import OpenVinoBackend, open_engine_file

        assert isinstance(backend, OpenVinoBackend)
        return open_engine_file(backend.device, path, batch)

    def prepare(self) -> None:
        from evaluators.backends.openvino.device import import_openvino

        import_openvino()

    def recipe_files(self, recipe: Recipe) -> Mapping[str, str]:
        from evaluators.backends.openvino.export import script_text
        from evaluators.backends.run_script import RUN_SCRIPT

        return {RUN_SCRIPT: script_text(recipe)}

    def open_export(
        self, folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None
    ) -> ExportedRun:
        from evaluators.backends.openvino.export import open_export

        return open_export(folder, manifest, device, threads)

    def deployment_code(self, target: Target, inputs: Any, folder: str) -> str:
        from evaluators.backends.openvino.export import deployment_code

        return deployment_code(target, inputs, folder)

    def slow_reasons(self, target: Target, engine: EngineSummary | None) -> list[str]:
        from evaluators.backends import processor

        return processor.slow_reasons(target, engine)
