"""The doctor names what is here and what is missing; a GPU and what belongs to it are stood in for."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bitfront.verbs import host_check
from bitfront.verbs.host_check import doctor
from evaluators.backends.kind import BackendKind, Check
from evaluators.backends.nvidia import discovery
from evaluators.backends.nvidia.doctor import precisions_text
from evaluators.backends.onnxruntime.kind import OnnxRuntimeKind
from evaluators.backends.tensorrt.kind import TensorRTKind
from evaluators.measure.device_lock import device_lock
from search.errors import TargetError
from search.installation import install_command
from tests.support.command_line import invoke
from tests.support.paths import ROOT

H200 = {"name": "NVIDIA H200", "driver_version": "580.82", "memory.total": "143771 MiB", "compute_cap": "9.0"}


def named(found: list[Check], name: str) -> Check:
    (check,) = [check for check in found if check.name == name]
    return check


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with an H200 and the packages that the test leaves in this mapping."""
    packages = {"onnxruntime": "1.23.2", "tensorrt": "10.11.0", "cuda-bindings": "12.9.1"}
    facts: dict[str, Any] = {"python": "3.12.3", "cpu": {"model": "AMD EPYC", "cores": 2}, "gpus": [H200]}
    monkeypatch.setattr(host_check.environment, "collect", lambda: {**facts, "packages": packages})
    monkeypatch.setattr(discovery, "driver_version", lambda: "12.8")
    return packages


def test_here() -> None:
    found = doctor()
    assert [check.name for check in found if not check.good] == []
    assert named(found, "python").found == ".".join(map(str, sys.version_info[:3]))
    backend = named(found, "backend onnxruntime on cpu")
    assert (
        "native precisions: fp32, w8, int8-dynamic, int8, w4 (fp16, bf16, wf8, fp8 not native here, so not offered)"
        in backend.found
    )
    assert "onnxruntime 1." in backend.found


def test_one_backend_decides_the_exit_code() -> None:
    assert invoke("doctor", "--backend", "onnxruntime").exit_code == 0
    alone = invoke("doctor", "--backend", "tensorrt", "--json")
    rows = json.loads(alone.stdout)["checks"]
    assert alone.exit_code == (0 if any(row["name"].startswith("backend") and row["good"] for row in rows) else 1)
    assert [row["name"] for row in rows if row["name"].startswith("backend")] == ["backend tensorrt on cuda"]
    refused = invoke("doctor", "--backend", "coreml")
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    with pytest.raises(TargetError, match="known are auto, tensorrt, onnxruntime"):
        doctor("coreml")


@pytest.mark.parametrize(
    ("capability", "has", "has_not"),
    [
        ("9.0", ["TF32", "fp16 on tensor cores", "int8 on tensor cores", "fp8 on tensor cores"], ["fp4"]),
        ("10.0", ["fp8 on tensor cores", "has fp4,"], []),
        ("8.6", ["TF32", "bf16 on tensor cores", "no native fp8"], []),
        ("7.5", ["fp16 on tensor cores", "int8 on tensor cores", "no native bf16"], ["TF32"]),
        ("7.0", ["fp16 on tensor cores", "int8 without tensor cores"], ["TF32"]),
        ("6.1", ["no native fp16", "int8 without tensor cores"], []),
        ("6.0", ["fp16 without tensor cores", "no native int8"], []),
        ("5.2", ["no native fp16", "no native int8"], []),
        ("[N/A]", ["unknown compute capability '[N/A]'"], ["fp16"]),
    ],
)
def test_precisions_of_gpus(capability: str, has: list[str], has_not: list[str]) -> None:
    text = precisions_text(capability)
    assert all(part in text for part in has), text
    assert not any(part in text for part in has_not), text


