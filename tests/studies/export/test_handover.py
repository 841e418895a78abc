"""What other tools are given of a mix: contents, names of the user's file, refusals."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from evaluators.lowering.placement import ONNXRUNTIME_CPU, TENSORRT, Placement
from search.errors import ConfigError
from search.graph.model import load
from search.values import Precision
from studies.export.handover.mix import Mix, lost_text, rescaled_text
from studies.export.handover.modelopt import ModelOptHandover
from studies.export.handover.nncf import NncfHandover
from studies.export.handover.polygraphy import PolygraphyHandover
from studies.export.handover.qat import QatHandover, module_name
from studies.export.handover.registry import HANDOVERS, check_mix, check_tools, write_handovers
from studies.export.handover.scripts.polygraphy_constraints import set_precisions
from tests.support.command_line import copy_finished, invoke
from tests.support.extensions import toy_handover
from tests.support.handed_mix import mix_of, nameless
from tests.support.networks import NETWORKS, Net, observed, residual_cnn

INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


def written(tool: Any, mix: Mix) -> dict[str, Any]:
    """The JSON file that a hand-over writes first."""
    files = tool.files(mix)
    found: dict[str, Any] = json.loads(next(text for name, text in files.items() if name.endswith(".json")))
    return found


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Mix:
    """A residual network whose stem runs in FP32, and the second convolution of its first block in FP16."""
    return mix_of(residual_cnn(), tmp_path_factory.mktemp("mix"), {"stem": FP32, "block.0/conv2": FP16})


FLOAT = ["stem", "stem/bn", "stem/relu", "block.0/conv2", "block.0/bn2", "block.0/add", "block.0/relu2"]
BETWEEN = ["maxpool"]


def test_float_nodes_are_those_of_float_groups_and_what_lies_behind_them(mix: Mix) -> None:
    assert {node.name for node in mix.float_nodes} == {*FLOAT, *BETWEEN}
    assert [node.name for node in mix.between] == BETWEEN
    assert mix.lost == ()


@pytest.mark.parametrize(
    ("floats", "between"),
    [
        ({}, []),
        ({"fc": FP32}, ["pool", "flatten"]),  # nothing in INT8 reads them
        ({"block.1/conv2": FP32}, ["pool", "flatten"]),  # it feeds them
        ({"block.1/conv1": FP32}, []),
    ],
)
def test_a_node_outside_all_groups_is_quantized_between_int8_groups_alone(
    floats: dict[str, Precision], between: list[str], tmp_path: Path
) -> None:
    assert [node.name for node in mix_of(residual_cnn(), tmp_path, floats).between] == between


# -- NNCF --------------------------------------------------------------------------------------------------------------


def test_nncf_is_told_the_nodes_that_stay_float(mix: Mix) -> None:
    found = written(NncfHandover(), mix)
    assert set(found["ignored_scope"]["names"]) == {*FLOAT, *BETWEEN}
    assert found["weighted"] == ["stem", "block.0/conv2"]
    assert (found["inputs"], found["batch"], found["samples"]) == (["image"], 4, 60)
    assert found["source"] == {
        "bitfront": "0.1.0",
        "study": "study",
        "trial": 7,
        "target": "onnxruntime on a processor",
        "rescaled": False,
    }


def test_nodes_without_a_name_of_their_own_are_renamed_by_the_scripts(tmp_path: Path) -> None:
    mix = nameless(tmp_path)
    names = {"first_out": "Conv_first_out", "other_out": "Relu_other_out"}
    assert written(NncfHandover(), mix)["rename"] == names
    files = ModelOptHandover().files(mix)
    assert json.loads(files["mix.json"])["rename"] == names
    assert 'name_nodes.py" "$1" "$model"' in files["quantize.sh"]
    assert "name_nodes.py" in files
    named = written(PolygraphyHandover(), mix)["layers"]
    assert [(node["name"], node["output"]) for node in named][:2] == [(None, "first_out"), ("second", "second_out")]


# -- Polygraphy --------------------------------------------------------------------------------------------------------


def test_polygraphy_is_told_the_precision_of_every_weighted_node(mix: Mix) -> None:
    found = {node["name"]: node["precision"] for node in written(PolygraphyHandover(), mix)["layers"]}
    rest = ("block.0/conv1", "block.1/conv1", "block.1/conv2", "block.1/down", "fc")
    assert found == {"stem": "float32", "block.0/conv2": "float16", **dict.fromkeys(rest, "int8")}
    command = PolygraphyHandover().files(mix)["convert.sh"]
    assert "--fp16 --int8 --calibration-cache" in command
    assert "--precision-constraints obey" in command


def test_polygraphy_passes_over_layers_without_an_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT's assertions, which the parser adds for shapes, have none."""
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(int8="int8"))

    def layer(name: str, kind: str, *outputs: str) -> SimpleNamespace:
        made = [SimpleNamespace(name=output) for output in outputs]
        found = SimpleNamespace(name=name, type=SimpleNamespace(name=kind), precision=None)
        found.get_output = lambda index: made[index] if index < len(made) else None
        return found

    layers = [layer("check", "ASSERTION"), layer("conv", "CONVOLUTION", "out"), layer("conv", "SHUFFLE", "turned")]
    network = SimpleNamespace(num_layers=len(layers), get_layer=layers.__getitem__)
    wanted = [{"name": name, "output": output, "precision": "int8"} for name, output in (("conv", "out"), (None, "x"))]
    assert set_precisions(network, wanted) == ["x"]
    assert [each.precision for each in layers] == [None, "int8", None]


