"""Cutting a model into parts that builders learn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from numpy.typing import NDArray

from search.graph.model import Model
from search.graph.parts import cut_part
from tests.support.networks import NETWORKS, loaded


def run(model: Model, known: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The outputs of a graph that the checker takes, by name."""
    proto = ir.to_proto(model.graph)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [spec.name for spec in model.outputs]
    return dict(zip(names, session.run(names, {spec.name: known[spec.name] for spec in model.inputs}), strict=True))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("count", [2, 3])
def test_parts_run_one_after_the_other_compute_what_the_whole_does(name: str, count: int) -> None:
    model = loaded(name)
    random = np.random.default_rng(0)
    known = {spec.name: random.random(spec.shape).astype(spec.dtype) for spec in model.inputs}
    wanted = run(model, known)
    parts = [cut_part(model, number, count) for number in range(count)]
    for part in parts:
        assert part is not None
        known |= run(part, known)
    for output, value in wanted.items():
        np.testing.assert_allclose(known[output], value, rtol=1e-4, atol=1e-5)
    held = [group for part in parts if part is not None for group in part.groups]
    assert held == list(model.groups)
    sizes = [len(part.groups) for part in parts if part is not None]
    assert max(sizes) - min(sizes) <= 2, "builders take as long each"
    assert len({part.digest for part in parts if part is not None} | {model.digest}) == count + 1


def test_more_parts_than_layers_leave_some_without_one() -> None:
    model = loaded("residual")
    found = [cut_part(model, number, 50) for number in range(50)]
    assert sum(part is not None for part in found) <= len(model.groups)
    assert [group for part in found if part is not None for group in part.groups] == list(model.groups)
