"""Bounds on what a model may grow to while it is read: a few bytes of a file can stand for any number of nodes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from search.errors import ModelError
from search.graph.opset_upgrade import nodes

_MOST_NODES = 200_000
_LONGEST_NAME = 4096
_LONGEST_LIST = 1 << 20  # of values that shape inference follows
_BATCH_FIRST = "batch-first/"  # begins the name of a Transpose that `put_batch_first` adds
_ONE_SAMPLE = "one-sample/"  # begins the name of a Squeeze or Unsqueeze that `add_batch_axis` adds
_LEAST_FOLDED = 1 << 28  # elements that may always be read and written
_FOLDED_PER_CONSTANT = 8  # of elements in the file's own constants
_PYTHON_LOOPS = {  # ONNX's reference evaluator takes a step of Python for each element of these
    *("Resize", "Upsample", "GridSample", "AffineGrid", "RoiAlign", "MaxRoiPool", "NonMaxSuppression", "Col2Im"),
    *("MaxPool", "AveragePool", "LpPool", "MaxUnpool", "GlobalMaxPool", "Conv", "ConvTranspose", "ConvInteger"),
    *("QLinearConv", "DeformConv", "LSTM", "GRU", "RNN", "TopK", "ScatterND", "ScatterElements", "GatherND", "LRN"),
    *("GatherElements", "OneHot", "Unique", "STFT", "DFT", "Det", "TfIdfVectorizer", "StringNormalizer", "Compress"),
}
_PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "Einsum"}
_GROWING = {"Range", "Expand", "Tile", "ConstantOfShape", "OneHot", "Pad", "Resize", "Upsample", "EyeLike", "Einsum"}


def check_growth(proto: onnx.ModelProto, path: Path) -> None:
    """Refuse a model that has too many nodes once its functions are written out, or names that are too long.

    Raises:
        ModelError: naming what there is too much of.
    """
    functions = {(f.domain, f.name, getattr(f, "overload", "")): f for f in proto.functions}
    known: dict[tuple[str, str, str], int] = {}

    def size_of(nodes: Iterable[onnx.NodeProto], outer: tuple[tuple[str, str, str], ...]) -> int:
        total = 0
        for node in nodes:
            if len(node.name) > _LONGEST_NAME or any(len(name) > _LONGEST_NAME for name in (*node.input, *node.output)):
                raise ModelError(
                    f"loading {path}: expected names of at most {_LONGEST_NAME:,} characters, but node "
                    f"{node.name[:40]!r}… has a longer one. Give the model shorter names."
                )
            total += 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += size_of(graph.node, outer)
            key = node.domain, node.op_type, getattr(node, "overload", "")
            if key in functions:
                if key in outer:
                    raise ModelError(f"loading {path}: function {node.op_type!r} calls itself. Export it again.")
                if key not in known:
                    known[key] = size_of(functions[key].node, (*outer, key))
                total += known[key]
        return min(total, 2 * _MOST_NODES)

    if size_of(proto.graph.node, ()) > _MOST_NODES:
        raise ModelError(
            f"loading {path}: expected at most {_MOST_NODES:,} nodes, but with its functions written out the model has "
            "more. Export it with fewer or smaller functions."
        )


def put_batch_first(graph: onnx.GraphProto, single: bool = False) -> None:
    """Let inputs and outputs have their batch on the first axis, in place, by a Transpose each: states of recurrent
    models have it on another.

    The batch is a size, by name or else by number, that another input begins with. Where no input has it elsewhere,
    outputs stay as they are.

    Args:
        single: whether there will be one sample in a batch, so that a size of one is that of the batch too.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    leading = [dims[0] for value in inputs if (dims := _dims_of(value))]
    named: list[int | str] = [dim for dim in leading if dim and isinstance(dim, str)]
    batch = [*(named or [dim for dim in leading[:1] if dim]), *[1] * single]
    moved = {value.name: axis for value in inputs if (axis := _batch_axis(_dims_of(value), batch))}
    if not moved:
        return
    for value in inputs:
        axis = moved.get(value.name, 0)
        if axis:
            inner = f"{value.name}/given"
            _rename(graph, value.name, inner)
            order = [*range(1, axis + 1), 0, *range(axis + 1, len(_dims_of(value)))]
            graph.node.insert(0, _transpose(value.name, inner, order))
            _reorder(value, [axis, *(i for i in range(len(order)) if i != axis)])
    for value in graph.output:
        dims = _dims_of(value)
        axis = _batch_axis(dims, batch, is_any_first=bool(named)) or _only_open_axis(dims, batch)
        if axis:
            inner, rank = f"{value.name}/given", len(dims)
            _rename(graph, value.name, inner)
            order = [axis, *(i for i in range(rank) if i != axis)]
            graph.node.append(_transpose(inner, value.name, order))
            _reorder(value, order)


