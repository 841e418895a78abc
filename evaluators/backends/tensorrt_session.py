"""A loaded TensorRT engine: buffers once, launches through a CUDA graph, times by CUDA events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.base import Arrays, DeviceError, OutOfMemoryError
from search.values import LayerTime


def cudart() -> Any:
    """The CUDA runtime bindings."""
    from cuda.bindings import runtime

    return runtime


def checked(result: tuple[Any, ...]) -> Any:
    """The values of a CUDA call; raises OutOfMemoryError, or DeviceError since CUDA errors may be sticky."""
    error, *values = result
    if int(error) == 0:
        return values[0] if len(values) == 1 else tuple(values)
    _, name = cudart().cudaGetErrorString(error)
    message = f"CUDA error {int(error)}: {name.decode() if isinstance(name, bytes) else name}"
    raise OutOfMemoryError(message) if int(error) == 2 else DeviceError(message)


class TensorRTSession:
    """One engine in one execution context on one stream.

    Args:
        trt: the tensorrt module.
        engine: a deserialized engine.
        shapes: input name → shape to run at.
        plan_bytes: size of its plan, the larger part of which is weights.

    `notes` says so where launches could not be captured in a graph.
    """

    def __init__(self, trt: Any, engine: Any, shapes: Mapping[str, tuple[int, ...]], plan_bytes: int) -> None:
        self._engine = engine
        self._cuda = cudart()
        self._context = engine.create_execution_context()
        if self._context is None:
            raise OutOfMemoryError("TensorRT could not create an execution context: too little device memory")
        self.memory_bytes: int | None = int(engine.device_memory_size) + plan_bytes
        self.notes: tuple[str, ...] = ()
        self._stream = checked(self._cuda.cudaStreamCreate())
        self._events = [checked(self._cuda.cudaEventCreate()) for _ in range(2)]
        self._device: dict[str, int] = {}
        self._host: dict[str, NDArray[Any]] = {}
        self._graph: Any = None
        self._inputs, self._outputs = self._names(trt)
        self._allocate(trt, shapes)

    def _names(self, trt: Any) -> tuple[list[str], list[str]]:
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        inputs = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.INPUT]
        return inputs, [n for n in names if n not in inputs]

    def _allocate(self, trt: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name in self._inputs:
            self._context.set_input_shape(name, tuple(shapes[name]))
        for name in (*self._inputs, *self._outputs):
            shape = tuple(self._context.get_tensor_shape(name))
            self._host[name] = np.zeros(shape, trt.nptype(self._engine.get_tensor_dtype(name)))
            self._device[name] = checked(self._cuda.cudaMalloc(max(1, self._host[name].nbytes)))
            self._context.set_tensor_address(name, int(self._device[name]))

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        self._upload(inputs)
        self._launch()
        for name in self._outputs:
            self._copy(self._host[name].ctypes.data, self._device[name], self._host[name].nbytes, to_host=True)
        checked(self._cuda.cudaStreamSynchronize(self._stream))
        return {name: self._host[name].copy() for name in self._outputs}

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._upload(inputs)
        self._launch()
        checked(self._cuda.cudaStreamSynchronize(self._stream))

    def time(self, count: int) -> NDArray[np.float64]:
        samples = np.empty(count)
        for i in range(count):
            checked(self._cuda.cudaEventRecord(self._events[0], self._stream))
            self._launch()
            checked(self._cuda.cudaEventRecord(self._events[1], self._stream))
            checked(self._cuda.cudaEventSynchronize(self._events[1]))
            samples[i] = checked(self._cuda.cudaEventElapsedTime(*self._events))
        return samples

    def profile(self, count: int, groups: Mapping[str, str]) -> tuple[LayerTime, ...]:
        raise NotImplementedError

    def around(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        if self._graph is not None:
            self._cuda.cudaGraphExecDestroy(self._graph)
        for pointer in self._device.values():
            self._cuda.cudaFree(pointer)
        for event in self._events:
            self._cuda.cudaEventDestroy(event)
        self._cuda.cudaStreamDestroy(self._stream)
        self._device = {}
        del self._context, self._engine

    def _upload(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        for name in self._inputs:
            array = np.ascontiguousarray(inputs[name], self._host[name].dtype)
            self._copy(self._device[name], array.ctypes.data, array.nbytes, to_host=False)
            checked(self._cuda.cudaStreamSynchronize(self._stream))

    def _copy(self, to: int, source: int, nbytes: int, *, to_host: bool) -> None:
        kinds = self._cuda.cudaMemcpyKind
        kind = kinds.cudaMemcpyDeviceToHost if to_host else kinds.cudaMemcpyHostToDevice
        checked(self._cuda.cudaMemcpyAsync(to, source, nbytes, kind, self._stream))

    def _launch(self) -> None:
        if self._graph is None and not self.notes:
            self._capture()
        if self._graph is not None:
            checked(self._cuda.cudaGraphLaunch(self._graph, self._stream))
        else:
            self._enqueue()

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(int(self._stream)):
            raise DeviceError("TensorRT could not launch the engine")

    def _capture(self) -> None:
        self._enqueue()  # the first launch may allocate, which a capture forbids
        checked(self._cuda.cudaStreamSynchronize(self._stream))
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked(self._cuda.cudaStreamBeginCapture(self._stream, mode))
        launched = self._context.execute_async_v3(int(self._stream))
        error, graph = self._cuda.cudaStreamEndCapture(self._stream)
        if not launched or int(error) != 0:
            self._cuda.cudaGetLastError()
            self.notes = ("launches could not be captured in a CUDA graph; latency holds their overhead",)
            return
        self._graph = checked(self._cuda.cudaGraphInstantiate(graph, 0))
        checked(self._cuda.cudaGraphDestroy(graph))
