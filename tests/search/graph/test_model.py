"""Loading: every way a file can be broken, shapes, and a clean graph that computes what the user's does."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from evaluators.lent_constants import session_source
from search.errors import ModelError
from search.graph import cleaning, onnx_file
from search.graph.model import Model, ShapeRequest, load
from tests.support.networks import NETWORKS, ODD, Net, feeds, finish, loaded, plain_session, residual_cnn, save

C = 16


def fixed(*shape: int) -> ShapeRequest:
    return ShapeRequest(shape, shape, shape)


def load_proto(proto: onnx.ModelProto, folder: Path) -> Model:
    return load(save(proto, folder / "net.onnx"))


def external(folder: Path) -> Path:
    """The residual network with its weights in `weights.bin`."""
    folder.mkdir()
    path = folder / "net.onnx"
    onnx.save_model(residual_cnn(), str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def edit_external(path: Path, key: str, value: str) -> None:
    proto = onnx.load(str(path), load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == key:
                entry.value = value
    path.write_bytes(proto.SerializeToString())


def assert_same_outputs(proto: onnx.ModelProto, model: Model, tolerance: float = 0.0) -> None:
    """Equal names, types and values; `tolerance` relative to the largest output."""
    before, after = plain_session(proto), plain_session(ir.to_proto(model.graph))
    wanted = [(out.name, out.type) for out in before.get_outputs()]
    assert [(out.name, out.type) for out in after.get_outputs()] == wanted
    batch = feeds(model)
    for expected, got in zip(before.run(None, batch), after.run(None, batch), strict=True):
        if tolerance:
            np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())
        else:
            np.testing.assert_array_equal(got, expected)


def names(model: Model) -> list[str | None]:
    return [node.name for node in model.graph.graph]


# -- broken files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an ONNX file"),
        (b"just some text, no model", "not an ONNX file"),
        (b'{"a": 1}', "not an ONNX file"),
        (residual_cnn().SerializeToString()[:5000], "truncated"),
    ],
)
def test_a_file_that_is_no_model_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no file"):
        load(tmp_path / "net.onnx")


@pytest.mark.slow
def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    n = Net()
    n.head(n.conv("image", "stem", 3, 2), 2, 2)
    data = n.model([1, 3, 4, 4], "logits", [1, 2]).SerializeToString()
    path = tmp_path / "net.onnx"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(ModelError):
            load(path)


@pytest.mark.slow
def test_a_damaged_file_loads_or_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = Net()
    n.head(n.conv("image", "stem", 3, 2), 2, 2)
    data = n.model([1, 3, 4, 4], "logits", [1, 2]).SerializeToString()
    refused = 0
    for _ in range(100):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] = rng.integers(256)
        path = tmp_path / "net.onnx"
        path.write_bytes(damaged)
        try:
            load(path)
        except ModelError:
            refused += 1
    assert refused > 10


def test_external_data_is_read_and_part_of_the_digest(tmp_path: Path) -> None:
    first = load(external(tmp_path / "here"))
    (tmp_path / "here").rename(tmp_path / "there")
    weights = tmp_path / "there" / "weights.bin"
    assert load(tmp_path / "there" / "net.onnx").digest == first.digest
    assert_same_outputs(onnx.load(str(tmp_path / "there" / "net.onnx")), first, 1e-5)
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x3f")
    assert load(tmp_path / "there" / "net.onnx").digest != first.digest


def test_external_data_in_a_subfolder_is_read(tmp_path: Path) -> None:
    path = external(tmp_path / "model")
    (path.parent / "sub").mkdir()
    (path.parent / "weights.bin").rename(path.parent / "sub" / "weights.bin")
    edit_external(path, "location", "sub/weights.bin")
    assert load(path).groups


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname"])
def test_external_data_outside_the_folder_is_refused(location: str, tmp_path: Path) -> None:
    path = external(tmp_path / "model")
    (path.parent / "weights.bin").rename(tmp_path / "weights.bin")
    edit_external(path, "location", location)
    with pytest.raises(ModelError, match="outside the model's folder"):
        load(path)


def test_external_data_outside_through_a_link_is_refused(tmp_path: Path) -> None:
    path = external(tmp_path / "model")
    weights = path.parent / "weights.bin"
    weights.rename(tmp_path / "weights.bin")
    weights.symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ModelError, match=r"outside the model's folder.*`cp -L net.onnx weights.bin FOLDER/`"):
        load(path)


def as_hub_cache(folder: Path) -> Path:
    """The layout of Hugging Face's cache: model and data are links to files of other names in a folder of their own."""
    path = external(folder / "real")
    snapshot, blobs = folder / "snapshots" / "1", folder / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name, blob in (("net.onnx", "aa"), ("weights.bin", "bb")):
        (path.parent / name).rename(blobs / blob)
        (snapshot / name).symlink_to(Path("../../blobs") / blob)
    return snapshot / "net.onnx"


