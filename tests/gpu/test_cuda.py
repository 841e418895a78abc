"""ONNX Runtime's CUDA provider, on a machine that has one: `pytest -m gpu`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evaluators.process.job import Job, StopLimits
from evaluators.process.keeper import EvaluatorProcess
from search.graph.model import load
from search.space.choices import make_space
from search.values import Answer, Assignment, Precision
from tests.support.networks import images, mobile_cnn, residual_cnn, save

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda():
    onnxruntime = pytest.importorskip("onnxruntime")
    if hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")


@pytest.mark.parametrize("network", [residual_cnn, mobile_cnn])
def test_mixes_of_half_and_float_run_as_asked(cuda, network, tmp_path):
    path = save(network(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", image=images(64))
    job = Job(str(path), str(tmp_path / "data.npz"), str(tmp_path / "work"), device="cuda", metric="sqnr")
    with EvaluatorProcess(job, tmp_path / "log") as process:
        process.ask().setup.try_out()
        ranges = process.ask().calibrations.calibrate("minmax").ranges
        (tmp_path / "ranges.json").write_text(json.dumps(ranges.to_json()))
        process.adopt(ranges=str(tmp_path / "ranges.json"))
        capability = process.description.capability
        assert {Precision.FP32, Precision.FP16, Precision.W8, Precision.W4} <= set(capability.precisions)
        assert process.description.target.statistic == "median"
        model = load(path)
        space = make_space(model, capability, ranges)
        mixed = Assignment({g.id: Precision.FP16 if i % 2 else Precision.FP32 for i, g in enumerate(model.groups)})
        for assignment in (*space.baselines.values(), mixed):
            found = process.evaluate(assignment, tmp_path / "out.onnx", StopLimits())
            assert found.failure is None, found.failure
            assert {row.answer for row in found.audit} == {Answer.OBEYED}, found.audit
            assert found.accuracy is not None
            assert found.accuracy.value > 50
