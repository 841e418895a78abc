"""Shapes of inputs: fixed by the user or by the batch size, or a range that keeps an input dynamic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from search.errors import ModelError

_MOST_VALUES = 4096  # of an input that has one value everywhere
Profile = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output: the name of its numpy dtype and the measured shape, batch first.

    Attributes:
        least, most: smallest and largest shape of an input that stays dynamic; empty if the shape is fixed.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    least: tuple[int, ...] = ()
    most: tuple[int, ...] = ()

    def takes(self, row: tuple[int, ...]) -> bool:
        """Whether one sample may have this shape, which is without the axis of samples."""
        low, high = self.least or self.shape, self.most or self.shape
        return len(row) == len(self.shape) - 1 and all(
            least <= size <= most for least, size, most in zip(low[1:], row, high[1:], strict=True)
        )

    def describe_row(self) -> tuple[str, ...]:
        """The sizes of one sample: `3`, or `8 to 40` where the model takes several."""
        low, high = self.least or self.shape, self.most or self.shape
        return tuple(
            str(least) if least == most else f"{least} to {most}" for least, most in zip(low[1:], high[1:], strict=True)
        )


@dataclass(frozen=True)
class ShapeRequest:
    """MIN, OPT and MAX shape of an input, all equal for a fixed shape. Engines are measured at OPT, `best`."""

    low: tuple[int, ...]
    best: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        return self.low == self.high


def input_names(texts: Iterable[str]) -> set[str]:
    """The inputs that `--input-value` makes constants."""
    return {text.rpartition("=")[0] for text in texts}


def read_input_values(proto: onnx.ModelProto, texts: Sequence[str], path: Path) -> dict[str, NDArray[Any]]:
    """The values of `--input-value`, by input, in its type and shape; sizes that are dynamic are 1.

    Args:
        texts: `NAME=VALUE` each.

    Raises:
        ModelError: a text is of another form, there is no such input, or it is too large for one value.
    """
    inputs = {value.name: value.type.tensor_type for value in proto.graph.input}
    arrays = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        if name not in inputs:
            raise ModelError(
                f"--input-value {text}: expected NAME=VALUE with an input of {path} as the name; its inputs are "
                f"{', '.join(inputs)}."
            )
        sizes = [dim.dim_value or 1 for dim in inputs[name].shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(inputs[name].elem_type)
        try:
            value = np.array(int(number) if dtype.kind in "iu" else float(number)).astype(dtype)
        except (ValueError, OverflowError):
            raise ModelError(
                f"--input-value {text}: expected a number of type {dtype}. Write it as sr=16000."
            ) from None
        if math.prod(sizes) > _MOST_VALUES:
            raise ModelError(f"--input-value {text}: expected an input of few values, but it has {math.prod(sizes):,}.")
        arrays[name] = np.full(sizes, value)
    return arrays


def fix_inputs(proto: onnx.ModelProto, values: Mapping[str, NDArray[Any]]) -> None:
    """Make inputs constants of the model, in place."""
    kept = [value for value in proto.graph.input if value.name not in values]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in values.items())


def fix_shapes(
    model: ir.Model, request: Mapping[str, ShapeRequest], batch: int | None, path: Path
) -> dict[str, Profile]:
    """Write the requested shapes into the graph's inputs, in place; dimensions of a range stay symbolic.

    Returns:
        MIN, OPT, MAX of every input that stays dynamic.

    Raises:
        ModelError: a request is for an input that does not exist or does not fit it, or a dynamic dimension has no
            size.
    """
    inputs = {value.name or "": value for value in model.graph.inputs if not value.is_initializer()}
    for name in request:
        if name not in inputs:
            raise ModelError(f"--shape {name}: {path} has no such input; its inputs are {', '.join(inputs)}.")
    _check_batch(inputs.values(), batch, path)
    profiles: dict[str, Profile] = {}
    shapes = _ask_shapes(inputs, request, batch, path)
    several = _names_of_several_sizes(inputs, shapes)
    for name, value in inputs.items():
        shape = shapes[name]
        dims = list(value.shape) if value.shape is not None else [None] * len(shape.best)
        free = [None if str(dim) in several else dim for dim in dims]
        value.shape = ir.Shape(
            [low if low == high else dim for low, high, dim in zip(shape.low, shape.high, free, strict=True)]
        )
        if not shape.is_fixed:
            profiles[name] = (shape.low, shape.best, shape.high)
    _forget_output_shapes(model)
    return profiles


def _names_of_several_sizes(inputs: Mapping[str, ir.Value], shapes: Mapping[str, ShapeRequest]) -> set[str]:
    """Names of dynamic sizes that are not one size: ONNX Runtime would take tensors of one name for equally large."""
    sizes: dict[str, set[int]] = {}
    for name, value in inputs.items():
        for dim, size in zip(value.shape or (), shapes[name].best, strict=False):
            if not isinstance(dim, int):
                sizes.setdefault(str(dim), set()).add(size)
    return {name for name, numbers in sizes.items() if len(numbers) > 1}


def _ask_shapes(
    inputs: Mapping[str, ir.Value], request: Mapping[str, ShapeRequest], batch: int | None, path: Path
) -> dict[str, ShapeRequest]:
    """The shape of every input; raises ModelError naming all inputs without a shape or with a wrong one."""
    problems: list[str] = []
    shapes = {name: _ask_shape(value, request.get(name), batch, path, problems) for name, value in inputs.items()}
    if problems:
        raise ModelError("\n".join(problems))
    return {name: shape for name, shape in shapes.items() if shape is not None}


def check_reshapes(graph: ir.Graph, shapes: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Refuse a model whose Reshapes have the batch of its export written into them, if another one is asked for.

    Raises:
        ModelError: naming the Reshape and that batch.
    """
    written = [(node, target) for node in graph if (target := _written_shape(node)) and target[0] > 0]
    wrong = [pair for pair in written if not _keeps_elements(*pair, shapes)]
    if written and not wrong and any(_misses_weight(node, shapes) for node in graph):
        wrong = written
    if wrong:
        node, target = wrong[0]
        made, input_shape = ("x".join(map(str, sizes)) for sizes in (target, shapes.get(_first_input(node), ())))
        raise ModelError(
            f"loading {path}: Reshape {node.name!r} makes {made} of {input_shape or 'its input'}, so the batch of the "
            f"export is written into the model. Give --batch {target[0]}, or export it with a dynamic batch."
        )