def as_hard_links(folder: Path) -> Path:
    path = external(folder / "real")
    (folder / "hard").mkdir()
    for name in ("net.onnx", "weights.bin"):
        os.link(path.parent / name, folder / "hard" / name)
    return folder / "hard" / "net.onnx"


def as_linked_folder(folder: Path) -> Path:
    path = external(folder / "real")
    (folder / "link").symlink_to(path.parent)
    return folder / "link" / "net.onnx"


def as_linked_model(folder: Path) -> Path:
    """Only the model is a link; its data lie beside what it leads to, and have a link of their own."""
    path = external(folder / "real")
    (folder / "here").mkdir()
    for name in ("net.onnx", "weights.bin"):
        (folder / "here" / name).symlink_to(path.parent / name)
    return folder / "here" / "net.onnx"


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("layout", [as_hub_cache, as_hard_links, as_linked_folder, as_linked_model])
def test_external_data_behind_links_are_read(
    layout: Callable[[Path], Path], inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = layout(tmp_path)
    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 2**30 if inside else 1000)
    model = load(path)
    assert model.digest == load(external(tmp_path / "plain")).digest
    assert_same_outputs(residual_cnn(), model, 1e-5)
    options = onnxruntime.SessionOptions()
    with session_source(onnxruntime, model.graph, options, most_copied=1000) as source:
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    assert session.run(None, feeds(model))[0].shape == (4, 10)


def test_a_tensor_with_other_numbers_than_its_shape_says_is_refused(tmp_path: Path) -> None:
    proto = residual_cnn()
    proto.graph.initializer[0].dims[0] += 1
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="is damaged: expected the numbers of a tensor of the shape"):
        load(path)


def test_missing_and_truncated_external_data_are_refused(tmp_path: Path) -> None:
    path = external(tmp_path / "model")
    weights = path.parent / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"'weights.bin' is truncated"):
        load(path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"needs the external data file 'weights.bin'"):
        load(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "abc"),
        ("offset", "-5"),
        ("length", "3"),
        ("length", "-3"),
        ("location", ""),
        ("location", "a\0b"),
        ("location", "x" * 5000),
    ],
)
def test_nonsense_in_external_data_is_refused(key: str, value: str, tmp_path: Path) -> None:
    path = external(tmp_path / "model")
    edit_external(path, key, value)
    with pytest.raises(ModelError, match=r"damaged|needs the external data file"):
        load(path)


# -- models that cannot be searched ------------------------------------------------------------------------------------


