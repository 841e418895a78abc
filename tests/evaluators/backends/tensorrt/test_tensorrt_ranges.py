"""The dynamic range that every tensor of a weakly typed network gets, also those that only TensorRT's parser knows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from evaluators.backends.tensorrt import api as tensorrt_api
from evaluators.backends.tensorrt import weak_typing
from evaluators.backends.tensorrt.builder import TensorRTBuilder, model_bytes
from evaluators.backends.tensorrt.options import TensorRTOptions
from search.graph.model import Model, load
from search.values import Assignment, Precision, Ranges
from tests.support.networks import Net, arithmetic, finish, observed, save
from tests.support.silu_networks import box_network, neck_network, squeeze_network
from tests.support.tensorrt.stand_in import V8, V10, standing_in


def ranges_set(
    version: str, folder: Path, network: Callable[[], onnx.ModelProto] = arithmetic
) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """Tensor → range set; tensor → range calibrated; tensors of the model without one."""
    model = load(save(network(), folder / "net.onnx"))
    ranges = observed(model)
    with standing_in(version) as engines:
        trt = engines.trt
        log = tensorrt_api.make_log(trt)
        parsed, _ = tensorrt_api.parse_network(trt, trt.Builder(log), log, model_bytes(model.graph), strong=False)
        missing = weak_typing.set_ranges(trt, parsed, ranges, ranges.tensors)
        layers = tensorrt_api.layers_of(parsed)
        tensors = [layer.get_output(i) for layer in layers for i in range(layer.num_outputs)]
        tensors += [parsed.get_input(i) for i in range(parsed.num_inputs)]
        found = {tensor.name: tensor._state["range"] for tensor in tensors if "range" in tensor._state}
    assert all(low == -high for low, high in found.values())
    return (
        {name: high for name, (_, high) in found.items()},
        {name: own.magnitude for name, own in ranges.tensors.items()},
        missing,
    )


@pytest.mark.parametrize("version", [V8, V10])
def test_constants_reach_as_far_as_their_values_and_tensors_as_calibrated(version: str, tmp_path: Path) -> None:
    found, calibrated, missing = ranges_set(version, tmp_path)
    assert {name: found[name] for name in calibrated.keys() & found} == pytest.approx(
        {name: reach for name, reach in calibrated.items() if name in found}
    )
    assert {"image", "shift_out", "swish_out", "gain_out", "logits"} <= calibrated.keys() & found
    assert [found[f"{name}_output"] for name in ("three", "six", "gains")] == [3, 5.5, 60]
    assert found["shift/clip.low_output"] == 1  # nothing but zeros: no range of its own
    assert missing == []


def test_the_product_of_a_gemm_reaches_as_far_as_sum_and_bias_together(tmp_path: Path) -> None:
    """Not as far as its input, whose range says nothing about the product's."""
    found, calibrated, _ = ranges_set(V8, tmp_path)
    assert found["fc_output"] == pytest.approx(calibrated["logits"] + found["fc.b_output"])
    assert found["fc.b_output"] < 0.1


def moved() -> onnx.ModelProto:
    """What the parser splits up: 1-D convolutions, far above and below their inputs, and a logarithm of shares."""
    n = Net(24)
    x = n.op("Conv", ["sound", n.const("up.w", 3 * n.rng.standard_normal((16, 4, 5)).astype(np.float32))], "up")
    x = n.op("HardSwish", [x], "gate")
    x = n.op("ConvTranspose", [x, n.const("down.w", np.full((16, 8, 3), 1e-3, np.float32))], "down")
    x = n.op("ReduceL2", [n.op("Relu", [x], "relu")], "norm", axes=[2], keepdims=0)
    n.op("LogSoftmax", [x], "logs")
    n.nodes[-1].output[0] = "out"
    return finish(n, {"sound": [2, 4, 32]}, {"out": [2, 8]})


@pytest.mark.parametrize("version", [V8, V10])
def test_what_the_parser_splits_reaches_as_far_as_what_follows_from_the_model(version: str, tmp_path: Path) -> None:
    found, calibrated, missing = ranges_set(version, tmp_path, moved)
    assert calibrated["up_out"] > 2 * calibrated["sound"], "the input's range would cut the output off"
    assert found["up_output"] == pytest.approx(calibrated["up_out"])
    assert found["down_output"] == pytest.approx(calibrated["down_out"])
    assert found["up.wide"] == pytest.approx(calibrated["sound"])
    assert found["gate_output"] == 1
    assert found["norm_output"] == pytest.approx(calibrated["relu_out"] ** 2)
    assert found["norm_0_output"] == pytest.approx(calibrated["norm_out"] ** 2)
    assert found["logs_output"] == 1
    assert found["logs_0_output"] == pytest.approx(calibrated["out"])
    assert missing == []