def _written_shape(node: ir.Node) -> tuple[int, ...]:
    """The constant shape that a Reshape makes; empty for other nodes."""
    value = node.inputs[1] if node.op_type == "Reshape" and not node.domain and len(node.inputs) > 1 else None
    return tuple(value.const_value.numpy().tolist()) if value is not None and value.const_value is not None else ()


def _first_input(node: ir.Node) -> str:
    return (node.inputs[0].name if node.inputs[0] is not None else None) or ""


def _keeps_elements(node: ir.Node, target: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]) -> bool:
    input_shape = shapes.get(_first_input(node))
    if input_shape is None or (0 in target and len(target) > len(input_shape)):
        return True
    made = math.prod(size or input_shape[axis] for axis, size in enumerate(target) if size >= 0)
    return math.prod(input_shape) % made == 0 if -1 in target else math.prod(input_shape) == made


def _misses_weight(node: ir.Node, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a product has an activation and a weight that do not fit each other."""
    weight = node.inputs[1] if node.op_type in ("MatMul", "Gemm") and not node.domain else None
    input_shape = shapes.get(_first_input(node)) if weight is not None else None
    if weight is None or weight.const_value is None or not input_shape or len(weight.const_value.shape) < 2:
        return False
    turned = node.op_type == "Gemm" and node.attributes.get_int("transB") == 1
    depth = weight.const_value.shape[-1 if turned else -2]
    return bool(input_shape[0 if node.op_type == "Gemm" and node.attributes.get_int("transA") == 1 else -1] != depth)


def _ask_shape(
    value: ir.Value, request: ShapeRequest | None, batch: int | None, path: Path, problems: list[str]
) -> ShapeRequest | None:
    """The shape of one input; adds to `problems` if it is wrong."""
    try:
        shape = request or _from_batch(value, batch, path)
        _check_fits(value, shape, path)
    except ModelError as error:
        problems.append(str(error))
        return None
    return shape


def measured_shapes(
    graph: ir.Graph, shapes: Mapping[str, tuple[int, ...]], profiles: Mapping[str, Profile], path: Path
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of the clean graph at the measured shapes."""
    specs = []
    for values in (graph.inputs, graph.outputs):
        tensors = []
        for value in values:
            name = value.name or ""
            if value.dtype is None:
                raise ModelError(f"loading {path}: tensor {name!r} has no type; run ONNX shape inference on the file.")
            least, _, most = profiles.get(name, ((), (), ()))
            tensors.append(TensorSpec(name, str(value.dtype.numpy()), tuple(shapes.get(name, ())), least, most))
        specs.append(tuple(tensors))
    return specs[0], specs[1]


def _check_batch(inputs: Iterable[ir.Value], batch: int | None, path: Path) -> None:
    if batch is None:
        return
    if batch < 1:
        raise ModelError(f"--batch {batch}: expected at least 1.")
    leading = [value.shape[0] for value in inputs if value.shape]
    if leading and all(isinstance(dim, int) and dim != batch for dim in leading):
        raise ModelError(
            f"--batch {batch}: {path} has its batch fixed at {leading[0]}. Leave --batch out, or export the model "
            "with a dynamic batch axis."
        )


def _from_batch(value: ir.Value, batch: int | None, path: Path) -> ShapeRequest:
    dims = list(value.shape) if value.shape is not None else []
    if value.shape is not None and not dims:
        raise ModelError(
            f"loading {path}: input {value.name!r} is a scalar, but bitfront needs samples along a first axis. Make it "
            f"a constant with --input-value {value.name}=VALUE, or give it a batch axis."
        )
    if not dims:
        raise ModelError(
            f"loading {path}: input {value.name!r} has no shape. "
            f"Give one with --shape {value.name}:1x3x224x224 (your own sizes)."
        )
    if batch is not None and not isinstance(dims[0], int):
        dims[0] = batch
    if not all(isinstance(dim, int) and dim > 0 for dim in dims):
        shown = "x".join("?" if str(dim) in ("None", "") else str(dim) for dim in dims)
        raise ModelError(
            f"loading {path}: input {value.name!r} has the dynamic shape {shown}. {advise_shape(value.name, dims)}."
        )
    shape = tuple(dim for dim in dims if isinstance(dim, int))
    return ShapeRequest(shape, shape, shape)


def advise_shape(name: str | None, dims: Sequence[object]) -> str:
    """What to write for an input with dynamic sizes: one size, or a range. No size is made up but that of the batch."""
    batch = 8 if not isinstance(dims[0], int) else dims[0]
    if all(isinstance(dim, int) for dim in dims[1:]):
        low, best, high = (_with_size((first, *dims[1:]), "") for first in (1, batch, 2 * batch))
        return (
            f"Give the size of the batch with --batch {batch}, or a range of sizes, in which the middle one is timed, "
            f"with --shape {name}:{low}:{best}:{high}"
        )
    one, low, best, high = (_with_size((batch, *dims[1:]), word) for word in ("SIZE", "MIN", "OPT", "MAX"))
    return (
        f"Give its sizes with --shape {name}:{one}, or a range of sizes, in which OPT is timed, with "
        f"--shape {name}:{low}:{best}:{high} (with your own numbers for the words). A search without --shape "
        "takes these sizes from its data"
    )


def _with_size(dims: Sequence[object], word: str) -> str:
    return "x".join(str(dim) if isinstance(dim, int) else word for dim in dims)


def _check_fits(value: ir.Value, request: ShapeRequest, path: Path) -> None:
    dims = list(value.shape) if value.shape is not None else [None] * len(request.best)
    for shape in (request.low, request.best, request.high):
        fits = len(shape) == len(dims) and all(
            not isinstance(dim, int) or dim == size for dim, size in zip(dims, shape, strict=True)
        )
        if not fits:
            raise ModelError(
                f"--shape {value.name}:{'x'.join(map(str, shape))}: the input of {path} has the shape "
                f"{'x'.join(map(str, dims))}; give as many dimensions, "
                "the batch first, equal where the model fixes them."
            )
        if not all(size > 0 for size in shape):
            raise ModelError(f"--shape {value.name}:{'x'.join(map(str, shape))}: expected sizes of at least 1.")
    if not all(a <= b <= c for a, b, c in zip(request.low, request.best, request.high, strict=True)):
        raise ModelError(f"--shape {value.name}: expected MIN ≤ OPT ≤ MAX in every dimension.")


def _forget_output_shapes(model: ir.Model) -> None:
    # Stale symbolic shapes would hide what inference finds from the new input shapes.
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if not output.is_graph_output() or output.shape is None:
                output.shape = None
            else:
                output.shape = ir.Shape([None] * len(output.shape))
