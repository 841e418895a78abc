"""A TensorRT that cannot work on this machine, or only in part: what is told, and what the doctor makes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bitfront.verbs import host_check
from bitfront.verbs.host_check import doctor
from evaluators.backends.kind import Check
from evaluators.backends.nvidia import discovery
from evaluators.backends.nvidia.doctor import precisions_text
from evaluators.backends.tensorrt import api as tensorrt_api
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.kind import TensorRTKind
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.engine import OutOfMemoryError
from search.errors import TargetError
from search.values import Precision
from tests.support.command_line import invoke, write_inputs
from tests.support.networks import loaded, ranged
from tests.support.tensorrt.fake_cuda import Error, FakeCuda
from tests.support.tensorrt.fake_engine import FakeEngines
from tests.support.tensorrt.stand_in import V8, V10, V11, standing_in

REASON = "CUDA initialization failure with error: 35. Please check your CUDA installation"
H200 = {"name": "NVIDIA H200", "driver_version": "580.82", "memory.total": "143771 MiB", "compute_cap": "9.0"}


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with an H200, a driver for CUDA 12.8, and the packages that the test leaves in this mapping."""
    found = {"onnxruntime": "1.23.2", "tensorrt": "10.11.0", "cuda-bindings": "12.9.1"}
    facts = {"python": "3.12.3", "cpu": {"model": "AMD EPYC", "cores": 2}, "gpus": [H200], "packages": found}
    monkeypatch.setattr(host_check.environment, "collect", lambda: facts)
    monkeypatch.setattr(discovery, "driver_version", lambda: "12.8")
    return found


def refuse(engines: FakeEngines, kind: str, *lines: str) -> None:
    """Let TensorRT make no object of a kind: it logs why, and the bindings raise what they raise of a null pointer."""

    def construct(made: Any, logger: Any) -> None:
        for line in lines:
            logger.log(type(logger).ERROR, line)
        raise TypeError("pybind11::init(): factory function returned nullptr")

    engines.fake.behaviours[f"{kind}.__init__"] = construct


def backend_line(found: list[Check]) -> Check:
    (line,) = [check for check in found if check.name == "backend tensorrt on cuda"]
    return line


# -- a package that does not load --------------------------------------------------------------------------------------


