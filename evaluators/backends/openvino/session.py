"""One ONNX file, compiled by OpenVINO and ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.openvino.audit import RuntimeNode, read_nodes
from evaluators.backends.openvino.device import OpenVinoDevice, refusals
from evaluators.backends.processor import allocated_bytes, time_here
from evaluators.engine import Arrays
from evaluators.held_folders import held_folder
from search.graph import onnx_file

_known_kernels: set[str] = set()  # that an engine of this process has run


class OpenVinoSession:
    """One loaded engine.

    Args:
        path: of an ONNX file, packed or not.
        counts_memory: whether `memory_bytes` will be what compiling and the first run allocate and keep. Counting
            collects garbage and may compile the file once more: of no use where nobody asks for it.
        more: properties beside those of every engine.

    Raises:
        RefusedError: OpenVINO refuses it.
        OutOfMemoryError: there is not enough memory.
    """

    types: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()

    def __init__(self, device: OpenVinoDevice, path: Path, counts_memory: bool = False, **more: Any) -> None:
        self.device, self._path, self._counts = device, path, counts_memory
        before = allocated_bytes() if counts_memory else 0
        self.compiled, self.outputs = device.compile(path, **more)
        with refusals():
            self.request = self.compiled.create_infer_request()
        self._loaded_bytes = allocated_bytes() - before if counts_memory else 0
        self.memory_bytes: int | None = None

    def nodes(self) -> list[RuntimeNode]:
        """What it runs, in its order."""
        return read_nodes(self.compiled)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        if self._counts and self.memory_bytes is None:
            return self._run_first(inputs)
        with refusals():
            results = self.request.infer(dict(inputs))
        return {name: np.asarray(results[i]) for i, name in enumerate(self.outputs)}

    def _run_first(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Run, and see what is allocated.

        The first engine of a process with a kind of kernel also allocates what all others use, 1 MB once. A second one
        of the same file then tells what an engine takes.
        """
        before, self.memory_bytes = allocated_bytes(), 0
        outputs = self.run(inputs)
        self.memory_bytes = max(0, self._loaded_bytes + allocated_bytes() - before)
        kernels = {node.kernel for node in self.nodes()}
        if not kernels <= _known_kernels:
            _known_kernels.update(kernels)
            twin = OpenVinoSession(self.device, self._path, counts_memory=True)
            twin.run(inputs)
            self.memory_bytes = twin.memory_bytes
            twin.close()
        return outputs

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        with refusals():
            for name, array in inputs.items():
                self.request.set_tensor(name, self.device.ov.Tensor(np.array(array, order="C")))

    def time(self, count: int) -> NDArray[np.float64]:
        with refusals():
            return time_here(self.request.infer, count, self.device.clock)

    def around(self) -> dict[str, float]:
        return {}

    def times_ms(self) -> dict[str, float]:
        """Mean time of every layer over all runs by now, by name; empty where it was not compiled with counters."""
        profile = self.request.profiling_info
        return {each.node_name: each.real_time.total_seconds() * 1e3 for each in profile}

    def close(self) -> None:
        del self.request, self.compiled


def open_graph(device: OpenVinoDevice, graph: ir.Model) -> OpenVinoSession:
    """A session of a graph of any size; raises as `OpenVinoSession`."""
    with held_folder() as folder:
        path = folder / "model.onnx"
        onnx_file.write_any_size(graph, path)
        return OpenVinoSession(device, path)
