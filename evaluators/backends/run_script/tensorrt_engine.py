"""The class `Engine` of `run.py` for TensorRT. The lines above the mark are not part of the script."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

ENGINE = ""
PLUGINS: list[str] = []

# -- part of run.py --


def check_cuda(result: Any) -> Any:
    """What a CUDA call makes; ends the script where it fails."""
    error, *values = result
    if int(error):
        raise SystemExit(f"run.py: CUDA error {int(error)} ({error!r}).")
    return values[0] if values else None


def load_plugins(registry: Any, library: str) -> None:
    """Open a library of plugins; those that do not register themselves are asked for them."""
    every = "all_creators" if hasattr(registry, "all_creators") else "plugin_creator_list"
    before = len(getattr(registry, every))
    opened = ctypes.CDLL(library)
    entries = ("getCreators", "getPluginCreators")
    if len(getattr(registry, every)) == before and any(hasattr(opened, name) for name in entries):
        registry.load_library(library)


class Engine:
    """A TensorRT plan in one execution context, launched through a CUDA graph as it was when it was measured."""

    clock = ""  # the GPU's own

    def __init__(self, path: Path, gpu: int = 0) -> None:
        import tensorrt
        from cuda.bindings import runtime

        self.tensorrt, self.cuda = tensorrt, runtime
        check_cuda(runtime.cudaSetDevice(gpu))
        logger = tensorrt.Logger(tensorrt.Logger.WARNING)
        tensorrt.init_libnvinfer_plugins(logger, "")
        for library in PLUGINS:
            load_plugins(tensorrt.get_plugin_registry(), library)
        self.runtime = tensorrt.Runtime(logger)
        self.engine = self.runtime.deserialize_cuda_engine(path.read_bytes())
        if self.engine is None:
            raise SystemExit(f"run.py: TensorRT {tensorrt.__version__} cannot load {path.name}; see its message above.")
        self.context = self.engine.create_execution_context()
        self.stream = check_cuda(runtime.cudaStreamCreate())
        names = [self.engine.get_tensor_name(number) for number in range(self.engine.num_io_tensors)]
        self.inputs = [n for n in names if self.engine.get_tensor_mode(n) == tensorrt.TensorIOMode.INPUT]
        self.outputs = [n for n in names if n not in self.inputs]
        self.pointers: dict[str, int] = {}

    @property
    def description(self) -> str:
        return f"TensorRT {self.tensorrt.__version__}, on the GPU"

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Arrays of one batch by name → the outputs by name."""
        self._upload(inputs)
        self._launch()
        check_cuda(self.cuda.cudaStreamSynchronize(self.stream))
        return {name: self._download(name) for name in self.outputs}

    def time(self, inputs: dict[str, Any], count: int) -> Any:
        """Milliseconds on the GPU of each of `count` inferences, without the copies of inputs and outputs."""
        self._upload(inputs)
        self._launch()  # the first launch may allocate, which a graph cannot hold
        check_cuda(self.cuda.cudaStreamSynchronize(self.stream))
        graph = self._capture()
        start, end = check_cuda(self.cuda.cudaEventCreate()), check_cuda(self.cuda.cudaEventCreate())
        samples = []
        for _ in range(count):
            check_cuda(self.cuda.cudaEventRecord(start, self.stream))
            if graph is None:
                self._launch()
            else:
                check_cuda(self.cuda.cudaGraphLaunch(graph, self.stream))
            check_cuda(self.cuda.cudaEventRecord(end, self.stream))
            check_cuda(self.cuda.cudaEventSynchronize(end))
            samples.append(float(check_cuda(self.cuda.cudaEventElapsedTime(start, end))))
        return np.array(samples)

    def _upload(self, inputs: dict[str, Any]) -> None:
        for pointer in self.pointers.values():
            check_cuda(self.cuda.cudaFree(pointer))
        self.pointers = {}
        for name in self.inputs:
            self.context.set_input_shape(name, inputs[name].shape)
        for name in (*self.inputs, *self.outputs):
            size = int(np.prod(tuple(self.context.get_tensor_shape(name)))) * self._dtype(name).itemsize
            self.pointers[name] = int(check_cuda(self.cuda.cudaMalloc(max(1, size))))
            self.context.set_tensor_address(name, self.pointers[name])
        for name in self.inputs:
            array = np.ascontiguousarray(inputs[name], self._dtype(name))
            if array.dtype.kind in "iu" and not np.array_equal(array, inputs[name]):
                raise SystemExit(f"run.py: input {name} is {array.dtype}, and the data hold numbers beyond it.")
            self._copy(self.pointers[name], array.ctypes.data, array.nbytes, "cudaMemcpyHostToDevice")

    def _download(self, name: str) -> Any:
        array = np.empty(tuple(self.context.get_tensor_shape(name)), self._dtype(name))
        self._copy(array.ctypes.data, self.pointers[name], array.nbytes, "cudaMemcpyDeviceToHost")
        return array

    def _copy(self, to: int, source: int, size: int, kind: str) -> None:
        check_cuda(self.cuda.cudaMemcpy(to, source, size, getattr(self.cuda.cudaMemcpyKind, kind)))

    def _dtype(self, name: str) -> Any:
        return np.dtype(self.tensorrt.nptype(self.engine.get_tensor_dtype(name)))

    def _launch(self) -> None:
        if not self.context.execute_async_v3(int(self.stream)):
            raise SystemExit("run.py: TensorRT could not launch the engine; see its message above.")

    def _capture(self) -> Any:
        """The launch as a CUDA graph; None where it cannot be captured."""
        mode = self.cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        check_cuda(self.cuda.cudaStreamBeginCapture(self.stream, mode))
        launched = self.context.execute_async_v3(int(self.stream))
        error, graph = self.cuda.cudaStreamEndCapture(self.stream)
        if launched and int(error) == 0:
            error, *made = self.cuda.cudaGraphInstantiate(graph, 0)
            if int(error) == 0:
                return made[0]
        print("the launch cannot be captured in a CUDA graph, so the latency holds its overhead")
        return None