def constrained(model: Model, ranges: Ranges, assignment: Assignment) -> dict[str, float]:
    """Output of a layer → range set for one assignment."""
    return constrained_layers(model, ranges, assignment)[1]


def constrained_layers(model: Model, ranges: Ranges, assignment: Assignment) -> tuple[dict[str, Any], dict[str, float]]:
    """Layers by name, and the range of each one's output, as set for one assignment."""
    with standing_in(V8) as engines:
        builder = TensorRTBuilder(engines.trt, model, ranges, TensorRTOptions(typing="weak"))
        network, _ = builder._parse(model_bytes(model.graph))
        builder._constrain(network, builder._config(), assignment)
        layers = {layer.name: layer for layer in tensorrt_api.layers_of(network)}
        tensors = [layer.get_output(0) for layer in layers.values()]
        return layers, {tensor.name: tensor._state["range"][1] for tensor in tensors if "range" in tensor._state}


def joined() -> onnx.ModelProto:
    """Two convolutions, one of them loud, whose outputs a third reads as one tensor."""
    n, c = Net(25), 16
    loud, quiet = n.conv("image", "loud", 3, c), n.conv("image", "quiet", 3, c)
    n.op("Concat", [loud, quiet], "join", axis=1)
    n.conv("join_out", "last", 2 * c, c)
    for tensor in n.weights:
        if tensor.name == "loud.w":
            tensor.CopyFrom(onnx.numpy_helper.from_array(10 * onnx.numpy_helper.to_array(tensor), tensor.name))
    n.head("last_out", c)
    return n.model([4, 3, 16, 16], "logits", [4, 10])


@pytest.mark.parametrize("last", [Precision.INT8, Precision.FP16])
def test_the_inputs_of_a_concat_have_its_range_where_it_is_read_in_int8(last: Precision, tmp_path: Path) -> None:
    """As in the emulation by which recovery chose that range: an input's own one was chosen for nothing."""
    model = load(save(joined(), tmp_path / "net.onnx"))
    ranges = observed(model)
    assignment = Assignment({g.id: last if g.name == "last" else Precision.INT8 for g in model.groups})
    found = constrained(model, ranges, assignment)
    own = {name: ranges.tensors[name].magnitude for name in ("loud_out", "quiet_out", "join_out")}
    assert own["quiet_out"] < own["join_out"] / 2
    wanted = own["join_out"] if last is Precision.INT8 else own["quiet_out"]
    assert found["quiet_out"] == pytest.approx(wanted)
    assert found["join_out"] == pytest.approx(own["join_out"])


@pytest.mark.parametrize("others", [Precision.FP16, Precision.FP32])
def test_values_that_are_moved_behind_an_int8_input_stay_in_float(others: Precision, tmp_path: Path) -> None:
    """TensorRT 8.6.0 ran this Resize in INT8 without a range of its output: the other head read garbage."""
    model = load(save(neck_network(), tmp_path / "net.onnx"))
    assignment = Assignment({g.id: Precision.INT8 if g.name == "head.coarse" else others for g in model.groups})
    layers, found = constrained_layers(model, observed(model), assignment)
    float_type = {Precision.FP16: "HALF", Precision.FP32: "FLOAT"}[others]
    moving = ("larger", "joined", "spread", "maps")
    assert {name: layers[name]._state["precision"].name for name in moving} == dict.fromkeys(moving, float_type)
    assert {"coarse/act_out", "head.coarse_out", "larger_out", "joined_out", "spread_out", "maps"} <= found.keys()


def test_values_that_int8_reads_are_moved_in_int8(tmp_path: Path) -> None:
    model = load(save(neck_network(), tmp_path / "net.onnx"))
    assignment = Assignment({g.id: Precision.INT8 for g in model.groups})
    layers, found = constrained_layers(model, observed(model), assignment)
    assert not {"larger", "joined"} & {name for name, layer in layers.items() if "precision" in layer._state}
    assert {"larger_out", "joined_out"} <= found.keys()


@pytest.mark.parametrize("name", ["first", "box"])
def test_what_is_computed_behind_the_last_group_has_no_range_and_so_stays_in_float(name: str, tmp_path: Path) -> None:
    """TensorRT runs layers in INT8 that nobody asked for: the boxes of a detector were rounded to a pixel."""
    model = load(save(box_network(), tmp_path / "net.onnx"))
    assignment = Assignment({g.id: Precision.INT8 if g.name == name else Precision.FP16 for g in model.groups})
    layers, found = constrained_layers(model, observed(model), assignment)
    assert not found.keys() & {"scale_out", "shift_out", "share_out", "boxes"}
    assert {"first_out", "first/act_out", "pool_out", "box_out", "corners_out"} <= found.keys()
    in_float = {layer for layer in ("pool", "corners") if "precision" in layers[layer]._state}
    assert in_float == ({"pool", "corners"} if name == "first" else {"corners"}), "no INT8 group reads what they make"


