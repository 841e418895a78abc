from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationMethod, create_calibrator

from evaluators.calibration import histograms
from evaluators.calibration.activations import cache_key, collect, notes, parse_method
from evaluators.calibration.scales import BINS, bins_of, entropy_bins, mse_bins
from evaluators.data.opening import open_data
from search.errors import ConfigError, DataError, ModelError
from search.graph import packed_file
from search.graph.grouping import find_groups
from search.graph.model import Model, TensorSpec
from search.values import Ranges, TensorRange
from tests.support import networks

Arrays = dict[str, NDArray[Any]]
NETWORKS: list[Callable[[], onnx.ModelProto]] = [
    networks.residual_cnn,
    networks.mobile_cnn,
    networks.unet,
    networks.transformer,
]


def wrap(proto: onnx.ModelProto) -> Model:
    inputs = []
    for value in proto.graph.input:
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        inputs.append(TensorSpec(value.name, dtype.name, shape))
    graph = ir.from_proto(proto)
    groups, edges = find_groups(ir.from_proto(onnx.shape_inference.infer_shapes(proto)).graph, {})
    return Model(graph, tuple(inputs), (), shapes={}, groups=groups, edges=edges, digest="x" * 64, profiles={})


def graph(
    nodes: list[onnx.NodeProto], *, batch: int = 2, weights: Arrays | None = None, output: str = "y", opset: int = 17
) -> onnx.ModelProto:
    """x (batch, 3) float32 → y; no types of inner tensors, which the runtime then has to give."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3])
    y = onnx.ValueInfoProto(name=output)
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], stored), opset_imports=domains, ir_version=8)


def run(model: Model, folder: Path, arrays: Arrays, method: str = "minmax", **options: Any) -> Ranges:
    np.savez(folder / "data.npz", **arrays)
    dataset = open_data(str(folder / "data.npz"), model.inputs)
    return collect(model, dataset, np.arange(len(dataset)), method, **options)


def random_inputs(model: Model, samples: int) -> Arrays:
    rng = np.random.default_rng(3)
    return {spec.name: rng.standard_normal((samples, *spec.shape[1:])).astype(spec.dtype) for spec in model.inputs}


def every_tensor(proto: onnx.ModelProto, arrays: Arrays, batch: int) -> Arrays:
    """All float activations over all samples, fetched at once: what streaming has to agree with."""
    types = {v.name: v for v in onnx.shape_inference.infer_shapes(proto).graph.value_info}
    names = [n for node in proto.graph.node for n in node.output if types.get(n) is None or _is_float(types[n])]
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    copy.graph.ClearField("output")
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(copy.SerializeToString(), options, providers=["CPUExecutionProvider"])
    samples = len(next(iter(arrays.values())))
    runs = [session.run(names, {k: v[i : i + batch] for k, v in arrays.items()}) for i in range(0, samples, batch)]
    return {**arrays, **{name: np.stack(values) for name, *values in zip(names, *runs, strict=True)}}


def _is_float(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == TensorProto.FLOAT)


class Reader:
    """What ONNX Runtime's calibrator reads from."""

    def __init__(self, arrays: Arrays, batch: int) -> None:
        samples = len(next(iter(arrays.values())))
        self.feeds = [{k: v[i : i + batch] for k, v in arrays.items()} for i in range(0, samples, batch)]

    def get_next(self) -> Arrays | None:
        return self.feeds.pop(0) if self.feeds else None


def runtime_ranges(proto: onnx.ModelProto, arrays: Arrays, batch: int, folder: Path) -> dict[str, Any]:
    onnx.save(proto, folder / "m.onnx")
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator = create_calibrator(
            folder / "m.onnx",
            augmented_model_path=str(folder / "augmented.onnx"),
            calibrate_method=CalibrationMethod.MinMax,
        )
        calibrator.collect_data(Reader(arrays, batch))
        data: dict[str, Any] = calibrator.compute_data().data
    return data


