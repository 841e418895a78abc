"""GELU is one op, behind INT8 layers too, and computes what its parts do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.lowering.lower import lower
from search.graph.model import Model, load
from search.values import Precision
from tests.support.assignments import uniform
from tests.support.chains import Chain
from tests.support.networks import feeds, observed, plain_session

PARTS = {"Erf", "Tanh", "Pow", "Add", "Mul", "Div"}
STEEP = (2 / np.pi) ** 0.5


def erf_gate(chain: Chain, x: str) -> str:
    chain.add("Div", chain.constant(2**0.5), first=x)
    chain.add("Erf")
    return chain.add("Add", chain.constant(1))


def cubed_by_pow(chain: Chain, x: str) -> str:
    """As `gelu_new` of Hugging Face."""
    chain.add("Pow", chain.constant(3), first=x)
    chain.add("Mul", chain.constant(0.044715))
    chain.add("Add", x)
    return chain.add("Mul", chain.constant(STEEP))


def cubed_by_products(chain: Chain, x: str) -> str:
    """As PyTorch's exporter writes `gelu(approximate="tanh")`, the number first."""
    square = chain.add("Mul", x, first=x)
    cube = chain.add("Mul", square, first=x)
    grown = chain.add("Mul", cube, first=chain.constant([0.044715]))
    total = chain.add("Add", grown, first=x)
    return chain.add("Mul", total, first=chain.constant(STEEP))


def factored(chain: Chain, x: str) -> str:
    """As `gelu_fast` of Hugging Face."""
    steep = chain.add("Mul", chain.constant(STEEP), first=x)
    chain.add("Mul", chain.constant(0.044715), first=x)
    chain.add("Mul", x)
    chain.add("Add", chain.constant(np.ones((1, 1, 1))))
    return chain.add("Mul", chain.last, first=steep)


def tanh_gate(cubed: Callable[[Chain, str], str]) -> Callable[[Chain, str], str]:
    def add_gate(chain: Chain, x: str) -> str:
        cubed(chain, x)
        chain.add("Tanh")
        return chain.add("Add", chain.last, first=chain.constant(1))

    return add_gate


GATES = {"erf": erf_gate} | {made.__name__: tanh_gate(made) for made in (cubed_by_pow, cubed_by_products, factored)}
ORDERS = ["scaled last", "scaled first", "scaled gate"]


def add_gelu(chain: Chain, gate: str, order: str = "scaled last") -> None:
    x = chain.last
    made = GATES[gate](chain, x)
    if order == "scaled last":
        chain.add("Mul", x)
        chain.add("Mul", chain.constant(0.5))
    elif order == "scaled first":
        chain.add("Mul", chain.constant(0.5), first=x)
        chain.add("Mul", made)
    else:
        chain.add("Mul", chain.constant(0.5))
        chain.add("Mul", chain.last, first=x)


def with_gelus(gate: str, order: str = "scaled last") -> Chain:
    made = Chain((2, 4, 8, 8))
    for _ in range(2):
        made.conv(size=3, pads=[1, 1, 1, 1])
        add_gelu(made, gate, order)
    made.conv()
    return made


def joined(model: Model, precision: Precision = Precision.INT8) -> onnx.ModelProto:
    builder = OnnxRuntimeBackend("cpu", threads=1).builder(model, observed(model))
    return ir.to_proto(builder.lower(uniform(model, precision)))


def kinds(proto: onnx.ModelProto) -> list[str]:
    """The kinds of ops that compute, without those that quantize."""
    return [node.op_type for node in proto.graph.node if not node.op_type.endswith("Linear")]


def runtime_kinds(proto: onnx.ModelProto, folder: Path) -> list[str]:
    """The kinds of ops that ONNX Runtime runs."""
    device = OnnxRuntimeBackend("cpu", threads=1).device
    options = device.session_options()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    device.ort.InferenceSession(proto.SerializeToString(), options, providers=device.providers())
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gate", GATES)
def test_it_is_one_op_with_the_name_of_the_last_and_computes_the_same(gate: str, order: str, tmp_path: Path) -> None:
    chain, op = with_gelus(gate, order), "Gelu" if gate == "erf" else "FastGelu"
    model = load(chain.save(tmp_path / "m.onnx"))
    backend, ranges = OnnxRuntimeBackend("cpu", threads=1), observed(model)
    assignment = uniform(model, Precision.INT8)
    builder = backend.builder(model, ranges)
    proto = ir.to_proto(builder.lower(assignment))
    onnx.checker.check_model(proto, full_check=True)
    assert kinds(proto) == ["Conv", op, "Conv", op, "Conv"]
    found = {node.name for node in proto.graph.node if node.op_type == op}
    assert found <= {node.name for node in chain.nodes if node.op_type == "Mul"}
    apart = ir.to_proto(lower(model, assignment, ranges, backend.placement))
    x = np.random.default_rng(0).normal(size=chain.shape).astype(np.float32)
    results = [plain_session(each).run(None, {"x": x})[0] for each in (apart, proto)]
    np.testing.assert_allclose(*results, atol=2 * float(np.ptp(results[0])) / 255)
    engine = builder.build(builder.lower(assignment), tmp_path / "engine.onnx")
    assert {row.got for row in builder.audit(engine, assignment).rows} == {Precision.INT8}


