"""A loaded TensorRT engine, with persistent buffers, launches through a CUDA graph and times from CUDA events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.nvidia import discovery
from evaluators.backends.tensorrt import api
from evaluators.backends.tensorrt.device import (
    OUT_OF_MEMORY,
    check_cuda,
    check_device,
    cudart,
    import_cuda,
    no_context,
    select,
)
from evaluators.backends.tensorrt.input_checks import check_fits, check_shape, shape_text
from evaluators.engine import Arrays, DeviceError, RefusedError
from search.errors import TargetError
from search.graph.model import TensorSpec

_AROUND_COUNT = 20
_PROFILE_WARM_UP = 3


class TensorRTSession:
    """One engine in one execution context on one stream.

    Args:
        trt: the tensorrt module.
        engine: a deserialized engine.
        shapes: input name → shape to run at, until inputs of another shape are given.
        plan_bytes: size of its plan, the larger part of which is weights.
        log: where TensorRT's errors go.

    `memory_bytes` is what the engine holds on the device while it runs: weights, activations and scratch, inputs and
    outputs. `notes` says so where launches could not be captured in a graph.
    """

    def __init__(self, trt: Any, engine: Any, shapes: Mapping[str, tuple[int, ...]], plan_bytes: int, log: Any) -> None:
        self._trt = trt
        self._engine = engine
        self._shapes = dict(shapes)
        self._bound: Mapping[str, NDArray[Any]] = {}
        self._log = log
        self._cuda = cudart()
        self._device: dict[str, int] = {}
        self._pinned: dict[str, int] = {}
        self._host: dict[str, NDArray[Any]] = {}
        self._events: list[Any] = []
        self._stream: Any = None
        self._graph: Any = None
        self.notes: tuple[str, ...] = ()
        self._inputs, self._outputs = self._names()
        try:
            self._open(plan_bytes)
        except BaseException:
            self.close()
            raise

    def _open(self, plan_bytes: int) -> None:
        self._context = self._new_context()
        # Not one that waits for the default stream: while it is captured, whatever another library of the process does
        # on the default stream would fail.
        self._stream = check_cuda(self._cuda.cudaStreamCreateWithFlags(self._cuda.cudaStreamNonBlocking))
        self._events = [check_cuda(self._cuda.cudaEventCreate()) for _ in range(2)]
        for name in (*self._inputs, *self._outputs):
            self._allocate(name)
        self.types: Mapping[str, str] = {name: array.dtype.name for name, array in self._host.items()}
        self._point(self._context)
        io_bytes = sum(array.nbytes for array in self._host.values())
        self.memory_bytes: int | None = _scratch_bytes(self._engine) + plan_bytes + io_bytes

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, types and shapes of the engine's inputs."""
        return tuple(TensorSpec(n, self._host[n].dtype.name, self._host[n].shape) for n in self._inputs)

    def _names(self) -> tuple[list[str], list[str]]:
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        inputs = [n for n in names if self._engine.get_tensor_mode(n) == self._trt.TensorIOMode.INPUT]
        return inputs, [n for n in names if n not in inputs]

    def _new_context(self) -> Any:
        return new_context(self._engine, {name: self._shapes[name] for name in self._inputs}, self._log)

    def _allocate(self, name: str) -> None:
        shape = tuple(self._context.get_tensor_shape(name))
        if -1 in shape:
            raise RefusedError(f"the size of output {name!r} depends on the data: {'x'.join(map(str, shape))}")
        dtype = np.dtype(self._trt.nptype(self._engine.get_tensor_dtype(name)))
        size = max(1, int(np.prod(shape)) * dtype.itemsize)
        self._device[name] = check_cuda(self._cuda.cudaMalloc(size))
        # Pinned: from ordinary memory the driver copies by way of a small pinned buffer of its own.
        self._pinned[name] = int(check_cuda(self._cuda.cudaMallocHost(size)))
        raw = (ctypes.c_byte * size).from_address(self._pinned[name])
        self._host[name] = np.frombuffer(raw, dtype, count=int(np.prod(shape))).reshape(shape)

    def _point(self, context: Any) -> None:
        for name, pointer in self._device.items():
            context.set_tensor_address(name, int(pointer))

    # -- running ---------------------------------------------------------------------------------------------------

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        self._fill(inputs)
        self._upload()
        self._launch()
        self._download()
        self._wait()
        return {name: self._host[name].copy() for name in self._outputs}

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._bound = inputs
        self._fill(inputs)
        self._upload()
        self._launch()
        self._wait()

    def time(self, count: int) -> NDArray[np.float64]:
        if any(array.shape != self._host[name].shape for name, array in self._bound.items()):
            self.bind(self._bound)  # samples of another shape were run since
        return np.array([self._time_step(self._launch) for _ in range(count)])

    def around(self) -> dict[str, float]:
        return {
            "host_to_device": float(np.median([self._time_step(self._upload) for _ in range(_AROUND_COUNT)])),
            "device_to_host": float(np.median([self._time_step(self._download) for _ in range(_AROUND_COUNT)])),
            "enqueue": float(np.median([self._host_ms(self._enqueue) for _ in range(_AROUND_COUNT)])),
            "launch": float(np.median([self._host_ms(self._launch) for _ in range(_AROUND_COUNT)])),
        }

    def profile(self, inputs: Mapping[str, NDArray[Any]], count: int) -> dict[str, float]:
        """Mean milliseconds of every layer by name, in the order they run.

        They run in a context of its own, because one with a profiler cannot be captured in a graph. Before version 10
        the contexts of an engine with dynamic shapes cannot share its optimization profile, so the session's own one is
        given up for it and made again. After an error such a session can only be closed.
        """
        self._fill(inputs)
        self._upload()
        if not any(-1 in tuple(self._engine.get_tensor_shape(name)) for name in self._inputs):
            return self._profile(count)
        self._wait()
        self._forget_graph()
        self._context = None
        layer_ms = self._profile(count)
        self._context = self._new_context()
        self._point(self._context)
        return layer_ms

    def _profile(self, count: int) -> dict[str, float]:
        context, profiler = self._new_context(), make_profiler(self._trt)
        self._point(context)
        context.profiler = profiler
        for i in range(_PROFILE_WARM_UP + count):
            if i == _PROFILE_WARM_UP:
                profiler.times.clear()
            self._enqueue(context)
            self._wait()
        return {name: sum(times) / count for name, times in profiler.times.items()}

    def close(self) -> None:
        self._release()
        for event in self._events:
            self._cuda.cudaEventDestroy(event)
        if self._stream is not None:
            self._cuda.cudaStreamDestroy(self._stream)
        self._events, self._stream = [], None
        self._context = self._engine = None

    def _release(self) -> None:
        """Give back what depends on the shapes: the captured graph, and the memory of inputs and outputs."""
        self._forget_graph()
        for pointer in self._device.values():
            self._cuda.cudaFree(pointer)
        self._host = {}
        for pointer in self._pinned.values():
            self._cuda.cudaFreeHost(pointer)
        self._device, self._pinned = {}, {}

    def _forget_graph(self) -> None:
        if self._graph is not None:
            self._cuda.cudaGraphExecDestroy(self._graph)
        self._graph = None

    # -- one step --------------------------------------------------------------------------------------------------

    def _take_shapes(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Go on at the shapes of these inputs, as far as the engine's optimization profile has room for them.

        Raises:
            DataError: naming an input whose shape it does not take.
        """
        shapes = {name: inputs[name].shape for name in self._inputs}
        changed = {name: shape for name, shape in shapes.items() if self._host[name].shape != shape}
        if not changed:
            return
        for name, shape in changed.items():
            fixed = -1 not in tuple(self._engine.get_tensor_shape(name))
            if fixed or not self._context.set_input_shape(name, shape):
                held = self._host[name].shape
                for known, before in self._shapes.items():
                    self._context.set_input_shape(known, tuple(before))
                check_shape(name, shape, held)
        self._wait()
        self._release()
        self._shapes = shapes
        for name in (*self._inputs, *self._outputs):
            self._allocate(name)
        self._point(self._context)

    def _fill(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._take_shapes(inputs)
        for name in self._inputs:
            check_shape(name, inputs[name].shape, self._host[name].shape)
            check_fits(name, inputs[name], self._host[name].dtype)
            np.copyto(self._host[name], inputs[name], casting="same_kind")

    def _upload(self) -> None:
        for name in self._inputs:
            self._copy(self._device[name], self._pinned[name], self._host[name].nbytes, to_host=False)

    def _download(self) -> None:
        for name in self._outputs:
            self._copy(self._pinned[name], self._device[name], self._host[name].nbytes, to_host=True)

    def _copy(self, to: int, source: int, nbytes: int, *, to_host: bool) -> None:
        kinds = self._cuda.cudaMemcpyKind
        kind = kinds.cudaMemcpyDeviceToHost if to_host else kinds.cudaMemcpyHostToDevice
        check_cuda(self._cuda.cudaMemcpyAsync(to, source, nbytes, kind, self._stream))

    def _time_step(self, step: Callable[[], None]) -> float:
        """Milliseconds on the device."""
        check_cuda(self._cuda.cudaEventRecord(self._events[0], self._stream))
        step()
        check_cuda(self._cuda.cudaEventRecord(self._events[1], self._stream))
        check_cuda(self._cuda.cudaEventSynchronize(self._events[1]))
        return float(check_cuda(self._cuda.cudaEventElapsedTime(*self._events)))

    def _host_ms(self, step: Callable[[], None]) -> float:
        """Milliseconds until the host has handed the work over, with nothing waiting before it."""
        self._wait()
        start = time.perf_counter()
        step()
        return 1000 * (time.perf_counter() - start)

    def _wait(self) -> None:
        check_cuda(self._cuda.cudaStreamSynchronize(self._stream))

    def _launch(self) -> None:
        if self._graph is None and not self.notes:
            self._capture()
        if self._graph is not None:
            check_cuda(self._cuda.cudaGraphLaunch(self._graph, self._stream))
        else:
            self._enqueue()

    def _enqueue(self, context: Any = None) -> None:
        if not (context or self._context).execute_async_v3(int(self._stream)):
            raise DeviceError(f"TensorRT could not launch the engine: {self._log.first_error()}")

    def _capture(self) -> None:
        self._enqueue()  # the first launch may allocate, which a capture forbids
        self._wait()
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        check_cuda(self._cuda.cudaStreamBeginCapture(self._stream, mode))
        launched = self._context.execute_async_v3(int(self._stream))
        error, graph = self._cuda.cudaStreamEndCapture(self._stream)
        if int(error) == 0:
            if launched:
                error, self._graph = self._instantiate(graph)
            check_cuda(self._cuda.cudaGraphDestroy(graph))
        if not launched or int(error) != 0:
            self._cuda.cudaGetLastError()  # and forget it: what lasts will show at the next launch
            self.notes = ("launches could not be captured in a CUDA graph, so the latency includes their overhead",)

    def _instantiate(self, graph: Any) -> tuple[Any, Any]:
        """CUDA's error, and the graph that can be launched, None if there is one."""
        error, *made = result = self._cuda.cudaGraphInstantiate(graph, 0)
        if int(error) == OUT_OF_MEMORY:
            check_cuda(result)
        return error, made[0] if int(error) == 0 else None


def new_context(engine: Any, shapes: Mapping[str, tuple[int, ...]], log: Any) -> Any:
    """An execution context with its input shapes set.

    Raises:
        DeviceError, OutOfMemoryError, RefusedError: TensorRT makes none, as the device or TensorRT's log tells it.
    """
    before = len(log.errors)
    context = engine.create_execution_context()
    if context is None:
        raise no_context(log.errors[before:])
    for name, shape in shapes.items():
        if not context.set_input_shape(name, tuple(shape)):
            raise RefusedError(
                f"TensorRT does not take the shape {shape_text(shape)} for input {name!r}: "
                f"{api.first_error(log.errors[before:])}"
            )
    return context


def make_profiler(trt: Any) -> Any:
    """A profiler that keeps the times of every layer; made here because its base class comes with the module."""

    class Profiler(trt.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)
            self.times: dict[str, list[float]] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            self.times.setdefault(layer_name, []).append(ms)

    return Profiler()


def _scratch_bytes(engine: Any) -> int:
    """Activations and scratch; version 10.1 widened the type under a new name, and 11 dropped the old one."""
    wide = getattr(engine, "device_memory_size_v2", None)
    return int(engine.device_memory_size if wide is None else wide)


def open_plan(path: Path, device: str, plugins: Sequence[str] = ()) -> TensorRTSession:
    """Open a plan, one of dynamic shapes at the best ones of its optimization profile.

    Args:
        device: `cuda` or `cuda:N`.
        plugins: paths of plugin libraries.

    Raises:
        TargetError: TensorRT or the CUDA bindings are not installed, or there is no such GPU.
        ConfigError: a plugin library cannot be loaded.
        RefusedError: the plan is cut short, of another version or of another device.
    """
    trt, engine, log = load_plan(path, device, plugins)
    return TensorRTSession(trt, engine, _best_shapes(trt, engine), path.stat().st_size, log)


def inspect_plan(path: Path, device: str = "cuda", plugins: Sequence[str] = ()) -> str:
    """The engine inspector's JSON of a plan; arguments and errors as those of `open_plan`."""
    trt, engine, log = load_plan(path, device, plugins)
    inspector, shapes = engine.create_engine_inspector(), _best_shapes(trt, engine)
    if any(-1 in tuple(engine.get_tensor_shape(name)) for name in shapes):
        # Without shapes the formats of a dynamic engine are "N/A due to dynamic shapes"; in 8.6.0 they always are.
        context = new_context(engine, shapes, log)  # the inspector does not keep it alive
        inspector.execution_context = context
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _best_shapes(trt: Any, engine: Any) -> dict[str, tuple[int, ...]]:
    """Input name → shape, where it is dynamic the one that the engine was optimized for."""
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
    shapes = {name: tuple(engine.get_tensor_shape(name)) for name in inputs}
    return {n: tuple(engine.get_tensor_profile_shape(n, 0)[1]) if -1 in shape else shape for n, shape in shapes.items()}


def load_plan(path: Path, device: str, plugins: Sequence[str] = ()) -> tuple[Any, Any, Any]:
    """TensorRT's module, the engine of a plan, and the log of both; arguments and errors as those of `open_plan`."""
    index = discovery.cuda_index(device)
    if index is None:
        raise TargetError(f"opening {path.name}: expected a device cuda or cuda:N, got {device}.")
    trt, cuda = api.import_tensorrt(), import_cuda()
    select(cuda, index)
    log = api.shared_log(trt)
    api.load_plugins(trt, log, plugins)
    runtime = api.make_runtime(trt, log, lambda: check_device(cuda))
    log.clear()
    engine = runtime.deserialize_cuda_engine(path.read_bytes())
    if engine is None:
        raise RefusedError(f"the plan {path.name} cannot be loaded: {log.first_error()}")
    return trt, engine, log
