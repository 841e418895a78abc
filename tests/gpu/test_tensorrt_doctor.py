"""What the doctor finds where TensorRT runs: `pytest -m gpu`."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tensorrt")

from tests.support.command_line import invoke

pytestmark = pytest.mark.gpu


def test_the_doctor_names_all_that_a_search_needs_here() -> None:
    result = invoke("doctor", "--backend", "tensorrt", "--json")
    found = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    assert result.exit_code == 0, result.output
    assert "compute capability" in found["gpu"]["found"]
    assert "driver" in found["gpu"]["found"]
    for name in ("cuda of the driver", "cuda-bindings", "tensorrt package", "nvml", "backend tensorrt on cuda"):
        assert found[name]["good"], found[name]
    assert any(name.startswith("precisions of ") for name in found)