@pytest.mark.parametrize("gate", GATES)
def test_the_runtime_reads_what_a_layer_makes_once(gate: str, tmp_path: Path) -> None:
    found = runtime_kinds(joined(load(with_gelus(gate).save(tmp_path / "m.onnx"))), tmp_path)
    assert found.count("DequantizeLinear") == 3  # one for each GELU, one for the output
    assert not PARTS & set(found)


@pytest.mark.parametrize("gate", GATES)
def test_constants_that_were_rounded_to_halves_are_the_same_numbers(gate: str, tmp_path: Path) -> None:
    chain = with_gelus(gate)
    chain.constants = {name: array.astype(np.float16).astype(np.float32) for name, array in chain.constants.items()}
    assert not PARTS & set(kinds(joined(load(chain.save(tmp_path / "m.onnx")))))


@pytest.mark.parametrize("gate", GATES)
def test_a_file_in_halves_has_it_too(gate: str, tmp_path: Path) -> None:
    proto = onnx.load(with_gelus(gate).save(tmp_path / "m.onnx"))
    for tensor in proto.graph.initializer:
        half = onnx.numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(onnx.numpy_helper.from_array(half, tensor.name))
    for info in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    onnx.save(proto, tmp_path / "half.onnx")
    assert not PARTS & set(kinds(joined(load(tmp_path / "half.onnx"))))


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("other", ["reader", "output"])
def test_parts_that_others_read_stay(gate: str, other: str, tmp_path: Path) -> None:
    for place in range(1, len(with_gelus(gate).nodes) // 2 - 1):  # all parts of the first GELU but the last one
        chain = with_gelus(gate)
        inner = chain.nodes[place].output[0]
        if other == "reader":
            chain.add("Add", chain.last, first=inner)
        path = chain.save(tmp_path / f"{other}{place}.onnx")
        if other == "output":
            proto = onnx.load(path)
            proto.graph.output.append(next(info for info in proto.graph.value_info if info.name == inner))
            onnx.save(proto, path)
        model = load(path)
        proto = joined(model)
        onnx.checker.check_model(proto, full_check=True)
        assert sum("Gelu" in kind for kind in kinds(proto)) == 1, inner
        plain_session(proto).run(None, feeds(model))


@pytest.mark.parametrize(("factor", "power"), [(0.05, 3), (0.044715, 2)])
def test_another_function_stays(factor: float, power: int, tmp_path: Path) -> None:
    chain = Chain((2, 4, 8, 8))
    x = chain.conv()
    chain.add("Pow", chain.constant(power))
    chain.add("Mul", chain.constant(factor))
    chain.add("Add", x)
    chain.add("Mul", chain.constant(STEEP))
    chain.add("Tanh")
    chain.add("Add", chain.constant(1))
    chain.add("Mul", x)
    chain.add("Mul", chain.constant(0.5))
    chain.conv()
    proto = joined(load(chain.save(tmp_path / "m.onnx")))
    assert kinds(proto) == [node.op_type for node in chain.nodes]


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.INT8])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gate", ["erf", "cubed_by_pow", "cubed_by_products"])
def test_behind_a_product_the_runtime_takes_the_bias_in(
    gate: str, order: str, precision: Precision, tmp_path: Path
) -> None:
    chain = Chain((2, 4, 6))
    chain.add("MatMul", chain.random(6, 8))
    chain.add("Add", chain.random(8))
    add_gelu(chain, gate, order)
    chain.add("MatMul", chain.random(8, 3))
    model = load(chain.save(tmp_path / "m.onnx"))
    found = runtime_kinds(joined(model, precision), tmp_path)
    assert not {*PARTS, "DequantizeLinear"} & set(found)
    assert sum("Gelu" in kind for kind in found) == 1


def test_a_number_that_makes_more_axes_of_a_tensor_stays(tmp_path: Path) -> None:
    chain = Chain((4, 6))
    chain.add("MatMul", chain.random(6, 8))
    add_gelu(chain, "factored")  # with a number of three axes
    assert "Tanh" in kinds(joined(load(chain.save(tmp_path / "m.onnx"))))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("gate", GATES)
def test_in_floats_it_is_one_op_too_and_tensors_of_layers_can_be_read(gate: str, order: str, tmp_path: Path) -> None:
    model = load(with_gelus(gate, order).save(tmp_path / "m.onnx"))
    proto, batch = joined(model, Precision.FP32), feeds(model)
    assert not PARTS & set(runtime_kinds(proto, tmp_path))
    results = [plain_session(each).run(None, batch)[0] for each in (ir.to_proto(model.graph), proto)]
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5 * float(np.abs(results[0]).max()))
    builder = OnnxRuntimeBackend("cpu", threads=1).builder(model, observed(model))
    for precision in (Precision.FP32, Precision.INT8):
        assert builder.probe(uniform(model, precision)).run(batch).keys() == {group.id for group in model.groups}