def test_float64_weights_are_refused_by_name(tmp_path: Path) -> None:
    n = Net()
    n.op("Conv", ["image", n.const("w", np.ones((C, 3, 3, 3)))], "stem")
    n.nodes[-1].output[0] = "y"
    double = TensorProto.DOUBLE
    with pytest.raises(ModelError, match="'stem' does not compute in float32"):
        load_proto(finish(n, {"image": [1, 3, 8, 8]}, {"y": [1, C, 6, 6]}, image=double, y=double), tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    proto = residual_cnn()
    index = next(i for i, tensor in enumerate(proto.graph.initializer) if tensor.name == "fc.w")
    array = numpy_helper.to_array(proto.graph.initializer[index]).copy()
    array[0, 0] = np.nan
    proto.graph.initializer[index].CopyFrom(numpy_helper.from_array(array, "fc.w"))
    with pytest.raises(ModelError, match=r"'fc.w' of layer 'fc' holds NaN"):
        load_proto(proto, tmp_path)


def test_a_model_without_layers_is_refused(tmp_path: Path) -> None:
    n = Net()
    n.op("Relu", ["image"], "relu")
    with pytest.raises(ModelError, match="it has only Relu"):
        load_proto(n.model([2, 3], "y", [2, 3]), tmp_path)


def test_a_model_of_attention_alone_is_refused(tmp_path: Path) -> None:
    n = Net()
    n.op("MatMul", ["a", "b"], "product")
    n.nodes[-1].output[0] = "y"
    with pytest.raises(ModelError, match="both factors are activations"):
        load_proto(finish(n, {"a": [2, 3], "b": [3, 4]}, {"y": [2, 4]}), tmp_path)


# -- shapes ------------------------------------------------------------------------------------------------------------


def dynamic(folder: Path) -> Path:
    return save(residual_cnn(batch="N"), folder / "net.onnx")


def test_a_dynamic_batch_needs_a_size(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"--batch 8, or a range .* --shape image:1x3x16x16:8x3x16x16:16x3x16x16"):
        load(dynamic(tmp_path))


def test_batch_and_shape_fix_a_dynamic_input(tmp_path: Path) -> None:
    path = dynamic(tmp_path)
    by_batch, by_shape = load(path, batch=8), load(path, shapes={"image": fixed(8, 3, 16, 16)})
    assert by_batch.batch == 8
    assert by_batch.inputs == by_shape.inputs
    assert by_batch.outputs[0].shape == (8, 10)
    assert by_batch.shapes == by_shape.shapes
    assert by_batch.profiles == {}


def test_a_range_keeps_an_input_dynamic_and_measures_at_opt(tmp_path: Path) -> None:
    low, best, high = (1, 3, 16, 16), (4, 3, 16, 16), (8, 3, 16, 16)
    model = load(dynamic(tmp_path), shapes={"image": ShapeRequest(low, best, high)})
    assert model.profiles == {"image": (low, best, high)}
    assert model.inputs[0].shape == best
    assert model.outputs[0].shape == (4, 10)
    session = plain_session(ir.to_proto(model.graph))
    for batch in (1, 8):
        assert session.run(None, {"image": np.zeros((batch, 3, 16, 16), np.float32)})[0].shape == (batch, 10)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"picture": fixed(4, 3, 16, 16)}, "no such input; its inputs are image"),
        ({"image": fixed(4, 3, 16)}, "give as many dimensions"),
        ({"image": fixed(4, 4, 16, 16)}, "equal where the model fixes them"),
        ({"image": fixed(0, 3, 16, 16)}, "sizes of at least 1"),
        ({"image": ShapeRequest((4, 3, 16, 16), (2, 3, 16, 16), (8, 3, 16, 16))}, "MIN ≤ OPT ≤ MAX"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes: dict[str, ShapeRequest], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        load(dynamic(tmp_path), shapes=shapes)


def test_a_batch_that_the_model_fixes_otherwise_is_refused(tmp_path: Path) -> None:
    path = save(residual_cnn(batch=4), tmp_path / "net.onnx")
    assert load(path, batch=4).batch == 4
    with pytest.raises(ModelError, match="batch fixed at 4"):
        load(path, batch=8)


def test_a_scalar_input_is_refused(tmp_path: Path) -> None:
    n = Net()
    n.head(n.conv(n.op("Mul", ["image", "gain"], "scaled"), "stem", 3, C), C)
    n.nodes[-1].output[0] = "y"
    with pytest.raises(ModelError, match="'gain' is a scalar"):
        load_proto(finish(n, {"image": [1, 3, 8, 8], "gain": []}, {"y": [1, 10]}), tmp_path)


def test_the_digest_names_content_and_shapes(tmp_path: Path) -> None:
    path = dynamic(tmp_path)
    digest = load(path, batch=4).digest
    assert load(path, batch=8).digest != digest
    assert load(path.rename(tmp_path / "moved.onnx"), batch=4).digest == digest


# -- cleaning ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NETWORKS, *ODD])
def test_the_clean_model_computes_what_the_users_does(name: str) -> None:
    # Only a fused BatchNorm and the Gemm factors change arithmetic.
    tolerance = 1e-5 if name in ("residual", "products") else 0.0
    assert_same_outputs({**NETWORKS, **ODD}[name](), loaded(name), tolerance)


@pytest.mark.parametrize("name", [*NETWORKS, *ODD])
def test_the_clean_model_is_valid_and_every_node_has_a_name_of_its_own(name: str, tmp_path: Path) -> None:
    model = loaded(name)
    model.save(tmp_path / "clean.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "clean.onnx"), full_check=True)
    assert len(set(names(model))) == len(names(model))
    assert not {"Identity", "Constant", "Dropout"} & {node.op_type for node in model.graph.graph}


@pytest.mark.parametrize("kept", [0, 1])
def test_a_part_that_nobody_takes_has_a_name(kept: int, tmp_path: Path) -> None:
    """Files are written without unnamed outputs at the end, and of another number of parts each is another part."""
    n = Net(opset=18)
    x = n.conv("image", "first", 3, 4)
    parts = ["part" if place == kept else "" for place in range(2)]
    n.nodes.append(helper.make_node("Split", [x], parts, name="split", axis=1, num_outputs=2))
    n.conv("part", "second", 2, 4)
    model = load_proto(n.model([2, 3, 8, 8], "mask", [2, 4, 8, 8]), tmp_path)
    model.save(tmp_path / "clean.onnx")
    (split,) = (node for node in onnx.load(tmp_path / "clean.onnx").graph.node if node.op_type == "Split")
    assert split.output[kept] == "part"
    assert len(set(filter(None, split.output))) == 2


def test_layers_keep_the_users_names() -> None:
    model = loaded("residual")
    users = {node.name for node in residual_cnn().graph.node}
    assert set(names(model)) == users - {"stem/bn", "block.0/bn2"}


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_an_old_opset_is_raised_and_names_are_kept(opset: int, tmp_path: Path) -> None:
    n = Net(opset=opset)
    x = n.op("Relu", [n.conv("image", "stem", 3, C)], "stem/relu")
    x = n.op("Dropout", [x], "drop", ratio=0.5) if opset < 12 else x
    n.gemm(n.op("Reshape", [x, n.const("flat", np.array([2, -1], np.int64))], "flat"), "fc", 64 * C, 10)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert names(model) == ["stem", "stem/relu", "flat", "fc"]
    assert model.graph.graph.opset_imports[""] >= 13
    assert_same_outputs(proto, model)


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_the_newest_opsets_become_one_that_older_runtimes_know(opset: int, tmp_path: Path) -> None:
    """Those of Python 3.10 have no QuantizeLinear of opset 23, and refuse the IR versions of later ones."""
    proto = NETWORKS["mobile"]()
    proto.opset_import[0].version, proto.ir_version = opset, 13
    model = load_proto(proto, tmp_path)
    assert (model.graph.graph.opset_imports[""], model.graph.ir_version) == (22, 10)


def test_an_op_of_a_newer_opset_keeps_it(tmp_path: Path) -> None:
    n = Net(0, 24)
    n.head(n.op("Swish", [n.conv("image", "stem", 3, 8)], "swish"), 8)
    model = load_proto(n.model([2, 3, 8, 8], "logits", [2, 10]), tmp_path)
    assert model.graph.graph.opset_imports[""] == 24


@pytest.mark.parametrize("opset", [17, 19, 21, 22])
def test_a_new_opset_is_kept(opset: int, tmp_path: Path) -> None:
    proto = onnx.version_converter.convert_version(NETWORKS["mobile"](), opset)
    model = load_proto(proto, tmp_path)
    assert model.graph.graph.opset_imports[""] == opset
    assert_same_outputs(proto, model)


def test_identity_on_shared_weights_is_removed_and_they_stay_one_group(tmp_path: Path) -> None:
    n = Net()
    n.random("shared.w", C, C, 3, 3, fan_in=9 * C)
    n.const("shared.b", np.ones(C, np.float32))
    weight, bias = n.op("Identity", ["shared.w"], "Identity_1"), n.op("Identity", ["shared.b"], "Identity_2")
    x = n.op("Relu", [n.conv("image", "stem", 3, C)], "stem/relu")
    x = n.op("Relu", [n.op("Conv", [x, "shared.w", "shared.b"], "one", pads=[1] * 4)], "one/relu")
    n.head(n.op("Conv", [x, weight, bias], "two", pads=[1] * 4), C)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert_same_outputs(proto, model)
    assert [group.anchors for group in model.groups] == [("stem",), ("one", "two"), ("fc",)]


def test_a_bias_shared_through_identity_does_not_hinder_batch_norm_fusion(tmp_path: Path) -> None:
    n = Net()
    x = n.batch_norm(n.conv("image", "stem", 3, C), "stem/bn", C)
    bias = n.op("Identity", ["stem.b"], "Identity_1")
    weight = n.random("next.w", C, C, 3, 3, fan_in=9 * C)
    n.head(n.batch_norm(n.op("Conv", [x, weight, bias], "next", pads=[1] * 4), "next/bn", C), C)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert names(model) == ["stem", "next", "pool", "flatten", "fc"]
    assert_same_outputs(proto, model, 1e-5)


def test_constants_dropout_and_identity_vanish_and_outputs_keep_names(tmp_path: Path) -> None:
    n = Net()
    weight = n.rng.standard_normal((C, 3, 3, 3)).astype(np.float32)
    w = n.op("Constant", [], "weight", value=numpy_helper.from_array(weight))
    b = n.op("Constant", [], "bias", value_floats=[0.5] * C)
    x = n.op("Identity", [n.op("Dropout", [n.op("Conv", ["image", w, b], "stem")], "drop")], "same")
    off = n.const("off", np.bool_(False))
    x = n.op("Dropout", [x, n.const("ratio", np.float32(0.5)), off], "drop2")
    n.head(n.op("Relu", [x], "relu"), C)
    n.op("Identity", [n.nodes[-1].output[0]], "last")
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert names(model) == ["stem", "relu", "pool", "flatten", "fc"]
    assert_same_outputs(proto, model)


def test_one_tensor_under_several_output_names_keeps_them_all(tmp_path: Path) -> None:
    n = Net()
    x = n.conv("image", "stem", 3, C)
    outputs = {}
    for i, (kind, source) in enumerate([("Identity", x), ("Identity", "o0"), ("Dropout", x), ("Identity", "image")]):
        n.op(kind, [source], f"copy{i}")
        n.nodes[-1].output[0] = f"o{i}"
        outputs[f"o{i}"] = [2, 3 if source == "image" else C, 8, 8]
    proto = finish(n, {"image": [2, 3, 8, 8]}, outputs)
    model = load_proto(proto, tmp_path)
    assert_same_outputs(proto, model)
    assert model.groups[0].name == "stem"


def test_initializers_listed_as_inputs_are_weights(tmp_path: Path) -> None:
    proto = residual_cnn()
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    model = load_proto(proto, tmp_path)
    assert [spec.name for spec in model.inputs] == ["image"]
    assert len(model.groups) == 7


def test_unnamed_nodes_are_named_after_what_they_make(tmp_path: Path) -> None:
    proto = residual_cnn()
    for node in proto.graph.node:
        node.ClearField("name")
    model = load_proto(proto, tmp_path)
    assert [group.name for group in model.groups][:2] == ["Conv_stem_out", "Conv_block.0/conv1_out"]
    assert model.groups[-1].name == "Gemm_logits"


def test_equal_node_names_are_told_apart(tmp_path: Path) -> None:
    proto = residual_cnn()
    for node in proto.graph.node:
        node.name = "same"
    model = load_proto(proto, tmp_path)
    assert model.groups[0].name == "same"
    assert len({group.name for group in model.groups}) == 7


def test_unused_branches_and_outputs_are_dropped(tmp_path: Path) -> None:
    n = Net()
    x = n.conv("image", "stem", 3, C)
    n.conv("image", "dead", 3, C)
    n.nodes.append(helper.make_node("Split", [x, n.const("sizes", np.array([8, 8]))], ["a", "b"], name="split", axis=1))
    n.head("a", 8)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert [group.name for group in model.groups] == ["stem", "fc"]
    assert "dead.w" not in model.graph.graph.initializers
    assert_same_outputs(proto, model)


def test_functions_are_inlined(tmp_path: Path) -> None:
    body = [
        helper.make_node("Conv", ["x", "w"], ["t"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["t"], ["y"], name="relu"),
    ]
    block = helper.make_function("my", "Block", ["x", "w"], ["y"], body, [helper.make_opsetid("", 17)])
    n = Net()
    n.random("w1", C, 3, 3, 3, fan_in=27)
    n.random("w2", C, C, 3, 3, fan_in=9 * C)
    n.nodes.append(helper.make_node("Block", ["image", "w1"], ["a"], name="first", domain="my"))
    n.nodes.append(helper.make_node("Block", ["a", "w2"], ["y"], name="second", domain="my"))
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, c, 8, 8]) for name, c in (("image", 3), ("y", C))
    ]
    graph = helper.make_graph(n.nodes, "net", info[:1], info[1:], n.weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, functions=[block], ir_version=8)
    model = load_proto(proto, tmp_path)
    assert [group.op for group in model.groups] == ["Conv", "Conv"]
    assert_same_outputs(proto, model)


