"""Subgraphs that ONNX Runtime fuses run between types as they are written: LayerNorm, RMSNorm, GELU, attention."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT, TENSORRT_WEAK
from search.graph.model import Model, load
from search.values import Assignment, Precision
from tests.support.networks import Net, feeds, observed, plain_session, save

FP32, FP16, INT8 = Precision.FP32, Precision.FP16, Precision.INT8
_ROWS, _WIDTH = 8, 32


def _layer_norm(n: Net, x: str, name: str) -> str:
    """As exporters write it below opset 17; the reader of the sum, a residual one, casts it to float."""
    less = n.op("Sub", [x, n.op("ReduceMean", [x], f"{name}.mean", axes=[-1])], f"{name}.less")
    square = n.op("Pow", [less, n.const(f"{name}.two", np.float32(2))], f"{name}.square")
    return _scaled(n, n.op("Div", [less, _root(n, square, name)], f"{name}.whole"), name)


def _rms_norm(n: Net, x: str, name: str) -> str:
    square = n.op("Pow", [x, n.const(f"{name}.two", np.float32(2))], f"{name}.square")
    gain = n.const(f"{name}.gain", n.rng.uniform(0.5, 1.5, _WIDTH).astype(np.float32))
    return n.op("Mul", [n.op("Div", [x, _root(n, square, name)], f"{name}.whole"), gain], f"{name}.scaled")


def _root(n: Net, square: str, name: str) -> str:
    mean = n.op("ReduceMean", [square], f"{name}.variance", axes=[-1])
    return n.op(
        "Sqrt", [n.op("Add", [mean, n.const(f"{name}.tiny", np.float32(1e-5))], f"{name}.above")], f"{name}.root"
    )


def _scaled(n: Net, x: str, name: str) -> str:
    gain = n.const(f"{name}.gain", n.rng.uniform(0.5, 1.5, _WIDTH).astype(np.float32))
    shift = n.const(f"{name}.shift", n.rng.uniform(-0.5, 0.5, _WIDTH).astype(np.float32))
    return n.op("Add", [n.op("Mul", [x, gain], f"{name}.scaled"), shift], f"{name}.shifted")


def _gelu(n: Net, x: str, name: str) -> str:
    erf = n.op("Erf", [n.op("Div", [x, n.const(f"{name}.root", np.float32(2**0.5))], f"{name}.div")], f"{name}.erf")
    gate = n.op("Add", [erf, n.const(f"{name}.one", np.float32(1))], f"{name}.gate")
    return n.op(
        "Mul", [n.op("Mul", [x, gate], f"{name}.gated"), n.const(f"{name}.half", np.float32(0.5))], f"{name}.gelu"
    )


def _attention(n: Net, x: str, name: str) -> str:
    q, k, v = (n.linear(x, f"{name}.{part}", _WIDTH, _WIDTH) for part in "qkv")
    scores = n.op("MatMul", [q, n.op("Transpose", [k], f"{name}.turned", perm=[0, 2, 1])], f"{name}.scores")
    scaled = n.op("Div", [scores, n.const(f"{name}.root", np.float32(_WIDTH**0.5))], f"{name}.scaled")
    masked = n.op(
        "Add",
        [scaled, n.const(f"{name}.mask", np.triu(np.full((_ROWS, _ROWS), -1e4, np.float32), 1))],
        f"{name}.masked",
    )
    return n.op("MatMul", [n.op("Softmax", [masked], f"{name}.softmax", axis=-1), v], f"{name}.mixed")


def _instance_norm(n: Net, x: str, name: str) -> str:
    ones, zeros = (
        n.const(f"{name}.ones", np.ones(_ROWS, np.float32)),
        n.const(f"{name}.zeros", np.zeros(_ROWS, np.float32)),
    )
    return n.op("InstanceNormalization", [x, ones, zeros], f"{name}.whole")


PARTS: dict[str, Callable[[Net, str, str], str]] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "gelu": _gelu,
    "attention": _attention,
    "instance_norm": _instance_norm,
}


def _network(part: Callable[[Net, str, str], str], opset: int) -> onnx.ModelProto:
    """Two blocks of that part between linear layers, with a residual sum before and after it."""
    n, x = Net(5, opset), "tokens"
    for i in range(2):
        x = n.op("Add", [x, n.linear(x, f"b{i}.first", _WIDTH, _WIDTH)], f"b{i}.before")
        x = n.op("Add", [x, n.linear(part(n, x, f"b{i}.part"), f"b{i}.second", _WIDTH, _WIDTH)], f"b{i}.after")
    x = part(n, x, "last")
    n.linear(x, "head", _WIDTH, 16)
    shape = [2, _ROWS, _WIDTH]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.FLOAT, shape)
    n.nodes[-1].output[0] = "out"
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, _ROWS, 16])
    graph = helper.make_graph(n.nodes, "net", [tokens], [out], n.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _mixes(model: Model) -> list[Assignment]:
    """All in one type, and changing types from group to group."""
    patterns = [(FP16,), (INT8,), (FP16, FP32), (FP32, FP16), (INT8, FP32), (FP32, INT8, FP16)]
    ids = [group.id for group in model.groups]
    found = [dict(zip(ids, cycle(pattern), strict=False)) for pattern in patterns]
    return [Assignment({g.id: FP32 if g.pinned else mix[g.id] for g in model.groups}) for mix in found]


@pytest.mark.slow
@pytest.mark.parametrize("opset", [13, 17])
@pytest.mark.parametrize("part", PARTS)
def test_what_is_fused_is_emulated_as_it_is_written(part: str, opset: int, tmp_path: Path) -> None:
    model = load(save(_network(PARTS[part], opset), tmp_path / "net.onnx"))
    ranges, batch = observed(model), feeds(model)
    backend = OnnxRuntimeBackend("cpu", threads=1)
    for mix in _mixes(model):
        for placement in (TENSORRT, TENSORRT_WEAK):
            graph = spelled_out(lower(model, mix, ranges, placement))
            (plain,) = plain_session(ir.to_proto(graph)).run(None, batch)
            found = Emulator(backend, placement).open(graph).run(batch)["out"]
            np.testing.assert_allclose(found, plain, rtol=0, atol=0.01 * float(np.abs(plain).max()))
