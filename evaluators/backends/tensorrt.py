"""TensorRT 8.6 to 10.x with weak typing: precision set on layers, obeyed, ranges from our own calibration."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from evaluators.backends import tensorrt_audit
from evaluators.backends.base import Audit, Engine, OutOfMemoryError, RefusedError
from evaluators.backends.tensorrt_session import TensorRTSession, checked, cudart
from search import onnx_file
from search.errors import ModelError, TargetError
from search.model import Model
from search.values import Assignment, Capability, EngineSummary, LayerTime, Precision, Ranges, Target

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_LAYER_KINDS = ("CONVOLUTION", "DECONVOLUTION", "FULLY_CONNECTED", "MATRIX_MULTIPLY")
_FIRST_WITHOUT_WEAK_TYPING = 11
_GIB = 1 << 30


def import_tensorrt() -> Any:
    """The tensorrt module; raises TargetError with the command that installs it."""
    try:
        import tensorrt
    except ImportError as error:
        raise TargetError(
            f"starting backend tensorrt: the package is not installed ({error}). Install it with "
            "pip install 'bitfront[tensorrt]' on a machine with an NVIDIA GPU and driver."
        ) from error
    if int(tensorrt.__version__.split(".")[0]) >= _FIRST_WITHOUT_WEAK_TYPING:
        raise TargetError(
            f"starting backend tensorrt: version {tensorrt.__version__} has no weakly typed networks, the only kind "
            "bitfront builds so far. Install a version from 8.6 to 10.x."
        )
    return tensorrt


@dataclass(frozen=True)
class BuilderKnobs:
    """What decides, beside the assignment, what the builder makes.

    Attributes:
        workspace_bytes: scratch memory a tactic may take.
        optimization_level: 0 to 5; higher tries more tactics.
        tf32: lets FP32 matrix work run on TF32 units.
    """

    workspace_bytes: int = 4 * _GIB
    optimization_level: int = 3
    tf32: bool = True

    def to_json(self) -> dict[str, str]:
        return {
            "typing": "weak",
            "workspace_bytes": str(self.workspace_bytes),
            "optimization_level": str(self.optimization_level),
            "tf32": str(self.tf32).lower(),
        }


class TensorRTBackend:
    """TensorRT on one GPU.

    Args:
        device: `cuda` or `cuda:N`.
        threads: of ONNX Runtime where it helps out (checks before calibration); no engine uses it.

    Raises:
        TargetError: TensorRT or the CUDA bindings are not installed, or there is no such GPU.
    """

    name = "tensorrt"
    engine_file = "model.plan"
    quick_profile = False

    def __init__(self, device: str = "cuda", threads: int = 1) -> None:
        self.trt = import_tensorrt()
        self.threads = threads
        kind, _, index = device.partition(":")
        if kind != "cuda" or (index and not index.isdigit()):
            raise TargetError(f"--device {device}: expected cuda or cuda:N for backend tensorrt.")
        self.index = int(index or 0)
        self.cuda = _import_cuda()
        self.properties = _select(self.cuda, self.index)
        self.builder_knobs = BuilderKnobs()

    def target(self) -> Target:
        major, minor = self.properties.major, self.properties.minor
        driver = checked(self.cuda.cudaDriverGetVersion())
        name = self.properties.name
        return Target(
            backend=self.name,
            device=(name.decode() if isinstance(name, bytes) else str(name)).strip("\x00"),
            versions={
                "tensorrt": self.trt.__version__,
                "compute_capability": f"{major}.{minor}",
                "cuda_driver": str(driver // 1000),
            },
            options={"tf32": str(self.builder_knobs.tf32).lower(), "launch": "cuda graph"},
            statistic="median",
            relative=False,
        )

    def capability(self) -> Capability:
        # NVIDIA's own quantizer leaves smaller layers in FP16: INT8 kernels gain nothing on them.
        ops = {Precision.FP16: _WEIGHTED, Precision.INT8: _WEIGHTED}
        return Capability(ops, min_channels=16, min_matmul_size=16)

    def knobs(self) -> dict[str, str]:
        return self.builder_knobs.to_json()

    @property
    def lock_name(self) -> str:
        return f"cuda:{self.index}"

    def device_state(self) -> dict[str, Any]:
        return {}

    def float_session(self, model: Model) -> Any:
        from evaluators.backends.onnxruntime import OnnxRuntimeBackend

        log = _log(self.trt)
        parse_network(self.trt, self.trt.Builder(log), log, _model_bytes(model))
        return OnnxRuntimeBackend("cpu", threads=os.cpu_count() or 1).float_session(model)

    def builder(self, model: Model, ranges: Ranges) -> TensorRTBuilder:
        return TensorRTBuilder(self, model, ranges)


class TensorRTBuilder:
    """Builds plans; keeps one builder and one timing cache for all of them, which makes later builds fast."""

    def __init__(self, backend: TensorRTBackend, model: Model, ranges: Ranges) -> None:
        self.backend = backend
        self.trt = backend.trt
        self.model = model
        self.ranges = ranges
        self.log = _log(self.trt)
        self.onnx = _model_bytes(model)
        self._builder = self.trt.Builder(self.log)
        self._runtime = self.trt.Runtime(self.log)
        self._timing_cache: Any = None
        self._engine: tuple[Path, Any] | None = None

    def lower(self, assignment: Assignment) -> Assignment:
        return assignment

    def build(self, lowered: Assignment, out: Path) -> Engine:
        self.log.clear()
        network, _parser = parse_network(self.trt, self._builder, self.log, self.onnx)
        config = self._config(set(lowered.values()))
        self._set_precisions(network, lowered)
        if Precision.INT8 in lowered.values():
            self._set_ranges(network)
        plan = self._builder.build_serialized_network(network, config)
        if plan is None:
            raise self._refusal()
        out.write_bytes(bytes(plan))
        return Engine(out, out.stat().st_size, tuple(self.log.notes()))

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        layers = tensorrt_audit.parse(self.inspect(engine.path))
        rows = tensorrt_audit.audit_rows(layers, self.model.groups, assignment)
        return Audit(rows, EngineSummary(len(layers), sum(layer.moves for layer in layers)))

    def inspect(self, path: Path) -> str:
        """The engine inspector's JSON of a plan."""
        loaded = self._load_engine(path)
        self._engine = (path, loaded)
        inspector = loaded.create_engine_inspector()
        return str(inspector.get_engine_information(self.trt.LayerInformationFormat.JSON))

    def load(self, path: Path) -> TensorRTSession:
        kept, self._engine = self._engine, None
        engine = kept[1] if kept is not None and kept[0] == path else self._load_engine(path)
        shapes = {spec.name: spec.shape for spec in self.model.inputs}
        return TensorRTSession(self.trt, engine, shapes, path.stat().st_size)

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        session = self.load(path)
        try:
            session.bind(inputs)
            return session.profile(count, {})
        finally:
            session.close()

    def probe(self, assignment: Assignment) -> TensorRTSession:
        """Group outputs as further network outputs; that breaks fusions, so it shows where, not how fast."""
        network, _parser = parse_network(self.trt, self._builder, self.log, self.onnx)
        named = {group.output: group.id for group in self.model.groups}
        for layer in _layers(network):
            for tensor in (layer.get_output(i) for i in range(layer.num_outputs)):
                if tensor.name in named:
                    tensor.name = named[tensor.name]
                    if not tensor.is_network_output:
                        network.mark_output(tensor)
        self._set_precisions(network, assignment)
        if Precision.INT8 in assignment.values():
            self._set_ranges(network, {group.id: group.output for group in self.model.groups})
        plan = self._builder.build_serialized_network(network, self._config(set(assignment.values())))
        if plan is None:
            raise self._refusal()
        engine = self._runtime.deserialize_cuda_engine(bytes(plan))
        shapes = {spec.name: spec.shape for spec in self.model.inputs}
        return TensorRTSession(self.trt, engine, shapes, plan.nbytes)

    def _config(self, precisions: set[Precision]) -> Any:
        trt, knobs = self.trt, self.backend.builder_knobs
        config = self._builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, knobs.workspace_bytes)
        config.builder_optimization_level = knobs.optimization_level
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
        for precision, flag in ((Precision.FP16, trt.BuilderFlag.FP16), (Precision.INT8, trt.BuilderFlag.INT8)):
            if precision in precisions:
                config.set_flag(flag)
        if not knobs.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        self._set_profile(config)
        if self._timing_cache is None:
            # One object for all builds: TensorRT 8.6 refuses a cache that was serialized in between.
            self._timing_cache = config.create_timing_cache(b"")
        config.set_timing_cache(self._timing_cache, ignore_mismatch=False)
        return config

    def _set_profile(self, config: Any) -> None:
        if self.model.profiles:
            profile = self._builder.create_optimization_profile()
            for name, (low, best, high) in self.model.profiles.items():
                profile.set_shape(name, low, best, high)
            config.add_optimization_profile(profile)

    def _set_precisions(self, network: Any, assignment: Assignment) -> None:
        types = {
            Precision.FP32: self.trt.float32,
            Precision.FP16: self.trt.float16,
            Precision.INT8: self.trt.int8,
        }
        kinds = {getattr(self.trt.LayerType, kind) for kind in _LAYER_KINDS if hasattr(self.trt.LayerType, kind)}
        wanted = {anchor: assignment[group.id] for group in self.model.groups for anchor in group.anchors}
        found = set()
        for layer in _layers(network):
            if layer.name in wanted and layer.type in kinds:
                layer.precision = types[wanted[layer.name]]
                found.add(layer.name)
        missing = sorted(wanted.keys() - found)
        if missing:
            raise RefusedError(f"the parsed network has no weighted layer named {missing[0]!r} (of {len(missing)})")

    def _set_ranges(self, network: Any, renamed: Mapping[str, str] | None = None) -> None:
        """A dynamic range on every input and layer output; one without its own takes that of what feeds it."""
        known: dict[str, float] = {}
        for i in range(network.num_inputs):
            self._set_range(network.get_input(i), known, 1.0, renamed or {})
        for layer in _layers(network):
            fed = [layer.get_input(i) for i in range(layer.num_inputs)]
            inherited = max((known.get(t.name, 0.0) for t in fed if t is not None), default=0.0)
            for i in range(layer.num_outputs):
                self._set_range(layer.get_output(i), known, inherited or 1.0, renamed or {})

    def _set_range(self, tensor: Any, known: dict[str, float], fallback: float, renamed: Mapping[str, str]) -> None:
        own = self.ranges.tensors.get(renamed.get(tensor.name, tensor.name))
        magnitude = (own.magnitude if own is not None else fallback) or 1.0
        known[tensor.name] = magnitude
        if tensor.dtype in (self.trt.float32, self.trt.float16, self.trt.int8):
            tensor.set_dynamic_range(-magnitude, magnitude)

    def _load_engine(self, path: Path) -> Any:
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise RefusedError(f"the plan cannot be loaded: {self.log.first_error() or 'TensorRT gives no reason'}")
        return engine

    def _refusal(self) -> Exception:
        message = self.log.first_error() or "TensorRT gives no reason"
        if "out of memory" in message.lower() or "OutOfMemory" in message:
            return OutOfMemoryError(message)
        return RefusedError(message)


