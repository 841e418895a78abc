"""ONNX Runtime: the CPU, and CUDA through the same code where onnxruntime-gpu is installed."""

from __future__ import annotations

import platform
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.nvidia import device as cuda_device
from evaluators.backends.nvidia.state import GpuState
from evaluators.backends.onnxruntime import cuda as onnxruntime_cuda
from evaluators.backends.onnxruntime.audit import audit_rows, owner_of, owners_of
from evaluators.backends.onnxruntime.heap import allocated_bytes
from evaluators.backends.onnxruntime.profile import is_move, layer_times
from evaluators.engine import Arrays, Audit, DeviceError, Engine, OutOfMemoryError, RefusedError
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import ONNXRUNTIME_CPU, ONNXRUNTIME_CUDA, Placement
from search.errors import ModelError, TargetError
from search.graph import onnx_file
from search.graph.model import Model
from search.values import Assignment, Capability, EngineSummary, LayerTime, Precision, Ranges, Target

_INSTALL = "pip install 'bitfront[cpu]' (or 'bitfront[gpu]' on a machine with an NVIDIA GPU; never both)"
_PROFILE_WARM_UP = 3


def import_onnxruntime() -> Any:
    """The onnxruntime module, quiet below errors; raises TargetError with the command that installs it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise TargetError(
            f"starting backend onnxruntime: the package is not installed ({error}). Install it with {_INSTALL}."
        ) from error
    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


class OnnxRuntimeBackend:
    """ONNX Runtime on one device: `cpu`, `cuda` or `cuda:N`.

    Args:
        device: where sessions run.
        threads: intra-op threads; one by default, because two on a shared machine differ by 15 % between processes.

    Raises:
        TargetError: ONNX Runtime or its CUDA provider is not installed, or there is no such device.
    """

    name = "onnxruntime"
    engine_file = "model.onnx"
    quick_profile = False

    def __init__(self, device: str = "cpu", threads: int = 1) -> None:
        self.ort = import_onnxruntime()
        self.device = device
        self.threads = threads
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
            raise TargetError(f"--device {device}: expected cpu, cuda or cuda:N for backend onnxruntime.")
        self.cuda = kind == "cuda"
        self.index = int(index or 0)
        if self.cuda:
            onnxruntime_cuda.require_compiled_in(self.ort, device)
        self._gpu = GpuState(cuda_device.gpu_uuid(self.index) or self.index) if self.cuda else None

    def target(self) -> Target:
        options = {"threads": str(self.threads), "graph_level": "all", "execution": "sequential"}
        if not self.cuda:
            options["weight_bits"] = str(self.placement.weight_bits)
        return Target(
            backend=self.name,
            device=_gpu_name(self.index) if self.cuda else cpu_model(),
            versions={"onnxruntime": self.ort.__version__, "provider": "cuda" if self.cuda else "cpu"},
            options=options,
            statistic="median" if self.cuda else "p20",
            relative=not self.cuda,
        )

    @property
    def placement(self) -> Placement:
        if self.cuda:
            return ONNXRUNTIME_CUDA
        return ONNXRUNTIME_CPU if has_vnni() else replace(ONNXRUNTIME_CPU, weight_bits=7)

    def capability(self) -> Capability:
        if self.cuda:
            return Capability({Precision.FP16: frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})})
        return Capability({Precision.INT8: frozenset({"Conv", "Gemm", "MatMul"})})

    def knobs(self) -> dict[str, str]:
        return {"placement": self.placement.name, "weight_bits": str(self.placement.weight_bits)}

    @property
    def lock_name(self) -> str:
        return cuda_device.lock_name(self.index) if self.cuda else "cpu"

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
            session = OnnxRuntimeSession(self, _one_node(), self.session_options())
            session.run({"x": np.ones(1, np.float32)})
            session.close()
        except TargetError:
            raise
        except Exception as error:
            raise TargetError(
                f"--device {self.device}: ONNX Runtime {self.ort.__version__} cannot run a model of one node there: "
                f"{first_line(error)}. Its installation may be broken: install it again, or choose another --device."
            ) from error

    def float_session(self, model: Model) -> OnnxRuntimeSession:
        try:
            return self.plain_session(model.graph)
        except TargetError:
            raise
        except Exception as error:
            self.check()  # where nothing runs at all, the model is not to blame
            raise ModelError(
                f"checking the model: ONNX Runtime ({self.device}) cannot run the float model: {first_line(error)}. "
                "With every backend it runs calibration and the float reference: remove or replace what it does not "
                "know; neither another backend nor --plugin helps."
            ) from error

    def plain_session(self, graph: ir.Model) -> OnnxRuntimeSession:
        """Run a graph node by node as it is written, Q/DQ and Cast too, nothing optimized."""
        options = self.session_options()
        options.graph_optimization_level = self.ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return OnnxRuntimeSession(self, ir.to_proto(graph).SerializeToString(), options)
        except TargetError:
            raise
        except Exception as error:
            raise _meaning_of(error) from error

    def builder(self, model: Model, ranges: Ranges) -> OnnxRuntimeBuilder:
        return OnnxRuntimeBuilder(self, model, ranges)

    def providers(self) -> list[Any]:
        if not self.cuda:
            return ["CPUExecutionProvider"]
        return [("CUDAExecutionProvider", {"device_id": self.index}), "CPUExecutionProvider"]

    def session_options(self) -> Any:
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.execution_mode = self.ort.ExecutionMode.ORT_SEQUENTIAL
        options.graph_optimization_level = self.ort.GraphOptimizationLevel.ORT_ENABLE_ALL
        return options


class OnnxRuntimeBuilder:
    """Lowers assignments of one model and opens them; the engine is the lowered ONNX file."""

    opens_engines = True

    def __init__(self, backend: OnnxRuntimeBackend, model: Model, ranges: Ranges) -> None:
        self.backend = backend
        self.model = model
        self.ranges = ranges
        self._written = {node.name or "" for node in model.graph.graph}
        self._fresh: tuple[Path, OnnxRuntimeSession] | None = None

    def lower(self, assignment: Assignment) -> ir.Model:
        return lower(self.model, assignment, self.ranges, self.backend.placement)

    def build(self, lowered: ir.Model, out: Path) -> Engine:
        onnx_file.write(lowered, out)
        options = self.backend.session_options()
        options.optimized_model_filepath = str(_optimized(out))
        self._fresh = (out, self._open(out, options))
        return Engine(out, out.stat().st_size)

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        path = _optimized(engine.path)
        try:
            optimized = onnx.load(str(path))
        finally:
            path.unlink(missing_ok=True)
        moves = sum(is_move(node, self._written) for node in optimized.graph.node)
        rows = audit_rows(optimized.graph, self.model, assignment)
        return Audit(rows, EngineSummary(len(optimized.graph.node), moves))

    def load(self, path: Path) -> OnnxRuntimeSession:
        fresh, self._fresh = self._fresh, None
        if fresh is not None and fresh[0] == path:
            return fresh[1]
        return self._open(path, self.backend.session_options())

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        options = self.backend.session_options()
        with tempfile.TemporaryDirectory() as folder:
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "trace")
            options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
            session = self._open(path, options)
            for _ in range(_PROFILE_WARM_UP + count):
                session.run(inputs)
            trace = Path(session.session.end_profiling()).read_text(encoding="utf-8")
            optimized = onnx.load(str(Path(folder) / "optimized.onnx"), load_external_data=False)
            session.close()
        owners = owners_of(self.model)
        return layer_times(
            trace, optimized.graph, lambda node: owner_of(node, owners), self._written, _PROFILE_WARM_UP, count
        )

    def write_source(self, assignment: Assignment, out: Path) -> None:
        onnx_file.write(self.lower(assignment), out)

    def timing_cache(self) -> None:
        return None

    def probe(self, assignment: Assignment, engine: Path | None = None) -> OnnxRuntimeSession:
        exposed = expose_groups(self.lower(assignment) if engine is None else ir.load(engine), self.model)
        return self._open(ir.to_proto(exposed).SerializeToString(), self.backend.session_options())

    def _open(self, model: Path | bytes, options: Any) -> OnnxRuntimeSession:
        try:
            return OnnxRuntimeSession(self.backend, model, options)
        except TargetError:
            raise
        except Exception as error:
            raise _meaning_of(error) from error


class OnnxRuntimeSession:
    """One loaded ONNX file. `memory_bytes` is what loading and the first run allocate and keep, on the CPU.

    Raises:
        TargetError: CUDA was asked for and its provider does not load.
    """

    def __init__(self, backend: OnnxRuntimeBackend, model: Path | bytes, options: Any) -> None:
        self.backend = backend
        before = allocated_bytes()
        source = str(model) if isinstance(model, Path) else model
        # Nothing that fails on the device may be run on the processor instead, neither now nor later.
        self.session = backend.ort.InferenceSession(source, options, providers=backend.providers(), enable_fallback=0)
        if backend.cuda:
            onnxruntime_cuda.require_loaded(backend.ort, self.session, backend.device, backend.index)
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.memory_bytes: int | None = None
        self._loaded_bytes = allocated_bytes() - before
        self.types: Mapping[str, str] = {}
        self.notes: tuple[str, ...] = ()
        self._bound: dict[str, Any] = {}
        self._binding: Any = None

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        measures = self.memory_bytes is None and not self.backend.cuda
        before = allocated_bytes() if measures else 0
        try:
            results = self.session.run(self.outputs, dict(inputs))
        except Exception as error:
            raise _meaning_of(error) from error
        if measures:
            self.memory_bytes = max(0, self._loaded_bytes + allocated_bytes() - before)
        return dict(zip(self.outputs, results, strict=True))

    def bind(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        self._bound = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        if not self.backend.cuda:
            return
        value = self.backend.ort.OrtValue
        self._binding = self.session.io_binding()
        for name, array in self._bound.items():
            self._binding.bind_ortvalue_input(name, value.ortvalue_from_numpy(array, "cuda", self.backend.index))
        for name in self.outputs:
            self._binding.bind_output(name, "cuda", self.backend.index)

    def time(self, count: int) -> NDArray[np.float64]:
        samples = np.empty(count)
        run = self._run_bound_cuda if self.backend.cuda else self._run_bound
        for i in range(count):
            start = time.perf_counter_ns()
            run()
            samples[i] = (time.perf_counter_ns() - start) / 1e6
        return samples

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


def cpu_model() -> str:
    """The processor's name, say `AMD EPYC 9754`; without clock or core count."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def has_vnni() -> bool:
    """Whether UINT8×INT8 products sum in 32 bits. x86 without it saturates at 16, so weights get 7 bits there."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return True
    with suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text()
        return "avx512_vnni" in flags or "avx_vnni" in flags
    return False


def first_line(error: BaseException) -> str:
    """The first line of an error that says something, without ONNX Runtime's own prefix."""
    line = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", line)[:500]


def _meaning_of(error: Exception) -> Exception:
    """ONNX Runtime's exceptions sorted into what can be done about them; any other is returned as it is."""
    if not type(error).__module__.startswith("onnxruntime"):
        return error
    message = first_line(error)
    if re.search(r"out of memory|bad_alloc|failed to allocate|BFCArena", str(error), re.IGNORECASE):
        return OutOfMemoryError(message)
    if re.search(r"CUDA (failure|error)|CUBLAS failure|CUDNN failure", str(error), re.IGNORECASE):
        return DeviceError(message)
    return RefusedError(message)


def _one_node() -> bytes:
    """An ONNX file of one Relu on `x`, (1,) float32."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "check", [x], [y])
    opset = onnx.helper.make_opsetid("", 13)
    data: bytes = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()
    return data


def _gpu_name(index: int) -> str:
    import subprocess

    query = ["nvidia-smi", f"--id={index}", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        raise TargetError(f"--device cuda:{index}: nvidia-smi does not know this GPU ({first_line(error)}).") from error


def _optimized(path: Path) -> Path:
    return path.with_name(path.name + ".optimized.onnx")
