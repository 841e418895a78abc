"""The backend OpenVINO on the processor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.openvino.builder import OpenVinoBuilder
from evaluators.backends.openvino.device import NAME, OpenVinoDevice
from evaluators.backends.openvino.session import OpenVinoSession, open_graph
from evaluators.backends.processor import cpu_model, one_node, placement_here, read_input, statistic_of, weight_options
from evaluators.cores import usable_processors
from evaluators.engine import OpenEngine, RefusedError, Session
from search.errors import BitfrontError, ModelError, TargetError
from search.graph.model import Model, TensorSpec
from search.values import Capability, Ranges, Target


class OpenVinoBackend:
    """OpenVINO on the processor.

    Args:
        device: `cpu`.
        threads: of one inference; with one, the thread that asks for it runs it.
        symmetric: INT8 activations have the zero point in the middle.

    Raises:
        TargetError: OpenVINO is not installed, or the device is another one.
    """

    quick_profile = False
    lock_name = "cpu"
    notes: tuple[str, ...] = ()

    def __init__(self, device: str = "cpu", threads: int = 1, *, symmetric: bool = False) -> None:
        self.device = OpenVinoDevice(device, threads)
        shared = placement_here(symmetric=symmetric)
        # OpenVINO has a kernel for HardSwish, and is slower with ops between codes in its place. Softmax sums in FP32
        # whatever it reads: in BF16 encoders took 0.94 to 0.96 of the time on a Xeon with AMX, at the same error.
        self.placement = replace(
            shared, name=NAME, followers=shared.followers - {"HardSwish"}, narrow=shared.narrow | {"Softmax"}
        )

    def target(self) -> Target:
        clock = self.device.clock
        return Target(
            backend=NAME,
            device=cpu_model(),
            versions={NAME: self.device.version},
            options={"threads": str(self.device.threads), "streams": "1", **weight_options(self.placement)},
            statistic=statistic_of(clock),
            relative=True,
            clock=clock,
        )

    def capability(self) -> Capability:
        """What OpenVINO runs natively, without what this processor would compute in FP32."""
        capability, native = shipped_capability("openvino-cpu"), self.device.native_types()
        return replace(
            capability, ops={each: ops for each, ops in capability.ops.items() if each.blocks or each.name in native}
        )

    def knobs(self) -> dict[str, str]:
        return {"placement": self.placement.name, **weight_options(self.placement)}

    def device_state(self) -> dict[str, Any]:
        return {}

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Nothing of it changes while it is open."""

    def check(self) -> None:
        """Run one node.

        Raises:
            TargetError: it does not run.
        """
        try:
            session = open_graph(self.device, ir.from_proto(one_node()))
            session.run({"x": np.ones(1, np.float32)})
            session.close()
        except BitfrontError as error:
            raise TargetError(
                f"--device {self.device.name}: OpenVINO {self.device.version} cannot run a model of one node there: "
                f"{error}. Its installation may be broken: install it again."
            ) from error

    def float_session(self, model: Model) -> Session:
        try:
            open_graph(self.device, model.graph).close()
        except RefusedError as error:
            self.check()  # where nothing runs at all, the model is not to blame
            raise ModelError(
                f"checking the model on backend {NAME}: OpenVINO {self.device.version} cannot compile the float model: "
                f"{error}. Remove or replace the operators that it does not support, or give --backend onnxruntime."
            ) from error
        return OnnxRuntimeBackend("cpu", threads=usable_processors()).float_session(model)

    def builder(self, model: Model, ranges: Ranges) -> OpenVinoBuilder:
        return OpenVinoBuilder(self.device, self.placement, model, ranges)


def open_engine_file(device: OpenVinoDevice, path: Path, batch: int | None) -> OpenEngine:
    """Compile an ONNX file as engines are measured.

    Args:
        batch: leading dimension of inputs that leave it open.

    Raises:
        ModelError: an input leaves a dimension open.
        RefusedError: OpenVINO cannot compile the file.
    """
    session = OpenVinoSession(device, path)
    return OpenEngine(session, tuple(_read_input(port, path, batch) for port in session.compiled.inputs))


def _read_input(port: Any, path: Path, batch: int | None) -> TensorSpec:
    shape = [size.get_length() if size.is_static else str(size) for size in port.partial_shape]
    return read_input(port.any_name, str(np.dtype(port.element_type.to_dtype())), shape, path, batch)
