"""Constant folding stays silent where ONNX's reference evaluator cannot compute a node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from search.graph.model import load
from tests.support.networks import Net, finish, plain_session, save


def test_a_constant_that_cannot_be_computed_beforehand_stays_and_nothing_is_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    n = Net()
    table = n.const("table", np.arange(512, dtype=np.float32)[None])
    places = n.const("places", np.array([[3, 1, 0, 2, 7, 9, 8, 4]]))
    taken = n.op("GatherElements", [table, places], "taken", axis=1)  # as transformers take their token types
    n.gemm(n.op("Add", ["x", taken], "sum"), "fc", 8, 4)
    n.nodes[-1].output[0] = "y"
    network = finish(n, {"x": [2, 8]}, {"y": [2, 4]})
    model = load(save(network, tmp_path / "net.onnx"))
    assert [node.op_type for node in model.graph.graph].count("GatherElements") == 1, "or this test shows nothing"
    assert caplog.messages == []
    x = {"x": np.ones((2, 8), np.float32)}
    wanted, found = (plain_session(proto).run(None, x)[0] for proto in (network, ir.to_proto(model.graph)))
    np.testing.assert_array_equal(found, wanted)