def test_a_loop_body_is_left_alone(tmp_path: Path) -> None:
    n = Net()
    x = n.conv("image", "stem", 3, C)
    n.random("inner.w", C, C, 1, 1, fan_in=C)
    state = [2, C, 8, 8]
    body = helper.make_graph(
        [
            helper.make_node("Conv", ["state", "inner.w"], ["inner"], name="inner"),
            helper.make_node("Add", ["inner", x], ["next"], name="inner/add"),
            helper.make_node("Identity", ["go"], ["go_on"], name="inner/go"),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, state),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, state),
        ],
    )
    trip, go = n.const("trip", np.int64(3)), n.const("cond", np.bool_(True))
    n.head(n.op("Relu", [n.conv(n.op("Loop", [trip, go, x], "loop", body=body), "after", C, C)], "after/relu"), C)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert [group.name for group in model.groups] == ["stem", "after", "fc"]
    assert_same_outputs(proto, model)


# -- BatchNorm ---------------------------------------------------------------------------------------------------------


def after_conv(n: Net) -> str:
    return n.batch_norm(n.conv("image", "stem", 3, C), "bn", C)


def after_depthwise(n: Net) -> str:
    return n.batch_norm(n.conv(n.conv("image", "stem", 3, C), "dw", C, C, group=C), "bn", C)


