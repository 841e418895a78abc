"""Sizes of dynamic inputs that nobody gave are read from the data, whatever form these have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from evaluators.backends.onnxruntime.emulation import open_file
from evaluators.data.reading.row_shapes import Span, read_row_spans
from search.errors import ModelError
from search.graph.model import load
from search.graph.shapes import ShapeRequest
from studies.options.config import SearchConfig
from studies.options.quantities import ShapeSpec
from studies.run.session.data_shapes import frozen_batch_text, with_shapes_of_data
from studies.run.session.setup import load_model
from tests.support.command_line import invoke, ok, quick
from tests.support.networks import Net, conv_1d_3d, finish, plain_session, save

LOADER = (
    "import numpy as np\ndef load():\n    yield np.load('image.npy')\n    raise AssertionError('one batch is enough')\n"
)


def dynamic_network() -> onnx.ModelProto:
    n = Net(0)
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    n.head(x, 8)
    return n.model(["N", 3, "H", "W"], "logits", ["N", 10])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    save(dynamic_network(), tmp_path / "model.onnx")
    images = np.random.default_rng(0).standard_normal((40, 3, 8, 6)).astype(np.float32)
    np.save(tmp_path / "image.npy", images)
    np.savez(tmp_path / "data.npz", image=images)
    np.savez_compressed(tmp_path / "small.npz", image=images)
    for folder, file in (("npz", "data.npz"), ("npy", "image.npy")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_bytes((tmp_path / file).read_bytes())
    (tmp_path / "shape_loader.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    with quick():
        yield tmp_path


@pytest.mark.parametrize("source", ["data.npz", "small.npz", "image.npy", "npz", "npy", "shape_loader.py:load"])
def test_every_form_of_data_tells_the_shape(here: Path, source: str) -> None:
    assert read_row_spans(source, ["image"])["image"] == Span((3, 8, 6), (3, 8, 6))


def test_what_tells_no_shape_is_left_to_who_opens_it(here: Path) -> None:
    (here / "text.npz").write_text("text")
    assert [read_row_spans(source, ["image"]) for source in ("text.npz", "nowhere.npz")] == [{}, {}]


@pytest.mark.slow
def test_a_search_needs_the_batch_alone_and_remembers_the_rest(here: Path) -> None:
    search = ("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--study", "s", "--trials", 3)
    refused = invoke(*search)
    assert refused.exit_code == 2
    assert "dynamic in the input image. Give it with --batch 8, or as a range with --shape image:1x" in refused.output
    assert "those of the data: image 3x8x6" in refused.output
    ok(*search, "--batch", 4)
    ok("resume", "s", "--trials", 4)


@pytest.mark.parametrize(("first", "why"), [("N", "--batch 4"), (4, "the model file")])
def test_sizes_that_are_those_of_the_data_are_said_to_be_the_only_ones(here: Path, first: object, why: str) -> None:
    network = dynamic_network()
    if isinstance(first, int):
        network.graph.input[0].type.tensor_type.shape.dim[0].dim_value = first
        network.graph.output[0].type.tensor_type.shape.dim[0].dim_value = first
        save(network, here / "model.onnx")
    config = with_shapes_of_data(SearchConfig("model.onnx", "data.npz", batch=4 if first == "N" else None))
    said = frozen_batch_text(load_model(config), config)
    assert f"other number: {why} fixes the batch. Samples must also have the sizes 3x8x6 (image), although" in said
    assert "although H, W are dynamic in the model file. That is right if you deploy with that batch and these" in said
    assert "several batches and sizes comes from" in said
    assert "--shape image:1x3xMINxMIN:4x3xOPTxOPT:8x3xMAXxMAX, with your own numbers for MIN, OPT and MAX." in said


def test_a_batch_behind_another_axis_is_no_size_of_samples(here: Path) -> None:
    network = dynamic_network()
    network.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "N"
    save(network, here / "model.onnx")
    config = with_shapes_of_data(SearchConfig("model.onnx", "data.npz", batch=4))
    assert "although H is dynamic" in frozen_batch_text(load_model(config), config)


def test_sizes_of_which_the_data_have_several_are_proposed_as_they_are(here: Path) -> None:
    span = ShapeSpec("image", (4, 3, 8, 6), (4, 3, 8, 9), (4, 3, 8, 9))
    config = SearchConfig("model.onnx", "data.npz", batch=4, shapes=(span,))
    said = frozen_batch_text(load_model(config), config)
    assert "sizes 3x8x6 to 3x8x9 (image), although H is dynamic" in said
    assert "--shape image:1x3xMINx6:4x3xOPTx9:8x3xMAXx9," in said


def test_given_shapes_and_fixed_models_are_left_alone(here: Path) -> None:
    config = SearchConfig("model.onnx", "data.npz", batch=4)
    (shape,) = with_shapes_of_data(config).shapes
    assert shape.optimum == (4, 3, 8, 6)
    given = config.with_values({"shapes": (shape,)})
    assert with_shapes_of_data(given) is given
    save(conv_1d_3d(), here / "fixed.onnx")
    fixed = SearchConfig("fixed.onnx", "data.npz")
    assert with_shapes_of_data(fixed) is fixed


def one_sample_network(*sizes: int | str) -> onnx.ModelProto:
    """image (3, H, W) and a number `shift` → logits (10) and found (elements above it, 3), as detectors write them."""
    n = Net(0)
    wide = n.op("Unsqueeze", ["image", n.const("axis", np.array([0]))], "wide")
    x = n.head(n.op("Relu", [n.conv(wide, "first", 3, 8)], "first/relu"), 8)
    n.op("Squeeze", [x, "axis"], "narrow")
    n.op("Transpose", [n.op("NonZero", [n.op("Greater", ["image", "shift"], "above")], "places")], "rows")
    n.nodes[-1].output[0], n.nodes[-4].output[0] = "found", "logits"
    kinds = {"found": onnx.TensorProto.INT64}
    return finish(n, {"image": [3, *sizes], "shift": []}, {"logits": [10], "found": ["n", 3]}, **kinds)


@pytest.mark.parametrize("sizes", [(8, 6), ("H", "W")])
def test_a_model_of_one_sample_gets_an_axis_of_samples(here: Path, sizes: tuple[int | str, ...]) -> None:
    path = save(one_sample_network(*sizes), here / "one.onnx")
    shapes = {"image": ShapeRequest(*[(1, 3, 8, 6)] * 3), "shift": ShapeRequest(*[(1,)] * 3)}
    model = load(path, shapes=shapes)
    assert (
        model.origin
        == "the file takes one sample: here, and in exports, its inputs and outputs have an axis of samples"
    )
    assert [spec.shape[0] for spec in model.inputs] == [1, 1]
    assert frozen_batch_text(model, SearchConfig(str(path), "")).startswith(
        "engines take one sample at a time, because"
    )
    image, shift = np.load("image.npy")[:1], np.float32([0.5])
    wanted = open_file(path, 1).run({"image": image[0], "shift": shift.reshape(())})
    made = plain_session(ir.to_proto(model.graph)).run(None, {"image": image, "shift": shift})
    for spec, array in zip(model.outputs, made, strict=True):
        assert array.shape == (1, *wanted[spec.name].shape)
        np.testing.assert_allclose(array[0], wanted[spec.name], rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 6), ("H", "W")])
def test_a_search_of_a_model_of_one_sample_is_told_the_way(here: Path, sizes: tuple[int | str, ...]) -> None:
    network = one_sample_network(*sizes)
    network.graph.input.pop()
    network.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.5), "shift"))
    save(network, here / "model.onnx")
    search = ("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--study", "s", "--trials", 3)
    way = ()
    if sizes == (8, 6):
        assert (refused := invoke(*search)).exit_code == 2
        assert "give it one: --shape image:1x3x8x6" in refused.output
        way = ("--shape", "image:1x3x8x6")
    ok(*search, *way)
    ok("export", "s", "--out", "engine")
    ok("resume", "s", "--trials", 4)


def test_all_inputs_without_a_size_are_in_one_message(here: Path) -> None:
    network = conv_1d_3d()
    for value in network.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    with pytest.raises(ModelError) as refused:
        load(save(network, here / "two.onnx"))
    assert all(f"input {name!r} has the dynamic shape N" in str(refused.value) for name in ("sound", "video"))