class TestMinMax:
    @pytest.mark.parametrize("network", NETWORKS)
    def test_equals_onnx_runtimes_calibrator(self, network: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
        proto = network()
        model = wrap(proto)
        arrays = random_inputs(model, 3 * model.batch)
        ours = run(model, tmp_path, arrays)
        theirs = runtime_ranges(proto, arrays, model.batch, tmp_path)
        assert set(theirs) <= set(ours.tensors)
        for name, data in theirs.items():
            assert ours.tensors[name].low == pytest.approx(float(data.lowest.item()), rel=1e-4, abs=1e-5)
            assert ours.tensors[name].high == pytest.approx(float(data.highest.item()), rel=1e-4, abs=1e-5)
        assert ours.tensors == ours.observed
        assert ours.samples == 3 * model.batch

    def test_every_float_tensor_and_no_other(self, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Relu", ["product"], ["relu"]),
            helper.make_node("Shape", ["relu"], ["shape"]),
            helper.make_node("Greater", ["relu", "x"], ["bools"]),
            helper.make_node("Cast", ["relu"], ["half"], to=TensorProto.FLOAT16),
            helper.make_node("Cast", ["relu"], ["double"], to=TensorProto.DOUBLE),
            helper.make_node("ReduceMax", ["relu"], ["scalar"], keepdims=0),
            helper.make_node("Gelu", ["relu"], ["gelu"], domain="com.microsoft"),
            helper.make_node("Split", ["gelu"], ["left", "right"], axis=1),
            helper.make_node("SequenceConstruct", ["relu", "gelu"], ["sequence"]),
            helper.make_node("Identity", ["relu"], ["y"]),
        ]
        nodes[8].attribute.append(helper.make_attribute("num_outputs", 2))
        model = wrap(graph(nodes, weights={"w": np.eye(3, dtype=np.float32)}, opset=18))
        ranges = run(model, tmp_path, {"x": np.array([[1, -2, 3], [4, 5, 6]], np.float32)})
        expected = {"x", "product", "relu", "half", "double", "scalar", "gelu", "left", "right", "y"}
        assert set(ranges.tensors) == expected
        assert ranges.tensors["x"] == TensorRange(-2, 6)
        assert ranges.tensors["half"] == ranges.tensors["double"] == ranges.tensors["relu"] == TensorRange(0, 6)
        assert ranges.tensors["scalar"] == TensorRange(6, 6)
        # Histograms over the same odd collection.
        assert set(run(model, tmp_path, random_inputs(model, 5), "entropy").tensors) == expected

    def test_relu6_stays_zero_to_six(self, tmp_path: Path) -> None:
        nodes = [helper.make_node("Clip", ["x", "low", "high"], ["y"])]
        model = wrap(graph(nodes, weights={"low": np.float32(0), "high": np.float32(6)}))
        ranges = run(model, tmp_path, {"x": np.linspace(-20, 20, 30, dtype=np.float32).reshape(10, 3)})
        assert ranges.tensors["y"] == TensorRange(0, 6)

    def test_only_the_samples_asked_for(self, tmp_path: Path) -> None:
        model = wrap(graph([helper.make_node("Neg", ["x"], ["y"])], batch=4))
        np.savez(tmp_path / "d.npz", x=np.arange(30, dtype=np.float32).reshape(10, 3))
        dataset = open_data(str(tmp_path / "d.npz"), model.inputs)
        ranges = collect(model, dataset, np.array([2, 3, 5]), "minmax")
        assert ranges.tensors == {"x": TensorRange(6, 17), "y": TensorRange(-17, -6)}
        assert ranges.samples == 3

    @pytest.mark.slow
    def test_the_model_is_left_as_it_was(self, tmp_path: Path) -> None:
        proto = networks.residual_cnn()
        model = wrap(proto)
        before = ir.to_proto(model.graph).SerializeToString()
        run(model, tmp_path, random_inputs(model, 5), "mse")
        assert ir.to_proto(model.graph).SerializeToString() == before

    def test_weights_in_a_file_of_their_own(self, tmp_path: Path) -> None:
        proto = networks.residual_cnn()
        arrays = random_inputs(wrap(proto), 4)
        onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
        model = wrap(onnx.load(tmp_path / "m.onnx", load_external_data=False))
        loaded = packed_file.load_graph(tmp_path / "m.onnx")
        external = Model(loaded, model.inputs, (), {}, (), (), "x" * 64, {})
        assert run(external, tmp_path, arrays) == run(wrap(onnx.load(tmp_path / "m.onnx")), tmp_path, arrays)


class TestHistograms:
    @pytest.mark.slow
    @pytest.mark.parametrize("network", NETWORKS)
    def test_cutting_the_graph_changes_nothing(
        self, network: Callable[[], onnx.ModelProto], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = wrap(network())
        arrays = random_inputs(model, 2 * model.batch + 1)
        whole = run(model, tmp_path, arrays, "percentile:99")
        for limit in (1, 20_000):
            monkeypatch.setattr(histograms, "FETCH_BYTES", limit)
            assert run(model, tmp_path, arrays, "percentile:99") == whole

    @pytest.mark.parametrize("network", [networks.residual_cnn, networks.transformer])
    def test_percentile_is_the_quantile_of_every_tensor(
        self, network: Callable[[], onnx.ModelProto], tmp_path: Path
    ) -> None:
        proto = network()
        model = wrap(proto)
        arrays = random_inputs(model, 8 * model.batch)
        ranges = run(model, tmp_path, arrays, "percentile:99")
        for name, values in every_tensor(proto, arrays, model.batch).items():
            seen, kept = ranges.observed[name], ranges.tensors[name]
            width = (seen.high - seen.low) / BINS * 1.01 + 1e-5
            low, high = np.quantile(values, [0.01, 0.99], method="inverted_cdf")
            next_low, next_high = np.quantile(values, [0.01, 0.99], method="higher")
            assert low - width <= kept.low <= next_low + width
            assert high - width <= kept.high <= next_high + width

    @pytest.mark.slow
    @pytest.mark.parametrize(("method", "bins"), [("entropy", entropy_bins), ("mse", mse_bins)])
    def test_limits_are_those_of_all_values_at_once(
        self, method: str, bins: Callable[[NDArray[np.int64]], int], tmp_path: Path
    ) -> None:
        proto = networks.residual_cnn()
        model = wrap(proto)
        # The last run is padded: what is repeated there must not count.
        arrays = random_inputs(model, 4 * model.batch + 1)
        ranges = run(model, tmp_path, arrays, method)
        padded = {
            name: np.pad(a, [(0, model.batch - 1)] + [(0, 0)] * (a.ndim - 1), "edge") for name, a in arrays.items()
        }
        for name, values in every_tensor(proto, padded, model.batch).items():
            seen = ranges.observed[name]
            flat = values.reshape(-1, *values.shape[2:])[: 4 * model.batch + 1] if name not in arrays else arrays[name]
            limit = seen.magnitude * bins(bins_of(seen, magnitudes=True).count(flat)) / BINS
            assert ranges.tensors[name].low == pytest.approx(max(seen.low, -limit), rel=1e-6)
            assert ranges.tensors[name].high == pytest.approx(min(seen.high, limit), rel=1e-6)

    @pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
    def test_a_constant_tensor_keeps_its_value(self, method: str, tmp_path: Path) -> None:
        nodes = [helper.make_node("Mul", ["x", "zero"], ["zeros"]), helper.make_node("Add", ["x", "zeros"], ["y"])]
        model = wrap(graph(nodes, weights={"zero": np.zeros(3, np.float32)}))
        ranges = run(model, tmp_path, random_inputs(model, 3), method)
        assert ranges.tensors["zeros"] == TensorRange(0, 0)
        assert ranges.constant == ("zeros",)

    @pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
    def test_outliers_are_clipped_and_what_was_seen_is_kept(self, method: str, tmp_path: Path) -> None:
        model = wrap(graph([helper.make_node("Relu", ["x"], ["y"])], batch=500))
        x = np.random.default_rng(0).standard_normal((100_000, 3)).astype(np.float32)
        x[77, 1] = 30
        ranges = run(model, tmp_path, {"x": x}, method, whole=True)
        assert ranges.observed["y"] == TensorRange(0, 30)
        assert ranges.tensors["y"].low == 0
        assert ranges.tensors["y"].high < 20
        assert ranges.tensors["x"].low < 0

    def test_progress_counts_both_passes(self, tmp_path: Path) -> None:
        model = wrap(networks.residual_cnn())
        steps: list[tuple[int, int]] = []
        run(model, tmp_path, random_inputs(model, 9), "entropy", progress=lambda *step: steps.append(step), threads=2)
        assert steps == [(done, 6) for done in range(1, 7)]


class TestNotFinite:
    NODES = (
        helper.make_node("Abs", ["x"], ["fine"], name="abs"),
        helper.make_node("Log", ["fine"], ["logs"], name="log"),
        helper.make_node("Mul", ["logs", "x"], ["product"], name="mul"),
        helper.make_node("Relu", ["product"], ["positive"], name="relu"),
        helper.make_node("MatMul", ["logs", "w"], ["layer"], name="layer"),
        helper.make_node("Add", ["layer", "positive"], ["y"], name="add"),
    )
    WEIGHTS: ClassVar[Arrays] = {"w": np.eye(3, dtype=np.float32)}

    @pytest.mark.parametrize("row", [0, 3, 4])
    def test_the_first_tensor_its_node_and_sample_are_named(self, row: int, tmp_path: Path) -> None:
        x = np.ones((5, 3), np.float32)
        x[row, 2] = 0
        message = rf"tensor 'logs', output of Log node 'log', holds Inf, first in sample {row};"
        with pytest.raises(DataError, match=message):
            run(wrap(graph([*self.NODES], weights=self.WEIGHTS)), tmp_path, {"x": x})

    @pytest.mark.parametrize("position", range(6))
    def test_nan_is_found_anywhere(self, position: int, tmp_path: Path) -> None:
        x = np.ones(6, np.float32)
        x[position] = -1
        nodes = [helper.make_node("Sqrt", ["x"], ["y"], name="root")]
        with pytest.raises(
            DataError, match=f"'y', output of Sqrt node 'root', holds NaN, first in sample {position // 3}"
        ):
            run(wrap(graph(nodes)), tmp_path, {"x": x.reshape(2, 3)}, "mse")

    def test_samples_are_numbered_as_in_the_data(self, tmp_path: Path) -> None:
        model = wrap(graph([*self.NODES], weights=self.WEIGHTS))
        x = np.ones((9, 3), np.float32)
        x[7] = 0
        np.savez(tmp_path / "d.npz", x=x)
        with pytest.raises(DataError, match="first in sample 7;"):
            collect(model, open_data(str(tmp_path / "d.npz"), model.inputs), np.array([1, 3, 5, 7, 8]), "minmax")

    def test_without_a_batch_axis_the_run_is_named(self, tmp_path: Path) -> None:
        nodes = [helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), helper.make_node("Log", ["sum"], ["y"])]
        x = np.ones((4, 3), np.float32)
        x[2:] = -1
        with pytest.raises(DataError, match="holds NaN, first in a run over 2 samples, 2 to 3"):
            run(wrap(graph(nodes)), tmp_path, {"x": x})

    def test_a_sum_that_overflows_is_no_inf(self, tmp_path: Path) -> None:
        x = np.full((4, 3), 3e38, np.float32)
        x[1] = -3e38
        ranges = run(wrap(graph([helper.make_node("Neg", ["x"], ["y"])])), tmp_path, {"x": x}, "percentile")
        assert ranges.observed["y"].magnitude == pytest.approx(3e38)

    def test_what_float32_cannot_hold_is_inf(self, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
            helper.make_node("Mul", ["wide", "wide"], ["y"], name="square"),
        ]
        with pytest.raises(DataError, match="'y', output of Mul node 'square', holds Inf"):
            run(wrap(graph(nodes)), tmp_path, {"x": np.full((2, 3), 1e30, np.float32)})


class TestRefusals:
    def test_no_samples(self, tmp_path: Path) -> None:
        model = wrap(graph([helper.make_node("Neg", ["x"], ["y"])]))
        np.savez(tmp_path / "d.npz", **random_inputs(model, 2))
        dataset = open_data(str(tmp_path / "d.npz"), model.inputs)
        with pytest.raises(DataError, match="calibration needs samples"):
            collect(model, dataset, np.array([], np.int64), "minmax")

    @pytest.mark.parametrize(
        "method", ["max", "", "percentile:", "percentile:x", "percentile:20", "mse:3", "percentile:101"]
    )
    def test_unknown_methods(self, method: str) -> None:
        with pytest.raises(ConfigError, match="use auto, minmax, mean, percentile, entropy, mse, or percentile:P"):
            parse_method(method)

    def test_methods(self) -> None:
        assert parse_method("percentile") == ("percentile", 99.99)
        assert parse_method("percentile:99.5") == ("percentile", 99.5)
        assert parse_method("entropy")[0] == "entropy"

    def test_an_op_the_runtime_does_not_know(self, tmp_path: Path) -> None:
        proto = graph([helper.make_node("TheirOwn", ["x"], ["y"], domain="com.microsoft")])
        with pytest.raises(ModelError, match="ONNX Runtime cannot run the model"):
            run(wrap(proto), tmp_path, {"x": np.ones((2, 3), np.float32)})

    def test_a_run_that_fails(self, tmp_path: Path) -> None:
        nodes = [
            helper.make_node("Cast", ["x"], ["shape"], to=TensorProto.INT64),
            helper.make_node("Squeeze", ["shape", "axis"], ["row"]),
            helper.make_node("Reshape", ["x", "row"], ["y"]),
        ]
        proto = graph(nodes, batch=1, weights={"axis": np.array([0])})
        with pytest.raises(ModelError, match="could not run the model on the calibration data"):
            run(wrap(proto), tmp_path, {"x": np.full((2, 3), 7, np.float32)})


class TestSurroundings:
    def test_cache_key_is_of_everything_that_matters(self) -> None:
        key = cache_key("m", "d", np.array([1, 2]), "mse")
        assert len(key) == 64
        assert key == cache_key("m", "d", np.array([1, 9, 2])[::2], "mse")
        others = [
            cache_key("M", "d", np.array([1, 2]), "mse"),
            cache_key("m", "D", np.array([1, 2]), "mse"),
            cache_key("m", "d", np.array([2, 1]), "mse"),
            cache_key("m", "d", np.array([1, 2]), "minmax"),
        ]
        assert len({key, *others}) == 5

    def test_notes(self) -> None:
        fine = {"a": TensorRange(-1, 1)}
        assert notes(Ranges("minmax", fine, fine, 3)) == []
        odd = {**fine, **{f"c{i}": TensorRange(2, 2) for i in range(7)}, "w": TensorRange(-7e4, 0)}
        assert notes(Ranges("minmax", odd, odd, 3)) == [
            "7 tensors (c0, c1, c2, c3, c4, …) never varied in the calibration data (3 samples)",
            "1 tensor (w) went beyond 65504, the largest FP16 number",
        ]

    @pytest.mark.slow
    def test_imports_without_onnxruntime(self) -> None:
        code = "import sys, evaluators.calibration; print('onnxruntime' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "False"

    @pytest.mark.slow
    def test_is_deterministic(self, tmp_path: Path) -> None:
        model = wrap(networks.transformer())
        arrays = random_inputs(model, 5)
        assert run(model, tmp_path, arrays, "mse").digest == run(model, tmp_path, arrays, "mse").digest
