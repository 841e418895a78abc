"""The description of the backend TensorRT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from evaluators.backends.kind import SOURCE_FILE, TIMING_FILE, BackendKind, Check, ExportedRun, Machine, Recipe, rows_of
from evaluators.backends.nvidia import discovery
from evaluators.backends.tensorrt.options import NAME, PACKAGES, TensorRTOptions
from search.errors import ConfigError, TargetError
from search.values import Target

if TYPE_CHECKING:
    from evaluators.engine import Backend, OpenEngine


class TensorRTKind(BackendKind):
    """TensorRT on an NVIDIA GPU, from 8.6 on."""

    name = NAME
    engine_file = "model.plan"
    engine_suffixes = (".plan", ".engine", ".trt")
    export_files = MappingProxyType(
        {
            engine_file: "the engine: a TensorRT plan, for the same TensorRT on the same kind of GPU",
            SOURCE_FILE: "the ONNX file that the plan was built from",
            TIMING_FILE: "timings that make further builds with TensorRT faster",
            "trtexec.txt": "the command of trtexec that builds the engine again",
        }
    )
    default_device = "cuda"
    module = "tensorrt"
    extra = "tensorrt"
    packages = ("cuda-bindings", "nvidia-ml-py", *PACKAGES)
    options = rows_of(TensorRTOptions)
    triton_platform = "tensorrt_plan"
    automatic = True
    # On an H200 with 8.6, first builds and mixes in s: a SiLU network 25 to 76 and 6 to 9, ResNet-18 10 to 40 and 2.4.
    later_builds = 0.25

    def open(self, device: str, options: Mapping[str, Any]) -> Backend:
        from evaluators.backends.tensorrt.backend import TensorRTBackend

        try:
            settled = TensorRTOptions(**{**options, "plugins": tuple(options.get("plugins", ()))})
        except TypeError as error:
            raise ConfigError(
                f"opening backend tensorrt: {error}. `bitfront search --help-all` lists its options."
            ) from error
        return TensorRTBackend(device, settled)

    def open_engine(self, backend: Backend, path: Path, batch: int | None) -> OpenEngine:
        from evaluators.backends.tensorrt.backend import TensorRTBackend
        from evaluators.backends.tensorrt.session import open_plan
        from evaluators.engine import OpenEngine

        if path.suffix == ".onnx":
            raise TargetError(
                f"opening {path}: backend tensorrt runs plans, but this is an ONNX file. Export the study that it "
                "belongs to, or build a plan of it with trtexec."
            )
        assert isinstance(backend, TensorRTBackend)
        session = open_plan(path, f"cuda:{backend.index}", backend.builder_knobs.plugins)
        return OpenEngine(session, session.inputs)

    def open_export(
        self, folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None
    ) -> ExportedRun:
        from evaluators.backends.tensorrt.export import open_export

        return open_export(folder / self.engine_file, device or self.default_device, manifest.get("plugins", ()))

    def deployment_code(self, target: Target, inputs: Any, folder: str) -> str:
        from evaluators.backends.tensorrt.export import DEPLOYMENT

        return DEPLOYMENT.format(engine=f"{folder}/{self.engine_file}")

    def prepare(self) -> None:
        from evaluators.backends.tensorrt.api import import_tensorrt
        from evaluators.backends.tensorrt.device import import_cuda

        import_tensorrt()
        import_cuda()

    def explain_missing(self) -> str:
        """TensorRT imports on machines without a GPU too."""
        why = super().explain_missing()
        return why or (f"installed, but {no_gpu}" if (no_gpu := discovery.why_no_gpu()) else "")

    def gpu_of(self, device: str) -> int | None:
        return discovery.cuda_index(device)

    def checks(self, machine: Machine) -> Sequence[Check]:
        from evaluators.backends.tensorrt.doctor import package_checks

        return package_checks(machine) if machine.gpus else ()

    def recipe_files(self, recipe: Recipe) -> Mapping[str, str]:
        from evaluators.backends.run_script import RUN_SCRIPT, run_script
        from evaluators.backends.tensorrt.export import TRTEXEC_FILE, trtexec_text

        settings = {"ENGINE": self.engine_file, "PLUGINS": list(recipe.options.get("plugins", ()))}
        needs = f"tensorrt {recipe.versions['tensorrt']}, cuda-bindings and numpy"
        script = run_script("tensorrt_engine.py", needs, settings, recipe.inputs, recipe.profiles)
        return {RUN_SCRIPT: script, TRTEXEC_FILE: trtexec_text(recipe)}
