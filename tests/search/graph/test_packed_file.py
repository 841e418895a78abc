"""A model of any size as one file, which becomes an ONNX file again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from search.graph import onnx_file, packed_file
from search.graph.model import Model
from tests.support.networks import feeds, loaded, plain_session


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A small network that is treated as one that no ONNX file can hold."""
    found = loaded("residual")
    monkeypatch.setattr(onnx_file, "_MOST_INSIDE", 1000)
    return found


def outputs(proto: onnx.ModelProto, model: Model) -> np.ndarray:
    return np.asarray(plain_session(proto).run(None, feeds(model))[0])


def test_it_becomes_an_onnx_file_with_its_weights_beside_it(model: Model, tmp_path: Path) -> None:
    packed_file.write(model.graph, tmp_path / "packed")
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]
    packed_file.copy_as_onnx(tmp_path / "packed", tmp_path / "model.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data", "packed"]
    model.save(tmp_path / "saved.onnx")
    for end in ("", ".data"):
        sizes = [(tmp_path / f"{name}.onnx{end}").stat().st_size for name in ("model", "saved")]
        assert abs(sizes[0] - sizes[1]) < 200, "names alone differ"
    expected = outputs(ir.to_proto(model.graph), model)
    np.testing.assert_array_equal(outputs(onnx.load(tmp_path / "model.onnx"), model), expected)


def test_it_is_read_where_it_lies_under_whatever_name(model: Model, tmp_path: Path) -> None:
    packed_file.write(model.graph, tmp_path / "packed")
    (tmp_path / "packed").rename(tmp_path / "0123abcd")
    graph = packed_file.load_graph(tmp_path / "0123abcd")
    expected = outputs(ir.to_proto(model.graph), model)
    np.testing.assert_array_equal(outputs(ir.to_proto(graph), model), expected)
    message = packed_file.read_message(tmp_path / "0123abcd")
    assert message is not None
    assert message.ByteSize() < (tmp_path / "0123abcd").stat().st_size / 2


def test_equal_models_give_equal_files(model: Model, tmp_path: Path) -> None:
    for name in ("one", "two"):
        packed_file.write(model.graph, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_an_onnx_file_can_hold_is_one(tmp_path: Path) -> None:
    model = loaded("residual")
    packed_file.write(model.graph, tmp_path / "engine")
    assert packed_file.read_message(tmp_path / "engine") is None
    packed_file.copy_as_onnx(tmp_path / "engine", tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == (tmp_path / "engine").read_bytes()
    assert len(packed_file.load_graph(tmp_path / "engine").graph) == len(model.graph.graph)
    (tmp_path / "short").write_bytes(b"short")
    assert packed_file.read_message(tmp_path / "short") is None
