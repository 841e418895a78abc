"""Engine files of all kinds are read: what layers run in, what they are made of, and why they are not in INT8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from evaluators.engine_files import (
    EngineFile,
    KnownGroup,
    Layer,
    read_engine_built_here,
    read_engine_file,
    with_profile,
    write_layers,
)
from evaluators.lowering.lower import lower
from evaluators.lowering.placement import TENSORRT
from search.errors import InputError
from search.graph import onnx_file
from search.values import Assignment, LayerTime, Precision
from tests.support.networks import loaded, observed
from tests.support.paths import DATA

SHAPES = {"x": (2, 4, 5, 5), "y": (2, 6, 11, 11)}


def no_plan(path: Path) -> str:
    raise AssertionError(f"{path} is no plan")


def read(path: Path, **options: Any) -> EngineFile:
    return read_engine_file(path, inspect_plan=no_plan, **options)


def layer(found: EngineFile, name: str) -> Layer:
    (one,) = (each for each in found.layers if each.name == name)
    return one


@pytest.fixture(scope="module")
def listing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What TensorRT 8.6 said on an H200 of a mix."""
    recorded = json.loads((DATA / "tensorrt_8_6_residual_mixed.json").read_text(), strict=False)["inspector"]
    path = tmp_path_factory.mktemp("listing") / "layers.json"
    path.write_text(recorded if isinstance(recorded, str) else json.dumps(recorded))
    return path


def test_a_listing_of_tensorrt_8_6_tells_precisions_formats_and_kernels(listing: Path) -> None:
    found = read(listing)
    assert found.kind == "layers of a TensorRT engine"
    conv = layer(found, "block.0/conv2 + block.0/add + block.0/relu2")
    assert conv.precision is Precision.INT8
    assert conv.weighted
    assert conv.nodes == ("block.0/add", "block.0/conv2", "block.0/relu2")
    assert (conv.attributes["kernel"], conv.attributes["stride"]) == ("3×3", "1×1")
    assert conv.inputs[0].shape == (4, 16, 8, 8)
    assert "Int8" in conv.inputs[0].format
    assert conv.macs == 4 * 16 * 8 * 8 * 16 * 9
    assert conv.why_not_int8 == ""
    assert layer(found, "block.0/conv1 + block.0/relu1").why_not_int8.startswith("it was not asked for")
    assert all(each.precision is None for each in found.layers if each.moves)


@pytest.mark.parametrize("version", ["10", "11"])
def test_listings_of_later_versions_are_read(version: str) -> None:
    found = read(DATA / f"tensorrt_{version}_shape.json")
    pool = layer(found, "maxpool")
    assert pool.precision is Precision.FP16
    assert pool.outputs[0].format.startswith("Channel major")
    assert pool.outputs[0].shape == (8, 64, 56, 56)


def test_a_transformer_whose_regions_do_not_show_says_so(tmp_path: Path) -> None:
    recorded = json.loads((DATA / "tensorrt_8_6_transformer_fp16.json").read_text(), strict=False)["inspector"]
    path = tmp_path / "layers.json"
    path.write_text(recorded if isinstance(recorded, str) else json.dumps(recorded))
    found = read(path)
    regions = [each for each in found.layers if "fused region" in each.why_not_int8]
    assert regions
    assert all(each.precision is None for each in regions)
    assert "the precision is not told" in found.notes[0]


