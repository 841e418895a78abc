"""Running many lowered graphs on the fastest ONNX Runtime available, to measure errors but never latencies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.capabilities.restricted import without_rules
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.builder import join_blocks
from evaluators.backends.onnxruntime.cuda import PROVIDER
from evaluators.backends.onnxruntime.session import first_line
from evaluators.cores import MOST_THREADS, PATIENT
from evaluators.engine import Arrays, Backend
from evaluators.lent_constants import FOLDER_ENTRY, IN_PLACE, session_source
from evaluators.lowering.placement import Placement
from search.errors import EvaluatorError, TargetError
from search.graph import onnx_file

_NICE = 10
# Of a LayerNorm of single ops that reads a Cast from half to float, it makes one op that reads what the Cast reads, and
# leaves its factors in float: a graph that cannot be opened (1.32, from opset 17 on). Rounding would be lost anyway.
_NOT_AS_WRITTEN = ("LayerNormFusionL1",)
# A Relu in front of a QuantizeLinear to FP8 it takes out, as if its codes began at zero.
_NOT_BEFORE_FP8 = ("ReluQuantRewrite", "ClipQuantRewrite")


class Emulator:
    """Opens graphs that were lowered for one placement.

    Args:
        backend: where they run.
        placement: what they were lowered for. Where the backend fuses just that into kernels of its own these are
            used; Q and DQ for another target are computed as they are written.
    """

    def __init__(self, backend: OnnxRuntimeBackend, placement: Placement) -> None:
        self._runtime = backend.device
        self._as_written = backend.cuda or placement != backend.placement
        self.device = backend.device.name

    def open(self, graph: ir.Model) -> Emulated:
        """Raises EvaluatorError when ONNX Runtime refuses the graph."""
        options = self._runtime.session_options()
        left_out = (*_NOT_AS_WRITTEN, *(_NOT_BEFORE_FP8 if self._as_written else ()))
        options.add_session_config_entry("optimization.disable_specified_optimizers", ";".join(left_out))
        if not self._as_written and any("block_size" in node.attributes for node in graph.graph):
            graph = join_blocks(graph.clone())  # whose kernel rounds what it reads
        if self._as_written:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        options.add_session_config_entry(*PATIENT)
        try:
            with session_source(self._runtime.ort, graph, options) as source:
                session = self._runtime.ort.InferenceSession(source, options, providers=self._providers())
        except Exception as error:
            raise EvaluatorError(
                f"opening a graph to measure its error: ONNX Runtime refuses the graph: {first_line(error)}. "
                "`bitfront doctor` says what is installed."
            ) from error
        return Emulated(self._runtime.ort, session)

    def _providers(self) -> list[Any]:
        if not self._runtime.cuda:
            return self._runtime.providers()
        # TF32 would hide what FP16 adds.
        return [(PROVIDER, {"device_id": self._runtime.index, "use_tf32": 0}), "CPUExecutionProvider"]


class Emulated:
    """One graph, ready to run."""

    def __init__(self, ort: Any, session: Any) -> None:
        self._session = session
        self._fetching = ort.RunOptions()
        self._fetching.only_execute_path_to_fetches = True
        self.outputs: tuple[str, ...] = tuple(output.name for output in session.get_outputs())

    @property
    def on_gpu(self) -> bool:
        return PROVIDER in self._session.get_providers()

    def run(self, inputs: Mapping[str, NDArray[Any]], names: Sequence[str] | None = None) -> Arrays:
        """Outputs by name; with `names` only these, and no more is computed than they need.

        Raises:
            EvaluatorError: ONNX Runtime cannot run it.
        """
        wanted = list(self.outputs if names is None else names)
        try:
            arrays = self._session.run(wanted, dict(inputs), None if names is None else self._fetching)
        except Exception as error:
            raise EvaluatorError(
                f"running a graph to measure its error: ONNX Runtime failed: {first_line(error)}. If "
                "memory is short, take a smaller --batch."
            ) from error
        return {name: np.asarray(array) for name, array in zip(wanted, arrays, strict=True)}


def open_file(path: Path, threads: int) -> Emulated:
    """An ONNX file as it is, on the processor; its external data may be of any size, and nodes may share a name.

    Raises:
        EvaluatorError: ONNX Runtime refuses it.
    """
    device = OnnxRuntimeBackend("cpu", threads=threads).device
    options = device.session_options()
    if onnx_file.external_files(path):
        options.add_session_config_entry(*IN_PLACE)
    renamed = onnx_file.without_repeated_names(path)
    if renamed is not None:
        options.add_session_config_entry(FOLDER_ENTRY, str(path.parent.resolve()))
    try:
        session = device.ort.InferenceSession(renamed or str(path), options, providers=device.providers())
    except Exception as error:
        raise EvaluatorError(f"opening {path} to run it: ONNX Runtime refuses it: {first_line(error)}.") from error
    return Emulated(device.ort, session)


@contextmanager
def quickest(backend: Backend, device: str | None, graph: ir.Model) -> Iterator[Emulator]:
    """The emulator for a target: on its GPU where ONNX Runtime reaches that, else on the processor.

    Args:
        backend: the target's.
        device: of the target, in the spelling of the command line.
        graph: the float model, which has to run there.
    """
    on_gpu = _on_gpu(backend, device, graph)
    if on_gpu is not None:
        yield on_gpu
        return
    with every_core() as cores:
        yield Emulator(OnnxRuntimeBackend("cpu", threads=min(MOST_THREADS, cores)), backend.placement)


@contextmanager
def beside_others(placement: Placement) -> Iterator[Emulator]:
    """The emulator for a target that others measure on and build for meanwhile: on all processor cores but one.

    This process yields to every other one that needs a core.
    """
    os.nice(_NICE)
    with every_core() as cores:
        yield Emulator(OnnxRuntimeBackend("cpu", threads=max(1, min(MOST_THREADS, cores - 1))), placement)


def _on_gpu(backend: Backend, device: str | None, graph: ir.Model) -> Emulator | None:
    backend = without_rules(backend)
    if isinstance(backend, OnnxRuntimeBackend):
        return Emulator(backend, backend.placement) if backend.cuda else None
    try:
        emulator = Emulator(OnnxRuntimeBackend(device or "cuda"), backend.placement)
    except TargetError:  # an installation without the CUDA provider, as most are beside TensorRT
        return None
    # Where its libraries are missing ONNX Runtime goes on without the provider.
    return emulator if emulator.open(graph).on_gpu else None


@contextmanager
def every_core() -> Iterator[int]:
    """Let this thread, and those it starts meanwhile, run on every core that the parent process may use; how many.

    A process that measures latencies is bound to one core; its keeper is not.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield os.cpu_count() or 1
        return
    bound = os.sched_getaffinity(0)
    cores = bound | os.sched_getaffinity(os.getppid())
    os.sched_setaffinity(0, cores)
    try:
        yield len(cores)
    finally:
        os.sched_setaffinity(0, bound)