def after_transposed(n: Net, group: int = 1) -> str:
    weight = n.random("up.w", C, C // group, 2, 2, fan_in=C)
    x = n.op("ConvTranspose", [n.conv("image", "stem", 3, C), weight], "up", strides=[2, 2], group=group)
    return n.batch_norm(x, "bn", C)


def after_grouped_transposed(n: Net) -> str:
    return after_transposed(n, 4)


@pytest.mark.parametrize("build", [after_conv, after_depthwise, after_transposed, after_grouped_transposed])
def test_batch_norm_is_fused_within_rounding(build: Callable[[Net], str], tmp_path: Path) -> None:
    n = Net()
    n.head(build(n), C)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert "BatchNormalization" not in {node.op_type for node in model.graph.graph}
    assert_same_outputs(proto, model, 1e-5)


def behind_relu(n: Net) -> str:
    return n.batch_norm(n.op("Relu", [n.conv("image", "stem", 3, C)], "relu"), "bn", C)


def used_twice(n: Net) -> str:
    x = n.conv("image", "stem", 3, C)
    return n.op("Add", [x, n.batch_norm(x, "bn", C)], "add")


def shared_weight(n: Net) -> str:
    n.random("shared.w", C, C, 3, 3, fan_in=9 * C)
    x = n.conv("image", "stem", 3, C)
    for i in range(2):
        x = n.batch_norm(n.op("Conv", [x, "shared.w"], f"conv{i}", pads=[1] * 4), f"bn{i}", C)
    return x


def in_training(n: Net) -> str:
    x = n.batch_norm(n.conv("image", "stem", 3, C), "bn", C)
    n.nodes[-1].attribute.append(helper.make_attribute("training_mode", 1))
    n.nodes[-1].output.extend(["mean", "var"])
    return x


@pytest.mark.parametrize("build", [behind_relu, used_twice, shared_weight, in_training])
def test_batch_norm_that_cannot_be_fused_is_kept_exactly(build: Callable[[Net], str], tmp_path: Path) -> None:
    n = Net()
    n.head(build(n), C)
    proto = n.model([2, 3, 8, 8], "logits", [2, 10])
    model = load_proto(proto, tmp_path)
    assert "BatchNormalization" in {node.op_type for node in model.graph.graph}
    assert_same_outputs(proto, model)


def test_one_output_listed_twice_is_refused(tmp_path: Path) -> None:
    proto = residual_cnn()
    proto.graph.output.append(proto.graph.output[0])
    with pytest.raises(ModelError, match="outputs of different names, but 'logits' is listed 2 times"):
        load_proto(proto, tmp_path)


def test_a_full_disk_is_told_as_one_where_a_large_model_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: object, **__: object) -> None:
        raise OSError("Not enough free space to write 764411904 bytes after offset 0")  # as numpy says it

    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 1)
    monkeypatch.setattr(ir, "save", save)
    graph = ir.from_proto(residual_cnn())
    with pytest.raises(OSError, match="Not enough free space") as raised:
        onnx_file.write_any_size(graph, tmp_path / "m.onnx")
    assert raised.value.errno == errno.ENOSPC


