"""What stands in for the CUDA runtime: memory of devices is memory of this process, and copies are checked."""

from __future__ import annotations

import ctypes
import enum
import itertools
import threading
from types import ModuleType, SimpleNamespace
from typing import Any


class Error(enum.IntEnum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorInvalidValue = 1  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorDevicesUnavailable = 46  # noqa: N815
    cudaErrorInvalidResourceHandle = 400  # noqa: N815
    cudaErrorStreamCaptureUnsupported = 900  # noqa: N815
    cudaErrorStreamCaptureImplicit = 906  # noqa: N815


class FakeCuda:
    """`cuda.bindings.runtime`, as far as a session calls it; every call gives an error and what it makes."""

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.streams: set[int] = set()
        self.blocking: set[int] = set()  # of the streams, those that wait for the default one
        self.device_of: dict[int, int] = {}  # of each stream
        self.devices = 1
        self._thread = threading.local()
        self._handles = itertools.count(7)
        self.captured: dict[int, int] = {}  # stream that is captured → the thread that does it
        self.graphs = 0
        self.launched = 0
        self.free_bytes = 1 << 36

    @property
    def capturing(self) -> bool:
        """Whether this thread captures a stream."""
        return threading.get_ident() in tuple(self.captured.values())

    def holds(self, address: int, size: int) -> bool:
        blocks = tuple(self.memory.items())  # other threads allocate meanwhile
        return any(start <= address and address + size <= start + len(block) for start, block in blocks)

    def modules(self) -> dict[str, ModuleType]:
        """What `from cuda.bindings import runtime` finds."""
        cuda, bindings, runtime = (ModuleType(name) for name in ("cuda", "cuda.bindings", "cuda.bindings.runtime"))
        cuda.__dict__["bindings"], bindings.__dict__["runtime"] = bindings, runtime
        for name in dir(self):
            if name.startswith("cuda"):
                setattr(runtime, name, getattr(self, name))
        return {module.__name__: module for module in (cuda, bindings, runtime)}

    cudaMemcpyKind = enum.IntEnum("cudaMemcpyKind", {"cudaMemcpyHostToDevice": 1, "cudaMemcpyDeviceToHost": 2})  # noqa: N815
    cudaStreamCaptureMode = enum.IntEnum("cudaStreamCaptureMode", {"cudaStreamCaptureModeThreadLocal": 1})  # noqa: N815

    def cudaGetDeviceCount(self) -> Any:  # noqa: N802
        return Error.cudaSuccess, self.devices

    def cudaGetDevice(self) -> Any:  # noqa: N802
        return Error.cudaSuccess, getattr(self._thread, "device", 0)

    def cudaSetDevice(self, device: int) -> Any:  # noqa: N802
        self._thread.device = device
        return (Error.cudaSuccess,)

    def cudaGetDeviceProperties(self, device: int) -> Any:  # noqa: N802
        return Error.cudaSuccess, SimpleNamespace(name=b"Fake GPU\x00", major=9, minor=0)

    def cudaDriverGetVersion(self) -> Any:  # noqa: N802
        return Error.cudaSuccess, 13000

    def cudaGetErrorString(self, error: Any) -> Any:  # noqa: N802
        return Error.cudaSuccess, Error(error).name.encode()

    def cudaGetLastError(self) -> Any:  # noqa: N802
        return (Error.cudaSuccess,)

    def cudaMalloc(self, size: int) -> Any:  # noqa: N802
        buffer = (ctypes.c_byte * size)()
        self.memory[ctypes.addressof(buffer)] = buffer
        return Error.cudaSuccess, ctypes.addressof(buffer)

    def cudaMallocHost(self, size: int) -> Any:  # noqa: N802
        return self.cudaMalloc(size)

    def cudaFree(self, devPtr: int) -> Any:  # noqa: N802, N803
        return (Error.cudaSuccess if self.memory.pop(devPtr, None) else Error.cudaErrorInvalidValue,)

    def cudaFreeHost(self, ptr: int) -> Any:  # noqa: N802
        return self.cudaFree(ptr)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Any) -> Any:  # noqa: N802
        if not (self.holds(dst, count) and self.holds(src, count) and int(stream) in self.streams):
            return (Error.cudaErrorInvalidValue,)
        ctypes.memmove(dst, src, count)
        return (Error.cudaSuccess,)

    def cudaMemcpy(self, dst: int, src: int, count: int, kind: Any) -> Any:  # noqa: N802
        """On the default stream, which blocking ones wait for: none of them may be captured meanwhile."""
        to_host = kind == self.cudaMemcpyKind.cudaMemcpyDeviceToHost
        if self.blocking.intersection(tuple(self.captured)):
            return (Error.cudaErrorStreamCaptureImplicit,)
        if not self.holds(src if to_host else dst, count):
            return (Error.cudaErrorInvalidValue,)
        ctypes.memmove(dst, src, count)
        return (Error.cudaSuccess,)

    cudaStreamNonBlocking = 1  # noqa: N815

    def cudaStreamCreate(self) -> Any:  # noqa: N802
        return self.cudaStreamCreateWithFlags(0)

    def cudaStreamCreateWithFlags(self, flags: int) -> Any:  # noqa: N802
        stream = next(self._handles)
        self.streams.add(stream)
        self.device_of[stream] = self.cudaGetDevice()[1]
        if not flags & self.cudaStreamNonBlocking:
            self.blocking.add(stream)
        return Error.cudaSuccess, stream

    def cudaStreamSynchronize(self, stream: Any) -> Any:  # noqa: N802
        """Only a stream that is captured cannot be waited for; others go on, whichever thread waits for them."""
        return (Error.cudaErrorStreamCaptureUnsupported if int(stream) in self.captured else Error.cudaSuccess,)

    def cudaDeviceSynchronize(self) -> Any:  # noqa: N802
        return (Error.cudaErrorStreamCaptureUnsupported if self.captured else Error.cudaSuccess,)

    def cudaMemGetInfo(self) -> Any:  # noqa: N802
        return Error.cudaSuccess, self.free_bytes, 1 << 37

    def cudaStreamDestroy(self, stream: Any) -> Any:  # noqa: N802
        self.streams.discard(int(stream))
        return (Error.cudaSuccess,)

    def cudaStreamBeginCapture(self, stream: Any, mode: Any) -> Any:  # noqa: N802
        self.captured[int(stream)] = threading.get_ident()
        return (Error.cudaSuccess,)

    def cudaStreamEndCapture(self, stream: Any) -> Any:  # noqa: N802
        self.captured.pop(int(stream), None)
        self.graphs += 1
        return Error.cudaSuccess, "graph"

    def cudaGraphInstantiate(self, graph: Any, flags: int) -> Any:  # noqa: N802
        return Error.cudaSuccess, f"executable {graph}"

    def cudaGraphLaunch(self, graphExec: Any, stream: Any) -> Any:  # noqa: N802, N803
        if self.device_of[int(stream)] != self.cudaGetDevice()[1]:
            return (Error.cudaErrorInvalidResourceHandle,)
        self.launched += 1
        return (Error.cudaSuccess,)

    def cudaGraphDestroy(self, graph: Any) -> Any:  # noqa: N802
        self.graphs -= 1
        return (Error.cudaSuccess,)

    def cudaGraphExecDestroy(self, graphExec: Any) -> Any:  # noqa: N802, N803
        return (Error.cudaSuccess,)

    def cudaEventCreate(self) -> Any:  # noqa: N802
        return Error.cudaSuccess, "event"

    def cudaEventRecord(self, event: Any, stream: Any) -> Any:  # noqa: N802
        return (Error.cudaSuccess,)

    def cudaEventSynchronize(self, event: Any) -> Any:  # noqa: N802
        return (Error.cudaSuccess,)

    def cudaEventElapsedTime(self, start: Any, end: Any) -> Any:  # noqa: N802
        return Error.cudaSuccess, 0.25

    def cudaEventDestroy(self, event: Any) -> Any:  # noqa: N802
        return (Error.cudaSuccess,)