def add_batch_axis(graph: onnx.GraphProto, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give a model of one sample, as torchvision's detectors are, an axis of samples in front, in place.

    Nothing changes where not all inputs are asked for with a first axis of 1 that the file does not have.

    Args:
        graph: of opset 13 or newer.
        shapes: input → the largest shape that is asked for.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    requested = [(shapes.get(value.name, ()), _dims_of(value)) for value in inputs]
    if any(len(shape) != len(dims) + 1 or shape[0] != 1 for shape, dims in requested):
        return
    axis = f"{_ONE_SAMPLE}axis"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([0]), axis))
    for value in (*inputs, *graph.output):
        value.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=1))
        _rename(graph, value.name, f"{value.name}/given")
    for value in inputs:
        name = f"{_ONE_SAMPLE}{value.name}"
        graph.node.insert(0, onnx.helper.make_node("Squeeze", [value.name, axis], [f"{value.name}/given"], name))
    for value in graph.output:
        name = f"{_ONE_SAMPLE}{value.name}"
        graph.node.append(onnx.helper.make_node("Unsqueeze", [f"{value.name}/given", axis], [value.name], name))


def takes_one_sample(names: Iterable[str | None]) -> bool:
    """Whether `add_batch_axis` changed a model, from the names of its nodes."""
    return any(name is not None and name.startswith(_ONE_SAMPLE) for name in names)


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in nodes(graph):
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]


def moved_batches(names: Iterable[str | None]) -> list[str]:
    """The inputs and outputs that `put_batch_first` moved, from the names of a model's nodes."""
    return [name.removeprefix(_BATCH_FIRST) for name in names if name is not None and name.startswith(_BATCH_FIRST)]


def _dims_of(value: onnx.ValueInfoProto) -> list[int | str]:
    return [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]


def _batch_axis(dims: Sequence[int | str], batch: Sequence[int | str], *, is_any_first: bool = False) -> int:
    """The axis that the batch is on, where another size of a fixed number stands first, or any other; 0 elsewhere."""
    if not dims or dims[0] in batch or not (is_any_first or isinstance(dims[0], int)):
        return 0
    return next((axis for axis, dim in enumerate(dims) if axis and dim in batch), 0)


def _only_open_axis(dims: Sequence[int | str], batch: Sequence[int | str]) -> int:
    """The only axis whose size is no number, where another number than the batch stands first; 0 elsewhere."""
    is_open = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) or not dim]
    return is_open[0] if len(is_open) == 1 and dims[0] not in batch else 0


def _transpose(source: str, made: str, order: Sequence[int]) -> onnx.NodeProto:
    outer = source if made.endswith("/given") else made
    return onnx.helper.make_node("Transpose", [source], [made], f"{_BATCH_FIRST}{outer}", perm=list(order))


def _reorder(value: onnx.ValueInfoProto, order: Sequence[int]) -> None:
    shape = value.type.tensor_type.shape
    dims = [onnx.TensorShapeProto.Dimension.FromString(shape.dim[i].SerializeToString()) for i in order]
    del shape.dim[:]
    shape.dim.extend(dims)