def test_a_mix_without_int8_needs_no_ranges(tmp_path: Path) -> None:
    names = ("stem", "block.0/conv1", "block.0/conv2", "block.1/conv1", "block.1/conv2", "block.1/down", "fc")
    mix = mix_of(residual_cnn(), tmp_path, dict.fromkeys(names, FP16))
    check_mix(mix, ["polygraphy"])
    command = PolygraphyHandover().files(mix)["convert.sh"]
    assert ("--fp16" in command, "--int8" in command) == (True, False)
    with pytest.raises(ConfigError, match="--for nncf: trial 7 runs no layer in INT8"):
        check_mix(mix, ["polygraphy", "nncf"])


# -- ModelOpt ----------------------------------------------------------------------------------------------------------


def test_modelopt_is_told_names_that_fit_one_node_each(mix: Mix) -> None:
    config = json.loads(ModelOptHandover().files(mix)["config.json"])
    names = [node.name for node in mix.float_nodes] + ["block.0/conv20", "stem/bn2", "my stem", "block_0/conv2"]
    excluded = {name for name in names if any(re.match(pattern, name) for pattern in config["nodes_to_exclude"])}
    assert excluded == {*FLOAT, *BETWEEN}
    assert ModelOptHandover().files(mix)["nodes_to_exclude.txt"].splitlines() == config["nodes_to_exclude"]


def test_modelopt_has_one_float_type(mix: Mix, tmp_path: Path) -> None:
    assert json.loads(ModelOptHandover().files(mix)["config.json"])["high_precision_dtype"] == "fp32"
    assert "both the FP32 and the FP16 layers" in ModelOptHandover().notes(mix)[0]
    half = mix_of(residual_cnn(), tmp_path, {"stem": FP16})
    assert json.loads(ModelOptHandover().files(half)["config.json"])["high_precision_dtype"] == "fp16"
    assert ModelOptHandover().notes(half) == ()


# -- QAT ---------------------------------------------------------------------------------------------------------------


def test_qat_is_told_how_every_weight_is_rounded(mix: Mix) -> None:
    layers = {layer["node"]: layer for layer in written(QatHandover(), mix)["layers"]}
    assert {name: layer["precision"] for name, layer in layers.items()} == {
        "stem": "fp32", "block.0/conv1": "int8", "block.0/conv2": "fp16", "block.1/conv1": "int8",
        "block.1/conv2": "int8", "block.1/down": "int8", "fc": "int8",
    }  # fmt: skip
    weight = layers["block.1/conv1"]["weight"]
    values = {t.name: onnx.numpy_helper.to_array(t) for t in residual_cnn().graph.initializer}
    largest = np.abs(values["block.1/conv1.w"]).max(axis=(1, 2, 3))
    assert (weight["granularity"], weight["axis"], weight["quant_max"]) == ("per_channel", 0, 127)
    assert weight["high"] == pytest.approx(largest.tolist(), rel=1e-6)
    assert weight["scale"] == pytest.approx((largest / 127).tolist(), rel=1e-6)
    assert layers["block.1/conv1"]["weight_name"] == "block.1/conv1.w"
    assert layers["fc"]["weight"]["axis"] == 0  # of a Gemm with transB


