"""What Triton and trtexec are given: files that their own grammars read back."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from evaluators.backends.kind import Recipe
from evaluators.backends.tensorrt.export import trtexec_text
from search.errors import ConfigError
from search.graph.model import Model, ShapeRequest, load
from search.graph.shapes import TensorSpec
from search.values import Precision
from studies.export.triton import check_triton_name, triton_config
from tests.support.command_line import three_layers
from tests.support.networks import save

FIELD = descriptor_pb2.FieldDescriptorProto
WEAK = {"typing": "weak", "workspace_bytes": str(4 << 30), "optimization_level": "3", "tf32": "true",
        "sparsity": "false", "native_instancenorm": "true"}  # fmt: skip
MIX = {"/a/Conv": Precision.INT8, "b": Precision.FP16, "c:0": Precision.FP32}


def message(file: Any, name: str, *fields: tuple[Any, ...]) -> None:
    """Add a message; fields as (name, number, type) or (name, number, type, "repeated"), type a scalar or a name."""
    entry = file.message_type.add(name=name)
    for field, number, kind, *label in fields:
        added = entry.field.add(
            name=field, number=number, label=FIELD.LABEL_REPEATED if label else FIELD.LABEL_OPTIONAL
        )
        if isinstance(kind, str):
            added.type_name = f".inference.{kind}"
            added.type = FIELD.TYPE_ENUM if kind in ("DataType", "Kind") else FIELD.TYPE_MESSAGE
        else:
            added.type = kind


def enumeration(file: Any, name: str, *values: str) -> None:
    entry = file.enum_type.add(name=name)
    for number, value in enumerate(values):
        entry.value.add(name=value, number=number)


def model_config() -> Any:
    """The part of Triton's model_config.proto that an entry uses, as a class that protobuf parses text into."""
    file = descriptor_pb2.FileDescriptorProto(name="part.proto", package="inference", syntax="proto3")
    enumeration(file, "DataType", "TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32",
                "TYPE_UINT64", "TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32",
                "TYPE_FP64", "TYPE_STRING", "TYPE_BF16")  # fmt: skip
    enumeration(file, "Kind", "KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
    message(file, "ModelTensorReshape", ("shape", 1, FIELD.TYPE_INT64, "repeated"))
    tensor = (("name", 1, FIELD.TYPE_STRING), ("data_type", 2, "DataType"), ("dims", 3, FIELD.TYPE_INT64, "repeated"))
    message(file, "Tensor", *tensor, ("reshape", 4, "ModelTensorReshape"))
    message(file, "ModelInstanceGroup", ("count", 1, FIELD.TYPE_INT32), ("kind", 2, "Kind"))
    message(file, "ModelConfig", ("name", 1, FIELD.TYPE_STRING), ("platform", 2, FIELD.TYPE_STRING),
            ("max_batch_size", 3, FIELD.TYPE_INT32), ("input", 4, "Tensor", "repeated"),
            ("output", 5, "Tensor", "repeated"), ("instance_group", 6, "ModelInstanceGroup", "repeated"))  # fmt: skip
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


CONFIG = model_config()


def parsed(
    model: Model,
    name: str = "net",
    platform: str = "tensorrt_plan",
    *,
    gpu: bool = True,
    types: dict[str, str] | None = None,
) -> Any:
    return text_format.Parse(triton_config(name, platform, model, types or {}, gpu=gpu), CONFIG())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load(save(three_layers(), tmp_path_factory.mktemp("model") / "model.onnx"))


def test_a_fixed_model(model: Model) -> None:
    config = parsed(model)
    assert (config.name, config.platform, config.max_batch_size) == ("net", "tensorrt_plan", 0)
    assert [(t.name, list(t.dims)) for t in config.input] == [("image", [4, 3, 8, 8])]
    assert [(t.name, list(t.dims)) for t in config.output] == [("logits", [4, 10])]
    assert config.input[0].data_type == config.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_name[
        "TYPE_FP32"].number  # fmt: skip
    assert "KIND_GPU" in str(config.instance_group[0])


def test_types_are_those_of_the_engine(model: Model) -> None:
    """Before version 10 TensorRT makes INT32 of INT64, and Triton refuses an entry that says otherwise."""
    wide = replace(model, inputs=(TensorSpec("ids", "int64", (2, 3)), TensorSpec("mask", "bool", (2,))))
    enum = CONFIG.DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_name
    for types, expected in (({}, "TYPE_INT64"), ({"ids": "int32", "mask": "bool"}, "TYPE_INT32")):
        assert parsed(wide, types=types).input[0].data_type == enum[expected].number
        assert parsed(wide, types=types).input[1].data_type == enum["TYPE_BOOL"].number


def test_onnx_on_the_processor(model: Model) -> None:
    config = parsed(model, platform="onnxruntime_onnx", gpu=False)
    assert config.platform == "onnxruntime_onnx"
    assert "KIND_CPU" in str(config.instance_group[0])


def test_dynamic_dimensions_are_minus_one(tmp_path: Path) -> None:
    path = save(three_layers(batch="n"), tmp_path / "model.onnx")
    request = ShapeRequest((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8))
    config = parsed(load(path, shapes={"image": request}))
    assert [list(config.input[0].dims), list(config.output[0].dims)] == [[-1, 3, 8, 8], [-1, 10]]


@given(st.text(st.characters(blacklist_categories=("Cs",)), min_size=1))
def test_any_tensor_name_comes_back(model: Model, name: str) -> None:
    named = replace(model, inputs=(TensorSpec(name, "int64", (2,)), TensorSpec("mask", "bool", ())))
    config = parsed(named)
    assert [t.name for t in config.input] == [name, "mask"]
    assert (list(config.input[1].dims), config.input[1].HasField("reshape")) == ([1], True)


def test_types_and_names_that_triton_has_not(model: Model) -> None:
    with pytest.raises(ConfigError, match="complex64, which Triton does not know"):
        triton_config(
            "net", "tensorrt_plan", replace(model, inputs=(TensorSpec("x", "complex64", (1,)),)), {}, gpu=True
        )
    for name in ("", "..", "a/b", "a b", ".hidden", "x" * 129):
        with pytest.raises(ConfigError, match="--triton: expected a model name"):
            check_triton_name(name)
    check_triton_name("ResNet-18_int8.v2")


# -- trtexec -----------------------------------------------------------------------------------------------------------


def command(recipe: Recipe) -> dict[str, list[str]]:
    """Options of the command as a shell would hand them over, option → values."""
    text = trtexec_text(recipe)
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    words = shlex.split("\n".join(lines))
    assert words[0] == "trtexec"
    options: dict[str, list[str]] = {}
    for word in words[1:]:
        name, _, value = word.partition("=")
        options.setdefault(name, []).append(value)
    return options


def layer_precisions(argument: str) -> dict[str, str]:
    """As trtexec reads them: split at commas, the type behind the last colon."""
    pairs = (part.rpartition(":") for part in argument.split(","))
    return {name: kind for name, _, kind in pairs}


def recipe(version: str, mix: dict[str, Precision] | None = None, **changes: Any) -> Recipe:
    knobs = {**WEAK, **changes.pop("knobs", {})}
    return Recipe(
        versions={"tensorrt": version},
        knobs=knobs,
        options={"plugins": changes.pop("plugins", ())},
        layers=MIX if mix is None else mix,
        profiles=changes.pop("profiles", {}),
        **changes,
    )


@pytest.mark.parametrize("version", ["8.6.0", "10.16.1.11"])
def test_weak_typing_names_every_layer(version: str) -> None:
    options = command(recipe(version))
    assert {"--int8", "--fp16", "--profilingVerbosity"} <= options.keys()
    assert options["--onnx"] == ["model.onnx"]
    assert options["--calib"] == ["calibration.cache"]
    assert options["--precisionConstraints"] == ["obey"]
    assert layer_precisions(options["--layerPrecisions"][0]) == {"/a/Conv": "int8", "b": "fp16", "c:0": "fp32"}
    assert options["--memPoolSize"] == ["workspace:4096"]
    assert options["--builderOptimizationLevel"] == ["3"]
    assert not {"--stronglyTyped", "--layerOutputTypes", "--noTF32", "--sparsity"} & options.keys()


def test_flags_follow_the_mix_and_the_knobs() -> None:
    options = command(recipe("8.6.0", {"a": Precision.FP16}, knobs={"tf32": "false", "sparsity": "true"}))
    assert "--int8" not in options
    assert "--calib" not in options
    assert {"--fp16", "--noTF32"} <= options.keys()
    assert options["--sparsity"] == ["enable"]
    assert "--timingCacheFile" not in options
    more = command(recipe("10.9.0", plugins=("/lib/my plugin.so", "/b.so"), timing_cache=True))
    assert more["--staticPlugins"] == ["/lib/my plugin.so", "/b.so"]
    assert "takes --dynamicPlugins" in trtexec_text(recipe("10.9.0", plugins=("/b.so",)))
    assert "--dynamicPlugins" not in trtexec_text(recipe("10.9.0"))
    assert more["--timingCacheFile"] == ["timing.cache"]
    assert "--pluginInstanceNorm" in command(recipe("10.9.0", knobs={"native_instancenorm": "false"}))


@pytest.mark.parametrize(("version", "says"), [("10.16.1.11", True), ("11.4.0.106", False)])
def test_strong_typing_stands_in_the_file(version: str, says: bool) -> None:
    options = command(recipe(version, knobs={"typing": "strong"}))
    assert ("--stronglyTyped" in options) is says  # from 11 on there is nothing else
    removed = {"--int8", "--fp16", "--calib", "--precisionConstraints", "--layerPrecisions"}
    assert not removed & options.keys()


def test_shapes_of_dynamic_inputs() -> None:
    profiles = {"image": ((1, 3, 8, 8), (4, 3, 8, 8), (8, 3, 8, 8)), "ids:0": ((1, 2), (1, 4), (1, 8))}
    options = command(recipe("8.6.0", profiles=profiles))
    assert options["--minShapes"] == ["image:1x3x8x8,ids:0:1x2"]
    assert options["--optShapes"] == options["--shapes"] == ["image:4x3x8x8,ids:0:1x4"]
    assert options["--maxShapes"] == ["image:8x3x8x8,ids:0:1x8"]


def test_names_that_trtexec_cannot_be_told_are_named() -> None:
    odd = {"a,b": Precision.INT8, "it's": Precision.FP16, "all*": Precision.FP16, "line\nbreak": Precision.FP16}
    text = trtexec_text(recipe("8.6.0", {**odd, "fine": Precision.INT8}))
    assert layer_precisions(command(recipe("8.6.0", {**odd, "fine": Precision.INT8}))["--layerPrecisions"][0]) == {
        "fine": "int8"
    }
    (line,) = [line for line in text.split("\n") if "NOT EXPRESSED" in line]
    assert all(name in line for name in ('"a,b"', '"it\'s"', '"all*"', '"line\\nbreak"'))
    assert "NOT EXPRESSED" not in trtexec_text(recipe("11.4.0", odd, knobs={"typing": "strong"}))
    assert "NOT EXPRESSED" not in trtexec_text(recipe("8.6.0"))


@given(st.dictionaries(st.text(min_size=1).filter(lambda n: not set(n) & set(",'*\r\n")), st.sampled_from(Precision)))
def test_every_other_name_survives_the_shell(mix: dict[str, Precision]) -> None:
    options = command(recipe("8.6.0", mix))
    read = layer_precisions(options["--layerPrecisions"][0]) if "--layerPrecisions" in options else {}
    assert read == {name: p.label for name, p in mix.items()}
