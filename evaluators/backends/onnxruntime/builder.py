"""The builder for ONNX Runtime. Its engine is the lowered ONNX file, opened once to read the optimized graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.audit import BLOCKS_KERNEL, FLOAT8_KERNEL, audit_rows, owner_of, owners_of
from evaluators.backends.onnxruntime.device import OnnxRuntimeDevice
from evaluators.backends.onnxruntime.gates import join_gelu, join_silu
from evaluators.backends.onnxruntime.layer_norm import join_layer_norm
from evaluators.backends.onnxruntime.profile import is_move, layer_times
from evaluators.backends.onnxruntime.session import OnnxRuntimeSession, open_graph, open_session
from evaluators.engine import Audit, Engine
from evaluators.held_folders import held_folder
from evaluators.lowering.constants import Edits, array_of
from evaluators.lowering.lower import expose_groups, lower
from evaluators.lowering.placement import Placement
from search.graph import onnx_file, packed_file
from search.graph.fused.node_parts import MICROSOFT
from search.graph.grouping import is_constant
from search.graph.model import Model
from search.values import Assignment, EngineSummary, LayerTime, Ranges

_PROFILE_WARM_UP = 3
_HALF_BYTE = 4  # bits
# The accuracy level: what is read is rounded to INT8 in each block, its own default for files; not asked with CUDA.
_IN_INT8 = 4


class OnnxRuntimeBuilder:
    """Lowers assignments of one model and opens them; the engine is the lowered ONNX file."""

    opens_engines = True

    def __init__(self, device: OnnxRuntimeDevice, placement: Placement, model: Model, ranges: Ranges) -> None:
        self.device = device
        self.placement = placement
        self.model = model
        self.ranges = ranges
        self._written = {node.name or "" for node in model.graph.graph}
        self._fresh: tuple[Path, OnnxRuntimeSession] | None = None

    def lower(self, assignment: Assignment) -> ir.Model:
        lowered = lower(self.model, assignment, self.ranges, self.placement)
        _part_cut_averages(lowered.graph)
        joined = join_blocks(lowered)
        return joined if self.device.cuda else join_layer_norm(join_gelu(join_silu(joined)))

    def build(self, lowered: ir.Model, out: Path) -> Engine:
        packed_file.write(lowered, out)
        options = self.device.session_options()
        _write_optimized(options, _optimized_path(out), lowered)
        self._fresh = (out, open_session(self.device, out, options, counts_memory=True))
        return Engine(out, out.stat().st_size)

    def build_file(self, graph: ir.Model, out: Path) -> Engine:
        packed_file.write(graph, out)
        self._fresh = (out, open_session(self.device, out, self.device.session_options(), counts_memory=True))
        return Engine(out, out.stat().st_size)

    def audit(self, engine: Engine, assignment: Assignment) -> Audit:
        path = _optimized_path(engine.path)
        try:
            optimized = onnx.load(str(path), load_external_data=False)
        finally:
            path.unlink(missing_ok=True)
            onnx_file.weights_beside(path).unlink(missing_ok=True)
        moves = sum(is_move(node, self._written) for node in optimized.graph.node)
        rows = audit_rows(optimized.graph, self.model, assignment)
        return Audit(rows, EngineSummary(len(optimized.graph.node), moves))

    def load(self, path: Path) -> OnnxRuntimeSession:
        fresh, self._fresh = self._fresh, None
        if fresh is not None and fresh[0] == path:
            return fresh[1]
        return open_session(self.device, path, self.device.session_options(), counts_memory=True)

    def profile(self, path: Path, inputs: Mapping[str, NDArray[Any]], count: int) -> tuple[LayerTime, ...]:
        options, skipped = self.device.session_options(), min(_PROFILE_WARM_UP, max(1, count // 3))
        with held_folder() as folder:
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "trace")
            _write_optimized(options, folder / "optimized.onnx", self.model.graph)
            session = open_session(self.device, path, options)
            for _ in range(skipped + count):
                session.run(inputs)
            trace = Path(session.session.end_profiling()).read_text(encoding="utf-8")
            optimized = onnx.load(str(folder / "optimized.onnx"), load_external_data=False)
            session.close()
        owners = owners_of(self.model)
        return layer_times(trace, optimized.graph, lambda node: owner_of(node, owners), self._written, skipped, count)

    def write_layers(self, path: Path, out: Path) -> bool:
        options = self.device.session_options()
        _write_optimized(options, out, self.model.graph)
        open_session(self.device, path, options).close()
        return True

    def write_source(self, assignment: Assignment, out: Path) -> None:
        onnx_file.write_any_size(lower(self.model, assignment, self.ranges, self.placement), out)

    def timing_cache(self) -> None:
        return None

    def probe(self, assignment: Assignment, engine: Path | None = None) -> OnnxRuntimeSession:
        lowered = self.lower(assignment) if engine is None else packed_file.load_graph(engine)
        return open_graph(self.device, expose_groups(lowered, self.model), self.device.session_options())


def _write_optimized(options: Any, path: Path, graph: ir.Model) -> None:
    """Let a session write what it made of a graph, with the weights of a large one beside it."""
    options.optimized_model_filepath = str(path)
    if not onnx_file.fits_inside(graph):
        beside = onnx_file.weights_beside(path).name
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", beside)


def _optimized_path(path: Path) -> Path:
    return path.with_name(path.name + ".optimized.onnx")


def join_blocks(model: ir.Model) -> ir.Model:
    """The model with products that read weights alone in blocks as one op each, with their names.

    ONNX Runtime makes one op of such a product itself, but not where an activation or a QuantizeLinear follows a Gemm.
    The given model must not be used afterwards.
    """
    edits = Edits(model.graph)
    for node in list(model.graph):
        maker = node.inputs[1].producer() if node.op_type in ("Gemm", "MatMul") and node.inputs[1] else None
        block = 0 if maker is None else maker.attributes.get_int("block_size", 0) or 0
        if maker is not None and block:
            is_float = maker.inputs[0] is not None and maker.inputs[0].dtype is ir.DataType.FLOAT8E4M3FN
            if is_float and maker.outputs[0].dtype is ir.DataType.FLOAT:
                continue  # the kernel multiplies FP16 and BF16 alone
            product = node if node.op_type == "MatMul" else _product_of(node, maker.outputs[0], edits)
            (_join_float8 if is_float else _join_integers)(product, maker, block, edits)
            model.opset_imports.setdefault(MICROSOFT, 1)
    return passes.RemoveUnusedNodesPass()(model).model


def _product_of(node: ir.Node, weight: ir.Value, edits: Edits) -> ir.Node:
    """A Gemm whose kernel can add what it adds, a vector; else a MatMul in front of it, which becomes an Add."""
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is None or weight.shape is None or bias.shape == tuple(weight.shape)[1:]:
        return node
    read, made = node.inputs[0], node.outputs[0]
    assert read is not None
    assert made.dtype is not None
    product = ir.Node("", "MatMul", [read, weight], num_outputs=1, name=f"{node.name}/sum")
    edits.insert(product, read, made.dtype).shape = made.shape
    node.op_type, node.name, product.name = "Add", product.name, node.name
    node.resize_inputs(2)
    node.replace_input_with(0, product.outputs[0])
    node.replace_input_with(1, bias)
    return product


def _join_integers(node: ir.Node, maker: ir.Node, block: int, edits: Edits) -> None:
    codes, scales = (array_of(value) for value in maker.inputs[:2] if value is not None)
    bits, (depth, width) = int(8 * ir.DataType.from_numpy(codes.dtype).itemsize), codes.shape
    packed = (codes.T.astype(np.int16) + 2 ** (bits - 1)).astype(np.uint8).reshape(width, depth // block, block)
    if bits == _HALF_BYTE:
        packed = packed[..., ::2] | packed[..., 1::2] << _HALF_BYTE
    add, name = edits.constants.add, maker.inputs[0].name if maker.inputs[0] else ""
    facts = {"K": depth, "N": width, "bits": bits, "block_size": block, "accuracy_level": _IN_INT8}
    inputs = [node.inputs[0], add(f"{name}/packed", packed), add(f"{name}/columns", scales.T.copy())]
    inputs += [None, None, node.inputs[2]] if len(node.inputs) > 2 else []
    _become(node, BLOCKS_KERNEL, inputs, facts)


def _join_float8(node: ir.Node, maker: ir.Node, block: int, edits: Edits) -> None:
    """The same of codes that are floats. This kernel also adds the vector that is added behind a MatMul."""
    codes, scales = (array_of(value) for value in maker.inputs[:2] if value is not None)
    add, name = edits.constants.add, maker.inputs[0].name if maker.inputs[0] else ""
    inputs = [node.inputs[0], add(f"{name}/rows", codes.T.copy()), add(f"{name}/columns", scales.T.astype(np.float32))]
    last, bias = (node, node.inputs[2]) if len(node.inputs) > 2 else _added_behind(node, codes.shape[1:])
    last.name, node.name = node.name, last.name
    _become(last, FLOAT8_KERNEL, [*inputs, *([] if bias is None else [None, bias])], {"block_size": block})


def _added_behind(node: ir.Node, shape: tuple[int, ...]) -> tuple[ir.Node, ir.Value | None]:
    """The Add that alone reads a node, with the constant of this shape and type that it adds; else the node itself."""
    made = node.outputs[0]
    user, place = next(iter(made.uses()), (node, 0))
    other = user.inputs[1 - place] if user.op_type == "Add" and len(made.uses()) == 1 else None
    if other is None or not is_constant(other) or other.shape != shape or other.dtype is not made.dtype:
        return node, None
    return (node, None) if made.is_graph_output() else (user, other)


def _become(node: ir.Node, kernel: str, inputs: Sequence[ir.Value | None], facts: Mapping[str, int]) -> None:
    node.op_type, node.domain = kernel, MICROSOFT
    node.resize_inputs(len(inputs))
    for place, value in enumerate(inputs):
        node.replace_input_with(place, value)
    for key, number in facts.items():
        node.attributes[key] = ir.AttrInt64(key, number)


def _part_cut_averages(graph: ir.Graph) -> None:
    """Keep an AveragePool that counts its padding in floats where `ceil_mode` may cut its last window, by a Sum of one:
    the INT8 kernel of ONNX Runtime 1.32 divides by another count there than the float one."""
    edits = Edits(graph)
    for pool in [node for node in graph if node.op_type == "AveragePool"]:
        value, attributes = pool.inputs[0], pool.attributes
        maker = None if value is None else value.producer()
        cuts = attributes.get_int("count_include_pad", 0) and attributes.get_int("ceil_mode", 0)
        if value is not None and value.dtype and cuts and maker is not None and maker.op_type == "DequantizeLinear":
            apart = ir.Node("", "Sum", [value], num_outputs=1, name=f"{pool.name}/apart")
            pool.replace_input_with(0, edits.insert(apart, value, value.dtype))
