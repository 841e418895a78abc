"""The builder of TensorRT plans, weakly or strongly typed. It makes no CUDA calls of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from evaluators.backends.tensorrt import api, weak_typing
from evaluators.backends.tensorrt import audit as tensorrt_audit
from evaluators.backends.tensorrt.options import STRONG, TensorRTOptions
from evaluators.backends.tensorrt.session import TensorRTSession, new_context
from evaluators.backends.tensorrt.timing_cache import TimingCache
from evaluators.cores import usable_processors
from evaluators.engine import Audit, Engine, OutOfMemoryError, RefusedError
from evaluators.lowering.corrections import corrected_model
from evaluators.lowering.int8.plan import with_shared_scales
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_WEAK
from search.errors import ModelError
from search.graph import onnx_file
from search.graph.element_types import is_float
from search.graph.floats.quantized_file import is_quantized_op
from search.graph.model import Model
from search.values import REFERENCE, Assignment, EngineSummary, LayerTime, Precision, Ranges, is_quantized


@dataclass(frozen=True)
class LoweredBytes:
    """An assignment with the ONNX bytes that the builder reads for it."""

    assignment: Assignment
    onnx: bytes


class TensorRTBuilder:
    """Builds plans; keeps one builder and one timing cache for all of them, which makes later builds fast.

    Args:
        trt: the tensorrt module.
        model: the clean model.
        ranges: calibrated range of every float tensor.
        knobs: of all builds, as the backend has settled them.
        check_device: raises DeviceError where the device is out of order, which TensorRT reports as a refusal.
        make_builder: gives TensorRT's builder, which the process may have already; None for a new one.
        timing: what is known of tactics' times, where another builder of the process has learnt some.
    """

    opens_engines = False  # a plan has only the outputs it was built with

    def __init__(
        self,
        trt: Any,
        model: Model,
        ranges: Ranges,
        knobs: TensorRTOptions,
        check_device: Callable[[], object] = lambda: None,
        make_builder: Callable[[], Any] | None = None,
        timing: TimingCache | None = None,
    ) -> None:
        self.trt = trt
        self.model = model
        self.ranges = ranges
        self.knobs = knobs
        self._check_device = check_device
        self._make_builder = make_builder or (lambda: api.make_builder(trt, self.log, check_device))
        self.log = api.shared_log(trt)
        api.load_plugins(trt, self.log, knobs.plugins)
        self._clean = model_bytes(model.graph)
        self._tensors = _float_tensors(model)
        self._inner = _tensors_in_bodies(model)
        self._runtime = api.make_runtime(trt, self.log, check_device)
        self.timing = timing or TimingCache(knobs.timing_cache)
        self._engine: tuple[Path, Any] | None = None
        self._fixes_types = not self.strong  # until TensorRT refuses what it builds without them
        self.threads: int | None = None  # that the builder was allowed, once there is one

    @cached_property
    def _builder(self) -> Any:
        """Made when first needed: it takes seconds, and to load and time a plan it is not needed at all."""
        builder = self._make_builder()
        self.threads = api.set_threads(builder, self.knobs.build_threads or usable_processors())
        return builder

    @property
    def strong(self) -> bool:
        return self.knobs.typing == STRONG

    # -- building --------------------------------------------------------------------------------------------------

    def lower(self, assignment: Assignment) -> LoweredBytes:
        if not self.strong:
            return LoweredBytes(assignment, self._correct_model(assignment))
        return LoweredBytes(assignment, model_bytes(lower(self.model, assignment, self.ranges, TENSORRT)))

    def _correct_model(self, assignment: Assignment) -> bytes:
        """The clean model with the corrections of the groups that this assignment runs in INT8."""
        graph = corrected_model(self.model, assignment, self.ranges, TENSORRT)
        return self._clean if graph is self.model.graph else model_bytes(graph)

    def write_source(self, assignment: Assignment, out: Path) -> None:
        """Write the ONNX file that an assignment's engine is built from."""
        out.write_bytes(self.lower(assignment).onnx)

    def build(self, lowered: LoweredBytes, out: Path) -> Engine:
        """Build the engine of a mix. What is refused is built once more with all types left to TensorRT.

        If that helps, so is every mix of the model that follows: the next refusal might come as late, after minutes.
        """
        try:
            return self._build_mix(lowered, out)
        except RefusedError:
            if not self._fixes_types or set(lowered.assignment.values()) == {REFERENCE}:
                raise
        self._fixes_types = False
        try:
            return self._build_mix(lowered, out)
        except RefusedError:
            self._fixes_types = True
            raise

    def _build_mix(self, lowered: LoweredBytes, out: Path) -> Engine:
        network, parser = self._parse(lowered.onnx)
        config = self._config()
        notes = api.instancenorm_notes(self.trt, self.model)
        if not self.strong:
            notes += self._constrain(network, config, lowered.assignment)
        return self._write_engine(network, config, out, notes, parser, lowered.assignment)

    def build_file(self, graph: ir.Model, out: Path) -> Engine:
        network, parser = self._parse(model_bytes(graph))
        config = self._config()
        if not self.strong:
            weak_typing.set_flags(self.trt, config, self._precisions_for(graph), obey=False)
        return self._write_engine(network, config, out, [], parser, None)

    def _precisions_for(self, graph: ir.Model) -> set[Precision]:
        """The precisions to allow for a file: all where it has Q/DQ, so that TensorRT chooses those of its floats.

        Else those of its weights alone: INT8 without Q/DQ would need ranges.
        """
        dtypes = {value.dtype for value in graph.graph.initializers.values()}
        if any(is_quantized_op(node.op_type) for node in graph.graph.all_nodes()):
            return self._free_precisions(Precision.FP8 if ir.DataType.FLOAT8E4M3FN in dtypes else Precision.INT8)
        return {Precision.FP16} if ir.DataType.FLOAT16 in dtypes else set()

    def _free_precisions(self, eight_bits: Precision = Precision.INT8) -> set[Precision]:
        """All that this version may choose from, one of 8 bits among them: 8.6 refuses INT8 beside FP8."""
        other = {Precision.INT8, Precision.FP8} - {eight_bits}
        return {each for each in Precision if hasattr(self.trt.BuilderFlag, each.name)} - other

    def build_free(self, out: Path, onnx: bytes | None = None) -> Engine:
        """TensorRT's own choice among all precisions that it may mix with INT8, nothing constrained: `trtexec --best`.

        Args:
            onnx: another file than the clean model, say one with Q/DQ in it.

        Raises:
            RefusedError: the builder refuses, or the typing is strong, where nothing is left to choose.
        """
        if self.strong:
            raise RefusedError("a strongly typed network leaves TensorRT no choice of precision")
        network, parser = self._parse(onnx or self._clean)
        config = self._config()
        weak_typing.set_flags(self.trt, config, self._free_precisions(), obey=False)
        if onnx is None:
            int8 = Assignment({group.id: Precision.INT8 for group in self.model.groups})
            ranges = with_shared_scales(self.model, int8, TENSORRT_WEAK, self.ranges)
            weak_typing.set_ranges(self.trt, network, ranges, self._tensors)
        return self._write_engine(network, config, out, [], parser, None)

    def probe(self, assignment: Assignment, engine: Path | None = None) -> TensorRTSession:
        """Group outputs as further network outputs; that breaks fusions, so it shows where, not how fast."""
        if self.strong:
            exposed = expose_groups(lower(self.model, assignment, self.ranges, TENSORRT), self.model)
            network, parser = self._parse(model_bytes(exposed))
            config = self._config()
        else:
            network, parser = self._parse(self._correct_model(assignment))
            self._expose(network)
            config = self._config()
            self._constrain(network, config, assignment)
        plan = self._serialize(network, config, parser, assignment)
        return self._session(self._runtime.deserialize_cuda_engine(plan), len(plan))

    def _parse(self, data: bytes) -> tuple[Any, Any]:
        builder = self._builder
        self.timing.use_in(builder.create_builder_config())  # what is said of its file is said of no network either
        self.log.clear()  # of the builder's first words too: they are said of no network
        try:
            return api.parse_network(
                self.trt,
                builder,
                self.log,
                data,
                strong=self.strong,
                native_instancenorm=self.knobs.native_instancenorm,
            )
        except api.ParseError as error:
            # The clean model was parsed before the first candidate: it is the assignment that does not fit.
            raise RefusedError(str(error), api.named_group(str(error), self.model.groups)) from error

    def _expose(self, network: Any) -> None:
        """Make every group's output an output of the network, by a float copy: the tensor itself may be INT8."""
        named = {group.output: group.id for group in self.model.groups}
        for output in [network.get_output(i) for i in range(network.num_outputs)]:
            network.unmark_output(output)
        tensors = [tensor for layer in api.layers_of(network) for tensor in api.outputs_of(layer)]
        for tensor in tensors:
            if tensor.name in named:
                copy = network.add_identity(tensor)
                copy.set_output_type(0, self.trt.float32)
                copy.get_output(0).name = named[tensor.name]
                network.mark_output(copy.get_output(0))

    def _constrain(self, network: Any, config: Any, assignment: Assignment) -> list[str]:
        weak_typing.set_flags(self.trt, config, set(assignment.values()))
        weak_typing.set_precisions(self.trt, network, self.model.groups, assignment, self._inner)
        if set(assignment.values()) == {REFERENCE}:
            return []
        layers, groups = api.layers_of(network), self.model.groups
        ranged: set[str] = set()
        if is_quantized(assignment):
            ranged |= weak_typing.ranged_tensors(layers, groups, assignment)
            ranged |= weak_typing.move_in_float(self.trt, layers, groups, assignment, ranged)
        if self._fixes_types:
            weak_typing.fix_output_types(self.trt, layers, groups, assignment, ranged)
        if not is_quantized(assignment):
            return []
        ranges = with_shared_scales(self.model, assignment, TENSORRT_WEAK, self.ranges)
        missing = weak_typing.set_ranges(self.trt, network, ranges, self._tensors, ranged)
        if not missing:
            return []
        return [
            f"missing-ranges: {len(missing)} tensors have no range and use that of the tensor before them, the first "
            f"is {missing[0]!r}"
        ]

    def _write_engine(
        self, network: Any, config: Any, out: Path, notes: list[str], parser: Any, assignment: Assignment | None
    ) -> Engine:
        plan = self._serialize(network, config, parser, assignment)
        self._engine = None  # it may be of the plan that is written over
        out.write_bytes(plan)
        return Engine(out, len(plan), (*notes, *self.timing.notes, *api.notes_of(self.log.warnings)))

    def _serialize(self, network: Any, config: Any, parser: Any, assignment: Assignment | None) -> bytes:
        plan = self._builder.build_serialized_network(network, config)
        del parser  # it holds the weights until here
        if plan is None:
            self._check_device()
            raise api.refusal(self.log.errors, self.model.groups, assignment)
        self.timing.keep()
        return bytes(plan)

    def _config(self) -> Any:
        trt, knobs = self.trt, self.knobs
        config = self._builder.create_builder_config()
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, knobs.workspace_bytes)
        config.builder_optimization_level = knobs.optimization_level
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
        if not knobs.tf32:
            config.clear_flag(trt.BuilderFlag.TF32)
        if knobs.sparsity:
            config.set_flag(trt.BuilderFlag.SPARSE_WEIGHTS)
        self._set_profile(config)
        self.timing.use_in(config)
        return config

    def _set_profile(self, config: Any) -> None:
        if self.model.profiles:
            profile = self._builder.create_optimization_profile()
            for name, (low, best, high) in self.model.profiles.items():
                profile.set_shape(name, low, best, high)
            config.add_optimization_profile(profile)

    # -- what was built --------------------------------------------------------------------------------------------

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        layers = tensorrt_audit.parse(self.inspect(engine.path))
        rows = tensorrt_audit.audit_rows(layers, self.model.groups, assignment)
        return Audit(rows, self._summary(layers))

    def _summary(self, layers: Sequence[tensorrt_audit.EngineLayer]) -> EngineSummary:
        level = self.knobs.optimization_level
        return replace(tensorrt_audit.summary(layers), build_threads=self.threads, optimization_level=level)

    def inspect(self, path: Path) -> str:
        """The engine inspector's JSON of a plan."""
        loaded = self._load_engine(path)
        self._engine = (path, loaded)
        inspector = loaded.create_engine_inspector()
        if self.model.profiles:
            # Without shapes the formats of a dynamic engine are "N/A due to dynamic shapes"; in 8.6.0 they always are.
            shapes = {spec.name: spec.shape for spec in self.model.inputs}
            context = new_context(loaded, shapes, self.log)  # the inspector does not keep it alive
            inspector.execution_context = context
        return str(inspector.get_engine_information(self.trt.LayerInformationFormat.JSON))

    def load(self, path: Path) -> TensorRTSession:
        kept, self._engine = self._engine, None
        engine = kept[1] if kept is not None and kept[0] == path else self._load_engine(path)
        return self._session(engine, path.stat().st_size)

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        layers = tensorrt_audit.parse(self.inspect(path))
        session = self.load(path)
        try:
            return tensorrt_audit.layer_times(session.profile(inputs, count), layers, self.model.groups)
        finally:
            session.close()

    def write_layers(self, path: Path, out: Path) -> bool:
        out.write_text(self.inspect(path), encoding="utf-8")
        return True

    def timing_cache(self) -> bytes | None:
        """What the builder has measured so far, for other builds on this device; None if it cannot be used again."""
        return self.timing.serialize()

    def _session(self, engine: Any, plan_bytes: int) -> TensorRTSession:
        if engine is None:
            raise api.refusal(self.log.errors, self.model.groups)
        shapes = {spec.name: spec.shape for spec in self.model.inputs}
        return TensorRTSession(self.trt, engine, shapes, plan_bytes, self.log)

    def _load_engine(self, path: Path) -> Any:
        self.log.clear()
        engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            self._check_device()
            error = api.refusal(self.log.errors, ())
            if isinstance(error, OutOfMemoryError):
                raise error
            raise RefusedError(f"the plan {path.name} cannot be loaded: {self.log.first_error()}")
        return engine


def model_bytes(graph: ir.Model) -> bytes:
    """An ONNX model as one piece, weights inside; equal for equal models.

    Raises:
        ModelError: it is too large for one piece.
    """
    if not onnx_file.fits_inside(graph):
        raise ModelError(
            "building with TensorRT: expected a model of at most 2 GiB, the limit of an ONNX message, but its weights "
            "are "
            "larger. Split the model, export it with smaller weights, or use --backend onnxruntime."
        )
    return bytes(ir.to_proto(graph).SerializeToString(deterministic=True))


def _float_tensors(model: Model) -> frozenset[str]:
    graph = model.graph.graph
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    return frozenset(value.name or "" for value in values if is_float(value))


def _tensors_in_bodies(model: Model) -> frozenset[str]:
    """Names of what nodes inside If and Loop make, and no node of the main graph."""
    graph = model.graph.graph
    outer = {value.name for node in graph for value in node.outputs}
    inner = {value.name for node in graph.all_nodes() for value in node.outputs}
    return frozenset(name for name in inner - outer if name)