@pytest.fixture(params=["OSError", "ImportError"])
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A tensorrt whose libraries are not there, as its package or the dynamic loader says it."""
    (tmp_path / "tensorrt.py").write_text(f"raise {request.param}('libnvinfer.so.10: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tensorrt", raising=False)


@pytest.mark.usefixtures("broken")
def test_a_package_that_does_not_load_is_a_target_error() -> None:
    with pytest.raises(TargetError, match=r"cannot be loaded \((OS|Import)Error: libnvinfer\.so\.10: cannot open"):
        tensorrt_api.import_tensorrt()


@pytest.mark.usefixtures("broken", "packages")
def test_the_doctor_outlives_a_package_that_does_not_load() -> None:
    found = doctor()
    line = backend_line(found)
    assert (line.good, line.found) == (False, "cannot run")
    assert "libnvinfer.so.10" in line.advice
    assert any(check.name == "backend onnxruntime on cpu" and check.good for check in found)


@pytest.mark.usefixtures("broken")
def test_layers_refuses_a_package_that_does_not_load_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    result = invoke("inspect", "in/model.onnx", "--backend", "tensorrt")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.stderr
    assert "libnvinfer.so.10" in result.stderr


# -- a device that cannot be used --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("error", [Error.cudaErrorDevicesUnavailable, Error.cudaErrorMemoryAllocation])
def test_the_doctor_outlives_a_device_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, error: Error) -> None:
    monkeypatch.setattr(FakeCuda, "cudaSetDevice", lambda self, device: (error,))
    with standing_in(V10):
        found = doctor()
    line = backend_line(found)
    assert (line.good, line.found) == (False, "cannot run")
    assert line.advice.startswith(f"opening cuda:0: CUDA error {int(error)}: {error.name}. Check with nvidia-smi")
    assert any(check.name == "tensorrt package" for check in found)


@pytest.mark.usefixtures("packages")
def test_the_doctor_outlives_whatever_a_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> Any:
        raise AttributeError("module 'cuda.bindings.runtime' has no attribute 'cudaGetDeviceCount'")

    monkeypatch.setattr(TensorRTKind, "open", break_down)
    assert "AttributeError: module 'cuda.bindings.runtime'" in backend_line(doctor()).advice


# -- no builder, no runtime --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("version", [V8, V10, V11])
@pytest.mark.parametrize("kind", ["Builder", "Runtime"])
def test_the_doctor_says_why_no_engine_can_be_built_or_loaded(version: str, kind: str) -> None:
    with standing_in(version) as engines:
        assert backend_line(doctor()).good
        refuse(engines, kind, REASON)
        line = backend_line(doctor())
    assert not line.good
    assert f"TensorRT {version} cannot make a {kind.lower()} here: {REASON}" in line.advice
    assert "docs/tensorrt.md" in line.advice


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        ("Builder", lambda backend, model: backend.float_session(model)),
        ("Runtime", lambda backend, model: backend.builder(model, ranged("residual"))),
        ("Builder", lambda backend, model: backend.builder(model, ranged("residual")).build_free(Path("never"))),
    ],
)
def test_what_no_candidate_could_survive_is_no_refusal_of_one(
    kind: str, ask: Callable[[TensorRTBackend, Any], object]
) -> None:
    with standing_in(V10) as engines:
        backend = TensorRTBackend("cuda", TensorRTOptions(typing="weak"))
        refuse(engines, kind, "1: ", REASON)
        with pytest.raises(TargetError, match=f"cannot make a {kind.lower()} here: {REASON}") as error:
            ask(backend, loaded("residual"))
        assert "\n" not in str(error.value)
        refuse(engines, kind, "1: ")
        engines.cuda.free_bytes = 1 << 20
        with pytest.raises(OutOfMemoryError, match="1 MiB of the GPU's 131072 MiB left"):
            ask(backend, loaded("residual"))
        engines.cuda.free_bytes = 1 << 36
        refuse(engines, kind)  # not a word: then what the bindings say
        with pytest.raises(TargetError, match="factory function returned nullptr"):
            ask(backend, loaded("residual"))


@pytest.mark.slow
def test_a_search_is_refused_with_tensorrts_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path / "in")
    monkeypatch.setenv("BITFRONT_TEST_TENSORRT", V10)
    monkeypatch.setenv("BITFRONT_TEST_NO_BUILDER", REASON)
    inputs = ("in/model.onnx", "--data", "in/data.npz", "--study", "s", "--backend", "tensorrt")
    result = invoke("search", *inputs, "--trials", 4)
    assert result.exit_code == 2, result.output
    assert f"TensorRT {V10} cannot make a builder here: {REASON}" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


# -- packages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("installed", "good", "says"),
    [
        ({"tensorrt-cu12": "10.11.0"}, True, "tensorrt-cu12 10.11.0"),
        ({"tensorrt-cu12-bindings": "10.11.0"}, True, "tensorrt-cu12-bindings 10.11.0"),
        ({"tensorrt": "8.6.1", "tensorrt-bindings": "8.6.1"}, True, "tensorrt 8.6.1"),
        (
            {"tensorrt": "11.4.0", "tensorrt-cu13": "11.4.0"},
            False,
            "needs a newer driver than this one, which supports CUDA 12.8",
        ),
        ({}, False, "not installed"),
    ],
)
def test_the_package_of_tensorrt(
    packages: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    installed: dict[str, str],
    good: bool,
    says: str,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    del packages["tensorrt"]
    packages |= installed
    (line,) = [check for check in doctor("tensorrt") if check.name == "tensorrt package"]
    assert line.good is good
    assert says in line.found
    assert good or "pip install 'tensorrt-cu12' 'cuda-bindings==12.*'" in line.advice


def test_a_tensorrt_of_the_system_is_found_too(packages: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    del packages["tensorrt"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "tensorrt" else None)
    (line,) = [check for check in doctor("tensorrt") if check.name == "tensorrt package"]
    assert line.good


# -- what a GPU has natively -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute_capability", "native"),
    [
        ((9, 0), {Precision.FP32, Precision.FP16, Precision.INT8}),
        ((7, 0), {Precision.FP32, Precision.FP16, Precision.INT8}),
        ((6, 0), {Precision.FP32, Precision.FP16}),
        ((6, 1), {Precision.FP32, Precision.INT8}),
        ((5, 2), {Precision.FP32}),
    ],
)
def test_only_what_the_gpu_has_natively_is_offered(
    monkeypatch: pytest.MonkeyPatch, compute_capability: tuple[int, int], native: set[Precision]
) -> None:
    major, minor = compute_capability
    properties = SimpleNamespace(name=b"Fake GPU\x00", major=major, minor=minor)
    monkeypatch.setattr(FakeCuda, "cudaGetDeviceProperties", lambda self, device: (Error(0), properties))
    with standing_in(V8):
        offered = set(TensorRTBackend("cuda").capability().precisions)
    assert offered == native
    said = precisions_text(f"{major}.{minor}")
    assert ("no native fp16" in said, "no native int8" in said) == (
        Precision.FP16 not in native,
        Precision.INT8 not in native,
    )
