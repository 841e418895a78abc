"""The fake backend, without a device and without engines. ONNX Runtime runs the float model once for each batch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from evaluators.backends.fake.builder import FakeBuilder
from evaluators.backends.fake.faults import PlantedFault
from evaluators.backends.fake.options import CAUTION, NAME, VERSION, FakeOptions
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.backends.onnxruntime.session import open_graph
from evaluators.cores import usable_processors
from evaluators.engine import Session
from evaluators.lowering.float_types import why_not_written
from evaluators.lowering.placement import TENSORRT
from search.errors import ConfigError, TargetError
from search.graph.model import Model
from search.space.capability_file import OP_TYPES
from search.values import GPU_CLOCK, REFERENCE, THREAD_CLOCK, Capability, Precision, Ranges, Target


class FakeBackend:
    """Builds any assignment at once, and invents what it takes and loses.

    Args:
        device: `none`.
        options: seed, faults and the like.

    Raises:
        TargetError: a device was named, or ONNX Runtime is not installed.
        ConfigError: a fault or a precision cannot be read.
    """

    quick_profile = True
    placement = TENSORRT
    notes: tuple[str, ...] = (CAUTION,)

    def __init__(self, device: str = "none", options: FakeOptions | None = None) -> None:
        if device != "none":
            raise TargetError(f"--device {device}: backend fake runs on no device. Leave --device out.")
        self.options = options or FakeOptions()
        try:
            named = [Precision.parse(label) for label in self.options.precisions] or [Precision.FP16, Precision.INT8]
        except ValueError as error:
            raise ConfigError(f"option fake-precision: {error}") from error
        self._precisions = sorted(set(named) - {REFERENCE})
        self._faults = [PlantedFault.parse(text) for text in self.options.faults]
        self._runtime = OnnxRuntimeBackend("cpu", threads=usable_processors())  # nothing is timed beside it

    @property
    def lock_name(self) -> str:
        """One per process: nothing is measured, so nobody has to wait."""
        return f"{NAME}-{os.getpid()}"

    def target(self) -> Target:
        return Target(
            backend=NAME,
            device="no device: all numbers are invented",
            versions={"fake": VERSION},
            options={
                "seed": str(self.options.seed),
                "precisions": ", ".join(p.label for p in self._precisions),
                **({"losses": "emulated"} if self.options.emulated else {}),
            },
            statistic="mean" if self.options.relative else "median",
            relative=self.options.relative,
            clock=THREAD_CLOCK if self.options.relative else GPU_CLOCK,
        )

    def capability(self) -> Capability:
        return Capability({p: frozenset(op for op in OP_TYPES if not why_not_written(p, op)) for p in self._precisions})

    def knobs(self) -> dict[str, str]:
        return {"seed": str(self.options.seed), **({"losses": "emulated"} if self.options.emulated else {})}

    def device_state(self) -> dict[str, Any]:
        return {}

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Nothing of it changes while it is open."""

    def check(self) -> None:
        self._runtime.check()

    def float_session(self, model: Model) -> Session:
        return self._runtime.float_session(model)

    def builder(self, model: Model, ranges: Ranges) -> FakeBuilder:
        options = self.options
        return FakeBuilder(
            model,
            ranges,
            self.placement,
            self._open_graph,
            seed=options.seed,
            faults=self._faults,
            build_time_s=options.build_time_s,
            emulator=Emulator(self._runtime, self.placement) if options.emulated else None,
        )

    def _open_graph(self, graph: ir.Model) -> Session:
        device = self._runtime.device
        return open_graph(device, graph, device.session_options())
