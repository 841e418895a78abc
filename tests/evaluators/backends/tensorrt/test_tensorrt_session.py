"""What a TensorRT session takes as inputs, over a stand-in with TensorRT's own signatures."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.backends.tensorrt.session import inspect_plan, open_plan
from search.errors import DataError
from search.graph.model import ShapeRequest, load
from tests.support.assignments import uniform_and_mixed
from tests.support.networks import feeds, loaded, ranged, residual_cnn, save
from tests.support.tensorrt.fake_cuda import Error
from tests.support.tensorrt.stand_in import V8, V10, standing_in


@pytest.mark.parametrize("version", [V8, V10])
def test_inputs_of_another_shape_are_refused(tmp_path: Path, version: str) -> None:
    """numpy would repeat a batch of one to fill a batch of four."""
    model = loaded("residual")
    with standing_in(version):
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        engine = builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "a.plan")
        session = builder.load(engine.path)
        image = feeds(model)["image"]
        session.run({"image": image})
        held = session._host["image"].copy()
        says = r"running the engine: its input image is 4x3x16x16, and the data are {}\. Give it batches"
        for wrong, shape in (
            (image[:1], "1x3x16x16"),
            (image[0], "3x16x16"),
            (image[:, :, :, :1], "4x3x16x1"),
            (np.float32(1).reshape(()), "a single number"),
            (np.concatenate([image, image]), "8x3x16x16"),
        ):
            for ask in (session.run, session.bind, lambda inputs: session.profile(inputs, 1)):
                with pytest.raises(DataError, match=says.format(shape)):
                    ask({"image": wrong})
        np.testing.assert_array_equal(session._host["image"], held)
        session.close()


@pytest.mark.parametrize("version", [V8, V10])
def test_a_dynamic_engine_runs_each_batch_at_its_shape_and_is_timed_at_the_bound_one(
    tmp_path: Path, version: str
) -> None:
    low, best, high = ((n, 3, 16, 16) for n in (1, 4, 8))
    path = save(residual_cnn(batch="n"), tmp_path / "net.onnx")
    model = load(path, shapes={"image": ShapeRequest(low, best, high)})
    with standing_in(version):
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        session = builder.load(builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "a.plan").path)
        image = feeds(model)["image"]
        session.bind({"image": image})
        for count in (1, 8, 4, 2):
            wanted = np.resize(image, (count, *image.shape[1:]))
            assert session.run({"image": wanted})["logits"].shape == (count, 10)
            np.testing.assert_array_equal(session._host["image"], wanted)
        assert len(session.time(2)) == 2
        np.testing.assert_array_equal(session._host["image"], image)
        with pytest.raises(DataError, match=r"its input image is 4x3x16x16, and the data are 9x3x16x16"):
            session.run({"image": np.resize(image, (9, 3, 16, 16))})
        assert session.run({"image": image})["logits"].shape == (4, 10)
        session.close()


@pytest.mark.parametrize("version", [V8, V10])
def test_a_capture_leaves_the_default_stream_to_others(tmp_path: Path, version: str) -> None:
    """A serving process may have other libraries that copy and compute on it while a first request is captured."""
    model = loaded("residual")
    with standing_in(version) as engines:
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        session = builder.load(builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "a.plan").path)
        cuda, array, errors = engines.cuda, np.zeros(4, np.float32), []
        pointer, execute = (
            cuda.cudaMalloc(array.nbytes)[1],
            engines.fake.behaviours["IExecutionContext.execute_async_v3"],
        )

        def execute_beside_a_copy(context: Any, stream_handle: Any) -> Any:
            if cuda.capturing:
                kind = cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
                errors.append(cuda.cudaMemcpy(pointer, array.ctypes.data, array.nbytes, kind)[0])
            return execute(context, stream_handle)

        engines.fake.behaviours["IExecutionContext.execute_async_v3"] = execute_beside_a_copy
        session.run(feeds(model))
        session.close()
    assert errors == [Error.cudaSuccess]


@pytest.mark.parametrize("version", [V8, V10])
def test_a_capture_leaves_other_streams_to_other_threads(tmp_path: Path, version: str) -> None:
    """A guard compares an answer in one thread while another one captures the first request of the other engine."""
    model = loaded("residual")
    with standing_in(version) as engines:
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        plan = builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "a.plan").path
        first, second = builder.load(plan), builder.load(plan)
        execute, answered = engines.fake.behaviours["IExecutionContext.execute_async_v3"], []

        def execute_beside_a_request(context: Any, stream_handle: Any) -> Any:
            if engines.cuda.capturing and not answered:
                answered.append("asked")
                thread = threading.Thread(target=lambda: answered.append(second.run(feeds(model))))
                thread.start()
                thread.join()
            return execute(context, stream_handle)

        engines.fake.behaviours["IExecutionContext.execute_async_v3"] = execute_beside_a_request
        expected = first.run(feeds(model))
        asked, got = answered
        assert asked == "asked"
        np.testing.assert_equal(got, expected)
        assert (first.notes, second.notes) == ((), ())
        first.close()
        second.close()


@pytest.mark.parametrize("version", [V8, V10])
def test_an_engine_with_dynamic_shapes_is_profiled_between_its_runs(tmp_path: Path, version: str) -> None:
    """Before version 10 the session's own context holds the only optimization profile."""
    low, best, high = ((n, 3, 16, 16) for n in (1, 4, 8))
    path = save(residual_cnn(batch="n"), tmp_path / "net.onnx")
    model = load(path, shapes={"image": ShapeRequest(low, best, high)})
    with standing_in(version) as engines:
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        session = builder.load(builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "a.plan").path)
        expected = session.run(feeds(model))
        times = session.profile(feeds(model), 3)
        assert times
        assert set(times.values()) == {0.5}
        np.testing.assert_equal(session.run(feeds(model)), expected)
        assert session.time(2).tolist() == [0.25] * 2
        assert session.notes == ()
        session.close()
        assert engines.cuda.graphs == 0, "a graph was not given back"


@pytest.mark.parametrize("version", [V8, V10])
def test_a_dynamic_plan_is_opened_without_its_model_at_the_shapes_it_was_optimized_for(
    tmp_path: Path, version: str
) -> None:
    """As a guard and a gate open the engine of an export."""
    low, best, high = ((n, 3, 16, 16) for n in (1, 4, 8))
    path = save(residual_cnn(batch="n"), tmp_path / "net.onnx")
    model = load(path, shapes={"image": ShapeRequest(low, best, high)})
    with standing_in(version):
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        plan = builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "a.plan").path
        assert ("N/A due to dynamic shapes" in inspect_plan(plan)) == (version == V8)
        session = open_plan(plan, "cuda")
        assert [spec.shape for spec in session.inputs] == [best]
        for count in (4, 2, 8):
            wanted = np.resize(feeds(model)["image"], (count, 3, 16, 16))
            assert session.run({"image": wanted})["logits"].shape == (count, 10)
        session.close()