def _log(trt: Any) -> Any:
    """A logger that keeps what TensorRT says; defined here because its base class comes with the module."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(msg)
            elif severity == trt.ILogger.WARNING:
                self.warnings.append(msg)

        def clear(self) -> None:
            self.errors.clear()
            self.warnings.clear()

        def first_error(self) -> str:
            return self.errors[0][:1000] if self.errors else ""

        def notes(self) -> list[str]:
            return list(dict.fromkeys(warning[:300] for warning in self.warnings))[:8]

    return Log()


def parse_network(trt: Any, builder: Any, log: Any, data: bytes) -> tuple[Any, Any]:
    """The network of an ONNX model, and its parser, which holds the weights and has to live as long.

    Raises:
        ModelError: TensorRT's parser does not know an op.
    """
    flag = getattr(trt.NetworkDefinitionCreationFlag, "EXPLICIT_BATCH", None)
    network = builder.create_network(1 << int(flag) if flag is not None else 0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(data):
        error = parser.get_error(0)
        raise ModelError(
            f"parsing the model with TensorRT {trt.__version__}: {error.desc()} (node {error.node()}). Remove or "
            "replace the op, or use a backend that knows it."
        )
    return network, parser


def _layers(network: Any) -> list[Any]:
    return [network.get_layer(i) for i in range(network.num_layers)]


def _model_bytes(model: Model) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clean.onnx"
        onnx_file.write(model.graph, path)
        return path.read_bytes()


def _import_cuda() -> Any:
    try:
        return cudart()
    except ImportError as error:
        raise TargetError(
            f"starting backend tensorrt: cuda-bindings is not installed ({error}): pip install 'bitfront[tensorrt]'."
        ) from error


def _select(cuda: Any, index: int) -> Any:
    error, count = cuda.cudaGetDeviceCount()
    if int(error) != 0 or index >= count:
        found = f"{count} GPUs" if int(error) == 0 else f"no working driver (CUDA error {int(error)})"
        raise TargetError(f"--device cuda:{index}: this machine has {found}.")
    checked(cuda.cudaSetDevice(index))
    return checked(cuda.cudaGetDeviceProperties(index))
