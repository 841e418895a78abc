"""The class `Model`: a clean ONNX model with its groups and edges."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from search.errors import ModelError
from search.graph import onnx_file
from search.graph.cleaning import (
    clean,
    infer_shapes,
    lift_constants,
    raise_ir_version,
    rewrite_exactly,
    skeleton,
)
from search.graph.element_types import settle_types
from search.graph.floats.half_precision import cast_ends, every_node, uses_halves, widen_halves
from search.graph.floats.own_scales import OwnScales
from search.graph.floats.quantized_file import Unquantized, is_quantized_op, take_out_quantization
from search.graph.fused.own_domain import put_own_ops_back, set_own_ops_apart
from search.graph.grouping import BOTH_ACTIVATIONS, WEIGHTED, Edge, Group, find_groups
from search.graph.opset_upgrade import at_least_opset
from search.graph.other_layers import LeftOut, find_left_out
from search.graph.rewrites.apply import names_of_others
from search.graph.shapes import (
    Profile,
    ShapeRequest,
    TensorSpec,
    check_reshapes,
    fix_inputs,
    fix_shapes,
    measured_shapes,
    read_input_values,
)
from search.graph.sizes import add_batch_axis, check_sequences, moved_batches, put_batch_first, takes_one_sample
from search.values import ATTENTION, FREE, Recovery, digest_of

__all__ = ["Edge", "Group", "Model", "ShapeRequest", "TensorSpec", "load"]


@dataclass(frozen=True)
class Model:
    """A clean model: constants folded, BatchNorm fused, every node named. It does not change after `load`.

    Attributes:
        graph: the clean ONNX IR model; treat as read-only, `graph.clone()` before changing.
        inputs, outputs: at the measured shapes, batch first.
        shapes: shape of every tensor at the measured input shapes, if inference finds it.
        groups, edges: in topological order.
        digest: 64 hex digits of the user's file, its external data, the requested shapes and the rewrites of other
            packages; for a `scaled` model also of the factors.
        profiles: MIN, OPT, MAX shapes of inputs that stay dynamic; empty when all shapes are fixed.
        left_out: layers with weights that are in no group.
        measured: of `shapes`, those that inference does not tell and a run has told.
        own: what a file that is quantized already says of INT8.
        origin: what the float model was made of, as a sentence; empty where the file is one.
        folded: how many ops of the file are part of the layers and ops beside them.
    """

    graph: ir.Model
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    shapes: Mapping[str, tuple[int, ...]]
    groups: tuple[Group, ...]
    edges: tuple[Edge, ...]
    digest: str
    profiles: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]
    left_out: tuple[LeftOut, ...] = ()
    measured: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    own: OwnScales = field(default_factory=OwnScales)
    origin: str = ""
    folded: int = 0

    @property
    def batch(self) -> int:
        """The number of samples in one inference: the first dimension of the first input."""
        return self.inputs[0].shape[0]

    @property
    def own_groups(self) -> tuple[str, ...]:
        """Groups whose INT8 is that of the file."""
        return tuple(group.id for group in self.groups if self.own.owns(group))

    def with_decisions(self, what: Collection[str]) -> Model:
        """The model with more to choose: `attention`, its products of activations, which a rule keeps in floats, and op
        types of `FREE` in lower case, whose types a rule gives."""
        ops = [op for op in FREE if op.lower() in what]
        groups, edges = find_groups(self.graph.graph, self.shapes, ops) if ops else (self.groups, self.edges)
        if ATTENTION.lower() in what:
            groups = tuple(replace(g, pinned="") if g.pinned == BOTH_ACTIVATIONS else g for g in groups)
        return replace(self, groups=groups, edges=edges)

    def scale_constants(self, factors: Mapping[str, Sequence[NDArray[Any]]]) -> Model:
        """Make a copy of the model with some of its constants multiplied.

        Args:
            factors: for each constant by name, arrays that broadcast to its shape. They are multiplied with each other
                first, and the product with the constant is rounded to its type.

        Returns:
            A model with the same names and groups; with factors, it has another digest.

        Raises:
            ModelError: there is no such constant, or factors do not broadcast to its shape.
        """
        if not factors:
            return self
        graph = self.graph.clone()
        for name, parts in factors.items():
            value = graph.graph.initializers.get(name)
            if value is None or value.const_value is None:
                raise ModelError(
                    f"scaling constants of the model: expected a constant {name!r}, but the model has none"
                )
            array = value.const_value.numpy()
            scaled = np.asarray(array * math.prod(parts)).astype(array.dtype)
            if scaled.shape != array.shape:
                raise ModelError(
                    f"scaling constants of the model: expected factors that broadcast to the shape {array.shape} of "
                    f"{name!r}, got {[np.shape(part) for part in parts]}"
                )
            value.const_value = ir.tensor(scaled, name=name)
        recovery = Recovery({name: tuple(parts) for name, parts in factors.items()})
        return replace(self, graph=graph, digest=digest_of([self.digest, recovery.digest]))

    def unknown_shapes(self) -> list[str]:
        """The tensors whose shape nothing has told; none where no group or edge is in want of it."""
        known = all(group.shape for group in self.groups) and all(edge.tensor in self.shapes for edge in self.edges)
        values = [] if known else [value for node in self.graph.graph for value in node.outputs]
        tensors = [value.name for value in values if value.name and isinstance(value.type, ir.TensorType | None)]
        return [name for name in tensors if name not in self.shapes]

    def with_shapes(self, measured: Mapping[str, Sequence[int]]) -> Model:
        """The model, and its groups, with the shapes that one run measured where inference knows none."""
        run_shapes = {name: tuple(measured[name]) for name in self.unknown_shapes() if name in measured}
        shapes = {**self.shapes, **run_shapes}
        groups, edges = find_groups(self.graph.graph, shapes)
        outputs = tuple(replace(spec, shape=shapes.get(spec.name, ())) for spec in self.outputs)
        return replace(self, shapes=shapes, groups=groups, edges=edges, outputs=outputs, measured=run_shapes)

    def save(self, path: Path) -> None:
        """Write the clean model to `path`, and weights beyond 2 GiB to `NAME.data` beside it."""
        onnx_file.write_any_size(self.graph, path)


def load(
    path: Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, ShapeRequest] | None = None,
    values: Sequence[str] = (),
) -> Model:
    """Load, check and clean an ONNX file and find its groups.

    Args:
        path: the ONNX file; external data must lie in its folder.
        batch: leading dimension for inputs whose leading dimension is dynamic.
        shapes: shapes for dynamic inputs by name; a range of shapes keeps the input dynamic.
        values: `NAME=VALUE` of inputs that become constants.

    Raises:
        ModelError: the file is missing, not ONNX, damaged, or quantized in a way that cannot be read as floats; or it
            has dynamic dimensions without a given size, an output that is listed twice, or nothing that can be
            quantized.
    """
    request = dict(shapes or {})
    graph, profiles = _read_shaped(path, request, batch, values)
    with onnx_file.refuse_inconsistent(path):
        check_sequences(graph, path)
        names = [node.name for node in graph.graph]
        moved, alone = moved_batches(names), takes_one_sample(names)
        graph, floats = _as_floats(graph)
        graph = clean(graph)
        # Scales of the file's own belong to its own tensors.
        folded = rewrite_exactly(graph) if floats.codes is None else 0
        settle_types(graph)
        onnx_file.check(skeleton(graph), f"what cleaning made of {path}")
        inferred = infer_shapes(graph, profiles)
        check_reshapes(graph.graph, inferred, path)
        groups, edges = find_groups(graph.graph, inferred)
        if all(group.pinned for group in groups):
            raise ModelError(_nothing_to_quantize(graph, groups, path))
        _refuse_non_finite(graph, groups, path)
        inputs, outputs = measured_shapes(graph.graph, inferred, profiles, path)
    digest = onnx_file.digest(path, request, batch, values)
    if others := names_of_others():
        digest = digest_of([digest, others])
    left_out = find_left_out(graph.graph, groups)
    own = OwnScales() if floats.codes is None else floats.codes.own_scales(graph.graph, groups)
    model = Model(graph, inputs, outputs, inferred, groups, edges, digest, profiles, left_out, own=own)
    return replace(model, origin=_origin_text(floats, moved, alone, model), folded=folded)


def load_as_given(
    path: Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, ShapeRequest] | None = None,
    values: Sequence[str] = (),
) -> ir.Model:
    """The file itself at these shapes, in the precisions that it is written in; inputs and outputs are float32.

    Args, Raises: as `load`.
    """
    graph, _ = _read_shaped(path, dict(shapes or {}), batch, values)
    graph = lift_constants(graph)
    cast_ends(graph)
    raise_ir_version(graph)
    return graph


def _read_shaped(
    path: Path, request: dict[str, ShapeRequest], batch: int | None, values: Sequence[str]
) -> tuple[ir.Model, dict[str, Profile]]:
    """The graph of a file with its inputs fixed, and the profiles of those that stay dynamic."""
    proto = onnx_file.read(path)
    _refuse_repeated_outputs(proto, path)
    _refuse_sequences(proto, path)
    fix_inputs(proto, read_input_values(proto, values, path))
    if batch == 1:
        put_batch_first(proto.graph, single=True)
    with onnx_file.refuse_inconsistent(path):
        with set_own_ops_apart(proto):
            proto = at_least_opset(proto, path)
        put_own_ops_back(proto)
        add_batch_axis(proto.graph, {name: shape.high for name, shape in request.items()})
        graph = onnx_file.to_graph(proto, path)
        return graph, fix_shapes(graph, request, batch, path)


@dataclass(frozen=True)
class _Floats:
    """What was made float32: the codes of a quantized file; how many constants were halves, and whether inputs were."""

    codes: Unquantized | None
    halves: int
    half_inputs: bool = False


def _as_floats(model: ir.Model) -> tuple[ir.Model, _Floats]:
    """Make a model that is quantized, or in half precision, the float32 model that it stands for."""
    quantized = any(is_quantized_op(node.op_type) for node in every_node(model))
    if not quantized and not uses_halves(model):
        return model, _Floats(None, 0)
    model = lift_constants(model)
    types = [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)]
    constants = widen_halves(model)
    converted = types != [value.dtype for value in (*model.graph.inputs, *model.graph.outputs)]
    return model, _Floats(take_out_quantization(model) if quantized else None, constants, converted)


def _origin_text(floats: _Floats, moved: Sequence[str], alone: bool, model: Model) -> str:
    """What was done to the file, as a sentence; empty for a float32 file."""
    clauses = []
    if floats.halves:
        clauses.append(
            f"the file is in half precision: FP32 is the model with its {floats.halves} constants widened to float32, "
            f"exactly{', as its inputs and outputs are' if floats.half_inputs else ''}"
        )
    if floats.codes is not None:
        count = len(model.own_groups)
        clauses.append(
            f"the file is quantized: FP32 is the model without its Quantize and Dequantize, INT8 of {count} of "
            f"{len(model.groups)} groups has the file's own scales, which recovery leaves alone, and all others are "
            "calibrated"
        )
    if moved:
        clauses.append(
            f"{', '.join(moved)} of the file have their batch on another axis: here, and in exports, it is the first "
            "one, and what a state is for one sample is given as a sample of it"
        )
    if alone:
        clauses.append(
            "the file takes one sample: here, and in exports, its inputs and outputs have an axis of samples"
        )
    return "; ".join(clauses)


def _refuse_repeated_outputs(proto: onnx.ModelProto, path: Path) -> None:
    names = [output.name for output in proto.graph.output]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ModelError(
            f"loading {path}: expected outputs of different names, but {repeated!r} is listed {names.count(repeated)} "
            "times. List it once, or give the second one another name with an Identity node."
        )


def _refuse_sequences(proto: onnx.ModelProto, path: Path) -> None:
    for what, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value")
            if kind not in (None, "tensor_type"):
                raise ModelError(
                    f"loading {path}: expected inputs and outputs that are tensors, but {what} {value.name!r} is of "
                    f"the kind {str(kind).removesuffix('_type')}. Give a model with a tensor there, for example "
                    "made by ConcatFromSequence or OptionalGetElement."
                )


def _refuse_non_finite(model: ir.Model, groups: tuple[Group, ...], path: Path) -> None:
    for group in groups:
        for name in group.weights:
            tensor = model.graph.initializers[name].const_value
            if tensor is not None and not np.isfinite(tensor.numpy()).all():
                raise ModelError(
                    f"loading {path}: weight {name!r} of layer {group.name!r} holds NaN or Inf: the file is "
                    "damaged, or training diverged. Give a model whose weights are finite."
                )


def _nothing_to_quantize(model: ir.Model, groups: tuple[Group, ...], path: Path) -> str:
    reasons = "; ".join(f"{group.name}: {group.pinned}" for group in groups[:3])
    ops = sorted({node.op_type for node in model.graph})
    cause = f"its weighted ops cannot be quantized ({reasons})" if groups else f"it has only {', '.join(ops[:12])}"
    if left_out := find_left_out(model.graph, groups):
        named = f"{left_out[0].name!r} ({left_out[0].op}): {left_out[0].why}"
        cause = f"{len(left_out)} layers with weights stay as they are, such as {named}"
    double = [node.name for node in model.graph if node.op_type in WEIGHTED and not groups]
    if double:
        cause = f"{double[0]!r} does not compute in float32 on an activation"
    return (
        f"looking for layers in {path}: expected at least one Conv, ConvTranspose, Gemm or MatMul with constant "
        f"weights, but {cause}. There is no layer to choose a precision for."
    )


def values_by_name(graph: ir.Model) -> dict[str, ir.Value]:
    """Values of the main graph by name, graph inputs and node outputs, in topological order."""
    inputs = [value for value in graph.graph.inputs if value.name not in graph.graph.initializers]
    outputs = [value for node in graph.graph for value in node.outputs]
    return {value.name: value for value in [*inputs, *outputs] if value.name}
