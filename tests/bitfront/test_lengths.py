"""Batches of different lengths: a text encoder, and an image network, whose sizes are dynamic, from data to export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

import bitfront as bf
from evaluators.data import batches, gather_forms
from evaluators.data.dataset import limit
from evaluators.data.opening import open_data
from evaluators.process.score_order import order_scores
from search.errors import InputError
from search.graph.model import TensorSpec
from tests.support.command_line import invoke, ok, quick
from tests.support.networks import Net, finish, save, session_of

WORDS, WIDTH, CLASSES = 50, 8, 4
LENGTHS = (3, 7, 5, 12, 3, 9, 5, 12, 7, 3)
SEARCH: dict[str, Any] = {"backend": "onnxruntime", "trials": 4, "batch": 4, "progress": False}

KINDS = (("ids", "int64"), ("mask", "float32"))

LOADER = """
import numpy as np


def load():
    for number in range(10):
        yield dict(np.load(f"batch-{number}.npz"))
"""


def text_encoder(*, tokens: bool = False) -> onnx.ModelProto:
    """Embedding, attention with a mask, and scores of classes for each text, or for each of its tokens."""
    n = Net(5)
    table = n.random("table", WORDS, WIDTH, fan_in=2)
    x = n.op("Gather", [table, "ids"], "embed")
    query, key, value = (n.linear(x, name, WIDTH, WIDTH) for name in ("query", "key", "value"))
    scores = n.op("MatMul", [query, n.op("Transpose", [key], "turn", perm=[0, 2, 1])], "scores")
    axes = n.const("axes", np.array([1]))
    penalty = n.op("Mul", [n.op("Unsqueeze", ["mask", axes], "mask/row"), n.const("low", np.float32(8))], "mask/scale")
    weights = n.op("Softmax", [n.op("Add", [scores, penalty], "masked")], "weights", axis=-1)
    mixed = n.op("Relu", [n.op("MatMul", [weights, value], "mix")], "mix/relu")
    if tokens:
        n.linear(mixed, "head", WIDTH, CLASSES)
    else:
        pooled = n.op("ReduceMean", [mixed], "pool", axes=[1], keepdims=0)
        n.gemm(pooled, "head", WIDTH, CLASSES)
    n.nodes[-1].output[0] = "logits"
    shape: list[int | str] = ["N", "length", CLASSES] if tokens else ["N", CLASSES]
    inputs: dict[str, Any] = {"ids": ["N", "length"], "mask": ["N", "length"]}
    return finish(n, inputs, {"logits": shape}, ids=TensorProto.INT64)


def texts(network: onnx.ModelProto, lengths: tuple[int, ...] = LENGTHS) -> list[dict[str, NDArray[Any]]]:
    """Batches of ten texts padded to a length of their own, with the classes that the float model gives."""
    random, session, found = np.random.default_rng(3), session_of(network), []
    for length in lengths:
        mask = -(np.arange(length) >= random.integers(1, length + 1, (10, 1))).astype(np.float32)
        inputs = {"ids": random.integers(0, WORDS, (10, length)), "mask": mask}
        (logits,) = session.run(None, inputs)
        found.append({**inputs, "labels": logits.argmax(-1)})
    return found


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the text encoder and its batches, in files and from a function."""
    network = text_encoder()
    save(network, tmp_path / "model.onnx")
    for number, batch in enumerate(texts(network)):
        np.savez(tmp_path / f"batch-{number}.npz", **batch)
    (tmp_path / "text_loader.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    with quick():
        yield tmp_path


@pytest.mark.slow
def test_every_batch_is_scored_at_its_own_length(here: Path) -> None:
    """The classes are the float model's own, so padding to one length would cost it some."""
    study = bf.search("model.onnx", texts(text_encoder()), metric="top1", study="s", **SEARCH)
    first = study.trials[0]
    assert (first.value, first.loss) == (1.0, 0.0)
    study.export(here / "out")
    assert (here / "out" / "model.onnx").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("source", ["text_loader.py:load", "texts"])
def test_the_command_line_takes_functions_and_folders(here: Path, source: str) -> None:
    (here / "texts").mkdir()
    for file in here.glob("batch-*.npz"):
        (here / "texts" / file.name).write_bytes(file.read_bytes())
    options = ("--batch", 4, "--backend", "fake", "--study", "s")
    search = ("search", "model.onnx", "--data", source, *options)
    found = invoke(*search, "--trials", 3, "--max-samples", 90)
    assert found.exit_code == 0, found.output
    said = " ".join(found.output.split())
    assert "ids 4x3 to 4x12, mask 4x3 to 4x12. Each is scored at its own shape" in said
    assert "--shape ids:4x3:4x12:4x12" in said
    ok("resume", "s", "--trials", 4)


def test_a_function_and_a_folder_give_the_same_samples_in_the_same_order(here: Path) -> None:
    inputs = [TensorSpec(name, dtype, (4, 12), (4, 3), (4, 12)) for name, dtype in KINDS]
    (here / "texts").mkdir()
    for file in here.glob("batch-*.npz"):
        (here / "texts" / file.name).write_bytes(file.read_bytes())
    folder = open_data("texts", inputs)
    cached = open_data("text_loader.py:load", inputs, cache=here / "cache")
    plain = open_data("text_loader.py:load", inputs)
    assert folder.digest == cached.digest == plain.digest
    assert len(folder) == len(cached) == 100
    assert folder.forms is not None
    assert cached.forms is not None
    np.testing.assert_array_equal(folder.forms, cached.forms)
    order = gather_forms(cached, np.random.default_rng(0).permutation(100), 4)
    assert sorted(order) == list(range(100))
    sizes = [batch.count for batch in batches(cached, order, 4)]
    assert sum(size < 4 for size in sizes) <= len(set(LENGTHS))
    for one, other in zip(batches(folder, order, 4), batches(cached, order, 4), strict=True):
        assert one.inputs["ids"].shape == (4, one.inputs["mask"].shape[1])
        np.testing.assert_array_equal(one.inputs["ids"], other.inputs["ids"])
        np.testing.assert_array_equal(one.labels, other.labels)
    few = limit(cached, 30)
    assert sum(batch.count for batch in batches(few, np.arange(30), 4)) == 30


@pytest.mark.slow
def test_outputs_and_labels_of_each_token_have_lengths_too(here: Path) -> None:
    network = text_encoder(tokens=True)
    save(network, here / "tokens.onnx")
    options = {**SEARCH, "calibration_select": "diverse:8"}
    study = bf.search("tokens.onnx", texts(network), metric=token_accuracy, study="tokens", **options)
    assert study.trials[0].value == 1.0
    study.export(here / "out")
    said = ok("compare", "tokens", 1)
    assert "on 30 samples" in " ".join(said.split())


def token_accuracy(outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray((outputs["logits"].argmax(-1) == labels).mean(axis=1))


def test_what_the_model_fixes_may_not_differ(here: Path) -> None:
    network = dynamic_images()
    save(network, here / "images.onnx")
    sized = [{"image": np.ones((10, 3, size, 8), np.float32)} for size in (8, 10, 12)]
    wrong = {"image": np.ones((10, 4, 8, 8), np.float32)}
    with pytest.raises(
        InputError, match=r"batch 3 .* 'image' has to be of shape \(samples, 3, any, any\), got \(10, 4, 8"
    ):
        bf.search("images.onnx", [*sized, wrong], study="wrong", **SEARCH)


@pytest.mark.slow
def test_a_named_range_measures_its_middle_shape(here: Path) -> None:
    save(dynamic_images(), here / "images.onnx")
    random = np.random.default_rng(0)
    sized = [{"image": random.standard_normal((10, 3, size, 8)).astype(np.float32)} for size in (8, 12, 16, 8)]
    study = bf.search(
        "images.onnx", sized, shape=["image:4x3x8x8:4x3x10x8:4x3x16x8"], study="s", **{**SEARCH, "batch": None}
    )
    assert study.trials[0].latency_ms > 0
    beyond = [*sized, {"image": np.ones((10, 3, 20, 8), np.float32)}]
    with pytest.raises(InputError, match=r"\(samples, 3, 8 to 16, 8\), got \(10, 3, 20, 8\)"):
        bf.search(
            "images.onnx", beyond, shape=["image:4x3x8x8:4x3x10x8:4x3x16x8"], study="t", **{**SEARCH, "batch": None}
        )


def dynamic_images() -> onnx.ModelProto:
    n = Net(0)
    x = n.op("Relu", [n.conv("image", "first", 3, 8)], "first/relu")
    n.head(x, 8)
    return n.model(["N", 3, "H", "W"], "logits", ["N", 10])


def test_a_loader_of_pytorch_gives_texts_padded_per_batch(here: Path) -> None:
    torch = pytest.importorskip("torch")
    samples = [(ids, mask, label) for b in texts(text_encoder()) for ids, mask, label in zip(*b.values(), strict=True)]

    def padded(some: list[Any]) -> Any:
        ids, mask = (
            torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each[place]) for each in some], True, value)
            for place, value in ((0, 0), (1, -1.0))
        )
        labels = torch.tensor([each[2] for each in some])
        return {"ids": ids, "mask": mask, "labels": labels} if as_dict else ((ids, mask), labels)

    for as_dict in (True, False):
        loader = torch.utils.data.DataLoader(samples, 5, shuffle=True, collate_fn=padded)
        study = bf.search("model.onnx", loader, metric="top1", study=f"s{as_dict}", **{**SEARCH, "backend": "fake"})
        assert len(study) == 4


def test_batches_of_an_accumulating_metric_share_neither_cluster_nor_length(here: Path) -> None:
    inputs = [TensorSpec(name, dtype, (4, 12), (4, 3), (4, 12)) for name, dtype in KINDS]
    (here / "texts").mkdir()
    for number in range(10):
        batch = dict(np.load(here / f"batch-{number}.npz"))
        np.savez(here / "texts" / f"{number}.npz", clusters=np.arange(10) + number % 2, **batch)
    dataset = open_data("texts", inputs)
    assert dataset.clusters is not None
    found = order_scores(dataset, np.random.default_rng(0).permutation(100), 16, accumulating=True)
    assert sorted(found.indices) == list(range(100))
    sizes = [batch.count for batch in found.batches(16)]
    assert tuple(sizes) == found.sizes
    assert found.clusters is not None
    blocks = np.repeat(found.clusters, sizes)
    for cluster in range(11):
        assert len(set(blocks[dataset.clusters[found.indices] == cluster])) == 1
