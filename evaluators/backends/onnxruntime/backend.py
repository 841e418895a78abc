"""The backend ONNX Runtime, for the CPU and for CUDA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.backends.nvidia import discovery
from evaluators.backends.nvidia.state import GpuState
from evaluators.backends.onnxruntime.builder import OnnxRuntimeBuilder
from evaluators.backends.onnxruntime.device import NAME, SESSION_ENTRIES, OnnxRuntimeDevice
from evaluators.backends.onnxruntime.session import OnnxRuntimeSession, first_line, open_graph, open_session
from evaluators.backends.processor import cpu_model, one_node, placement_here, read_input, statistic_of, weight_options
from evaluators.engine import OpenEngine
from evaluators.lowering.placement import ONNXRUNTIME_CUDA, Placement
from search.errors import ModelError, TargetError
from search.graph.model import Model, TensorSpec
from search.values import Capability, Precision, Ranges, Target

_FIRST_WITH_WF8 = (1, 31)  # of onnxruntime-gpu


class OnnxRuntimeBackend:
    """ONNX Runtime on one device: `cpu`, `cuda` or `cuda:N`.

    Args:
        device: where sessions run.
        threads: intra-op threads; one by default, because two on a shared machine differ by 15 % between processes.
        symmetric: INT8 activations of the processor have the zero point 0, which costs kernels that fuse a Relu.
        name, entries: as `OnnxRuntimeKind` has them.

    Raises:
        TargetError: ONNX Runtime or its CUDA provider is not installed, or there is no such device.
    """

    quick_profile = False

    def __init__(
        self,
        device: str = "cpu",
        threads: int = 1,
        *,
        symmetric: bool = False,
        name: str = NAME,
        entries: Mapping[str, str] = SESSION_ENTRIES,
    ) -> None:
        self._symmetric, self._name = symmetric, name
        self.device = OnnxRuntimeDevice(device, threads, entries)
        index = self.device.index
        self._gpu = None if index is None else GpuState(discovery.gpu_uuid(index) or index)

    @property
    def cuda(self) -> bool:
        return self.device.cuda

    def target(self) -> Target:
        options = {"threads": str(self.device.threads), "graph_level": "all", "execution": "sequential"}
        if not self.cuda:
            options |= weight_options(self.placement)
        return Target(
            backend=self._name,
            device=self._device_name(),
            versions={"onnxruntime": self.device.ort.__version__, "provider": "cuda" if self.cuda else "cpu"},
            options=options,
            statistic="median" if self.cuda else statistic_of(self.device.clock),
            relative=not self.cuda,
            clock=self.device.clock,
        )

    @property
    def placement(self) -> Placement:
        return ONNXRUNTIME_CUDA if self.cuda else placement_here(symmetric=self._symmetric)

    def _device_name(self) -> str:
        index = self.device.index
        if index is None:
            return cpu_model()
        name = discovery.gpu_name(index)
        if name is None:
            visible = discovery.visible_text()
            raise TargetError(
                f"--device {self.device.name}: the NVIDIA driver finds no such GPU{visible and f', with {visible}'}. "
                "`bitfront doctor` lists the GPUs."
            )
        return name

    def capability(self) -> Capability:
        if self.device.index is None:
            return shipped_capability("onnxruntime-cpu")
        capability, version = shipped_capability("onnxruntime-cuda"), discovery.compute_capability(self.device.index)
        ops, runs_bf16 = dict(capability.ops), version and discovery.is_native(Precision.BF16.label, version)
        for precision in () if runs_bf16 else (Precision.BF16, Precision.WF8):
            del ops[precision]
        if runs_bf16 and tuple(map(int, self.device.ort.__version__.split(".")[:2])) < _FIRST_WITH_WF8:
            ops[Precision.WF8] = frozenset()  # it stays, so that layers tell why they are not offered it
        return replace(capability, ops=ops)

    def knobs(self) -> dict[str, str]:
        return {"placement": self.placement.name, **weight_options(self.placement)}

    @property
    def lock_name(self) -> str:
        return "cpu" if self.device.index is None else discovery.lock_name(self.device.index)

    @property
    def notes(self) -> tuple[str, ...]:
        return (self._gpu.note,) if self._gpu is not None and self._gpu.note else ()

    def device_state(self) -> dict[str, Any]:
        return self._gpu.read() if self._gpu is not None else {}

    def check(self) -> None:
        """Run one node: what a provider is built into is not what it loads with, and a session is when it loads.

        Raises:
            TargetError: it does not load, or does not run.
        """
        try:
            session = OnnxRuntimeSession(self.device, one_node().SerializeToString(), self.device.session_options())
            session.run({"x": np.ones(1, np.float32)})
            session.close()
        except TargetError:
            raise
        except Exception as error:
            raise TargetError(
                f"--device {self.device.name}: ONNX Runtime {self.device.ort.__version__} cannot run a model of one "
                f"node there: {first_line(error)}. Its installation may be broken: install it again, or choose another "
                "--device."
            ) from error

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Nothing of it changes while it is open."""

    def float_session(self, model: Model) -> OnnxRuntimeSession:
        try:
            return self.plain_session(model.graph)
        except TargetError:
            raise
        except Exception as error:
            self.check()  # where nothing runs at all, the model is not to blame
            raise ModelError(
                f"checking the model: ONNX Runtime ({self.device.name}) cannot run the float model: "
                f"{first_line(error)}. ONNX Runtime is needed for calibration and the float reference with every "
                "backend. Remove or "
                "replace the operators that it does not support; another backend or --plugin does not help."
            ) from error

    def plain_session(self, graph: ir.Model) -> OnnxRuntimeSession:
        """Run a graph node by node as it is written, Q/DQ and Cast too, nothing optimized."""
        options = self.device.session_options()
        options.graph_optimization_level = self.device.ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return open_graph(self.device, graph, options)

    def builder(self, model: Model, ranges: Ranges) -> OnnxRuntimeBuilder:
        return OnnxRuntimeBuilder(self.device, self.placement, model, ranges)


# numpy's names of the types that ONNX Runtime calls otherwise; `tensor(int64)` and the like are called alike.
_NUMPY: Mapping[str, str] = {"float": "float32", "double": "float64"}


def open_engine_file(device: OnnxRuntimeDevice, path: Path, batch: int | None) -> OpenEngine:
    """Open an ONNX file with all optimizations, as engines are measured.

    Args:
        batch: leading dimension of inputs that leave it open.

    Raises:
        ModelError: an input is no tensor, or leaves a dimension open.
        RefusedError: ONNX Runtime cannot load the file.
    """
    session = open_session(device, path, device.session_options())
    return OpenEngine(session, tuple(_read_input(each, path, batch) for each in session.session.get_inputs()))


def _read_input(node_arg: Any, path: Path, batch: int | None) -> TensorSpec:
    kind = node_arg.type.removeprefix("tensor(").removesuffix(")")
    dtype = "" if kind == node_arg.type else _NUMPY.get(kind, kind)
    return read_input(node_arg.name, dtype, node_arg.shape, path, batch)
