"""Infinite values, which models mask with: where calibration takes them, and where it refuses them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.calibration.activations import collect, notes
from evaluators.data.opening import open_data
from search.errors import DataError
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges, TensorRange

METHODS = ("minmax", "mean", "percentile", "percentile:99", "entropy", "mse")
SIZE, TOKENS = 16, 6
F32 = np.float32
Arrays = dict[str, NDArray[Any]]


def save(path: Path, nodes: list[onnx.NodeProto], weights: Arrays) -> Path:
    """x (2, 6, 16) float32 and keep (2, 1, 6) bool → y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, TOKENS, SIZE])
    keep = helper.make_tensor_value_info("keep", TensorProto.BOOL, [2, 1, TOKENS])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, TOKENS, SIZE])
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    used = {name for node in nodes for name in node.input}
    inputs = [value for value in (x, keep) if value.name in used]
    graph = helper.make_graph(nodes, "g", inputs, [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def attention(path: Path, mask: str) -> Path:
    """One head, scores masked with -Inf: by a constant, by one made of an input, of the scores' shape, or by Where.

    With `safe`, rows that are masked as a whole have zeros for their shares."""
    rng = np.random.default_rng(0)
    weights: Arrays = {name: (rng.standard_normal((SIZE, SIZE)) / 4).astype(F32) for name in ("wq", "wk", "wv", "wo")}
    weights |= {"low": F32(-np.inf), "zero": F32(0), "shape": np.array([2, TOKENS, TOKENS])}
    weights["causal"] = np.triu(np.full((TOKENS, TOKENS), -np.inf, F32), 1)
    make = helper.make_node
    nodes = [make("MatMul", ["x", f"w{i}"], [i], name=i) for i in "qkv"]
    nodes += [make("Transpose", ["k"], ["kt"], perm=[0, 2, 1]), make("MatMul", ["q", "kt"], ["scores"], name="scores")]
    if mask in ("where", "safe"):
        nodes.append(make("Where", ["keep", "scores", "low"], ["masked"], name="mask"))
    else:
        bias = "causal"
        if mask != "constant":
            nodes.append(make("Where", ["keep", "zero", "low"], ["bias"], name="bias"))
            bias = "bias"
        if mask == "expanded":
            nodes.append(make("Expand", ["bias", "shape"], ["wide"], name="wide"))
            bias = "wide"
        nodes.append(make("Add", ["scores", bias], ["masked"], name="mask"))
    nodes += [make("Softmax", ["masked"], ["shares"], axis=-1), make("MatMul", ["shares", "v"], ["mixed"], name="mix")]
    if mask == "safe":  # as PyTorch writes attention: zero is of float32
        nodes[-1].input[0] = "safe"
        nodes[-1:-1] = [make("IsNaN", ["shares"], ["lost"]), make("Where", ["lost", "zero", "shares"], ["safe"])]
    nodes.append(make("MatMul", ["mixed", "wo"], ["y"], name="out"))
    used = {name for node in nodes for name in node.input}
    return save(path, nodes, {name: array for name, array in weights.items() if name in used})


def inputs_of(model: Model, samples: int = 5) -> Arrays:
    """An odd number of samples: the last run is filled up."""
    rng = np.random.default_rng(1)
    keep = rng.random((samples, 1, TOKENS)) < 0.7
    keep[..., 0] = True  # a row without any would be NaN
    arrays = {"x": rng.standard_normal((samples, TOKENS, SIZE)).astype(F32), "keep": keep}
    return {spec.name: arrays[spec.name] for spec in model.inputs}


def calibrated(model: Model, folder: Path, arrays: Arrays, method: str = "minmax") -> Ranges:
    np.savez(folder / "data.npz", **arrays)
    dataset = open_data(str(folder / "data.npz"), model.inputs)
    return collect(model, dataset, np.arange(len(dataset)), method)


def values_of(path: Path, name: str, arrays: Arrays) -> NDArray[np.float32]:
    proto = onnx.load(path)
    proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    runs = [session.run([name], {k: v[i : i + 2] for k, v in arrays.items()})[0] for i in (0, 2)]
    return np.concatenate([np.asarray(run, F32) for run in runs])


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mask", ["constant", "made", "expanded", "where"])
def test_masked_scores_have_the_range_of_what_is_not_masked(mask: str, method: str, tmp_path: Path) -> None:
    path = attention(tmp_path / "net.onnx", mask)
    model = load(path)
    arrays = {name: array[:4] for name, array in inputs_of(model).items()}
    ranges = calibrated(model, tmp_path, arrays, method)
    masked = values_of(path, "masked", arrays)
    finite = masked[np.isfinite(masked)]
    assert np.isneginf(masked).any()
    assert ranges.observed["masked"].low == pytest.approx(finite.min(), rel=1e-6)
    assert ranges.observed["masked"].high == pytest.approx(finite.max(), rel=1e-6)
    assert finite.min() <= ranges.tensors["masked"].low < ranges.tensors["masked"].high <= finite.max() + 1e-6
    bias = {"constant": [], "made": ["bias"], "expanded": ["bias", "wide"], "where": []}[mask]
    assert ranges.infinite == (*bias, "masked")
    assert ranges.constant == ()
    held = f"{len(bias) + 1} tensor{'s' if bias else ''} ({', '.join([*bias, 'masked'])}) held infinite values"
    assert notes(ranges) == [f"{held}, as masks do, so their ranges are those of the finite values"]
    assert Ranges.from_json(ranges.to_json()).infinite == tuple(sorted(ranges.infinite))


@pytest.mark.parametrize("mask", ["constant", "made", "expanded", "where"])
def test_a_masked_model_is_quantized_and_built(mask: str, tmp_path: Path) -> None:
    path = attention(tmp_path / "net.onnx", mask)
    model = load(path)
    ranges = calibrated(model, tmp_path, inputs_of(model))
    arrays = {name: array[:2] for name, array in inputs_of(model).items()}
    wanted = values_of(path, "mixed", {k: np.concatenate([v, v]) for k, v in arrays.items()})
    assert np.isfinite(wanted).all()
    backend = OnnxRuntimeBackend("cpu")
    outputs = {}
    for precision in (Precision.FP32, Precision.INT8):
        asked = Assignment({g.id: Precision.FP32 if g.pinned else precision for g in model.groups})
        builder = backend.builder(model, ranges)
        engine = builder.build(builder.lower(asked), tmp_path / f"{precision.label}.onnx")
        session = builder.load(engine.path)
        outputs[precision] = session.run(arrays)["y"]
        session.close()
    exact, rough = outputs[Precision.FP32], outputs[Precision.INT8]
    assert 0 < np.square(rough - exact).mean() < 1e-3 * np.square(exact).mean()


def test_what_is_infinite_only_in_a_later_run_keeps_what_was_seen_before(tmp_path: Path) -> None:
    model = load(attention(tmp_path / "net.onnx", "where"))
    arrays = inputs_of(model, 6)
    arrays["keep"][:4] = True
    arrays["x"][0] *= 10
    ranges = calibrated(model, tmp_path, arrays)
    assert ranges.infinite == ("masked",)
    assert ranges.observed["masked"] == ranges.observed["scores"]


def test_ranges_without_infinite_values_keep_their_digest() -> None:
    seen = {"a": TensorRange(-1, 2)}
    assert set(Ranges("minmax", seen, seen, 3).to_json()) == {"method", "samples", "tensors", "observed"}


def test_a_tensor_without_any_finite_value_has_no_range(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Where", ["keep", "low", "low"], ["all"], name="all"),
        helper.make_node("Exp", ["all"], ["zeros"]),
        helper.make_node("MatMul", ["x", "w"], ["layer"], name="layer"),
        helper.make_node("ReduceSum", ["zeros"], ["none"], keepdims=0),
        helper.make_node("Add", ["layer", "none"], ["y"]),
    ]
    model = load(save(tmp_path / "net.onnx", nodes, {"low": F32(-np.inf), "w": np.eye(SIZE, dtype=F32)}))
    ranges = calibrated(model, tmp_path, inputs_of(model), "entropy")
    assert "all" not in ranges.tensors
    assert ranges.infinite == ("all",)


def made_of(case: str) -> list[onnx.NodeProto]:
    """A Log whose -Inf goes where only finite values may."""
    make = helper.make_node
    logs = make("Log", ["x"], ["logs"], name="log")
    layer = make("MatMul", ["x", "w"], ["layer"], name="layer")
    return {
        "input": [logs, make("MatMul", ["logs", "w"], ["layer"]), make("Exp", ["layer"], ["y"])],
        "skip": [logs, layer, make("Add", ["layer", "logs"], ["sum"]), make("Exp", ["sum"], ["y"])],
        "made": [layer, make("Add", ["layer", "low"], ["masked"], name="mask"), make("Softmax", ["masked"], ["y"])],
        "output": [layer, make("Sin", ["layer"], ["other"]), logs, make("Add", ["logs", "other"], ["y"], name="sum")],
    }[case]


@pytest.mark.parametrize(
    ("case", "tensor", "sample"),
    [
        ("input", "'logs', output of Log node 'log'", 3),
        ("skip", "'logs', output of Log node 'log'", 3),
        ("made", "'masked', output of Add node 'mask'", 0),
        ("output", "'y', output of Add node 'sum'", 3),
    ],
)
def test_what_a_layer_reads_or_makes_and_outputs_have_to_be_finite(
    case: str, tensor: str, sample: int, tmp_path: Path
) -> None:
    nodes = made_of(case)
    used = {name for node in nodes for name in node.input}
    low = np.zeros(SIZE, F32)
    low[3] = -np.inf
    weights = {name: array for name, array in {"w": np.eye(SIZE, dtype=F32), "low": low}.items() if name in used}
    model = load(save(tmp_path / "net.onnx", nodes, weights))
    x = np.ones((4, TOKENS, SIZE), F32)
    x[3, 2, 1] = 0
    message = rf"tensor {tensor}, holds Inf, first in sample {sample}; inputs and outputs of layers"
    with pytest.raises(DataError, match=message):
        calibrated(model, tmp_path, {"x": x})


@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_nan_is_taken_where_the_model_replaces_it(method: str, tmp_path: Path) -> None:
    model = load(attention(tmp_path / "net.onnx", "safe"))
    arrays = inputs_of(model, 4)
    arrays["keep"][2] = False
    assert np.isnan(values_of(tmp_path / "net.onnx", "shares", arrays)[2]).all()
    ranges = calibrated(model, tmp_path, arrays, method)
    assert "shares" not in ranges.tensors
    assert ranges.tensors["safe"].low == 0
    assert np.isfinite([ranges.tensors[name].high for name in ("safe", "mixed", "y")]).all()


def test_nan_is_refused_everywhere(tmp_path: Path) -> None:
    """Also in a tensor that may hold Inf, and where it comes of one: a row that is masked as a whole."""
    model = load(attention(tmp_path / "net.onnx", "where"))
    arrays = inputs_of(model, 4)
    arrays["keep"][2] = False
    with pytest.raises(DataError, match=r"output of Softmax node '.*', holds NaN, first in sample 2; no tensor may"):
        calibrated(model, tmp_path, arrays)
    arrays = inputs_of(model, 4)
    arrays["x"][1] = 1e38
    with pytest.raises(DataError, match=r"holds (NaN|Inf), first in sample 1;"):
        calibrated(model, tmp_path, arrays)
