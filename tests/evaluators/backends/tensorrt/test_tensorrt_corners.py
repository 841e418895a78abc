"""TensorRT, by its stand-in, where a context, a graph or an output's size is not to be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.engine import OutOfMemoryError
from search.errors import ModelError
from search.graph.model import ShapeRequest, load
from tests.support.assignments import uniform_and_mixed
from tests.support.networks import feeds, loaded, ranged, residual_cnn, save
from tests.support.tensorrt.fake_cuda import Error
from tests.support.tensorrt.stand_in import PATHS, V10, found_pixels, standing_in


@pytest.mark.parametrize(("version", "typing"), PATHS)
def test_no_memory_for_a_context_is_out_of_memory_wherever_one_is_made(
    version: str, typing: str, tmp_path: Path
) -> None:
    shapes = {"image": ShapeRequest(*((n, 3, 16, 16) for n in (1, 4, 8)))}
    model = load(save(residual_cnn(batch="n"), tmp_path / "net.onnx"), shapes=shapes)
    with standing_in(version) as engines:
        builder = TensorRTBackend("cuda", TensorRTOptions(typing=typing)).builder(model, ranged("residual"))
        assignment = uniform_and_mixed(model)[0]
        engine = builder.build(builder.lower(assignment), tmp_path / "model.plan")

        def refuse(engine: object, **_: object) -> None:
            builder.log.log(type(builder.log).ERROR, "Requested amount of GPU memory (9 bytes) could not be allocated.")

        engines.fake.behaviours["ICudaEngine.create_execution_context"] = refuse
        for ask in (lambda: builder.audit(engine, assignment), lambda: builder.load(engine.path)):
            with pytest.raises(OutOfMemoryError, match="could not create an execution context"):
                ask()


@pytest.mark.parametrize("step", ["cudaStreamEndCapture", "cudaGraphInstantiate"])
def test_where_no_graph_can_be_made_kernels_are_enqueued_and_it_is_said(step: str, tmp_path: Path) -> None:
    with standing_in(V10) as engines:
        model = loaded("residual")
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        engine = builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "model.plan")
        session = builder.load(engine.path)

        def failing(*_: object) -> tuple[object, object]:
            engines.cuda.captured.clear()
            return Error.cudaErrorInvalidValue, None

        sys.modules["cuda.bindings.runtime"].__dict__[step] = failing
        assert session.run(feeds(model))["logits"].shape == (4, 10)
        assert session.time(2).tolist() == [0.25] * 2
        assert session.notes == (
            "launches could not be captured in a CUDA graph, so the latency includes their overhead",
        )
        assert engines.cuda.launched == 0
        session.close()
        assert engines.cuda.graphs == 0, "a graph was not given back"


@pytest.mark.slow
@pytest.mark.parametrize(("version", "typing"), PATHS)
@pytest.mark.parametrize("batch", [4, "n"])
def test_an_output_whose_size_the_data_decide_is_refused_before_anything_is_built(
    version: str, typing: str, batch: int | str, tmp_path: Path
) -> None:
    shapes = {"image": ShapeRequest(*((n, 3, 8, 8) for n in (1, 4, 8)))} if batch == "n" else {}
    model = load(found_pixels(tmp_path, batch), shapes=shapes)
    with (
        standing_in(version),
        pytest.raises(ModelError, match=r"'pixels' depends on the data.* Cut the model") as error,
    ):
        TensorRTBackend("cuda", TensorRTOptions(typing=typing)).float_session(model)
    assert "\n" not in str(error.value)