def test_float_groups_beside_int8_ones_have_ranges_too(tmp_path: Path) -> None:
    """Without them TensorRT 8.6.0 has no implementation for a depthwise convolution in FP16 with its SiLU."""
    model = load(save(squeeze_network(), tmp_path / "net.onnx"))
    assignment = Assignment({g.id: Precision.INT8 if g.name == "stem" else Precision.FP16 for g in model.groups})
    found = constrained(model, observed(model), assignment)
    made = {tensor for group in model.groups for tensor in group.tensors}
    assert made <= found.keys()


def output_types(model: Model, assignment: Assignment) -> dict[str, str]:
    """The types that outputs were given, by the name of their layer."""
    layers, _ = constrained_layers(model, observed(model), assignment)
    return {name: layer._state["made"] for name, layer in layers.items() if "made" in layer._state}


def test_what_layers_of_one_precision_hand_on_has_its_type(tmp_path: Path) -> None:
    """What kernels may keep to themselves has none, nor has what is read in another precision as well."""
    model = load(save(squeeze_network(), tmp_path / "net.onnx"))
    int8 = Assignment({group.id: Precision.INT8 for group in model.groups})
    handed_on = {"stem/act", "b1.scaled", "b1.project", "b2.expand/act", "b3.add"}
    kept = {"stem", "stem/sigmoid", "b1.gate", "b3.project", "b4.project", "fc"}
    found = output_types(model, int8)
    assert {found[name] for name in handed_on} == {"INT8"}
    assert not kept & found.keys()
    mixed = {g.id: Precision.FP16 if g.name == "b2.expand" else Precision.INT8 for g in model.groups}
    assert found.keys() - output_types(model, Assignment(mixed)).keys() == {"b1.project", "b2.expand/act"}
    fp16 = output_types(model, Assignment({group.id: Precision.FP16 for group in model.groups}))
    assert fp16.keys() == found.keys()
    assert set(fp16.values()) == {"HALF"}
    # The builder has no choice where all is FP32.
    assert not output_types(model, Assignment({group.id: Precision.FP32 for group in model.groups}))


def test_a_sum_of_int8_and_floats_has_no_type(tmp_path: Path) -> None:
    """TensorRT 8.6.0 computes it in the convolution on the way around, and refuses that if it is to make INT8."""
    n = Net(26)
    x = n.op("Relu", [n.conv("image", "stem", 3, 16)], "stem/act")
    around = n.conv(x, "around", 16, 16, 1)
    y = n.op("Add", [n.conv(x, "through", 16, 16), around], "sum")
    n.head(n.conv(n.op("Relu", [y], "sum/act"), "last", 16, 16), 16)
    model = load(save(n.model([4, 3, 16, 16], "logits", [4, 10]), tmp_path / "net.onnx"))
    for precision, typed in ((Precision.INT8, {"stem/act", "sum/act"}), (Precision.FP16, set())):
        mix = {group.id: precision if group.name == "around" else Precision.INT8 for group in model.groups}
        assert output_types(model, Assignment(mix)).keys() == typed


def test_what_is_refused_with_these_types_is_built_without_them(tmp_path: Path) -> None:
    model = load(save(squeeze_network(), tmp_path / "net.onnx"))
    types: list[list[str]] = []
    with standing_in(V8) as engines:
        build = engines.fake.behaviours["Builder.build_serialized_network"]

        def refuse_typed(builder: Any, network: Any, config: Any) -> Any:
            types.append([layer.name for layer in network._state["layers"] if "made" in layer._state])
            if types[-1]:
                builder.logger.log(engines.trt.ILogger.ERROR, "No supported formats for stem")
                return None
            return build(builder, network, config)

        engines.fake.behaviours["Builder.build_serialized_network"] = refuse_typed
        builder = TensorRTBuilder(engines.trt, model, observed(model), TensorRTOptions(typing="weak"))
        int8 = builder.lower(Assignment({group.id: Precision.INT8 for group in model.groups}))
        engine = builder.build(int8, tmp_path / "out.plan")
        builder.build(int8, tmp_path / "again.plan")
    assert engine.size_bytes == len((tmp_path / "out.plan").read_bytes())
    assert "stem/act" in types[0]
    assert types[1:] == [[], []], "the next mix is not tried with them"
    assert not any("supported formats" in note for note in engine.notes)
