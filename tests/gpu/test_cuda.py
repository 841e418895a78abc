"""ONNX Runtime's CUDA provider, on a machine that has one: `pytest -m gpu`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.emulation import Emulator
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.process.job import Job, StopLimits
from evaluators.process.keeper import EvaluatorProcess
from search.graph.model import load
from search.space.choices import make_space
from search.values import Answer, Assignment, Precision
from tests.support.networks import Net, feeds, finish, images, mobile_cnn, observed, residual_cnn, save, sqnr_db

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


@pytest.mark.parametrize("rows", [1, 5, 8, 16])
def test_weights_alone_in_floats_of_eight_bits_run_as_emulated(cuda, rows, tmp_path):
    """Up to 8 rows by a kernel of their own, beyond by one of FP16; with a bias, one added behind, and none."""
    n = Net(4)
    x = n.op("Relu", [n.gemm("x", "up", 64, 512)], "relu")
    x = n.op("Relu", [n.linear(x, "middle", 512, 512)], "relu2")
    n.op("MatMul", [x, n.random("down.w", 512, 96, fan_in=512)], "down")
    n.nodes[-1].output[0] = "y"
    model = load(save(finish(n, {"x": [rows, 64]}, {"y": [rows, 96]}), tmp_path / "model.onnx"))
    backend, ranges = OnnxRuntimeBackend("cuda"), observed(model)
    space = make_space(model, backend.capability(), ranges)
    assert Precision.WF8 in space.precisions
    builder, exact = backend.builder(model, ranges), backend.float_session(model).run(feeds(model))["y"]
    kinds = {Precision.WF8: 50, Precision.FP32: 50, Precision.FP16: 50, Precision.BF16: 40}
    for beside, least_db in (kinds | ({Precision.W8: 50} if rows == 1 else {})).items():
        mix = space.nearest({"g000": Precision.WF8, "g001": beside, "g002": Precision.WF8})
        engine = builder.build(builder.lower(mix), tmp_path / f"{beside.label}.onnx")
        audit = builder.audit(engine, mix).rows
        assert {row.answer for row in audit} == {Answer.OBEYED}, audit
        assert audit[0].kernel == "MatMulBlockQuantizedFp8Weight"
        session = builder.load(engine.path)
        found = np.asarray(session.run(feeds(model))["y"])
        emulated = Emulator(OnnxRuntimeBackend("cpu"), backend.placement).open(
            spelled_out(lower(model, mix, ranges, backend.placement))
        )
        assert sqnr_db(emulated.run(feeds(model))["y"], found) >= least_db, beside
        assert 20 < sqnr_db(exact, found) < 45, beside
        assert any(each.group == "g000" for each in builder.profile(engine.path, feeds(model), 5))
        session.close()


def test_it_is_emulated_with_cuda_too(cuda, tmp_path):
    """Sensitivities and losses are those of the processor: ONNX Runtime folds the weights, which CUDA cannot read."""
    n = Net(4)
    n.gemm("x", "up", 64, 512)
    n.nodes[-1].output[0] = "y"
    model = load(save(finish(n, {"x": [4, 64]}, {"y": [4, 512]}), tmp_path / "model.onnx"))
    backend, ranges, mix = OnnxRuntimeBackend("cuda"), observed(model), Assignment({"g000": Precision.WF8})
    outputs = [
        Emulator(each, backend.placement).open(spelled_out(lower(model, mix, ranges, backend.placement)))
        for each in (backend, OnnxRuntimeBackend("cpu"))
    ]
    assert sqnr_db(*(each.run(feeds(model))["y"] for each in outputs)) > 60