def test_a_gpu_and_what_belongs_to_it(gpu: dict[str, str]) -> None:
    found = doctor()
    assert named(found, "gpu").found == "NVIDIA H200, 143771 MiB, compute capability 9.0, driver 580.82"
    assert "int8 on tensor cores" in named(found, "precisions of NVIDIA H200").found
    assert named(found, "cuda of the driver") == Check("cuda of the driver", True, "12.8")
    assert named(found, "tensorrt package").found == "tensorrt 10.11.0"
    environment = named(found, "environment")
    assert environment.good
    assert "tensorrt 10.11.0 is newer than 8.6.0; python 3.12.3 is newer than 3.10" in environment.found
    # Neither is installed where these tests run without a GPU; where it is, the line is good.
    assert {"backend onnxruntime on cuda", "backend tensorrt on cuda", "nvml"} <= {check.name for check in found}
    assert all(check.advice or check.found for check in found if not check.good)


@pytest.mark.parametrize(
    ("change", "name", "advice"),
    [
        ({"cuda-bindings": None}, "cuda-bindings", "pip install 'cuda-bindings==12.*'"),
        ({"cuda-bindings": "13.0.1"}, "cuda-bindings", "pip install 'cuda-bindings==12.*', or update the driver."),
        ({"tensorrt": None}, "tensorrt package", "pip install 'tensorrt-cu12' 'cuda-bindings==12.*'"),
        ({"onnxruntime": None}, "onnxruntime", f"{install_command('cpu')}; it also calibrates."),
        ({"onnxruntime-gpu": "1.23.2"}, "onnxruntime", "pip uninstall onnxruntime onnxruntime-gpu"),
    ],
)
def test_what_is_missing_comes_with_its_command(
    gpu: dict[str, str], change: dict[str, str | None], name: str, advice: str
) -> None:
    gpu.update({key: value for key, value in change.items() if value is not None})
    for key in [key for key, value in change.items() if value is None]:
        del gpu[key]
    bad = [check for check in doctor() if check.name == name and not check.good]
    assert len(bad) == 1
    assert advice in bad[0].advice


def test_a_gpu_that_nvidia_smi_does_not_name(monkeypatch: pytest.MonkeyPatch, gpu: dict[str, str]) -> None:
    collected = host_check.environment.collect()
    monkeypatch.setattr(host_check.environment, "collect", lambda: {**collected, "gpus": []})
    line = named(doctor(), "gpu")
    assert not line.good
    assert "--gpus all" in line.advice
    monkeypatch.setattr(discovery, "driver_version", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert named(doctor(), "gpu").good
    assert named(doctor("onnxruntime"), "gpu").good
    line = named(doctor("tensorrt"), "gpu")
    assert (line.good, line.found) == (False, "none: no nvidia-smi and no NVIDIA driver here")
    assert line.advice.startswith("Backend tensorrt runs only on an NVIDIA GPU. Use a machine with a GPU")


@pytest.mark.filterwarnings("ignore:Specified provider 'CUDAExecutionProvider'")
def test_a_cuda_provider_that_is_built_in_and_does_not_load(
    monkeypatch: pytest.MonkeyPatch, gpu: dict[str, str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime may load CUDA")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    line = named(doctor("onnxruntime"), "backend onnxruntime on cuda")
    assert (line.good, line.found) == (False, "cannot run")
    assert "cannot be loaded, so the model would run on the CPU" in line.advice
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]==" in line.advice


@pytest.mark.slow
def test_a_gpu_that_is_being_measured_is_left_alone(
    gpu: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_check, "_LOCK_WAIT_S", 0.1)
    monkeypatch.setattr(discovery, "lock_name", lambda index: f"doctor-test-{tmp_path.name}")
    opened: list[str] = []

    def open_kind(kind: BackendKind, device: str, options: Any) -> Any:
        opened.append(device)
        raise TargetError("not on this machine")

    for kind in (OnnxRuntimeKind, TensorRTKind):
        monkeypatch.setattr(kind, "open", open_kind)
    hold = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from evaluators.measure.device_lock import device_lock\n"
        f"with device_lock({discovery.lock_name(0)!r}): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        busy = [check for check in doctor() if check.name.endswith("on cuda")]
        assert [check.good for check in busy] == [True, True]
        assert all("another bitfront process is measuring" in check.found for check in busy)
        assert "cuda" not in opened
    finally:
        holder.communicate("")
    assert [check.found for check in doctor() if check.name.endswith("on cuda")] == ["cannot run"] * 2
    with device_lock(discovery.lock_name(0), timeout_s=1):
        pass  # the doctor gave it back