class Folding:
    """Decides what of a model is computed as it is read: constant expressions, as long as they take little.

    Bounded by counts and not by time, so that the same model is the same everywhere.

    Args:
        most: elements that one folded tensor may have.
    """

    def __init__(self, model: ir.Model, most: int) -> None:
        constants = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
        own = sum(tensor.size for tensor in constants if tensor is not None)
        self._left = float(max(_LEAST_FOLDED, _FOLDED_PER_CONSTANT * own))
        self._most = most

    def __call__(self, node: ir.Node) -> bool | None:
        """False to leave a node in the model, True to fold it; None to let the usual rules decide."""
        written = [*_count_outputs(node)]
        read = [value.const_value.size for value in node.inputs if value is not None and value.const_value is not None]
        cost = float(sum(read) + sum(written))
        if node.op_type in _PRODUCTS:  # of (m, k) and (k, n) the root is m · k · n
            cost += math.sqrt(math.prod(map(float, read)) * max(written, default=0.0)) / 32
        if node.op_type in _PYTHON_LOOPS:
            cost *= 1024
        if any(size > self._most for size in written) or cost > self._left:
            return False
        self._left -= cost
        return node.op_type == "ConstantOfShape" or None  # which is else left, though shapes may be computed from it


def _count_outputs(node: ir.Node) -> Iterator[float]:
    """Elements of each output, where shape inference knows them."""
    for output in node.outputs:
        dims = list(output.shape) if output.shape is not None else None
        if dims is not None and all(isinstance(dim, int) for dim in dims):
            yield float(math.prod(dim for dim in dims if isinstance(dim, int)))
        elif node.op_type in _GROWING:
            yield math.inf
        else:
            yield _most_elements(node)


def _most_elements(node: ir.Node) -> float:
    """Elements that an output may have: of the constant inputs one after the other, each with each, or laid over each
    other."""
    tensors = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
    if node.op_type == "Concat":
        return float(sum(tensor.size for tensor in tensors))
    if node.op_type in _PRODUCTS or node.op_type in ("Gather", "GatherND"):
        return math.prod(float(tensor.size) for tensor in tensors)
    shapes = [tensor.shape.numpy() for tensor in tensors]
    aligned = zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1)
    return float(math.prod(max(dims) for dims in aligned))


def propagate_shapes(proto: onnx.ModelProto, *, check_type: bool = False) -> onnx.ModelProto:
    """The model with its shapes, which values of small tensors may decide.

    ONNX makes an object for each element of a list whose values it follows: 20 GB for a Range of 2^30, say, that is
    cast, or for a list that 30 nodes join with itself. Where there is so long a list, it follows none.
    """
    infer = onnx.shape_inference.infer_shapes
    if any(node.op_type in _GROWING or node.op_type == "Concat" for node in nodes(proto.graph)):
        shapes_only = infer(proto, check_type=check_type)
        if max(_lengths(shapes_only.graph), default=0) > _LONGEST_LIST:
            return shapes_only
    return infer(proto, check_type=check_type, data_prop=True)


def _lengths(graph: onnx.GraphProto) -> Iterator[int]:
    """How long each list of a graph can be at most, by shape inference or, where it does not know, by what is joined
    in it.
    """
    known = {tensor.name: tensor.dims[0] if len(tensor.dims) == 1 else 1 for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info):
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            if len(dims) != 1 or dims[0].HasField("dim_value"):  # values of arrays are not followed
                known[info.name] = dims[0].dim_value if len(dims) == 1 else 1
    for node in nodes(graph):
        sizes = [known.get(name, 1) for name in node.input]
        for name in node.output:
            yield known.setdefault(name, sum(sizes) if node.op_type == "Concat" else max(sizes, default=1))


def check_sequences(model: ir.Model, path: Path) -> None:
    """Refuse to write out sequences of very many parts, each of which becomes a tensor.

    Raises:
        ModelError: naming the node.
    """
    for node in model.graph.all_nodes():
        shape = node.inputs[0].shape if node.op_type == "SplitToSequence" and node.inputs[0] is not None else None
        if shape is not None and any(isinstance(dim, int) and dim > _MOST_NODES for dim in shape):
            raise ModelError(f"loading {path}: node {node.name!r} splits a tensor into too many parts.")