def test_times_of_a_profile_stand_beside_their_layers(listing: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    rows = [{"count": 10}, {"name": "maxpool", "timeMs": 5.0, "averageMs": 0.5}, {"name": "fc", "timeMs": 2.0}]
    profile.write_text(json.dumps(rows))
    found = read(listing, profile=profile)
    assert layer(found, "maxpool").ms == 0.5
    assert layer(found, "fc").ms == 0.2
    assert layer(found, "pool").ms is None


def test_a_profile_of_another_engine_is_refused(listing: Path, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps([{"name": "elsewhere", "averageMs": 1}]))
    with pytest.raises(InputError, match="none of its layers is in"):
        read(listing, profile=profile)


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A residual network with Q/DQ on all of its groups but the first."""
    model = loaded("residual")
    assignment = Assignment({g.id: Precision.INT8 if i else Precision.FP32 for i, g in enumerate(model.groups)})
    path = tmp_path_factory.mktemp("mix") / "model.onnx"
    onnx_file.write(lower(model, assignment, observed(model), TENSORRT), path)
    return path


def test_a_file_with_q_dq_tells_what_it_asks_for(mix: Path) -> None:
    found = read(mix)
    assert found.kind == "ONNX with Q/DQ"
    assert "what the file asks for" in found.notes[0]
    convs = [each for each in found.layers if each.kind == "Conv"]
    assert [each.precision for each in convs] == [Precision.FP32] + [Precision.INT8] * (len(convs) - 1)
    assert "neither its input nor its weight is quantized" in convs[0].why_not_int8
    assert convs[1].attributes["weights"] == "int8"
    assert convs[1].attributes["bias"] == "float16"
    assert convs[1].macs is not None


def test_a_transposed_convolution_counts_its_multiplications(tmp_path: Path) -> None:
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, (4, 6, 3, 3), [0.0] * 216)
    node = onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in SHAPES.items()]
    graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [weight])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), tmp_path / "up.onnx")
    (up,) = read(tmp_path / "up.onnx").layers
    assert up.macs == 2 * 4 * 5 * 5 * 6 * 9  # every value that is read meets the weights of all outputs


def test_a_file_that_onnx_runtime_optimized_tells_what_runs(mix: Path, tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(mix), options, providers=["CPUExecutionProvider"])
    found = read(tmp_path / "optimized.onnx")
    asked = {node for each in read(mix).layers for node in each.nodes}
    assert any(each.weighted and set(each.nodes) <= asked for each in found.layers)
    assert sum(each.weighted for each in found.layers) > 3


# -- exports -----------------------------------------------------------------------------------------------------------


def test_times_and_reasons_join_the_layers_of_an_engine(listing: Path, tmp_path: Path) -> None:
    """As an export writes them and reads them again, of what TensorRT said."""
    found = read_engine_built_here(listing, "engine of tensorrt")
    assert found.kind == "engine of tensorrt"
    name = "block.0/conv1 + block.0/relu1"
    rows = [LayerTime(name, "CaskConvolution", "g001", False, 0.25), LayerTime("elsewhere", "Cast", None, True, 1.0)]
    groups = {"g001": KnownGroup(("block.0/conv1",), "it was never offered in INT8: planted")}
    write_layers(tmp_path, with_profile(found, rows, groups), 20)
    again = read(tmp_path)
    conv = layer(again, name)
    assert (conv.ms, conv.why_not_int8) == (0.25, "it was never offered in INT8: planted")
    assert set(conv.nodes) == {"block.0/conv1", "block.0/relu1"}
    assert [each for each in again.layers if each.name != name] == [each for each in found.layers if each.name != name]
    assert json.loads((tmp_path / "profile.json").read_text()) == [{"count": 20}, {"name": name, "averageMs": 0.25}]


def test_layers_without_names_take_the_times_of_their_kind_in_order() -> None:
    kinds = {"product 1": "Mul", "conv": "Conv", "product 2": "Mul", "sum": "Add"}
    layers = tuple(Layer(name, kind, None) for name, kind in kinds.items())
    told = [("Mul_7", "Mul", 1.0), ("Mul_9", "Mul", 3.0), ("conv", "Conv", 2.0)]
    told += [("Add_1", "Add", 9.0), ("Add_2", "Add", 9.0)]
    rows = [LayerTime(name, kind, None, False, ms) for name, kind, ms in told]
    found = with_profile(EngineFile("", "", layers), rows, {})
    assert [each.ms for each in found.layers] == [1.0, 2.0, 3.0, None]  # nobody knows which of two rows is its own


def test_float_ops_between_codes_are_float_once_onnx_runtime_has_optimized(mix: Path) -> None:
    """Of a file that nothing was fused in; in a file to be built they are INT8."""
    convs = [each for each in read_engine_built_here(mix, "engine").layers if each.kind == "Conv"]
    assert [each.precision for each in convs] == [Precision.FP32] + [Precision.FP16] * (len(convs) - 1)
    assert "no INT8 kernel that takes it in" in convs[1].why_not_int8


@pytest.mark.parametrize("content", ['{"layers": []}', '{"layers": [{}], "kind": "", "notes": []}', '{"layers": 1}'])
def test_a_damaged_export_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text(content)
    with pytest.raises(InputError, match=r"expected the layers that `bitfront export` writes, .*Export again\."):
        read(tmp_path)


def test_a_folder_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"with layers\.json in it"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file is empty"),
        (b"\x00\x01 nothing at all", "none of them|without nodes"),
        (b"{broken", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b'{"Layers": ["names only"]}', "profilingVerbosity=detailed"),
        (b'{"Layers": [{"Name": "x", "Inputs": [{"Dimensions": ["a"]}]}]}', "as detailed layer information"),
    ],
)
def test_what_is_no_engine_is_refused_with_one_message(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match=complaint):
        read(path)


def test_an_empty_plan_is_refused_without_tensorrt(tmp_path: Path) -> None:
    (tmp_path / "engine.plan").write_bytes(b"")
    with pytest.raises(InputError, match="the file is empty"):
        read(tmp_path / "engine.plan")


def test_a_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        read(tmp_path / "missing.plan")