def test_a_model_too_large_for_one_file_is_saved_with_its_weights_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("residual")
    model.save(tmp_path / "one.onnx")
    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 1000)
    model.save(tmp_path / "two.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.onnx", "two.onnx", "two.onnx.data"]
    assert (tmp_path / "two.onnx").stat().st_size < (tmp_path / "one.onnx").stat().st_size / 2
    again = [load(tmp_path / name) for name in ("one.onnx", "two.onnx")]
    for name, value in again[0].graph.graph.initializers.items():
        other = again[1].graph.graph.initializers[name]
        assert value.const_value is not None
        assert other.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy(), other.const_value.numpy())


@pytest.mark.parametrize("opset", [11, 17])
def test_weights_that_one_file_cannot_hold_are_mapped_into_memory(
    opset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = residual_cnn(opset=opset)
    onnx.save_model(proto, tmp_path / "net.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    read = load(tmp_path / "net.onnx")
    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 1000)
    mapped = load(tmp_path / "net.onnx")
    assert mapped.digest == read.digest
    assert (mapped.shapes, mapped.groups) == (read.shapes, read.groups)
    assert_same_outputs(ir.to_proto(read.graph), mapped)
    weight = mapped.graph.graph.initializers["fc.w"].const_value
    assert weight is not None
    assert not weight.numpy().flags.owndata


def test_shapes_are_known_behind_constants_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = load_proto(residual_cnn(), tmp_path).shapes
    monkeypatch.setattr(cleaning, "_SHAPE_BYTES", 100)
    assert load_proto(residual_cnn(), tmp_path).shapes == known


def test_a_single_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_LARGEST_FILE", 1000)
    with pytest.raises(ModelError, match=r"at most 2 GiB.*Save the model with external data"):
        load_proto(residual_cnn(), tmp_path)


def test_axes_of_one_name_may_have_several_sizes(tmp_path: Path) -> None:
    """ONNX Runtime re-uses the buffer of one for the other where their name says that they are equally large."""
    n = Net()
    for name in ("a", "b"):
        n.linear(name, f"{name}/proj", 8, 8)
        n.op("ReduceMean", [n.nodes[-1].output[0]], f"{name}/mean", axes=[1], keepdims=0)
    n.gemm(n.op("Add", ["a/mean_out", "b/mean_out"], "sum"), "fc", 8, 10)
    n.nodes[-1].output[0] = "y"
    proto = finish(n, {"a": ["N", "seq", 8], "b": ["N", "seq", 8]}, {"y": ["N", 10]})
    request = {
        "a": ShapeRequest((1, 4, 8), (4, 12, 8), (8, 16, 8)),
        "b": ShapeRequest((1, 4, 8), (4, 7, 8), (8, 16, 8)),
    }
    model = load(save(proto, tmp_path / "net.onnx"), shapes=request)
    session = plain_session(ir.to_proto(model.graph))
    assert session.run(None, feeds(model))[0].shape == (4, 10)
    assert next(str(dim) for dim in model.graph.graph.inputs[0].shape or ()) == "N", "what is one size keeps its name"


def test_inference_tells_the_shape_of_scalars_too() -> None:
    nodes = [helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0), helper.make_node("Mul", ["x", "sum"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    model = ir.from_proto(proto)
    cleaning.settle_shapes(model)
    assert [node.outputs[0].shape for node in model.graph] == [ir.Shape([]), ir.Shape([2, 3])]
