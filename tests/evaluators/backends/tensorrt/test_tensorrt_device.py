"""The GPU below TensorRT, by the stand-in: none that is visible, a driver that does not do, no room for a context."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any

import pytest

from evaluators.backends.nvidia import discovery
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.engine import DeviceError, OutOfMemoryError, RefusedError
from search.errors import BitfrontError, TargetError
from tests.support.assignments import uniform_and_mixed
from tests.support.networks import loaded, ranged
from tests.support.tensorrt.fake_cuda import FakeCuda
from tests.support.tensorrt.stand_in import PATHS, standing_in


class Code(enum.IntEnum):
    cudaErrorInitializationError = 3  # noqa: N815
    cudaErrorInsufficientDriver = 35  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815
    cudaErrorUnknown = 999  # noqa: N815


@pytest.mark.parametrize(
    ("code", "driver", "said"),
    [
        (100, "13.0", "no CUDA device is visible (CUDA error 100, with CUDA_VISIBLE_DEVICES=''): check CUDA_VIS"),
        (35, "12.2", "the driver, which supports CUDA 12.2, is too old for this CUDA (CUDA error 35): install a newer"),
        (35, None, "there is no driver (CUDA error 35): install a newer NVIDIA driver"),
        (3, "12.2", "the driver does not work (CUDA error 3: cudaErrorInitializationError). Check whether nvidia-smi"),
        (999, "12.2", "the driver does not work (CUDA error 999: cudaErrorUnknown). Check whether nvidia-smi"),
    ],
)
def test_each_way_to_have_no_gpu_has_its_advice(
    monkeypatch: pytest.MonkeyPatch, code: int, driver: str | None, said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(discovery, "driver_version", lambda: driver)
    monkeypatch.setattr(FakeCuda, "cudaGetDeviceCount", lambda self: (Code(code), 0))
    monkeypatch.setattr(FakeCuda, "cudaGetErrorString", lambda self, e: (0, Code(e).name.encode()))
    with standing_in(PATHS[0][0]), pytest.raises(TargetError) as error:
        TensorRTBackend("cuda:0")
    assert str(error.value).startswith(f"--device cuda:0: {said}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("visible", "said"), [(None, "1 GPU, counted from cuda:0."), ("7", "VISIBLE_DEVICES='7'.")])
def test_a_number_that_no_gpu_has_is_refused(monkeypatch: pytest.MonkeyPatch, visible: str | None, said: str) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with standing_in(PATHS[0][0]), pytest.raises(TargetError) as error:
        TensorRTBackend("cuda:1")
    assert str(error.value).startswith("--device cuda:1: this process sees 1 GPU, counted from cuda:0")
    assert str(error.value).endswith(said)


@pytest.mark.parametrize(
    ("logged", "free_bytes", "kind", "said"),
    [
        ([], 1 << 36, RefusedError, "could not create an execution context: TensorRT gives no reason"),
        (["4: the profile is of no use"], 1 << 36, RefusedError, "execution context: 4: the profile is of no use"),
        (["2: Requested GPU memory (9 bytes) could not be allocated"], 1 << 36, OutOfMemoryError, "Requested"),
        (["1: Cuda Runtime (out of memory)"], 1 << 36, OutOfMemoryError, "context: 1: Cuda Runtime"),
        (["1: an illegal memory access was encountered"], 1 << 36, DeviceError, "illegal memory access"),
        ([], 1 << 20, OutOfMemoryError, "1 MiB of the GPU's 131072 MiB left"),
    ],
)
@pytest.mark.parametrize(("version", "typing"), PATHS)
def test_a_context_that_is_not_to_be_had_is_out_of_memory_only_where_memory_is_why(
    version: str,
    typing: str,
    logged: list[str],
    free_bytes: int,
    kind: type[BitfrontError],
    said: str,
    tmp_path: Path,
) -> None:
    with standing_in(version) as engines:
        builder = TensorRTBackend("cuda", TensorRTOptions(typing=typing)).builder(
            loaded("residual"), ranged("residual")
        )
        engine = builder.build(builder.lower(uniform_and_mixed(builder.model)[0]), tmp_path / "model.plan")

        def refuse(engine: Any, **_: Any) -> None:
            for line in logged:
                builder.log.log(type(builder.log).ERROR, line)

        def unpack(runtime: Any, serialized_engine: bytes) -> Any:
            runtime.logger.log(type(runtime.logger).ERROR, "out of memory for a tactic, which is no more of import")
            return deserialize(runtime, serialized_engine)

        deserialize = engines.fake.behaviours["Runtime.deserialize_cuda_engine"]
        engines.fake.behaviours["Runtime.deserialize_cuda_engine"] = unpack
        engines.fake.behaviours["ICudaEngine.create_execution_context"] = refuse
        engines.cuda.free_bytes = free_bytes
        with pytest.raises(BitfrontError, match=said) as error:
            builder.load(engine.path)
        assert type(error.value) is kind
