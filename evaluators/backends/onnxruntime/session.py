"""One ONNX file in a session of ONNX Runtime, and the translation of its errors."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.audit import FLOAT8_KERNEL
from evaluators.backends.onnxruntime.cuda import require_loaded
from evaluators.backends.onnxruntime.device import OnnxRuntimeDevice
from evaluators.backends.processor import allocated_bytes, time_here, time_runs
from evaluators.engine import Arrays, DeviceError, OutOfMemoryError, RefusedError
from evaluators.lent_constants import session_source
from search.errors import TargetError
from search.graph import packed_file

_SMALL_BYTES = 4 * 2**20


class OnnxRuntimeSession:
    """One loaded ONNX file.

    Args:
        counts_memory: whether `memory_bytes` will be what loading and the first run allocate and keep, on the CPU.
            Counting collects garbage, for a tenth of a second or more: of no use where nobody asks for it.

    Raises:
        TargetError: CUDA was asked for and its provider does not load.
    """

    def __init__(
        self, device: OnnxRuntimeDevice, model: Path | bytes, options: Any, counts_memory: bool = False
    ) -> None:
        self.device = device
        self._counts = counts_memory and not device.cuda
        before = allocated_bytes() if self._counts else 0
        source = _source(model, options) if isinstance(model, Path) else model
        # Nothing that fails on the device may be run on the processor instead, neither now nor later.
        self.session = device.ort.InferenceSession(source, options, providers=device.providers(), enable_fallback=0)
        if device.index is not None:
            require_loaded(device.ort, self.session, device.name, device.index)
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.memory_bytes: int | None = None
        self._loaded_bytes = allocated_bytes() - before if self._counts else 0
        self._twin = source if self._counts and _is_small(source) else None
        self.types: Mapping[str, str] = {}
        self.notes: tuple[str, ...] = ()
        self._bound: dict[str, Any] = {}
        self._binding: Any = None

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        measures = self.memory_bytes is None and self._counts
        if measures:
            self._take_scratch(inputs)
        before = allocated_bytes() if measures else 0
        try:
            results = self.session.run(self.outputs, dict(inputs))
        except Exception as error:
            raise meaning_of(error) from error
        if measures:
            self.memory_bytes = max(0, self._loaded_bytes + allocated_bytes() - before)
        return dict(zip(self.outputs, results, strict=True))

    def _take_scratch(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Have the library allocate what it keeps for all engines of the process, by a run of a twin of this one.

        The products of INT8 take 0.2 MB of scratch once, which would count for the first engine alone.
        """
        source, self._twin = self._twin, None
        if source is None or (isinstance(source, str) and not Path(source).exists()):  # it was lent for opening alone
            return
        with suppress(Exception):  # the engine itself tells what is wrong
            options = self.device.session_options()  # not the engine's own, which may write an optimized file
            twin = self.device.ort.InferenceSession(source, options, providers=self.device.providers())
            twin.run(self.outputs, dict(inputs))

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._bound = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        if not self.device.cuda:
            return
        value = self.device.ort.OrtValue
        self._binding = self.session.io_binding()
        for name, array in self._bound.items():
            self._binding.bind_ortvalue_input(name, value.ortvalue_from_numpy(array, "cuda", self.device.index))
        for name in self.outputs:
            self._binding.bind_output(name, "cuda", self.device.index)

    def time(self, count: int) -> NDArray[np.float64]:
        if self.device.cuda:
            return time_runs(self._run_bound_cuda, count, time.perf_counter_ns)
        return time_here(self._run_bound, count, self.device.clock, sleeps=self.device.sleeps)

    def around(self) -> dict[str, float]:
        return {}

    def _run_bound(self) -> None:
        self.session.run(self.outputs, self._bound)

    def _run_bound_cuda(self) -> None:
        self.session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()

    def close(self) -> None:
        self._binding = None
        self._bound = {}
        del self.session


def _is_small(source: str | bytes) -> bool:
    """Whether scratch memory would change what an engine seems to take by more than a few percent."""
    return (Path(source).stat().st_size if isinstance(source, str) else len(source)) <= _SMALL_BYTES


def _source(path: Path, options: Any) -> str | bytes:
    """What ONNX Runtime opens: the path of an ONNX file, or the message of a packed one."""
    message = packed_file.read_message(path) if path.is_file() else None
    if message is None:
        return str(path)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    return bytes(message.SerializeToString())


def open_session(
    device: OnnxRuntimeDevice, model: Path | bytes, options: Any, counts_memory: bool = False
) -> OnnxRuntimeSession:
    """A session, with ONNX Runtime's exceptions sorted into what can be done about them.

    Args:
        model: an ONNX file, packed or not, or its content.
        options: as `OnnxRuntimeDevice.session_options` makes them.
        counts_memory: as of the session.

    Raises:
        TargetError: the CUDA provider does not load.
        RefusedError: ONNX Runtime refuses the model.
        DeviceError, OutOfMemoryError: the device is out of order, or full.
    """
    try:
        return OnnxRuntimeSession(device, model, options, counts_memory)
    except TargetError:
        raise
    except Exception as error:
        raise meaning_of(error) from error


def open_graph(device: OnnxRuntimeDevice, graph: ir.Model, options: Any) -> OnnxRuntimeSession:
    """A session of a graph of any size; raises as `open_session`."""
    with session_source(device.ort, graph, options) as source:
        return open_session(device, Path(source) if isinstance(source, str) else source, options)


def first_line(error: BaseException) -> str:
    """The first line of an error that says something, without ONNX Runtime's own prefix."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)[:500]


def meaning_of(error: Exception) -> Exception:
    """ONNX Runtime's exceptions sorted into what can be done about them; any other is returned as it is."""
    if not type(error).__module__.startswith("onnxruntime"):
        return error
    message = first_line(error)
    if re.search(r"out of memory|bad_alloc|failed to allocate|BFCArena", str(error), re.IGNORECASE):
        return OutOfMemoryError(message)
    if re.search(r"CUDA (failure|error)|CUBLAS failure|CUDNN failure", str(error), re.IGNORECASE):
        return DeviceError(message)
    if FLOAT8_KERNEL in message:
        message += (
            ". Products in WF8 run with onnxruntime-gpu 1.31 or later and its CUDA provider alone: use --device cuda"
        )
    return RefusedError(message)
