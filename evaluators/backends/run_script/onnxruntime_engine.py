"""The class `Engine` of `run.py` for ONNX Runtime. The lines above the mark are not part of the script."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

ENGINE = ""
PROVIDERS: list[tuple[str, dict[str, Any]]] = []
SESSION_OPTIONS: dict[str, Any] = {}
SESSION_ENTRIES: dict[str, str] = {}
CLOCK = ""

# -- part of run.py --


class Engine:
    """An ONNX Runtime session with the options that the latency was measured with."""

    def __init__(self, path: Path, gpu: int = 0) -> None:
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # it would tell Microsoft what it runs
        import onnxruntime

        self.runtime = onnxruntime
        self.gpu = gpu
        self.on_gpu = PROVIDERS[0][0] == "CUDAExecutionProvider"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = SESSION_OPTIONS["intra_op_num_threads"]
        options.inter_op_num_threads = SESSION_OPTIONS["inter_op_num_threads"]
        options.execution_mode = getattr(onnxruntime.ExecutionMode, SESSION_OPTIONS["execution_mode"])
        level = SESSION_OPTIONS["graph_optimization_level"]
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        for key, value in SESSION_ENTRIES.items():
            options.add_session_config_entry(key, value)
        providers = [
            (name, {**provider_options, "device_id": gpu} if "device_id" in provider_options else provider_options)
            for name, provider_options in PROVIDERS
        ]
        cannot = f"run.py: ONNX Runtime cannot use {PROVIDERS[0][0]} here, with which it was measured."
        if PROVIDERS[0][0] not in onnxruntime.get_available_providers():
            raise SystemExit(cannot)
        self.session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        if PROVIDERS[0][0] not in self.session.get_providers():
            raise SystemExit(cannot)

    @property
    def description(self) -> str:
        threads = SESSION_OPTIONS["intra_op_num_threads"]
        where = "on the GPU" if self.on_gpu else f"{threads} thread{'s' if threads != 1 else ''}"
        return f"ONNX Runtime {self.runtime.__version__}, {where}"

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Arrays of one batch by name → the outputs by name."""
        names = [output.name for output in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, inputs), strict=True))

    @property
    def clock(self) -> str:
        """What `time` tells: with one thread its processor time, which other programs do not stretch."""
        return "processor time" if CLOCK == "thread" else ""

    def time(self, inputs: dict[str, Any], count: int) -> Any:
        """Milliseconds of each of `count` inferences; on a GPU with inputs and outputs that stay there."""
        now = time.thread_time if CLOCK == "thread" else time.perf_counter
        binding = self._bind(inputs) if self.on_gpu else None
        samples = []
        for _ in range(count):
            start = now()
            if binding is None:
                self.session.run(None, inputs)
            else:
                self.session.run_with_iobinding(binding)
                binding.synchronize_outputs()
            samples.append(1000 * (now() - start))
        return np.array(samples)

    def _bind(self, inputs: dict[str, Any]) -> Any:
        binding = self.session.io_binding()
        for name, array in inputs.items():
            value = self.runtime.OrtValue.ortvalue_from_numpy(array, "cuda", self.gpu)
            binding.bind_ortvalue_input(name, value)
        for output in self.session.get_outputs():
            binding.bind_output(output.name, "cuda", self.gpu)
        return binding