@pytest.mark.parametrize(("placement", "symmetric"), [(ONNXRUNTIME_CPU, False), (TENSORRT, True)])
def test_qat_is_told_how_every_activation_is_rounded(placement: Placement, symmetric: bool, tmp_path: Path) -> None:
    found = written(QatHandover(), mix_of(residual_cnn(), tmp_path, {"stem": FP32}, placement))
    ranges = observed(load(tmp_path / "model.onnx")).tensors
    layers = {layer["node"]: layer for layer in found["layers"]}
    assert layers["block.1/conv2"]["inputs"] == ["block.1/relu1_out"]
    tensor, seen = found["tensors"]["block.1/relu1_out"], ranges["block.1/relu1_out"]
    assert tensor["symmetric"] is symmetric
    assert tensor["high"] == pytest.approx(seen.high, rel=1e-3)
    assert tensor["zero_point"] == 0
    assert tensor["low"] == pytest.approx(-seen.high * 128 / 127 if symmetric else 0.0, rel=1e-3)
    assert {name for layer in found["layers"] for name in layer.get("inputs", ())} <= found["tensors"].keys()


def test_qat_names_what_was_folded_into_a_weight(tmp_path: Path) -> None:
    found = written(QatHandover(), mix_of(residual_cnn(), tmp_path, {}))
    assert {layer["node"]: layer["folded"] for layer in found["layers"] if layer["folded"]} == {
        "stem": ["stem/bn"],
        "block.0/conv2": ["block.0/bn2"],
    }


def test_qat_leaves_out_norms_that_are_folded_into_nothing(tmp_path: Path) -> None:
    """Behind a Relu, and behind a convolution whose output something else reads too."""
    net = Net()
    x = net.batch_norm(net.op("Relu", [net.conv("image", "first", 3, 16)], "relu"), "norm1", 16)
    y = net.conv(x, "second", 16, 16)
    x = net.op("Add", [net.op("Sigmoid", [y], "gate"), net.batch_norm(y, "norm2", 16)], "add")
    x = net.batch_norm(net.conv(x, "third", 16, 16), "norm3", 16)
    net.head(net.op("Relu", [x], "relu3"), 16)
    found = written(QatHandover(), mix_of(net.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path, {}))
    assert {layer["node"]: layer["folded"] for layer in found["layers"]} == {
        "first": [], "second": [], "third": ["norm3"], "fc": [],
    }  # fmt: skip


def test_the_axis_is_that_of_the_weight_in_the_file(tmp_path: Path) -> None:
    """Also behind a Transpose; behind a Reshape that is no axis of it, so it has no name."""
    net = Net()
    x = net.op("Flatten", [net.op("GlobalAveragePool", [net.conv("image", "conv", 3, 16)], "pool")], "flat")
    rng = np.random.default_rng(0)
    for name, shape in (("turned", (16, 16)), ("named", (16, 16)), ("shaped", (2, 8, 16))):
        net.const(f"{name}.w", rng.standard_normal(shape).astype(np.float32) / 8)
    net.op("Transpose", ["turned.w"], "turn", perm=[1, 0])
    net.op("Transpose", [net.op("Identity", ["named.w"], "same")], "turn2")
    net.op("Reshape", ["shaped.w", net.const("shape", np.array([16, 16], np.int64))], "reshape")
    for name, weight in (("turned", "turn_out"), ("named", "turn2_out"), ("shaped", "reshape_out")):
        x = net.op("Relu", [net.op("MatMul", [x, weight], name)], f"{name}/relu")
    net.gemm(x, "fc", 16, 10)
    net.nodes[-1].output[0] = "logits"
    proto = net.model([2, 3, 8, 8], "logits", [2, 10])
    layers = {layer["node"]: layer for layer in written(QatHandover(), mix_of(proto, tmp_path, {}))["layers"]}
    told = {
        name: (layers[name]["weight_name"], layers[name]["weight"]["axis"]) for name in ("turned", "named", "shaped")
    }
    assert told == {"turned": ("turned.w", 0), "named": ("named.w", 0), "shaped": (None, 1)}
    values = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    assert layers["turned"]["weight"]["high"] == pytest.approx(
        np.abs(values["turned.w"]).max(axis=1).tolist(), rel=1e-6
    )


