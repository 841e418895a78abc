"""Data of the fault step, and the faults: what the evaluator process does to itself when the file `plant` names one.

`samples` is given as `--data`, so the evaluator process imports this module when it opens its data; importing it wraps
`build` and `load` of the backend's builder. bitfront itself knows nothing of it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER_VARIABLE = "BITFRONT_FAULTS"
PLANT = "plant"
_BUILDERS = {
    "onnxruntime": ("evaluators.backends.onnxruntime", "OnnxRuntimeBuilder"),
    "tensorrt": ("evaluators.backends.tensorrt_builder", "TensorRTBuilder"),
}
_STORE_NOWHERE = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry store_nowhere()
{
    .reg .b64 %address;
    .reg .b32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
\0"""
_held: list[Any] = []


def samples() -> dict[str, NDArray[Any]]:
    """The arrays of `data.npz` in the step's folder; faults can happen from now on."""
    _wrap(os.environ["BITFRONT_FAULTS_BACKEND"])
    with np.load(_folder() / "data.npz") as file:
        return {name: file[name] for name in file.files}


def _wrap(backend: str) -> None:
    module, name = _BUILDERS[backend]
    builder = getattr(importlib.import_module(module), name)
    if not hasattr(builder, "unharmed"):
        builder.unharmed = (builder.build, builder.load)
        builder.build = _building(builder.build, backend)
        builder.load = _loading(builder.load, backend)


def _building(build: Callable[..., Any], backend: str) -> Callable[..., Any]:
    def harmed(self: Any, lowered: Any, out: Path) -> Any:
        fault = _planted()
        while fault == "endless" and _planted() == fault:
            build(self, lowered, out)
        if fault == "memory":
            take_all_memory(backend)
        if fault == "illegal_in_build":
            touch_nowhere(backend)
        engine = build(self, lowered, out)
        if fault in ("cut", "version"):
            (cut_short if fault == "cut" else other_version)(engine.path, backend)
        return engine

    return harmed


def _loading(load: Callable[..., Any], backend: str) -> Callable[..., Any]:
    def harmed(self: Any, path: Path) -> Any:
        session = load(self, path)
        if _planted() == "illegal":
            touch_nowhere(backend)
        return session

    return harmed


def _planted() -> str:
    file = _folder() / PLANT
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


# -- the faults ------------------------------------------------------------------------------------------------------


def take_all_memory(backend: str) -> None:
    """Of the device, to the last 64 KiB; without one, more and more of the machine until the keeper's limit ends it."""
    if backend != "tensorrt":
        while True:
            _held.append(np.ones(8 * 2**20))
            time.sleep(0.05)
    from cuda.bindings import runtime

    for step in (2**30, 2**26, 2**22, 2**20, 2**18, 2**16):
        while int((answer := runtime.cudaMalloc(step))[0]) == 0:
            _held.append(answer[1])
        runtime.cudaGetLastError()


def touch_nowhere(backend: str) -> None:
    """A store to an address that nobody has: by a kernel on the device, which poisons the process's CUDA context."""
    if backend != "tensorrt":
        ctypes.memset(8, 1, 1)
    from cuda.bindings import driver

    module = _done(driver.cuModuleLoadData(_STORE_NOWHERE))
    kernel = _done(driver.cuModuleGetFunction(module, b"store_nowhere"))
    _done(driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0))
    answer = driver.cuCtxSynchronize()
    print(f"planted an illegal memory access; the driver says {answer[0]!r}", flush=True)


def cut_short(path: Path, backend: str) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def other_version(path: Path, backend: str) -> None:
    """The file as another version of the engine would have written it."""
    if backend == "tensorrt":
        path.write_bytes(other_plan_version(path.read_bytes()))
        return
    import onnx

    model = onnx.load(str(path))
    model.ir_version = 999
    path.write_bytes(model.SerializeToString())


def other_plan_version(plan: bytes) -> bytes:
    """A plan with another serialization version (byte 8) and library version (bytes 24 to 27: major, minor, patch,
    build), as https://github.com/NVIDIA/TensorRT/issues/3073 says where they are.
    """
    header = bytearray(plan[:32])
    header[8] = (header[8] + 1) % 256
    header[24] = (header[24] + 1) % 256
    return bytes(header) + plan[32:]


def _done(answer: tuple[Any, ...]) -> Any:
    if int(answer[0]) != 0:
        raise RuntimeError(f"planting a fault: the driver says {answer[0]!r}")
    return answer[1] if len(answer) > 1 else None
