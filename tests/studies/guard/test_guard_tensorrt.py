"""The guard on TensorRT's engines, over a stand-in with its own signatures: GPUs of threads, and what is given back."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from studies.guard import Guard, GuardOptions
from tests.support.assignments import uniform_and_mixed
from tests.support.networks import feeds, loaded, ranged
from tests.support.tensorrt.fake_engine import FakeEngines
from tests.support.tensorrt.stand_in import V8, V10, standing_in

ALL = GuardOptions(share=1, window=5, queue=1000)


@pytest.fixture(params=[V8, V10])
def engines(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeEngines]:
    """A host with two GPUs, and the exports `fast` and `safe`."""
    model = loaded("residual")
    manifest = {"model": {"digest": model.digest}, "target": {"backend": "tensorrt", "options": {}}, "files": {}}
    with standing_in(request.param) as found:
        found.cuda.devices = 2
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        for name in ("fast", "safe"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "manifest.json").write_text(json.dumps(manifest))
            builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / name / "model.plan")
        yield found


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_every_thread_runs_engines_on_the_gpu_that_was_named(engines: FakeEngines, tmp_path: Path, device: str) -> None:
    """A thread of CUDA begins on the first GPU, whichever the thread that opened the engines is on."""
    told: list[str] = []
    wrong: list[Exception] = []
    inputs = feeds(loaded("residual"))
    with Guard.open(tmp_path / "fast", tmp_path / "safe", ALL, device=device, tell=told.append) as guard:

        def serve() -> None:
            try:
                guard.run(inputs)
            except Exception as error:
                wrong.append(error)

        for _ in range(3):
            thread = threading.Thread(target=serve)
            thread.start()
            thread.join()
        guard.drain()
        state = guard.state()
    assert (wrong, told) == ([], [])
    assert (state.compared, state.engine) == (3, "fast")


def test_a_guard_that_is_gone_gives_back_what_its_engines_held(engines: FakeEngines, tmp_path: Path) -> None:
    """A service that renews its engines opens one guard after another."""
    gc.collect()
    memory, streams = len(engines.cuda.memory), set(engines.cuda.streams)
    with Guard.open(tmp_path / "fast", tmp_path / "safe", ALL) as guard:
        guard.run(feeds(loaded("residual")))
        assert len(engines.cuda.memory) > memory
    del guard
    gc.collect()
    assert len(engines.cuda.memory) == memory
    assert engines.cuda.streams == streams
