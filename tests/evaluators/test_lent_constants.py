"""Sessions whose large constants are lent from memory compute what those of a whole message do."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from evaluators.lent_constants import detach_constants, session_source
from search.graph import onnx_file, packed_file
from tests.support import networks
from tests.support.networks import plain_session

Feeds = dict[str, NDArray[Any]]


def run(graph: ir.Model, feeds: Feeds, most_copied: int) -> list[NDArray[Any]]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    with session_source(ort, graph, options, most_copied) as source:
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    del graph, options
    gc.collect()
    return [np.asarray(array) for array in session.run(None, feeds)]


def feeds_of(proto: onnx.ModelProto) -> Feeds:
    rng = np.random.default_rng(0)
    shapes = {i.name: [d.dim_value or 1 for d in i.type.tensor_type.shape.dim] for i in proto.graph.input}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_outputs_are_those_of_the_whole_message() -> None:
    proto = networks.residual_cnn()
    feeds = feeds_of(proto)
    lent = run(ir.from_proto(proto), feeds, 0)
    for found, expected in zip(lent, plain_session(proto).run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_constants_that_nothing_reads_are_not_lent() -> None:
    """They remain where nodes that read them were folded, as in silero-vad; ONNX Runtime does not find them."""
    proto = networks.residual_cnn()
    feeds = feeds_of(proto)
    expected = plain_session(proto).run(None, feeds)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "unread"))
    for found, wanted in zip(run(ir.from_proto(proto), feeds, 0), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_a_model_is_no_file_and_its_message_has_no_large_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "write_any_size", None)
    graph = ir.from_proto(networks.residual_cnn())
    rest = detach_constants(graph)
    assert rest.lent
    assert all(array.nbytes >= 1024 for array in rest.lent.values())
    assert len(ir.to_proto(rest.model).SerializeToString()) < len(ir.to_proto(graph).SerializeToString()) / 2
    with session_source(ort, graph, ort.SessionOptions(), 0) as source:
        assert isinstance(source, bytes)


def test_constants_in_a_file_are_read_there(tmp_path: Path) -> None:
    proto = networks.residual_cnn()
    feeds = feeds_of(proto)
    expected = plain_session(proto).run(None, feeds)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    graph = packed_file.load_graph(path)
    changed = next(value for value in graph.graph.initializers.values() if value.const_value.nbytes > 2000)
    changed.const_value = ir.tensor(np.array(changed.const_value.numpy()), name=changed.name)
    rest = detach_constants(graph)
    assert list(rest.lent) == [changed.name]
    assert rest.folder == tmp_path.resolve()
    for found, wanted in zip(run(graph, feeds, 0), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_is_not_changed() -> None:
    graph = ir.from_proto(networks.residual_cnn())
    before = ir.to_proto(graph).SerializeToString()
    detach_constants(graph)
    assert ir.to_proto(graph).SerializeToString() == before


def test_what_can_neither_be_lent_nor_stand_in_a_message_goes_through_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 1000)
    monkeypatch.setattr("evaluators.lent_constants._NUMPY_TYPES", frozenset())
    proto = networks.residual_cnn()
    feeds = feeds_of(proto)
    for found, expected in zip(run(ir.from_proto(proto), feeds, 0), plain_session(proto).run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)
