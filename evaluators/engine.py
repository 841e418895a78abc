"""The interface that every backend implements: protocols without behaviour, and the values that they exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.lowering.placement import Placement
from search.errors import BitfrontError
from search.graph.model import Model, TensorSpec
from search.values import Assignment, AuditRow, Capability, EngineSummary, LayerTime, Ranges, Target

Arrays = dict[str, NDArray[Any]]


class RefusedError(BitfrontError):
    """The engine's builder refused an assignment, with its own first error line. It is not tried again.

    `group` is the group that the builder names, where it names one.
    """

    def __init__(self, message: str, group: str | None = None) -> None:
        super().__init__(message)
        self.group = group


class DeviceError(BitfrontError):
    """The device is in a state that only a new process gets out of, say after a sticky CUDA error."""


class OutOfMemoryError(BitfrontError):
    """Device or process ran out of memory."""


@dataclass(frozen=True)
class Engine:
    """The result of a build: a file that `Builder.load` opens, in this or any later process on the same target."""

    path: Path
    size_bytes: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenEngine:
    """An engine file that was opened without the model it was built from.

    Attributes:
        session: runs it.
        inputs: of the engine, the samples along their first axis.
    """

    session: Session
    inputs: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Audit:
    """What an engine runs: one row for each group, and a summary of the whole engine."""

    rows: tuple[AuditRow, ...]
    summary: EngineSummary


class Runner(Protocol):
    """What runs inferences."""

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """One inference; every model input by name, shapes and dtypes as the model states. Outputs by name.

        Raises:
            RefusedError, DataError: the engine cannot run these inputs.
            DeviceError, OutOfMemoryError: the device is out of order, or full.
        """


class Session(Runner, Protocol):
    """A loaded engine. Not thread-safe; close it before loading many others."""

    memory_bytes: int | None
    types: Mapping[str, str]
    """numpy's name of the type of inputs and outputs, where the engine does not keep those of its model."""
    notes: tuple[str, ...]
    """What is noteworthy of how it runs; complete once it has run."""

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Copy the inputs for `time` to where the device reads them."""

    def time(self, count: int) -> NDArray[np.float64]:
        """Run `count` inferences on the bound inputs, transfers left out.

        Returns:
            (count,) milliseconds by the clock of the target, one each. A masked array where that is the wall clock and
            other processes could stretch it: masked are those inferences that were interrupted.
        """

    def around(self) -> Mapping[str, float]:
        """The times around an inference on the bound inputs, see `Latency.around_ms`."""

    def close(self) -> None:
        """Release device memory; the session cannot be used afterwards."""


class Builder(Protocol):
    """Builds assignments of one model with one set of ranges. It is kept for a whole study, because it has caches."""

    opens_engines: bool
    """Whether `probe` looks into the engine file itself; otherwise it builds the assignment again."""

    def lower(self, assignment: Assignment) -> Any:
        """The assignment in the form that the backend builds from. It is deterministic."""

    def build(self, lowered: Any, out: Path) -> Engine:
        """Write an engine file at `out`; `size_bytes` is what it takes on the device's storage.

        Raises:
            RefusedError: the engine's builder refuses the assignment; final, with the group where it names one.
            DeviceError, OutOfMemoryError: this process is done for; the assignment is tried again in a fresh one.
        """

    def build_file(self, graph: ir.Model, out: Path) -> Engine:
        """Build another model with the same inputs and outputs, in the precisions that it is written in; as `build`."""

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        """Read back from what was built."""

    def load(self, path: Path) -> Session:
        """Open an engine file.

        Raises:
            RefusedError: it is cut short, of another version, or of another device.
        """

    def write_source(self, assignment: Assignment, out: Path) -> None:
        """Write the ONNX file that the engine of an assignment is built from."""

    def timing_cache(self) -> bytes | None:
        """What is known of tactics' times, for other builders on this target; None if nothing of it can be kept."""

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        """Time every layer of an engine file over `count` inferences, in the order they run."""

    def write_layers(self, path: Path, out: Path) -> bool:
        """Write the layers that an engine file runs, so that `evaluators.engine_files` can read them.

        Args:
            out: for the JSON of TensorRT's engine inspector or of an `EngineFile`, or an ONNX graph as it is run.

        Returns:
            False if nothing tells them; nothing is written then.
        """

    def probe(self, assignment: Assignment, engine: Path | None = None) -> Session:
        """Open a session whose outputs are those of all groups, named by group id, to find where values go wrong.

        Exposing them breaks fusions. Where `opens_engines`, they are those of the engine file, if one is given.
        """


class Backend(Protocol):
    """One kind of engine on one device, opened by its `BackendKind`."""

    quick_profile: bool
    """Whether profiling an engine costs so little that every evaluation may have its moves timed."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is noteworthy of everything measured here, say that the state of the device cannot be read."""

    @property
    def placement(self) -> Placement:
        """How an assignment is written as Q/DQ and Cast for this target, whether or not its builder reads that."""

    @property
    def lock_name(self) -> str:
        """The name of the device in the lock that keeps two processes from measuring on it at the same time."""

    def target(self) -> Target:
        """The target, which says what measurements made here can be compared with."""

    def capability(self) -> Capability:
        """Which precisions this target runs natively, per op type."""

    def knobs(self) -> Mapping[str, str]:
        """The settings that affect what is built, beside assignment and ranges; part of an evaluation's digest."""

    def device_state(self) -> Mapping[str, Any]:
        """Clocks, temperature, power, throttle reasons and other processes right now; empty if unknown.

        Keys, each only where it can be read: `sm_clock_mhz`, `memory_clock_mhz`, `temperature_c`, `power_w`,
        `throttled` (reasons that cost speed, in words), `other_processes` (how many use the device).
        """

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Continue other options, as far as they may change while the backend is open; the rest is as it was.

        Args:
            options: all of them, as `BackendKind.open` took them.
        """

    def check(self) -> None:
        """See whether this machine can build and load engines at all; may take seconds.

        Raises:
            TargetError: it cannot, with the engine's own reason.
            DeviceError, OutOfMemoryError: it could, were the device in order.
        """

    def float_session(self, model: Model) -> Session:
        """Run the clean float model as it is, by the quickest means there is; no measure of this target.

        Raises:
            ModelError: naming the op that this engine cannot run.
        """

    def builder(self, model: Model, ranges: Ranges) -> Builder:
        """A builder for the clean model."""