def test_an_attention_layer_has_two_activations_and_no_weight(tmp_path: Path) -> None:
    found = written(QatHandover(), mix_of(NETWORKS["transformer"](), tmp_path, {}))
    layers = {layer["node"]: layer for layer in found["layers"]}
    assert layers["layer.0/attn/qk"]["precision"] == "fp32"
    assert layers["layer.0/mlp/fc1"]["weight"]["axis"] == 1


@pytest.mark.parametrize(
    ("node", "weight", "module"),
    [
        ("/features/features.0/conv/Conv", "onnx::Conv_193", "features.0.conv"),
        ("/layer1/layer1.0/conv1/Conv", None, "layer1.0.conv1"),
        ("/head/Gemm", "head.weight", "head"),
        ("node_conv2d_3", "features.3.weight", "features.3"),
        ("Conv_17", "onnx::Conv_193", None),
        ("/MatMul", None, None),
    ],
)
def test_the_module_is_what_names_tell(node: str, weight: str | None, module: str | None) -> None:
    assert module_name(node, weight) == module


# -- all of them -------------------------------------------------------------------------------------------------------


def test_every_file_of_a_rescaled_model_says_so(tmp_path: Path) -> None:
    mix = mix_of(residual_cnn(), tmp_path, {"stem": FP32}, rescaled=True)
    assert "model.float.onnx" in rescaled_text(mix)
    for name in HANDOVERS.names():
        texts = HANDOVERS.make(name).files(mix).items()
        assert any('"rescaled": true' in text for file, text in texts if file.endswith(".json")), name


def test_an_unknown_tool_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError, match=r"--for quark: there is no such tool; known are nncf, polygraphy, modelopt, qat"
    ):
        check_tools(["nncf", "quark"])


def test_a_tool_of_another_package_is_written_for(mix: Mix, tmp_path: Path) -> None:
    check_tools([name := f"{toy_handover.__name__}:ToyHandover"])
    assert write_handovers(tmp_path, mix, [name]) == []
    assert set((tmp_path / "toy/float.txt").read_text().splitlines()) == {*FLOAT, *BETWEEN}


def test_layers_without_a_counterpart_are_named(mix: Mix) -> None:
    layers = [*mix.layers]
    one = type(layers[0])("g9", "Conv", INT8, {}, {}, (), ("block_n0__inner",))
    text = lost_text(type(mix)(**{**vars(mix), "layers": (*layers, one)}))
    assert text.startswith("1 layer has no counterpart")
    assert "'block_n0__inner'" in text
    with pytest.raises(ConfigError, match="--for qat: none of the layers"):
        check_mix(type(mix)(**{**vars(mix), "layers": (one,)}), ["qat"])


@pytest.mark.slow
def test_export_writes_for_several_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    copy_finished(tmp_path)
    done = invoke("export", "small", "--trial", 1, "--out", "engine", "--for", "nncf,qat", "--for", "nncf")
    assert done.exit_code == 0, done.output
    manifest = json.loads((tmp_path / "engine/manifest.json").read_text(encoding="utf-8"))
    assert manifest["handover"] == {"tools": ["nncf", "qat"], "without_counterpart": [], "notes": []}
    assert {"handover/nncf/quantize.py", "handover/qat/qat.json"} <= manifest["files"].keys()
    ranges = json.loads((tmp_path / "engine/ranges.json").read_text())["tensors"]
    image = json.loads((tmp_path / "engine/handover/qat/qat.json").read_text())["tensors"]["image"]
    assert (image["low"], image["high"]) == pytest.approx(ranges["image"], rel=0.01)
    for trial, tool, says in ((0, "nncf", "trial 0 runs no layer in INT8"), (1, "aimet", "there is no such tool")):
        refused = invoke("export", "small", "--trial", trial, "--out", "other", "--for", tool)
        assert (refused.exit_code, says in refused.stderr) == (2, True), refused.output
        assert not (tmp_path / "other").exists()
